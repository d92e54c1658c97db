// SPDX-License-Identifier: Apache-2.0
// Layers on the device: packed weights and how a call runs, both with plain kernels and with tensor
// cores.
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

// Describes how rows become operands of a matrix in tiles.
struct OperandRows {
  RowForm form{};
  RowScaling scaling{};  // for the fast forms
  ActSpec act;
  XType x_type{};
  bool fast = true;        // true: prepare_x and requantize_h make the operands
  bool by_expert = false;  // true: operands of a row depend on its expert
  Buffer inputs, columns;  // [expert] ActParams and column orders, on the device
};

// One matrix in tiles for each of several experts.
struct HopperWeights {
  HopperScheme scheme{};
  OperandRows rows;
  int N = 0, padded = 0, stored = 0, K = 0, experts = 0;  // K: stored inputs, including padding
  bool joined = false, multiplies = false, f16_scales = false;
  Buffer tiles, channel, bias;
  uint64_t bytes() const { return tiles.bytes() + channel.bytes() + bias.bytes(); }
  // Allocates memory for `count` matrices like `first`. `second`: up, if `first` is gate. The
  // number of outputs is padded to a multiple of `outputs`.
  void plan(const CudaMatrix& first, const CudaMatrix* second, int count, bool fp8_products,
            int outputs, WeightMemory& memory);
  void fill(int expert, const CudaMatrix& first, const CudaMatrix* second);
  // Return the bytes of a row's operands, and the number of its scales.
  size_t row_bytes() const { return static_cast<size_t>(K) * hopper_tile(scheme).row_bytes; }
  size_t row_scales() const {
    return scheme == HopperScheme::kFp8Block ? static_cast<size_t>(K) / kTileInputs : 1;
  }
  // Returns true if rows of this kind are operands as they are.
  bool takes(const CudaRows& x) const;
  // Returns the arguments of a launch; rows, tiles and outputs are left out.
  HopperGemm gemm() const;

 private:
  CudaMatrix first_{};  // other matrices must have the same facts
  std::vector<ActParams> inputs_;
  void fill_scales(int expert, const CudaMatrix* const* matrices);
  void fill_rows(int expert, const CudaMatrix* const* matrices, std::vector<int32_t> columns);
};
// Return the tile and the slabs that this build has for a matrix with so many outputs: at most
// those wanted, and the same for both forms of a tile.
uint32_t built_tile(HopperScheme scheme, uint32_t wanted, size_t outputs);
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

// Router: selection of experts with its parameters on the device.
struct RouterWeights {
  DeviceRouter device{};
  Buffer bias, expert_scale;
  std::unique_ptr<Linear> matrix;  // null: the caller provides logits
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
  // Parts of a divided layer (cuda_table.h).
  void choose(const CudaRows& logits, const CudaChosen& want, float* zero_weights,
              cudaStream_t stream);
  void run_items(const CudaRows& x, const CudaRouting& routing, const CudaDivided& to,
                 cudaStream_t stream);
  void add_items(const CudaRows& x, const CudaRouting& routing, const CudaDivided& from,
                 const CudaRows& y, cudaStream_t stream) const;
  void map(const int32_t* expert_map);
  size_t ranges(size_t local, CudaRange* to) const;

 private:
  struct Projection {  // one projection of all experts, for plain kernels
    std::vector<std::unique_ptr<PlainWeights>> weights;
    Buffer views;
    bool uploaded = false;
    uint8_t modes = 0;  // bits of the PlainModes that occur
    int groups = 1;     // most scales per row
    uint64_t bytes() const;
    const PlainMatrix* table();
    bool complete() const;
    // Also while kernels may use the table.
    void replace(size_t i, std::unique_ptr<PlainWeights> by);
  };
  struct Experts {  // all routed experts, or the shared one
    Projection gate, up, down;
    size_t count = 0, I = 0;
    CudaActivation activation{};
    bool one_input = true;  // true: gate and up read the same prepared rows
    void set(size_t i, const CudaExpert& e);
    void replace(size_t i, const CudaExpert& e);
  };
  struct Tiles {  // gate, up and down of the same experts, for tensor cores
    HopperWeights up, down;
    CudaActivation activation{};
    bool fused = true;  // true: the first product ends with the activation
    size_t I = 0;       // including padding
    uint64_t bytes() const { return up.bytes() + down.bytes(); }
  };
  struct Rows;        // arrays of a call
  struct SharedRows;  // rows of the shared expert
  struct Output;      // destination of the sum, or of the rows of a divided layer
  struct TileRows;    // which rows are multiplied with which experts
  struct TileArrays;  // arrays between the kernels of experts in tiles
  void set_tiles(std::optional<Tiles>& to, size_t local, const CudaExpert& e, bool shared);
  void run_tiles(const Tiles& e, const TileRows& r, const TileArrays& at, const CudaRows& x,
                 float* y, const Arena& arena, cudaStream_t stream);
  void reserve_experts(Arena arena, size_t rows, cudaStream_t stream);
  void run_shared(float* y, float* gate, const TileArrays* tiles, const CudaRows& x, CombineArgs& c,
                  Arena arena, cudaStream_t stream);
  void run_experts(Experts& e, const RowSet& rows, const TokenTile* tiles, int max_tiles,
                   const CudaRows& x, float* y, Arena arena, cudaStream_t stream);
  void check_call(const CudaRows& x, const CudaRouting& routing) const;
  void run_hopper(const CudaRows& x, const CudaRouting& routing, const Output& to,
                  CudaLaunch launch, cudaStream_t stream);
  void run_plain(const CudaRows& x, const CudaRouting& routing, const Output& to,
                 cudaStream_t stream);
  void run_shared_alone(const CudaRows& x, const CudaRouting& routing, const CudaDivided& to,
                        cudaStream_t stream);

  CudaMoe spec_;
  WeightMemory memory_, own_memory_;  // for routed experts; for the shared one
  Buffer map_;
  Experts routed_, shared_;
  Projection gate_;  // gate of the shared expert
  std::optional<RouterWeights> router_;
  bool hopper_ = false;
  int groups_ = 1;  // most scales per prepared row
  std::vector<bool> given_;
  std::optional<Tiles> tiles_, shared_tiles_;
};

}  // namespace moebius::cuda
