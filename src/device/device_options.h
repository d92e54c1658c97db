// SPDX-License-Identifier: Apache-2.0
// Options with which devices are made.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/gpu.h"
#include "kernels/oracle.h"
#include "quant/activation.h"

namespace moebius {

// Says which layers keep experts on the CPU and copy them to a GPU for steps with many rows
// (streamed layers). Made by the plan.
struct StreamedLayers {
  std::vector<size_t> layers;
  size_t buffers = 0;         // number of buffers in GPU memory
  uint64_t buffer_bytes = 0;  // bytes of each buffer, enough for the largest layer
  // Bytes of the second copy of the experts, packed for the GPU, in host memory.
  uint64_t host_bytes = 0;
  size_t rows = 0;  // fewest rows of a step that streams; 0: measured while layers are loaded
};

// Settings of a GPU, from the user's options and the plan.
struct GpuSettings {
  const GpuModule* module = nullptr;  // opened module; must outlive the model
  std::string kernel;                 // name of a kernel; "": the best for each layer
  uint64_t memory = 0;                // most bytes of GPU memory; 0: what is free
  // true: the GPU holds as many experts as fit, the CPU the others
  bool fit_experts = false;
  // stream: "off", "auto", or the fewest rows of a step that streams. streamed: the plan made from
  // it.
  std::string stream = "off";
  StreamedLayers streamed = {};
  // Receives lines for the log about what was measured.
  std::function<void(const std::string& line)> note = nullptr;
  // Most bytes of result rows that each device of a divided layer computes at a time.
  size_t item_bytes = size_t{64} << 20;
};

class ExpertStore;
class PackedStore;

struct DeviceOptions {
  XType type = XType::kBf16;  // type of activations
  Policy policy;
  GpuSettings gpu = {};
  bool alone = true;  // true: the model has no other device, so operations need no lock
  std::shared_ptr<PackedStore> packed = nullptr;  // cache of packed weights; null: none
  // Holds experts of the CPU that do not fit memory (nn/expert_store.h); null: layers hold theirs.
  std::shared_ptr<ExpertStore> experts = nullptr;
  // GPU for which a device plans that was made without an opened module.
  std::optional<GpuTarget> target = {};
};

}  // namespace moebius
