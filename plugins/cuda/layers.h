// SPDX-License-Identifier: Apache-2.0
// Layers on the GPU: their packed weights, and how a call runs them, with plain kernels (plain.h)
// or with tensor cores (hopper.h).
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "hopper.h"
#include "plain.h"
#include "router.h"

namespace moebius::cuda {

class Layer {
 public:
  virtual ~Layer() = default;
  virtual uint64_t bytes() const = 0;
};

// Describes how rows of x become operands of a matrix in tiles.
struct OperandRows {
  RowForm form{};
  RowScaling scaling{};  // scales of rows if `fast`
  ActSpec act;
  XType x_type{};
  // true: prepare_x and requantize_h make the operands; false: make_operands does, which knows all
  // cases.
  bool fast = true;
  bool by_expert = false;  // true: operands of a row depend on its expert
  Buffer inputs, columns;  // [expert] ActParams, and column orders, in GPU memory
};

// The weights of several experts, or of one linear layer, as matrices in tiles
// (device/cuda/tiles.h) for tensor cores.
struct HopperWeights {
  HopperScheme scheme{};
  OperandRows rows;
  int N = 0, padded = 0, stored = 0, K = 0, experts = 0;  // K: stored inputs, including padding
  bool joined = false, multiplies = false, f16_scales = false;
  bool mma = false;  // true: the kernels for every card run it
  Buffer tiles, channel, bias;
  uint64_t bytes() const { return tiles.bytes() + channel.bytes() + bias.bytes(); }
  // Allocates GPU memory for `count` matrices like `first`; fill() packs them. `second`: the up
  // matrix, if `first` is gate; outputs of the two then alternate. The number of outputs is padded
  // to a multiple of `outputs`.
  void plan(const CudaMatrix& first, const CudaMatrix* second, int count, CudaPath path,
            int outputs, WeightMemory& memory);
  void fill(int expert, const CudaMatrix& first, const CudaMatrix* second);
  // Return the bytes of a row's operands, and the number of its scales.
  size_t row_bytes() const { return static_cast<size_t>(K) * hopper_tile(scheme).row_bytes; }
  size_t row_scales() const {
    return scheme == HopperScheme::kFp8Block ? static_cast<size_t>(K) / kTileInputs : 1;
  }
  // Returns true if rows of x can be multiplied as they are.
  bool takes(const CudaRows& x) const;
  // Returns the arguments of a launch without rows, tiles and outputs, which the caller adds.
  HopperGemm gemm() const;
  // Return the rows per tile that this build has: at most those wanted, and the same for both forms
  // of a tile; and those for `count` rows that all use the only matrix.
  uint32_t built_tile(uint32_t wanted) const;
  uint32_t row_tile(size_t count) const;

 private:
  CudaMatrix first_{};  // facts of the first matrix, which all others must share
  std::vector<ActParams> inputs_;
  void fill_scales(int expert, const CudaMatrix* const* matrices);
  void fill_rows(int expert, const CudaMatrix* const* matrices, std::vector<int32_t> columns);
};
// Returns the slabs (hopper.h) that this build has.
int built_slabs(HopperScheme scheme, uint32_t tile, int wanted);
void check_rows(const CudaRows& x, size_t columns, const char* what);
inline size_t x_bytes(XType type) { return type == XType::kF32 ? 4 : 2; }

class Linear : public Layer {
 public:
  Linear(const CudaMatrix* parts, size_t count, CudaPath path);
  uint64_t bytes() const override;
  void run(const CudaRows& x, const CudaRows& y, cudaStream_t stream) const;

 private:
  struct Part {
    std::unique_ptr<PlainWeights> plain;
    std::unique_ptr<HopperWeights> hopper;
    Buffer view;
    ActSpec act;
    ActParams input;
    XType x_type;
    size_t begin, n, padded;  // columns [begin, begin + n) of y
  };
  void run_plain(const Part& p, const CudaRows& x, const CudaRows& y, cudaStream_t stream) const;
  void run_hopper(const Part& p, const CudaRows& x, const CudaRows& y, cudaStream_t stream) const;
  std::vector<Part> parts_;
  size_t K_ = 0;
};

// Holds the router's rules and parameters in GPU memory.
struct RouterWeights {
  DeviceRouter device{};
  Buffer bias, expert_scale;
  std::unique_ptr<Linear> matrix;  // matrix that computes logits; null: the caller provides logits
  explicit RouterWeights(const CudaRouter& r);
  size_t width() const { return device.spec.experts + device.spec.zero_experts; }
  size_t slots() const { return device.spec.top_k + device.spec.shared_slots; }
};

class Moe : public Layer {
 public:
  explicit Moe(const CudaMoe& spec);
  uint64_t bytes() const override;
  void set(size_t local, const CudaExpert& expert);
  void set_shared_gate(const CudaMatrix& gate);
  void set_router(const CudaRouter& router);
  void run(const CudaRows& x, const CudaRouting& routing, const CudaRows& y, CudaLaunch launch,
           cudaStream_t stream);
  void run_routed(const CudaRows& x, const CudaRows* logits, const CudaRows& y,
                  const CudaChosen& want, cudaStream_t stream);
  // Run the steps of a layer whose experts are divided between GPU and CPU (cuda_table.h): choose
  // experts, run those on this GPU, add the rows of all.
  void choose(const CudaRows& logits, const CudaChosen& want, float* zero_weights,
              cudaStream_t stream);
  void run_items(const CudaRows& x, const CudaRouting& routing, const CudaDivided& to,
                 cudaStream_t stream);
  void add_items(const CudaRows& x, const CudaRouting& routing, const CudaDivided& from,
                 const CudaRows& y, cudaStream_t stream) const;
  void map(const int32_t* expert_map);
  size_t ranges(size_t local, CudaRange* to) const;

 private:
  struct Projection {  // gate, up or down of all experts, for plain kernels
    std::vector<std::unique_ptr<PlainWeights>> weights;
    Buffer views;
    bool uploaded = false;
    uint8_t modes = 0;  // bit m is set if a matrix has PlainMode m
    int groups = 1;     // most scales per row
    uint64_t bytes() const;
    const PlainMatrix* table();
    bool complete() const;
    // Replaces expert i. Allowed while kernels use the table: waits for these.
    void replace(size_t i, std::unique_ptr<PlainWeights> by);
  };
  struct Experts {  // weights of all routed experts, or of the shared one
    Projection gate, up, down;
    size_t count = 0, I = 0;
    CudaActivation activation{};
    bool one_input = true;  // true: gate and up read the same prepared rows of x
    void set(size_t i, const CudaExpert& e);
    void replace(size_t i, const CudaExpert& e);
  };
  struct Tiles {  // matrices of the same experts in tiles, for tensor cores
    HopperWeights up, down;
    CudaActivation activation{};
    bool fused = true;  // true: the product of gate and up applies the activation itself
    size_t I = 0;       // intermediate size, padding included
    uint64_t bytes() const { return up.bytes() + down.bytes(); }
  };
  struct Rows;        // arrays of a call in scratch memory
  struct SharedRows;  // rows of x for the shared expert
  struct Output;      // destination of the sum, or of the rows of a divided layer
  struct TileRows;    // says which rows are multiplied with which experts
  struct TileArrays;  // arrays that one kernel of experts in tiles writes and the next reads
  void set_tiles(std::optional<Tiles>& to, size_t local, const CudaExpert& e, bool shared);
  void run_tiles(const Tiles& e, const TileRows& r, const TileArrays& at, const CudaRows& x,
                 float* y, const Arena& arena, cudaStream_t stream);
  void reserve_experts(Arena arena, size_t rows, cudaStream_t stream);
  void run_shared(float* y, float* gate, const TileArrays* tiles, const CudaRows& x, CombineArgs& c,
                  Arena arena, cudaStream_t stream);
  void run_experts(Experts& e, const RowSelection& rows, const TokenTile* tiles, int max_tiles,
                   const CudaRows& x, float* y, Arena arena, cudaStream_t stream);
  void check_call(const CudaRows& x, const CudaRouting& routing) const;
  void run_hopper(const CudaRows& x, const CudaRouting& routing, const Output& to,
                  CudaLaunch launch, cudaStream_t stream);
  void run_plain(const CudaRows& x, const CudaRouting& routing, const Output& to,
                 cudaStream_t stream);
  void run_shared_alone(const CudaRows& x, const CudaRouting& routing, const CudaDivided& to,
                        cudaStream_t stream);

  CudaMoe spec_;
  WeightMemory memory_, own_memory_;  // memory of the routed experts, and of the shared one
  Buffer map_;
  Experts routed_, shared_;
  Projection gate_;  // gate matrix of the shared expert
  std::optional<RouterWeights> router_;
  bool hopper_ = false;
  int groups_ = 1;  // most scales per prepared row
  std::vector<bool> given_;
  std::optional<Tiles> tiles_, shared_tiles_;
};

}  // namespace moebius::cuda
