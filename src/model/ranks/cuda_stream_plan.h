// SPDX-License-Identifier: Apache-2.0
// Which layers stream their experts through a CUDA device, judged before anything is read: experts of class exact on both sides
// (device/cuda/stream_rule.h), a buffer or two on the device, and memory of the host for a second copy in the device's form.
#pragma once
#include <string>
#include <vector>

#include "model/ranks/cuda_memory.h"

namespace moebius {

// What --stream-experts names: SIZE_MAX: off; 0: as measured; else rows of a step. Throws Error for anything else.
size_t parse_stream_rows(const std::string& text);

// Bytes of the experts of a block as they are sent, a bound; `here` of them stay on the device.
uint64_t streamed_bytes(const MoeBlock& block, const ModelOptions& options,
                        const CudaTarget& target, size_t here);
// Why the experts of a block are not streamed; "": they can be.
std::string stream_refusal(const MoeBlock& block, const ModelOptions& options,
                           const CudaTarget& target);

struct StreamPlan {
  DevicePlacement placement;  // routers and shared experts of streamed layers are on the device
  CudaStreamed streamed;      // without layers: nothing is
  std::vector<std::string> words;
};
// For what options.placement has on the CPU. allowed: bytes that the device has; host_free: of the machine,
// beside nothing else; known: what options.cuda.stream asks for.
StreamPlan plan_streams(const Checkpoint& checkpoint, const ModelOptions& options,
                        const CudaTarget& target, uint64_t allowed, uint64_t host_free);
// The same for this machine, into the options; returns the words.
std::vector<std::string> add_streams(const Checkpoint& checkpoint, ModelOptions& options);

// Bytes of a device to keep free of experts for buffers, where not all of them fit: two layers, or one, at most
// an eighth of the room for experts; half of it where rows are asked for.
uint64_t kept_for_streams(const Checkpoint& checkpoint, const ModelOptions& options,
                          const CudaTarget& target, uint64_t room);

}  // namespace moebius
