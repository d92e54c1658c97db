// SPDX-License-Identifier: Apache-2.0
// The CUDA plugin in this process: found, opened once, and what it says about the device.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "device/cuda/cuda_table.h"

namespace moebius {

inline constexpr const char* kCudaVariable = "MOEBIUS_CUDA_MODULE";  // a file
inline constexpr const char* kCudaFile = "libmoebius_cuda.so";

struct CudaModule {
  std::string file;
  const CudaApi* api = nullptr;  // null: it is not there, or is no plugin of this build
  CudaStatus status = CudaStatus::kNoDevice;
  CudaFacts facts{};
  std::string words;  // why no layer can run; empty: one can
  bool ready() const { return words.empty(); }
};

// Looks in `folders`, in order; the variable names another file. The first call decides for the
// process, also which of the machine's devices it is. Never throws: without a module, driver or device it says so in words.
const CudaModule& cuda_module(const std::vector<std::string>& folders, int device = 0);
// The same as a function of the file, for tests.
CudaModule open_cuda_module(const std::string& file, int device = 0);

// Throws Error with those words.
const CudaModule& require_cuda(const std::vector<std::string>& folders, int device = 0);
// Throws Error with the plugin's words for a failed call.
void check_cuda(const CudaApi& api, CudaStatus status, std::string_view what);

}  // namespace moebius
