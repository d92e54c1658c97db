// SPDX-License-Identifier: Apache-2.0
// The tensor-core kernels of compute capability 9.0 as functions of the host: weights are the 64-row operand of wgmma, rows of x the
// other one. A layer of experts: prepare (route, quantize x) -> product of gate and up with the activation -> requantize -> product of
// down -> combine.
#pragma once
#include "check.h"
#include "device/cuda/hopper_scheme.h"
#include "plain.h"
#include "routing.cuh"
#include "rows.cuh"

namespace moebius::cuda {

// Products of one launch: every token tile times every 64 outputs of its expert.
struct HopperGemm {
  const uint8_t* w;  // [expert][outputs / 64][inputs / 128] tiles
  const float*
      channel;       // [expert][outputs] scales; FP4: [expert][2], the global scales of both halves
  const uint8_t* x;  // rows of codes, or of 16-bit numbers
  const float* x_scale;    // per row of x, or per row and 128 inputs
  const int32_t* source;   // sorted row -> row of x, or null
  const TokenTile* tiles;  // without rows behind the last; null: `rows` rows of the first matrix
  int max_tiles, rows;
  void* out;  // gate and up: h[row][outputs / 2], f32 or bf16; else y[row][outputs]
  int slabs;  // of 64 outputs for a warpgroup: 2 with tiles of 128 rows, where n64 is a multiple of 4
  int K, n64;       // inputs, 64-row tiles of a matrix
  bool multiplies;  // global scales multiply
  bool joined;      // outputs are those of gate and up
  bool f16_scales;  // 16-bit scales are f16, not bf16
  bool h_f32;       // h of 16-bit rows is f32 all the same
  // where outputs are stored as they are
  const float* bias;  // [expert][outputs] or null
  XType out_type;
  size_t out_stride, column;
  int outputs;  // stored; those behind are padding
};

// Launches the kernel of a scheme; tile: one of kHopperTiles. gate_up: with silu. Rows of x times 16-byte pieces of a row are below 2^31.
void hopper_gemm(HopperScheme scheme, bool gate_up, uint32_t tile, const HopperGemm& g, bool early,
                 cudaStream_t stream);

// How rows become operands: as 16-bit numbers, int8, e4m3 bytes, e4m3 as f16 times 2^-8.
enum class RowForm : uint8_t { kBf16, kF16, kInt8, kE4m3, kE4m3Half };
inline constexpr bool is_as_is(RowForm f) { return f == RowForm::kBf16 || f == RowForm::kF16; }
RowForm row_form(HopperScheme s);

RowScaling row_scaling(const ActSpec& act);

struct PrepareArgs {
  RoutingArgs routing;  // ids null: no routing
  CudaRows x;
  int T, H;
  RowScaling scaling;
  uint8_t* rows;  // [T, H] operands; null: none are made
  float* scales;  // [T]
};
void prepare_x(RowForm form, const PrepareArgs& a, bool early, cudaStream_t stream);
void requantize_h(RowForm form, const float* h, const int32_t* total, int rows, int I,
                  const RowScaling& scaling, uint8_t* to, float* scales, bool early,
                  cudaStream_t stream);

// Operands of any kind of rows: groups, stored scales, columns in another order, numbers that bf16 holds with their scales, zeros
// behind the last input. Slower than prepare_x.
struct OperandArgs {
  RowSet rows;
  CudaRows x;
  ActSpec act;
  const ActParams* inputs;  // on the device, [expert] where the rows have experts
  const int32_t* columns;   // [expert][K] or null
  XType x_type;
  RowForm form;
  int K, padded;
  uint8_t* to;  // [rows, padded] operands
  float*
      scales;  // [rows], or [rows, padded / 128]; not written where scales are inside the operands
};
void make_operands(const OperandArgs& a, cudaStream_t stream);

// h of outputs that were stored as they are: with biases, and with any activation.
struct ActivateArgs {
  CudaActivation activation;
  const float* y;                 // [rows, outputs]
  const float* bias;              // [expert][outputs] or null
  const int32_t *expert, *total;  // of sorted rows, or null
  int rows, outputs, I;           // I: with padding
  bool joined;                    // gate and up, as joined_row has them
  void* h;                        // [rows, I]
  XType type;
};
void activate_outputs(const ActivateArgs& a, cudaStream_t stream);

// Packs one matrix (or gate and up together) into its tiles.
struct PackSource {
  const uint8_t* codes;  // on the device, as everything here
  size_t row_bytes;
  const uint8_t* scales;
  size_t scale_stride, block_n, block_k;
  const int8_t* zero_points;  // or null
  const int32_t* columns;     // [stored] or null
  uint32_t largest_scale;     // of e8m0
  ScaleType scale_type;
  CodeType code;
};
void hopper_pack(HopperScheme scheme, const PackSource* sources, bool joined, int N, int padded,
                 int stored, int K, uint8_t* tiles, cudaStream_t stream);

}  // namespace moebius::cuda
