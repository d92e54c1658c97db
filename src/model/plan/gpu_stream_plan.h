// SPDX-License-Identifier: Apache-2.0
// Decides before anything is read which layers stream their experts through a GPU: experts
// must be of class exact on both sides (device/cuda/stream_rule.h), and streaming needs one or two
// buffers on the device and host memory for a second copy in the device's form.
#pragma once
#include <string>
#include <vector>

#include "model/plan/gpu_memory.h"

namespace moebius {

// Parses --stream-experts: SIZE_MAX: off; 0: as measured; else rows of a step. Throws Error for
// anything else.
size_t parse_stream_rows(const std::string& text);

// Asks both devices about the experts of blocks.
class StreamPlanner {
 public:
  StreamPlanner(const Checkpoint& checkpoint, const Wish& wish, const GpuTarget& target);
  // Returns a bound on the bytes of a block's experts as they are sent; `here` experts stay on the
  // device.
  uint64_t bytes(const MoeBlock& block, size_t here);
  // Returns why the experts of a block are not streamed; "": they can be.
  std::string refusal(const MoeBlock& block);

 private:
  std::string stream_;
  std::shared_ptr<const Device> gpu_, cpu_;
  ModulePlanner on_gpu_, on_cpu_;
};

struct StreamPlan {
  DevicePlacement placement;  // puts routers and shared experts of streamed layers on the device
  StreamedLayers streamed;    // without layers: nothing is streamed
  std::vector<std::string> words;
};
// Plans streams for the experts that options.placement puts on the CPU, which include all that the
// device does not support. allowed: bytes of the device that may be used; host_free: bytes of host
// memory without any model; options.gpu.stream: the rows of a step that the user asks for.
StreamPlan plan_streams(const Checkpoint& checkpoint, const Wish& options, const GpuTarget& target,
                        uint64_t allowed, uint64_t host_free);

// Returns the bytes of a device that experts must leave free for buffers if they do not all fit:
// two layers, or one, but at most an eighth of the room for experts; half of it if the user asks
// for streaming from a number of rows on.
uint64_t kept_for_streams(const Checkpoint& checkpoint, const Wish& options,
                          const GpuTarget& target, uint64_t room);

}  // namespace moebius
