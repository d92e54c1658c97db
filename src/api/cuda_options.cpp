// SPDX-License-Identifier: Apache-2.0
// Finds the CUDA plugin for the public interface, and converts its options for layers and models on
// a CUDA device.
#include <dlfcn.h>

#include <filesystem>

#include "api/api.h"
#include "runtime/program_folder.h"

namespace moebius {
namespace {

// Returns the folder of the library that contains this code.
std::string library_folder() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&library_folder), &info) == 0 ||
      info.dli_fname == nullptr)
    return program_folder();
  std::error_code error;
  const std::filesystem::path file = std::filesystem::canonical(info.dli_fname, error);
  return error ? program_folder() : file.parent_path().string();
}

}  // namespace

bool on_cuda(const Options& options) {
  if (options.device == "cuda") return true;
  if (options.device.empty() || options.device == "cpu") return false;
  fail_argument("device", "device is '{}'; expected cpu or cuda", printable(options.device));
}

const CudaModule& library_cuda_module(int device) {
  const std::string folder = library_folder();
  const CudaModule& module = cuda_module({folder, folder + "/moebius", program_folder()}, device);
  if (!module.ready())
    fail_at({"unsupported", "", "", "", "device"}, "device cuda: {}", module.words);
  return module;
}

CudaLoad cuda_load(const Options& o) {
  if (o.tp != 1 || o.ep != 1)
    fail_argument("device", "layers on a CUDA device are whole: tp and ep are 1 there");
  CudaLoad load;
  load.module = &library_cuda_module(0);
  load.policy.accept = accept_of(o.arithmetic);
  load.policy.kernel = normalize_cuda_kernel(o.kernel);
  load.act = act_request_of(o.int8, o.rows, load.policy);
  load.x_type = x_type_of(dtype_of(o.activations));
  return load;
}

}  // namespace moebius
