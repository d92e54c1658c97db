// SPDX-License-Identifier: Apache-2.0
// Opens the CUDA plugin, which stays open until the process ends: the CUDA driver cannot be loaded
// again after it was closed.
#include "device/cuda/cuda_module.h"

#include <dlfcn.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cstdlib>

#include "base/error.h"

namespace moebius {
namespace {

std::string module_file(const std::vector<std::string>& folders) {
  if (const char* named = std::getenv(kGpuVariable); named != nullptr && *named != 0) return named;
  for (const std::string& folder : folders) {
    const std::string file = fmt::format("{}/{}", folder, kCudaFile);
    if (::access(file.c_str(), R_OK) == 0) return file;
  }
  return "";
}

const CudaApi* table_of(void* library) {
  using Entry = const CudaApi* (*)(uint32_t);
  const auto entry = reinterpret_cast<Entry>(::dlsym(library, kCudaSymbol));
  const CudaApi* api = entry != nullptr ? entry(kCudaAbi) : nullptr;
  const bool ours = api != nullptr && api->abi == kCudaAbi && api->bytes == sizeof(CudaApi) &&
                    api->matrix_bytes == sizeof(CudaMatrix) && api->moe_bytes == sizeof(CudaMoe) &&
                    api->router_bytes == sizeof(CudaRouter) &&
                    api->program_bytes == sizeof(CudaRowProgram) &&
                    api->op_bytes == sizeof(CudaRowOp) && api->attend_bytes == sizeof(CudaAttend);
  return ours ? api : nullptr;
}

}  // namespace

CudaModule open_cuda_module(const std::string& file, int device) {
  CudaModule m;
  m.file = file;
  if (file.empty()) {
    m.words = fmt::format(
        "there is no CUDA module ({}) here: it is built where nvcc 12.4 or newer is found "
        "(docs/gpu.md)",
        kCudaFile);
    return m;
  }
  void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    m.words = fmt::format("the CUDA module does not open: {}", printable(::dlerror()));
    return m;
  }
  m.api = table_of(library);
  if (m.api == nullptr) {
    m.words = fmt::format("{}: is no CUDA module of this build", printable(file));
    return m;
  }
  m.status = m.api->open(device, &m.facts);
  if (m.status != CudaStatus::kOk)
    m.words = fmt::format("the CUDA module is there, but {}", printable(m.api->message()));
  return m;
}

const CudaModule& cuda_module(const std::vector<std::string>& folders, int device) {
  static const CudaModule module = open_cuda_module(module_file(folders), device);
  return module;
}

const CudaModule& require_cuda(const std::vector<std::string>& folders, int device) {
  const CudaModule& m = cuda_module(folders, device);
  if (!m.ready()) fail_at({"argument", "", "", "", "--device"}, "--device cuda: {}", m.words);
  return m;
}

void check_cuda(const CudaApi& api, CudaStatus status, std::string_view what) {
  if (status != CudaStatus::kOk) fail("{}: {}", what, printable(api.message()));
}

}  // namespace moebius
