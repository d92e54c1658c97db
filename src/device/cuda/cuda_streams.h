// SPDX-License-Identifier: Apache-2.0
// Experts of the CPU that steps with many rows meet on the device. Their weights lie in memory of the host a second time, packed as
// the device has them, and are copied into buffers there that layers take in turn: while one layer runs, the next one's cross.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "device/cpu/expert_part.h"
#include "device/cuda/cuda_layers.h"
#include "device/cuda/stream_rule.h"

namespace moebius {

class CudaStreams;

// The experts of one layer that are streamed.
class StreamedExperts {
 public:
  // expert_of: what its places hold.
  StreamedExperts(CudaStreams& streams, const Checkpoint& checkpoint, const MoeBlock& block,
                  const CudaLoad& load, std::span<const uint32_t> expert_of);
  StreamedExperts(const StreamedExperts&) = delete;
  StreamedExperts& operator=(const StreamedExperts&) = delete;
  ~StreamedExperts();
  const CudaLayer& layer() const { return experts_.layer(); }
  const MoeSpec& spec() const { return experts_.spec(); }
  size_t bytes() const { return bytes_; }
  // Between steps: other experts in some places, and what all of them hold then. After a failure the layer
  // is not to be run any more.
  using Coming = std::pair<size_t, std::unique_ptr<CudaHostExpert>>;
  void replace(std::span<const Coming> coming, std::span<const uint32_t> expert_of);

 private:
  friend class CudaStreams;
  void keep(size_t place);  // what the device has becomes what is sent
  CudaStreams& streams_;
  size_t ordinal_;
  CudaExperts experts_;
  std::shared_ptr<uint8_t> packed_;
  size_t bytes_ = 0;
};

class CudaStreams {
 public:
  CudaStreams(const CudaApi& api, size_t buffers, size_t buffer_bytes);
  ~CudaStreams();
  uint64_t device_bytes() const { return buffers_.size() * buffer_bytes_; }

  // While it lives, what `stream` is given finds the layer's weights on the device. Layers take turns.
  class Turn {
   public:
    Turn(CudaStreams& streams, const StreamedExperts& layer, void* stream);
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn();
    void end();  // behind the last that needs them; throws Error

   private:
    CudaStreams& streams_;
    const StreamedExperts& layer_;
    void* stream_;
    std::unique_lock<std::mutex> lock_;
    bool ended_ = false;
  };

  // Measured with this layer; the same for all layers of its size.
  const StreamTimes& times(const StreamedExperts& layer, const CpuExpertPart& part, size_t slots);

 private:
  friend class StreamedExperts;
  struct Buffer {
    CudaMemory memory;
    const StreamedExperts* holds = nullptr;
    void* awaited = nullptr;  // by the next turn of this stream
  };
  Buffer& buffer_of(size_t ordinal) { return buffers_[ordinal % buffers_.size()]; }
  void send(const StreamedExperts& layer);
  void send_next(const StreamedExperts& layer, void* stream);
  StreamTimes measure(const StreamedExperts& layer, const CpuExpertPart& part, size_t slots);

  const CudaApi& api_;
  size_t buffer_bytes_;
  std::vector<Buffer> buffers_;
  void* copies_ = nullptr;                                    // the stream of what is sent
  std::vector<const StreamedExperts*> layers_;                // by their order
  std::map<std::pair<size_t, uint64_t>, StreamTimes> times_;  // by bytes on both sides
  std::mutex mutex_;
};

}  // namespace moebius
