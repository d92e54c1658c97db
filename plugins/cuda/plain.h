// SPDX-License-Identifier: Apache-2.0
// The plain kernels: any scheme, any shape, any device of compute capability 8.0 or newer. Weights
// are kept as stored in the file; each output is computed by one thread in the order of
// quant/reference_gemm.cpp, so results have the bytes of the reference.
#pragma once
#include <vector>

#include "check.h"
#include "device/cuda/tiles.h"

namespace moebius::cuda {

// A stretch: a longest run of columns [begin, end) on which the scales of weights (of group
// `group`) and of rows (of granule `granule`) are constant. Columns are counted in the order of
// summation.
struct Stretch {
  int32_t begin, end, group, granule;
};

enum class PlainMode : uint8_t { kFloat, kInteger, kVllm };

// One matrix as plain kernels read it; all pointers are to GPU memory.
struct PlainMatrix {
  const uint8_t* codes;
  const uint8_t* scales;
  const int8_t* zero_points;
  const uint8_t* offsets;
  const float *super_scales, *super_offsets;  // second level of scales and offsets, or null
  const float* bias;
  const int32_t* columns;  // column of x and w at each position of the sum; null: ascending
  const Stretch* stretches;
  size_t row_bytes, scale_stride, block_n, n_phase, super_groups, super_phase;
  int32_t N, K, stretch_count, act_groups;
  CodeType code;
  LutNumbers numbers;  // table of kLut4
  ScaleType scale_type;
  uint8_t bits;
  XType x_type;
  PlainMode mode;
  ActSpec act;
  ActParams input;
  GlobalScale result_scale;
  float output_scale;
};

// Owns the GPU memory of a matrix, and its view.
struct PlainWeights {
  PlainMatrix view{};
  std::vector<Buffer> memory;
  explicit PlainWeights(const CudaMatrix& m);
  uint64_t bytes() const;
};

// Selects rows of x and their matrices: rows sorted by expert, or rows of x as they are.
struct RowSelection {
  const int32_t* source = nullptr;  // [rows] which row of x; null: row i is row i of x
  const int32_t* expert = nullptr;  // [rows] which matrix; null: the first
  const float* weight = nullptr;    // [rows] factor of x; null: 1
  const int32_t* total = nullptr;   // number of rows, in GPU memory; null: `rows`
  int rows = 0;                     // number of rows, or the most that `total` may be
};

// Rows as products read them, in GPU memory: code values, and their scales and zero points.
struct Prepared {
  float* values;   // [rows, K] code values
  float* scales;   // [rows, groups] scales of the values
  int32_t* zeros;  // [rows, groups] zero points
  int K, groups;
};
int act_groups_of(const ActSpec& act, size_t K);  // returns the scales per row, at least 1

void prepare_rows(const PlainMatrix* matrices, const RowSelection& rows, const CudaRows& x,
                  const Prepared& to, cudaStream_t stream);

struct PlainGemm {
  const PlainMatrix* matrices;
  // List of tiles of kPlainTile rows; null: `rows` rows with the first matrix.
  const TokenTile* tiles;
  int max_tiles, rows, outputs;
  Prepared x;
  // Receives columns `column` to `column + outputs` of rows that are `stride` numbers long.
  void* y;
  XType y_type;
  size_t stride, column;
};
constexpr int kPlainTile = 16;
// Launches the product for those tiles whose matrix has this mode.
void plain_gemm(PlainMode mode, const PlainGemm& g, cudaStream_t stream);

// Computes y[row] = act(gate[row], up[row]), n numbers each; gate null: act(up[row]).
void activate_rows(const CudaActivation& a, const float* gate, const float* up, float* y,
                   const RowSelection& rows, size_t n, cudaStream_t stream);

struct CombineArgs {
  const float* y;  // [sorted rows, H] results of experts
  // [T, slots] sorted rows of a token in order of addition; -1 after the last.
  const int32_t* order;
  const float* weight;        // [sorted rows] weight of a row in the sum
  const float* shared;        // [T, H] results of the shared expert, or null
  const float* shared_gate;   // [T] its gate before the sigmoid; null: factor 1
  const float* zero_weights;  // [T] weights of identity experts, or null
  CudaRows x, out;
  int T, slots, H;
};
void combine_rows(const CombineArgs& a, bool early, cudaStream_t stream);
void zero_columns(const CudaRows& y, size_t begin, size_t end, cudaStream_t stream);

}  // namespace moebius::cuda
