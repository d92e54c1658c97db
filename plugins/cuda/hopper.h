// SPDX-License-Identifier: Apache-2.0
// Host functions that launch the tensor-core kernels. Weights are the
// operand of wgmma with 64 rows, rows of x the other one. The kernels of a layer of experts, in
// order: prepare (route, quantize x), product of gate and up with the activation, requantize,
// product of down, combine.
#pragma once
#include "check.h"
#include "device/cuda/hopper_scheme.h"
#include "plain.h"
#include "routing.cuh"
#include "rows.cuh"

namespace moebius::cuda {

// Arguments of one launch: the product of every token tile with all groups of 64 outputs of its
// expert.
struct HopperGemm {
  const uint8_t* w;       // [expert][outputs / 64][inputs / 128] tiles
  const float* channel;   // [expert][outputs] scales; FP4: [expert][2] global scales of gate and up
  const uint8_t* x;       // rows of x: codes, or 16-bit numbers
  const float* x_scale;   // scales: one per row of x, or one per row and 128 inputs
  const int32_t* source;  // [sorted rows] which row of x; null: row i
  // List of token tiles, ended by a tile without rows; null: `rows` rows of the first matrix.
  const TokenTile* tiles;
  int max_tiles, rows;
  void* out;  // result: for gate and up h[row][outputs / 2], f32 or bf16; else y[row][outputs]
  // Groups of 64 outputs per warpgroup: 2 for tiles of 128 rows if n64 is a multiple of 4.
  int slabs;
  int K, n64;       // inputs; number of 64-row tiles of a matrix
  bool multiplies;  // true: global scales multiply; false: they divide
  bool joined;      // true: outputs of gate and up alternate
  bool f16_scales;  // true: 16-bit scales are f16; false: bf16
  bool h_f32;       // true: h is f32 even if rows have 16-bit numbers
  // The members below are read only if outputs are stored without an activation.
  const float* bias;  // [expert][outputs] added to outputs, or null
  XType out_type;
  size_t out_stride, column;
  int outputs;  // number of outputs to store; those after them are padding
};

// Launches the kernel of a scheme; mma: the one for every card (mma_gemm.cuh), else that of 9.0. tile: rows per token tile, one of kHopperTiles. gate_up: the
// kernel applies silu to gate and multiplies with up. early: see launch.h. The number of rows of x
// times the 16-byte pieces of a row must be below 2^31.
void hopper_gemm(HopperScheme scheme, bool mma, bool gate_up, uint32_t tile, const HopperGemm& g,
                 bool early, cudaStream_t stream);

// Says how rows are stored as operands: 16-bit numbers, int8, e4m3 bytes, or e4m3 as f16 times
// 2^-8.
enum class RowForm : uint8_t { kBf16, kF16, kInt8, kE4m3, kE4m3Half };
inline constexpr bool is_as_is(RowForm f) { return f == RowForm::kBf16 || f == RowForm::kF16; }
RowForm row_form(HopperScheme s);

RowScaling row_scaling(const ActSpec& act);

struct PrepareArgs {
  RoutingArgs routing;  // what to sort by expert; ids null: nothing
  CudaRows x;
  int T, H;
  RowScaling scaling;
  uint8_t* rows;  // [T, H] receives operands; null: not wanted
  float* scales;  // [T] receives scales
};
void prepare_x(RowForm form, const PrepareArgs& a, bool early, cudaStream_t stream);
void requantize_h(RowForm form, const float* h, const int32_t* total, int rows, int I,
                  const RowScaling& scaling, uint8_t* to, float* scales, bool early,
                  cudaStream_t stream);

// Arguments of make_operands, which makes operands in all cases that prepare_x does not know:
// groups, stored scales, another order of columns, numbers that bf16 holds including their scales,
// zeros after the last input. Slower than prepare_x.
struct OperandArgs {
  RowSelection rows;
  CudaRows x;
  ActSpec act;
  // Static scales in GPU memory; [expert] if the operands of a row depend on its expert.
  const ActParams* inputs;
  const int32_t* columns;  // [expert][K] order of columns, or null
  XType x_type;
  RowForm form;
  int K, padded;
  uint8_t* to;    // [rows, padded] receives operands
  float* scales;  // [rows], or [rows, padded / 128]; not written if operands include their scales
};
void make_operands(const OperandArgs& a, cudaStream_t stream);

// Arguments of activate_outputs, which applies biases and any activation to outputs that were
// stored without an activation.
struct ActivateArgs {
  CudaActivation activation;
  const float* y;     // [rows, outputs] results of the product
  const float* bias;  // [expert][outputs] added to y, or null
  // [sorted rows] expert of each row, and the number of rows; or null.
  const int32_t *expert, *total;
  int rows, outputs, I;  // I: intermediate size, padding included
  bool joined;           // true: outputs of gate and up alternate, as joined_row says
  void* h;               // [rows, I] receives activations
  XType type;
};
void activate_outputs(const ActivateArgs& a, cudaStream_t stream);

// Arguments of hopper_pack, which packs one matrix (or gate and up together) into tiles. All
// pointers are to GPU memory.
struct PackSource {
  const uint8_t* codes;
  size_t row_bytes;
  const uint8_t* scales;
  size_t scale_stride, block_n, block_k;
  const int8_t* zero_points;  // zero points as in QuantMatrix, or null
  const int32_t* columns;     // [stored] order of columns, or null
  uint32_t largest_scale;     // largest e8m0 scale
  ScaleType scale_type;
  CodeType code;
};
void hopper_pack(HopperScheme scheme, const PackSource* sources, bool joined, int N, int padded,
                 int stored, int K, uint8_t* tiles, cudaStream_t stream);

}  // namespace moebius::cuda
