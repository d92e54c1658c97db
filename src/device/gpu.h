// SPDX-License-Identifier: Apache-2.0
// Describes GPUs to callers that run none of their operations: what a device is, what it measures,
// and what plans need to know of its layers. Family by family, the functions are below device/.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace moebius {

struct MoeBlock;

// Describes a GPU: the facts on which the choice of kernels depends, and its name for messages.
struct GpuTarget {
  std::string name;
  int major = 9, minor = 0, multiprocessors = 132;
  uint64_t memory_bytes = 0, cache_bytes = 0;
  bool assumed = false;  // true: a GPU that this machine does not have
  bool asked = false;    // true: the user named it
  double read_rate = 0;  // bytes of its memory per second by its maker; 0: not known
  bool hopper() const { return major == 9 && minor == 0; }
};
// Returns the description of a card of device/cuda/gpu_models.h, in any case; throws Error that
// lists their names.
GpuTarget named_gpu_target(std::string_view name);
std::string describe(const GpuTarget& target);

bool is_gpu_name(std::string_view name);  // "cuda" or "cuda:1"
int gpu_number(std::string_view name);

// A plugin that was opened, with the facts about its device (device/cuda/cuda_module.h).
struct CudaModule;
using GpuModule = CudaModule;
// Environment variable with the path of the plugin.
inline constexpr const char* kGpuVariable = "MOEBIUS_CUDA_MODULE";
// Returns the plugin in one of these folders. Throws Error if no layer can run on the device.
const GpuModule& open_gpu(const std::vector<std::string>& folders, int number);
// Returns the GPU that plans assume without running anything: this machine's, else an H200.
GpuTarget usual_gpu_target(const std::vector<std::string>& folders);
GpuTarget target_of(const GpuModule& module);
// Returns the bytes of memory that are free now. Throws Error if the GPU does not answer.
uint64_t free_gpu_bytes(const GpuModule& module);
// Rates that were measured, in bytes per second; 0: unknown.
struct GpuRates {
  double read = 0;  // of its memory
  double link = 0;  // from host memory
};
GpuRates measured_rates(const GpuModule& module);
// Returns a kernel's name in lower case with '-' replaced by '_'. Throws Error that lists the
// names.
std::string normalize_gpu_kernel(std::string_view name);

// --- for plans ---

// Returns whether the experts of a block can be divided between GPU and CPU.
bool can_divide(const MoeBlock& block);
// Return the bytes of rows between the parts of a layer: that GPU and CPU divide, for one batch in
// flight; and whose experts ranks spread.
uint64_t divided_bytes(const MoeBlock& block, size_t item_bytes);
uint64_t spread_bytes(const MoeBlock& block);

}  // namespace moebius
