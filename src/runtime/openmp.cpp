// SPDX-License-Identifier: Apache-2.0
#include "runtime/openmp.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <string_view>

#include "base/error.h"

namespace moebius {

namespace {

// Stores the handle of the first loaded library that is an OpenMP runtime; a callback of
// dl_iterate_phdr.
int take_runtime(dl_phdr_info* info, size_t, void* to) {
  const std::string_view path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
  const std::string_view name = path.substr(path.rfind('/') + 1);
  for (const std::string_view known : {"libgomp", "libiomp5", "libomp"})
    if (name.starts_with(known)) {
      *static_cast<void**>(to) = dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
      return *static_cast<void**>(to) != nullptr ? 1 : 0;
    }
  return 0;
}

template <class Function>
void find(void* library, const char* name, Function& to) {
  to = reinterpret_cast<Function>(dlsym(library, name));
}

}  // namespace

const OpenMp* OpenMp::loaded() {
  void* library = nullptr;
  dl_iterate_phdr(take_runtime, static_cast<void*>(&library));
  if (library == nullptr) return nullptr;
  // Never closed: threads of the runtime's team may sleep inside it.
  static const OpenMp* const kFound = [&]() -> const OpenMp* {
    static OpenMp omp;
    find(library, "GOMP_parallel", omp.parallel_);
    find(library, "omp_get_thread_num", omp.thread_);
    find(library, "omp_get_num_threads", omp.count_);
    find(library, "omp_in_parallel", omp.in_parallel_);
    find(library, "omp_get_max_threads", omp.most_);
    const bool whole = omp.parallel_ != nullptr && omp.thread_ != nullptr &&
                       omp.count_ != nullptr && omp.in_parallel_ != nullptr && omp.most_ != nullptr;
    return whole ? &omp : nullptr;
  }();
  return kFound;
}

void OpenMp::run(size_t threads, FunctionRef<void(size_t, size_t)> fn) const {
  struct Call {
    const OpenMp* omp;
    FunctionRef<void(size_t, size_t)>* fn;
  } call{this, &fn};
  const auto member = [](void* data) {
    const Call& c = *static_cast<Call*>(data);
    (*c.fn)(static_cast<size_t>(c.omp->thread_()), static_cast<size_t>(c.omp->count_()));
  };
  parallel_(member, &call, static_cast<unsigned>(threads), 0);
}

size_t OpenMp::most_threads() const { return static_cast<size_t>(std::max(1, most_())); }

CpuList openmp_places(size_t threads) {
  const OpenMp* omp = OpenMp::loaded();
  if (omp == nullptr)
    fail_at({"state", "", "", "", "backend"},
            "no OpenMP runtime (libgomp, libiomp5, libomp) is loaded in this process; load torch "
            "first, or use threads of the library's own");
  CpuList list;
  list.cpus.assign(threads == 0 ? omp->most_threads() : threads, kOpenMpPlace);
  return list;
}

}  // namespace moebius
