// SPDX-License-Identifier: Apache-2.0
// The plain kernels: any scheme, any shape, any device of compute capability 8.0 or newer. Weights
// are kept as stored in the file; each output is computed by one thread in the order of
// quant/reference_gemm.cpp, so results have the bytes of the reference.
#pragma once
#include <vector>

#include "check.h"
#include "device/cuda/tiles.h"

namespace moebius::cuda {

// A maximal run of columns [begin, end) on which the scales of weights (group) and of rows
// (granule) are constant, in the order of summation.
struct Stretch {
  int32_t begin, end, group, granule;
};

enum class PlainMode : uint8_t { kFloat, kInteger, kVllm };

// One matrix; all pointers are into memory of the device.
struct PlainMatrix {
  const uint8_t* codes;
  const uint8_t* scales;
  const int8_t* zero_points;
  const uint8_t* offsets;
  const float* bias;
  const int32_t* columns;  // column at each position of the sum; null: ascending
  const Stretch* stretches;
  size_t row_bytes, scale_stride, block_n, n_phase;
  int32_t N, K, stretch_count, act_groups;
  CodeType code;
  ScaleType scale_type;
  uint8_t bits;
  XType x_type;
  PlainMode mode;
  ActSpec act;
  ActParams input;
  GlobalScale result_scale;
  float output_scale;
};

// A matrix with the memory that it uses.
struct PlainWeights {
  PlainMatrix view{};
  std::vector<Buffer> memory;
  explicit PlainWeights(const CudaMatrix& m);
  uint64_t bytes() const;
};

// Selects rows: rows of x sorted by expert, or rows of x as they are.
struct RowSet {
  const int32_t* source = nullptr;  // [rows] row of x; null: the same
  const int32_t* expert = nullptr;  // [rows] matrix; null: the first
  const float* weight = nullptr;    // [rows] factor of x; null: 1
  const int32_t* total = nullptr;   // number of rows, on the device; null: `rows`
  int rows = 0;                     // most rows
};

// Rows as products read them: numbers before their scales.
struct Prepared {
  float* values;   // [rows, K]
  float* scales;   // [rows, groups]
  int32_t* zeros;  // [rows, groups]
  int K, groups;
};
int act_groups_of(const ActSpec& act, size_t K);  // at least 1

void prepare_rows(const PlainMatrix* matrices, const RowSet& rows, const CudaRows& x,
                  const Prepared& to, cudaStream_t stream);

struct PlainGemm {
  const PlainMatrix* matrices;
  const TokenTile* tiles;  // tiles of kPlainTile rows; null: `rows` rows with the first matrix
  int max_tiles, rows, outputs;
  Prepared x;
  void* y;  // [rows, stride], from column `column` on
  XType y_type;
  size_t stride, column;
};
constexpr int kPlainTile = 16;
// Computes the tiles whose matrix has this mode.
void plain_gemm(PlainMode mode, const PlainGemm& g, cudaStream_t stream);

// Computes y[row] = act(gate[row], up[row]), n numbers each; gate null: act(up[row]).
void activate_rows(const CudaActivation& a, const float* gate, const float* up, float* y,
                   const RowSet& rows, size_t n, cudaStream_t stream);

struct CombineArgs {
  const float* y;             // [sorted rows, H]
  const int32_t* order;       // [T, slots]
  const float* weight;        // [sorted rows]
  const float* shared;        // [T, H] or null
  const float* shared_gate;   // [T] before the sigmoid, or null: 1
  const float* zero_weights;  // [T] or null
  CudaRows x, out;
  int T, slots, H;
};
void combine_rows(const CombineArgs& a, bool early, cudaStream_t stream);
void zero_columns(const CudaRows& y, size_t begin, size_t end, cudaStream_t stream);

}  // namespace moebius::cuda
