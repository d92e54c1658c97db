// SPDX-License-Identifier: Apache-2.0
// Implements the plain kernels (plain.h).
#include "plain.h"

#include <algorithm>
#include <cfloat>
#include <numeric>

#include "launch.h"
#include "left_out.h"
#include "numbers.cuh"
#include "quant/quant_access.h"
#include "rows.cuh"

namespace moebius::cuda {
namespace {

constexpr int kPrepareThreads = 128;

// ---- host: how the columns of a matrix are added ----

int granule_of(const ActSpec& act, size_t column) {
  return act.code != ActCode::kAsIs && act.granule == ActGranule::kGroup
             ? static_cast<int>(column / act.group)
             : 0;
}

std::vector<int32_t> summation_order(const QuantMatrix& w) {
  std::vector<int32_t> order(w.K);
  std::iota(order.begin(), order.end(), 0);
  if (w.g_idx != nullptr)
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return w.g_idx[a] < w.g_idx[b]; });
  return order;
}

std::vector<Stretch> stretches_of(const QuantMatrix& w, const ActSpec& act,
                                  const std::vector<int32_t>& order) {
  std::vector<Stretch> out;
  for (size_t i = 0; i < w.K; ++i) {
    const auto c = static_cast<size_t>(order[i]);
    const int group = w.scale_type == ScaleType::kNone ? 0 : static_cast<int>(group_of(w, c));
    const int granule = granule_of(act, c);
    const auto at = static_cast<int32_t>(i);
    if (out.empty() || out.back().group != group || out.back().granule != granule)
      out.push_back({at, at, group, granule});
    out.back().end = at + 1;
  }
  return out;
}

// ---- rows ----

// Quantizes rows: each block has a row, each warp a granule.
__global__ void __launch_bounds__(kPrepareThreads)
    prepare_kernel(const PlainMatrix* matrices, RowSelection rows, CudaRows x, Prepared to) {
  const int row = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x) % 32;
  if (rows.total != nullptr && row >= *rows.total) return;
  const PlainMatrix& w = matrices[rows.expert != nullptr ? rows.expert[row] : 0];
  const size_t from =
      static_cast<size_t>(rows.source != nullptr ? rows.source[row] : row) * x.stride;
  float* values = to.values + static_cast<size_t>(row) * to.K;
  const bool weighted = rows.weight != nullptr;
  const float weight = weighted ? rows.weight[row] : 1.0f;
  const auto number = [&](int i) {
    const float v = number_at(x.data, x.type, from + i);
    return weighted ? v * weight : v;
  };
  if (w.act.code == ActCode::kAsIs) {
    for (int i = static_cast<int>(threadIdx.x); i < w.K; i += kPrepareThreads)
      values[i] = to_numbers(w.x_type, number(i));
    return;
  }
  const int width = w.act.granule == ActGranule::kGroup ? static_cast<int>(w.act.group) : w.K;
  for (int g = static_cast<int>(threadIdx.x) / 32; g < w.act_groups; g += kPrepareThreads / 32) {
    const int begin = g * width, end = min(begin + width, w.K);
    uint32_t most = 0;
    int32_t low = 0, high = 0;
    for (int i = begin + lane; i < end; i += 32) {
      const float v = number(i);
      most = max(most, f32_bits(v) & 0x7FFFFFFFu);
      low = min(low, float_key(v)), high = max(high, float_key(v));
    }
    const GranuleFacts facts{__reduce_max_sync(~0u, most), key_float(__reduce_min_sync(~0u, low)),
                             key_float(__reduce_max_sync(~0u, high))};
    const size_t at = static_cast<size_t>(row) * to.groups + g;
    if (w.act.mode == Int8Mode::kVllm) {
      const VllmScale s = vllm_scale(facts);
      const int even = w.x_type == XType::kBf16 && w.stretch_count == 1 ? w.K - w.K % 8 : 0;
      for (int i = begin + lane; i < end; i += 32) {
        const float v = number(i) * s.levels;
        const float q = clamp_f32((i < even ? rne(v) : round_away(v)) + s.zero, -128.0f, 127.0f);
        values[i] = s.nan ? 0.0f : q;
      }
      if (lane == 0) {
        to.scales[at] = s.nan ? f32_from_bits(numeric_detail::kQuietNan) : s.step;
        to.zeros[at] = s.nan ? 0 : static_cast<int32_t>(s.zero);
      }
      continue;
    }
    const GranuleScale s = scale_of_granule(w.act, w.input, facts);
    for (int i = begin + lane; i < end; i += 32) values[i] = code_number(w.act, s, number(i));
    if (lane == 0) to.scales[at] = s.stored;
  }
}

// ---- products ----

__device__ float code_number(const PlainMatrix& w, int n, int k) {
  const uint8_t* row = w.codes + static_cast<size_t>(n) * w.row_bytes;
  switch (w.code) {
    case CodeType::kInt8:
      return static_cast<float>(static_cast<int8_t>(row[k]));
    case CodeType::kInt8Offset:
      return static_cast<float>(static_cast<int>(row[k]) - 128);
    case CodeType::kInt4Offset:
      return static_cast<float>(static_cast<int>(row[k / 2] >> (4 * (k % 2)) & 15) - 8);
    case CodeType::kFp4:
      return e2m1_to_f32(row[k / 2] >> (4 * (k % 2)) & 15u);
    case CodeType::kLut4:
      return static_cast<float>(w.numbers.of[row[k / 2] >> (4 * (k % 2)) & 15]);
    case CodeType::kFp8:
      return e4m3_to_f32(row[k]);
    case CodeType::kBf16:
      return bf16_to_f32(reinterpret_cast<const uint16_t*>(row)[k]);
    case CodeType::kF16:
      return f16_to_f32(reinterpret_cast<const uint16_t*>(row)[k]);
    case CodeType::kF32:
      return reinterpret_cast<const float*>(row)[k];
  }
  return 0.0f;
}

__device__ size_t scale_row(const PlainMatrix& w, int n) {
  return (static_cast<size_t>(n) + w.n_phase) / w.block_n * w.scale_stride;
}

// Return a stored scale and a stored offset.
__device__ float of_two_levels(const PlainMatrix& w, float v, const float* supers, size_t at) {
  return supers == nullptr ? v : v * supers[(at + w.super_phase) / w.super_groups];
}
__device__ float scale_number(const PlainMatrix& w, size_t at) {
  return of_two_levels(w, table_number(w.scales, w.scale_type, at), w.super_scales, at);
}
__device__ float offset_number(const PlainMatrix& w, size_t at) {
  return of_two_levels(w, table_number(w.offsets, w.scale_type, at), w.super_offsets, at);
}

// Returns a weight as the sum needs it: the code without zero point; if there are offsets, the decoded
// weight, or between integers the code counted from 0.
__device__ float weight_number(const PlainMatrix& w, int n, int k, int group) {
  const float v = code_number(w, n, k);
  if (w.zero_points == nullptr && w.offsets == nullptr) return v;
  const size_t at = scale_row(w, n) + group;
  if (w.offsets != nullptr) {
    const float q = v + static_cast<float>(1 << (w.bits - 1));
    return w.mode != PlainMode::kFloat ? q : fmaf(q, scale_number(w, at), offset_number(w, at));
  }
  return v - static_cast<float>(w.zero_points[at]);
}

constexpr int kTileN = 64, kTileK = 32, kGemmThreads = 256, kThreadN = 4;

template <PlainMode kMode>
__global__ void __launch_bounds__(kGemmThreads) gemm_kernel(PlainGemm g) {
  constexpr bool kFloat = kMode == PlainMode::kFloat;
  using Number = std::conditional_t<kFloat, float, int32_t>;
  using Sum = std::conditional_t<kFloat, float, int64_t>;
  __shared__ Number ws[kTileK][kTileN + 1], xs[kPlainTile][kTileK + 1];
  __shared__ int32_t groups[kTileK];
  TokenTile tile;
  if (g.tiles != nullptr) {
    tile = g.tiles[blockIdx.x];
  } else {
    const int first = static_cast<int>(blockIdx.x) * kPlainTile;
    tile = {0, first, min(kPlainTile, g.rows - first), 0};
  }
  const PlainMatrix& w = g.matrices[tile.expert];
  const int n0 = static_cast<int>(blockIdx.y) * kTileN, tid = static_cast<int>(threadIdx.x);
  if (tile.rows == 0 || w.mode != kMode || n0 >= w.N) return;
  const int tx = tid % 16, ty = tid / 16, K = w.K;
  const size_t row = static_cast<size_t>(tile.first) + (ty < tile.rows ? ty : 0);
  const float* scales = g.x.scales + row * g.x.groups;
  const bool quantized = w.act.code != ActCode::kAsIs;
  const bool per_row = quantized && w.act.granule == ActGranule::kRow,
             inside = quantized && !per_row;
  const bool grouped = w.stretch_count > 1;  // groups of mode vllm
  const int zero = kMode == PlainMode::kVllm ? g.x.zeros[row * g.x.groups] : 0;
  float f[kThreadN] = {}, S[kThreadN] = {};
  Sum dot[kThreadN] = {}, sum[kThreadN] = {};
  [[maybe_unused]] Sum inputs = 0;
  int s = 0, staged = 0;  // stretch of the sum, and stretch of the staged weights
  Stretch now = w.stretches[0];
  for (int k0 = 0; k0 < K; k0 += kTileK) {
    __syncthreads();
    if (tid < kTileK && k0 + tid < K) {  // [place] group
      int i = staged;
      while (w.stretches[i].end <= k0 + tid) ++i;
      groups[tid] = w.stretches[i].group;
    }
    __syncthreads();
    for (int i = tid; i < kTileK * kTileN; i += kGemmThreads) {
      const int kk = i % kTileK, nn = i / kTileK, k = k0 + kk;
      const int column = k < K && w.columns != nullptr ? w.columns[k] : k;
      ws[kk][nn] = k < K && n0 + nn < w.N
                       ? static_cast<Number>(weight_number(w, n0 + nn, column, groups[kk]))
                       : Number{0};
    }
    for (int i = tid; i < kTileK * kPlainTile; i += kGemmThreads) {
      const int kk = i % kTileK, m = i / kTileK, k = k0 + kk;
      const int column = k < K && w.columns != nullptr ? w.columns[k] : k;
      xs[m][kk] = k < K && m < tile.rows
                      ? static_cast<Number>(
                            g.x.values[(static_cast<size_t>(tile.first) + m) * g.x.K + column])
                      : Number{0};
    }
    __syncthreads();
    const int count = min(kTileK, K - k0);
    for (int kk = 0; kk < count; ++kk) {
      const Number x = kMode == PlainMode::kVllm && !grouped
                           ? xs[ty][kk] - static_cast<Number>(zero)
                           : xs[ty][kk];
      if constexpr (kMode == PlainMode::kInteger) inputs += x;
#pragma unroll
      for (int j = 0; j < kThreadN; ++j) {
        const Number v = ws[kk][tx + 16 * j];
        if constexpr (kFloat)
          dot[j] = fmaf(x, v, dot[j]);
        else
          dot[j] += static_cast<int64_t>(x) * v;
        if constexpr (kMode == PlainMode::kVllm) sum[j] += v;
      }
      const int k = k0 + kk + 1;
      const bool ends = k == now.end;
      if (!ends && !(kMode == PlainMode::kVllm && (k - now.begin) % 16 == 0)) continue;
#pragma unroll
      for (int j = 0; j < kThreadN; ++j) {
        const int n = min(n0 + tx + 16 * j, w.N - 1);
        float c = w.scales == nullptr || (kFloat && w.offsets != nullptr)
                      ? 1.0f
                      : scale_number(w, scale_row(w, n) + now.group);
        if constexpr (kMode == PlainMode::kVllm) {
          if (grouped) c = bf16_to_f32(f32_to_bf16(c));
          S[j] = S[j] + static_cast<float>(sum[j]) * c;
          sum[j] = 0;
          if (ends)
            f[j] = grouped ? fmaf(static_cast<float>(dot[j]), c, f[j])
                           : (static_cast<float>(dot[j]) * 16.0f) * ((c / 16.0f) * scales[0]);
        } else {
          const float step = inside ? scales[now.granule] : 1.0f;
          f[j] = fmaf(static_cast<float>(dot[j]), c * step, f[j]);
          if (kMode == PlainMode::kInteger && w.offsets != nullptr)
            f[j] = fmaf(static_cast<float>(inputs),
                        offset_number(w, scale_row(w, n) + now.group) * step, f[j]);
        }
        if (ends) dot[j] = 0;
      }
      if (ends) inputs = 0;
      if (ends && ++s < w.stretch_count) now = w.stretches[s];
    }
    staged = min(s, w.stretch_count - 1);
  }
  if (ty >= tile.rows) return;
#pragma unroll
  for (int j = 0; j < kThreadN; ++j) {
    const int n = n0 + tx + 16 * j;
    if (n >= w.N) continue;
    float y = f[j];
    if constexpr (kMode == PlainMode::kVllm) {
      y = grouped ? fmaf(S[j], static_cast<float>(-zero), y) * scales[0]
                  : clamp_f32(y, -FLT_MAX, FLT_MAX);
    } else {
      if (per_row) y = y * scales[0];
      y = with_scale(y, w.result_scale);
    }
    if (w.bias != nullptr) y = y + w.bias[n];
    if (w.output_scale != 0.0f)
      y = clamp_f32(rne(y / w.output_scale), -128.0f, 127.0f) * w.output_scale;
    put_number(g.y, g.y_type, row * g.stride + g.column + n, y);
  }
}

__global__ void activate_kernel(CudaActivation a, const float* gate, const float* up, float* y,
                                RowSelection rows, size_t n) {
  const int row = static_cast<int>(blockIdx.y);
  if (rows.total != nullptr && row >= *rows.total) return;
  const size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
  if (i >= n) return;
  const size_t at = static_cast<size_t>(row) * n + i;
  y[at] = activated(a, gate != nullptr ? gate[at] : 0.0f, up[at]);
}

__global__ void __launch_bounds__(256) combine_kernel(CombineArgs a) {
  wait_for_predecessor();
  let_successor_start();
  if constexpr (leaves_out(kNoCombine)) return;
  const int t = static_cast<int>(blockIdx.x),
            h0 = (static_cast<int>(blockIdx.y) * 256 + static_cast<int>(threadIdx.x)) * 4;
  if (h0 >= a.H) return;
  const int count = min(4, a.H - h0);
  const bool four = count == 4 && a.H % 4 == 0;
  float sum[4] = {};
  for (int j0 = 0; j0 < a.slots; j0 += 8) {
    int at[8];
    float weight[8], v[8][4];
#pragma unroll
    for (int j = 0; j < 8; ++j) at[j] = j0 + j < a.slots ? a.order[t * a.slots + j0 + j] : -1;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (at[j] < 0) continue;
      const float* y = a.y + static_cast<size_t>(at[j]) * a.H + h0;
      weight[j] = a.weight[at[j]];
      if (four) {
        const float4 q = *reinterpret_cast<const float4*>(y);
        v[j][0] = q.x, v[j][1] = q.y, v[j][2] = q.z, v[j][3] = q.w;
      } else {
        for (int i = 0; i < 4; ++i) v[j][i] = i < count ? y[i] : 0.0f;
      }
    }
#pragma unroll
    for (int j = 0; j < 8; ++j)
      if (at[j] >= 0)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[i] = fmaf(weight[j], v[j][i], sum[i]);
  }
  if (a.shared != nullptr) {
    const float w = a.shared_gate != nullptr ? sigmoid_f32(a.shared_gate[t]) : 1.0f;
    for (int i = 0; i < count; ++i)
      sum[i] = sum[i] + w * a.shared[static_cast<size_t>(t) * a.H + h0 + i];
  }
  if (a.zero_weights != nullptr && a.zero_weights[t] != 0.0f)
    for (int i = 0; i < count; ++i)
      sum[i] = sum[i] + a.zero_weights[t] * number_at(a.x.data, a.x.type,
                                                      static_cast<size_t>(t) * a.x.stride + h0 + i);
  for (int i = 0; i < count; ++i)
    put_number(a.out.data, a.out.type, static_cast<size_t>(t) * a.out.stride + h0 + i, sum[i]);
}

__global__ void zero_kernel(CudaRows y, size_t begin, size_t end) {
  for (size_t i = begin + threadIdx.x; i < end; i += blockDim.x)
    put_number(y.data, y.type, static_cast<size_t>(blockIdx.x) * y.stride + i, 0.0f);
}

dim3 grid(size_t x, size_t y = 1) { return {static_cast<unsigned>(x), static_cast<unsigned>(y)}; }

}  // namespace

int act_groups_of(const ActSpec& act, size_t K) {
  if (act.code == ActCode::kAsIs || act.granule != ActGranule::kGroup) return 1;
  return static_cast<int>((K + act.group - 1) / act.group);
}

PlainWeights::PlainWeights(const CudaMatrix& m) {
  const QuantMatrix& w = m.w;
  if (w.N == 0 || w.K == 0 || w.N > INT32_MAX / 2 || w.K > INT32_MAX / 2)
    refuse("a matrix has no outputs or inputs, or too many");
  const auto keep = [&](const void* from, size_t bytes) {
    memory.emplace_back(from, bytes);
    return memory.back().as<uint8_t>();
  };
  const std::vector<int32_t> order = summation_order(w);
  const std::vector<Stretch> stretches = stretches_of(w, m.act, order);
  const bool integers = m.act.code == ActCode::kInt && has_integer_values(w.code);
  const size_t scales = w.scale_type == ScaleType::kNone ? 0 : scale_row(w, w.N - 1) + w.groups;
  // Rows begin at multiples of 4, so that numbers of any type can be read.
  const size_t stored = (w.K * code_bits(w.code) + 7) / 8, row_bytes = (stored + 3) / 4 * 4;
  std::vector<uint8_t> codes(w.N * row_bytes);
  for (size_t n = 0; n < w.N; ++n)
    std::copy_n(w.codes + n * w.row_bytes, stored, codes.data() + n * row_bytes);
  view.codes = keep(codes.data(), codes.size());
  view.row_bytes = row_bytes;
  if (scales > 0) view.scales = keep(w.scales, scales * scale_bytes(w.scale_type));
  if (w.zero_points != nullptr)
    view.zero_points = reinterpret_cast<const int8_t*>(keep(w.zero_points, scales));
  if (w.offsets != nullptr) view.offsets = keep(w.offsets, scales * scale_bytes(w.scale_type));
  if (w.scale_type == ScaleType::kTwoLevel) {
    const size_t bytes = ((scales - 1 + w.super_phase) / w.super_groups + 1) * sizeof(float);
    view.super_scales = reinterpret_cast<const float*>(keep(w.super_scales, bytes));
    if (w.offsets != nullptr)
      view.super_offsets = reinterpret_cast<const float*>(keep(w.super_offsets, bytes));
  }
  view.super_groups = w.super_groups, view.super_phase = w.super_phase;
  view.numbers = lut_numbers(w.lut);
  if (m.bias != nullptr)
    view.bias = reinterpret_cast<const float*>(keep(m.bias, w.N * sizeof(float)));
  if (w.g_idx != nullptr)
    view.columns =
        reinterpret_cast<const int32_t*>(keep(order.data(), order.size() * sizeof(int32_t)));
  view.stretches =
      reinterpret_cast<const Stretch*>(keep(stretches.data(), stretches.size() * sizeof(Stretch)));
  view.scale_stride = w.scale_stride, view.block_n = w.block_n, view.n_phase = w.n_phase;
  view.N = static_cast<int32_t>(w.N), view.K = static_cast<int32_t>(w.K);
  view.stretch_count = static_cast<int32_t>(stretches.size());
  view.act_groups = act_groups_of(m.act, w.K);
  view.code = w.code, view.scale_type = w.scale_type, view.bits = w.bits, view.x_type = m.x_type;
  view.mode = !integers                       ? PlainMode::kFloat
              : m.act.mode == Int8Mode::kVllm ? PlainMode::kVllm
                                              : PlainMode::kInteger;
  view.act = m.act, view.input = m.input;
  const bool two_level = m.act.code == ActCode::kFp4 && m.act.scale == ActScale::kFp8;
  view.result_scale =
      two_level ? both_scales(m.input.global_scale, w.global_scale) : w.global_scale;
  view.output_scale = m.output_scale;
}

uint64_t PlainWeights::bytes() const {
  uint64_t sum = 0;
  for (const Buffer& b : memory) sum += b.bytes();
  return sum;
}

void prepare_rows(const PlainMatrix* matrices, const RowSelection& rows, const CudaRows& x,
                  const Prepared& to, cudaStream_t stream) {
  if (rows.rows == 0) return;
  launch(prepare_kernel, grid(rows.rows), kPrepareThreads, /*bytes=*/0, /*early=*/false, stream,
         "preparing rows", matrices, rows, x, to);
}

void plain_gemm(PlainMode mode, const PlainGemm& g, cudaStream_t stream) {
  const int tiles = g.tiles != nullptr ? g.max_tiles : (g.rows + kPlainTile - 1) / kPlainTile;
  if (tiles == 0) return;
  const dim3 blocks = grid(tiles, (g.outputs + kTileN - 1) / kTileN);
  launch(mode == PlainMode::kFloat     ? gemm_kernel<PlainMode::kFloat>
         : mode == PlainMode::kInteger ? gemm_kernel<PlainMode::kInteger>
                                       : gemm_kernel<PlainMode::kVllm>,
         blocks, kGemmThreads, /*bytes=*/0, /*early=*/false, stream, "product", g);
}

void activate_rows(const CudaActivation& a, const float* gate, const float* up, float* y,
                   const RowSelection& rows, size_t n, cudaStream_t stream) {
  constexpr unsigned kMostRows = 65535;
  if (rows.rows == 0) return;
  if (static_cast<unsigned>(rows.rows) > kMostRows)
    refuse("more than 65535 rows of experts in one call of a plain layer");
  launch(activate_kernel, grid((n + 255) / 256, rows.rows), 256, /*bytes=*/0, /*early=*/false,
         stream, "activation", a, gate, up, y, rows, n);
}

void combine_rows(const CombineArgs& a, bool early, cudaStream_t stream) {
  if (a.T == 0) return;
  launch(combine_kernel, grid(a.T, (a.H + 1023) / 1024), 256, 0, early, stream, "combine", a);
}

void zero_columns(const CudaRows& y, size_t begin, size_t end, cudaStream_t stream) {
  if (y.rows == 0 || begin == end) return;
  launch(zero_kernel, grid(y.rows), 128, 0, /*early=*/false, stream, "padding", y, begin, end);
}

}  // namespace moebius::cuda
