// SPDX-License-Identifier: Apache-2.0
// A malloc that fails at random, for a program that is started with this in LD_PRELOAD. The file that FAILING_MALLOC names is mapped and
// shared with whoever tests: while its rate is r > 0, one allocation in r fails, chosen by a counter that goes on from the seed. Fails
// what the tool, libmoebius and the libraries below them ask for; the dynamic loader (it ends the process) and, where `only_ours` is set,
// everything but libmoebius and libstdc++ (Python) have what they want. Before main() nothing fails.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>

extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* p, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
}

namespace {

struct Control {  // as tests/checks/check_malloc.py writes it
  std::atomic<uint64_t> rate;
  std::atomic<uint64_t> draws;  // begins at the seed
  std::atomic<uint64_t> asked;
  std::atomic<uint64_t> failed;
  std::atomic<uint64_t> only_ours;
};
static_assert(sizeof(Control) == 5 * sizeof(uint64_t));

Control* control = nullptr;
bool in_main = false;

[[gnu::constructor]] void open_control() {
  const char* path = std::getenv("FAILING_MALLOC");
  const int fd = path != nullptr ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (fd < 0) return;
  void* page = mmap(nullptr, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (page != MAP_FAILED) control = static_cast<Control*>(page);
}

uint64_t mixed(uint64_t z) {
  z += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

bool may_fail(const void* caller) {
  Dl_info object{};
  if (dladdr(caller, &object) == 0 || object.dli_fname == nullptr) return false;
  const char* slash = std::strrchr(object.dli_fname, '/');
  const char* name = slash != nullptr ? slash + 1 : object.dli_fname;
  if (std::strncmp(name, "ld-", 3) == 0 || std::strncmp(name, "ld.", 3) == 0) return false;
  return control->only_ours == 0 || std::strncmp(name, "libmoebius", 10) == 0 ||
         std::strncmp(name, "libstdc++", 9) == 0;
}

bool fails(const void* caller) {
  if (control == nullptr || !in_main) return false;
  const uint64_t rate = control->rate.load(std::memory_order_relaxed);
  if (rate == 0) return false;
  control->asked.fetch_add(1, std::memory_order_relaxed);
  if (mixed(control->draws.fetch_add(1, std::memory_order_relaxed)) % rate != 0 ||
      !may_fail(caller))
    return false;
  control->failed.fetch_add(1, std::memory_order_relaxed);
  errno = ENOMEM;
  return true;
}

using Main = int (*)(int, char**, char**);
Main real_main = nullptr;
int main_that_fails(int argc, char** argv, char** environment) {
  in_main = true;
  return real_main(argc, argv, environment);
}

}  // namespace

extern "C" {

void* malloc(size_t bytes) {
  return fails(__builtin_return_address(0)) ? nullptr : __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  return fails(__builtin_return_address(0)) ? nullptr : __libc_calloc(count, bytes);
}
void* realloc(void* p, size_t bytes) {
  return fails(__builtin_return_address(0)) ? nullptr : __libc_realloc(p, bytes);
}
void* memalign(size_t alignment, size_t bytes) {
  return fails(__builtin_return_address(0)) ? nullptr : __libc_memalign(alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  return fails(__builtin_return_address(0)) ? nullptr : __libc_memalign(alignment, bytes);
}
int posix_memalign(void** p, size_t alignment, size_t bytes) {
  *p = fails(__builtin_return_address(0)) ? nullptr : __libc_memalign(alignment, bytes);
  return *p == nullptr ? ENOMEM : 0;
}

int __libc_start_main(Main main, int argc, char** argv, void (*init)(), void (*fini)(),
                      void (*loader_fini)(), void* stack_end) {
  real_main = main;
  using Start = int(Main, int, char**, void (*)(), void (*)(), void (*)(), void*);
  auto* start = reinterpret_cast<Start*>(dlsym(RTLD_NEXT, "__libc_start_main"));
  return start(main_that_fails, argc, argv, init, fini, loader_fini, stack_end);
}

}  // extern "C"
