// SPDX-License-Identifier: Apache-2.0
// Copies ("streams") experts of the CPU to the GPU for steps with many rows. A second copy of their
// weights, packed for the GPU, is in host memory; it is copied into buffers in GPU memory that
// layers use in turn: while one layer runs, the weights of the next are copied.
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

// The streamed experts of one layer.
class StreamedExperts {
 public:
  // expert_of: [places] the expert in each place. Throws Error if an expert cannot be loaded.
  StreamedExperts(CudaStreams& streams, const Checkpoint& checkpoint, const MoeBlock& block,
                  const CudaLoad& load, std::span<const uint32_t> expert_of);
  StreamedExperts(const StreamedExperts&) = delete;
  StreamedExperts& operator=(const StreamedExperts&) = delete;
  ~StreamedExperts();
  const CudaLayer& layer() const { return experts_.layer(); }
  const MoeSpec& spec() const { return experts_.spec(); }
  size_t bytes() const { return bytes_; }
  // Replaces experts in some places, between steps; expert_of lists all places afterwards. After a
  // failure the layer must not be run again.
  using Coming = std::pair<size_t, std::unique_ptr<CudaHostExpert>>;
  void replace(std::span<const Coming> coming, std::span<const uint32_t> expert_of);

 private:
  friend class CudaStreams;
  void keep(size_t place);  // copies a packed expert from GPU memory to the copy in host memory
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

  // While a Turn lives, work queued on `stream` finds the layer's weights in GPU memory. Layers
  // take turns.
  class Turn {
   public:
    Turn(CudaStreams& streams, const StreamedExperts& layer, void* stream);
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn();
    void end();  // call it after the last work that needs the weights; throws Error

   private:
    CudaStreams& streams_;
    const StreamedExperts& layer_;
    void* stream_;
    std::unique_lock<std::mutex> lock_;
    bool ended_ = false;
  };

  // Returns times of this layer, measured at the first call and shared by layers of the same size.
  const StreamTimes& times(const StreamedExperts& layer, const CpuExpertPart& part, size_t slots);

 private:
  friend class StreamedExperts;
  struct Buffer {
    CudaMemory memory;
    const StreamedExperts* holds = nullptr;
    void* awaited = nullptr;  // stream for which the next turn waits
  };
  Buffer& buffer_of(size_t ordinal) { return buffers_[ordinal % buffers_.size()]; }
  void send(const StreamedExperts& layer);
  void send_next(const StreamedExperts& layer, void* stream);
  StreamTimes measure(const StreamedExperts& layer, const CpuExpertPart& part, size_t slots);

  const CudaApi& api_;
  size_t buffer_bytes_;
  std::vector<Buffer> buffers_;
  void* copies_ = nullptr;                      // the stream of the copies
  std::vector<const StreamedExperts*> layers_;  // layers in the order in which they run
  // Measured times, by the experts' bytes on the CPU and on the device.
  std::map<std::pair<size_t, uint64_t>, StreamTimes> times_;
  std::mutex mutex_;
};

}  // namespace moebius
