// SPDX-License-Identifier: Apache-2.0
// Finds and opens the CUDA plugin, once per process, and holds its facts about the device.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "device/cuda/cuda_table.h"
#include "device/gpu.h"

namespace moebius {

inline constexpr const char* kCudaFile = "libmoebius_cuda.so";

struct CudaModule {
  std::string file;
  // Functions of the plugin; null: none was found, or it belongs to another build.
  const CudaApi* api = nullptr;
  CudaStatus status = CudaStatus::kNoDevice;
  CudaFacts facts{};
  std::string words;  // why no layer can run; empty: layers can run
  bool ready() const { return words.empty(); }
};

// Looks for the plugin in `folders`, in order; the variable MOEBIUS_CUDA_MODULE names another file.
// The first call decides plugin and device for the process; later ones return the same. Never
// throws: `words` describes a missing module, driver or device.
const CudaModule& cuda_module(const std::vector<std::string>& folders, int device = 0);
// Opens a given plugin file, for tests.
CudaModule open_cuda_module(const std::string& file, int device = 0);

// Returns cuda_module(). Throws Error with `words` if no layer can run.
const CudaModule& require_cuda(const std::vector<std::string>& folders, int device = 0);
// Throws Error with the plugin's message if status is a failure.
void check_cuda(const CudaApi& api, CudaStatus status, std::string_view what);

}  // namespace moebius
