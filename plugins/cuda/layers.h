// SPDX-License-Identifier: Apache-2.0
// Layers on the device: packed weights and how a call runs. Both forms of each: plain kernels and tensor cores.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "hopper.h"
#include "plain.h"

namespace moebius::cuda {

// What calls on one stream keep between them; calls of one stream run one after the other.
class Scratch {
 public:
  Buffer& of(cudaStream_t stream) {
    const std::lock_guard lock(mutex_);
    return memory_[stream];
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    memory_.clear();
  }

 private:
  std::mutex mutex_;
  std::map<cudaStream_t, Buffer> memory_;
};
Scratch& scratch();

class Layer {
 public:
  virtual ~Layer() = default;
  virtual uint64_t bytes() const = 0;
};

// Tiles of one matrix for each of some experts.
struct HopperWeights {
  HopperScheme scheme{};
  RowScaling scaling{};
  int N = 0, padded = 0, K = 0, experts = 0;
  bool joined = false, multiplies = false;
  Buffer tiles, channel;
  uint64_t bytes() const { return tiles.bytes() + channel.bytes(); }
  // `second`: up, where the first is gate.
  void plan(const CudaMatrix& first, const CudaMatrix* second, int count, bool fp8_products);
  void fill(int expert, const CudaMatrix& first, const CudaMatrix* second);
};

class Linear : public Layer {
 public:
  Linear(const CudaMatrix* parts, size_t count, CudaPath path);
  uint64_t bytes() const override;
  void run(const CudaRows& x, const CudaRows& y, cudaStream_t stream) const;

 private:
  struct Part {
    std::unique_ptr<PlainWeights> plain;
    std::unique_ptr<HopperWeights> hopper;
    Buffer view, bias;
    ActSpec act;
    ActParams input;
    XType x_type;
    size_t begin, n, padded;  // columns of y
  };
  void run_plain(const Part& p, const CudaRows& x, const CudaRows& y, cudaStream_t stream) const;
  void run_hopper(const Part& p, const CudaRows& x, const CudaRows& y, cudaStream_t stream) const;
  std::vector<Part> parts_;
  size_t K_ = 0;
};

class Moe : public Layer {
 public:
  explicit Moe(const CudaMoe& spec);
  uint64_t bytes() const override;
  void set(size_t local, const CudaExpert& expert);
  void set_shared_gate(const CudaMatrix& gate);
  void run(const CudaRows& x, const CudaRouting& routing, const CudaRows& y, CudaLaunch launch,
           cudaStream_t stream);

 private:
  struct Projection {  // of all experts of one kind, plain
    std::vector<std::unique_ptr<PlainWeights>> weights;
    Buffer views;
    bool uploaded = false;
    uint8_t modes = 0;  // bits of PlainMode that occur
    int groups = 1;     // scales of a row, at most
    uint64_t bytes() const;
    const PlainMatrix* table();
    bool complete() const;
  };
  struct Experts {  // routed ones, or the shared one
    Projection gate, up, down;
    size_t count = 0, I = 0;
    bool one_input = true;  // gate and up see the same rows
    void set(size_t i, const CudaExpert& e);
  };
  struct Rows;        // arrays of a call
  struct SharedRows;  // of the shared expert
  void reserve_experts(Arena arena, size_t rows, cudaStream_t stream);
  void run_shared(const SharedRows& shared, const CudaRows& x, CombineArgs& c, Arena arena,
                  cudaStream_t stream);
  void run_experts(Experts& e, const RowSet& rows, const TokenTile* tiles, int max_tiles,
                   const CudaRows& x, float* y, Arena arena, cudaStream_t stream);
  void run_hopper(const CudaRows& x, const CudaRouting& routing, const CudaRows& y,
                  CudaLaunch launch, cudaStream_t stream);
  void run_plain(const CudaRows& x, const CudaRouting& routing, const CudaRows& y,
                 cudaStream_t stream);

  CudaMoe spec_;
  Buffer map_;
  Experts routed_, shared_;
  Projection gate_;  // of the shared expert
  bool hopper_ = false;
  int groups_ = 1;  // scales of a prepared row, at most
  std::vector<bool> given_;
  std::optional<HopperWeights> up_, down_;
};

}  // namespace moebius::cuda
