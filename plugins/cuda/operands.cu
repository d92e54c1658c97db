// SPDX-License-Identifier: Apache-2.0
// Makes operands of tensor-core products from rows (hopper.h), for all forms that the fast ones of
// hopper.cu do not cover.
#include <cuda_fp16.h>

#include "hopper.h"
#include "launch.h"
#include "rows.cuh"

namespace moebius::cuda {
namespace {

constexpr int kOperandThreads = 256, kGroupInputs = 128;

struct OperandStore {
  RowForm form;
  bool inside;  // the scale is multiplied into the operand
  __device__ void operator()(uint8_t* row, int i, const ActSpec& act, const GranuleScale& s,
                             float x) const {
    if (form == RowForm::kInt8) {
      reinterpret_cast<int8_t*>(row)[i] = static_cast<int8_t>(code_number(act, s, x));
    } else if (form == RowForm::kE4m3 || form == RowForm::kE4m3Half) {
      const uint32_t c =
          s.divisor == 0.0f ? 0u : f32_to_e4m3(clamp_f32(x / s.divisor, -448.0f, 448.0f));
      if (form == RowForm::kE4m3)
        row[i] = static_cast<uint8_t>(c);
      else
        reinterpret_cast<uint16_t*>(row)[i] =
            static_cast<uint16_t>((c & 0x80u) << 8 | (c & 0x7Fu) << 7);
    } else {
      const float v = inside ? code_number(act, s, x) * s.stored : x;
      reinterpret_cast<uint16_t*>(row)[i] = form == RowForm::kBf16 ? f32_to_bf16(v) : f32_to_f16(v);
    }
  }
};

__device__ uint32_t block_largest(uint32_t most) {
  __shared__ uint32_t warps[kOperandThreads / 32];
  most = __reduce_max_sync(~0u, most);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = most;
  __syncthreads();
  return __reduce_max_sync(~0u, warps[threadIdx.x % (kOperandThreads / 32)]);
}

// Makes operands of rows: each block has a row; each warp a granule, or all threads one granule of
// the whole row.
__global__ void __launch_bounds__(kOperandThreads)
    operand_kernel(const __grid_constant__ OperandArgs a) {
  const int row = static_cast<int>(blockIdx.x), tid = static_cast<int>(threadIdx.x);
  if (a.rows.total != nullptr && row >= *a.rows.total) return;
  const size_t expert = a.rows.expert != nullptr ? static_cast<size_t>(a.rows.expert[row]) : 0;
  const size_t from =
      static_cast<size_t>(a.rows.source != nullptr ? a.rows.source[row] : row) * a.x.stride;
  const int32_t* columns = a.columns != nullptr ? a.columns + expert * a.K : nullptr;
  const bool weighted = a.rows.weight != nullptr;
  const float weight = weighted ? a.rows.weight[row] : 1.0f;
  const auto number = [&](int i) {
    const float v = number_at(a.x.data, a.x.type, from + (columns != nullptr ? columns[i] : i));
    return weighted ? v * weight : v;
  };
  const int bytes = a.form == RowForm::kInt8 || a.form == RowForm::kE4m3 ? 1 : 2;
  uint8_t* to = a.to + static_cast<size_t>(row) * a.padded * bytes;
  for (int i = a.K * bytes + tid; i < a.padded * bytes; i += kOperandThreads) to[i] = 0;
  OperandStore store{a.form, false};
  if (a.act.code == ActCode::kAsIs) {
    for (int i = tid; i < a.K; i += kOperandThreads) store(to, i, a.act, GranuleScale{}, number(i));
    return;
  }
  const ActParams& input = a.inputs[a.rows.expert != nullptr ? expert : 0];
  if (a.act.granule != ActGranule::kGroup) {
    uint32_t most = 0;
    for (int i = tid; i < a.K; i += kOperandThreads)
      most = max(most, f32_bits(number(i)) & 0x7FFFFFFFu);
    const GranuleScale s =
        scale_of_granule(a.act, input, GranuleFacts{block_largest(most), 0.0f, 0.0f});
    for (int i = tid; i < a.K; i += kOperandThreads) store(to, i, a.act, s, number(i));
    if (tid == 0) a.scales[row] = s.stored;
    return;
  }
  // Each thread has eight numbers; neighbouring threads share a group of 16, 32, 64 or 128.
  store.inside = a.form == RowForm::kBf16;
  const int width = static_cast<int>(a.act.group), groups = (a.K + width - 1) / width;
  for (int first = 0; first < a.K; first += 8 * kOperandThreads) {  // whole warps
    const int i = first + 8 * tid;
    float v[8] = {};
    uint32_t most = 0;
    if (columns == nullptr && i + 8 <= a.K) {
      load_eight(a.x, from + i, v);
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] = weighted ? v[j] * weight : v[j];
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] = i + j < a.K ? number(i + j) : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) most = max(most, f32_bits(v[j]) & 0x7FFFFFFFu);
    for (int step = 1; step < width / 8; step *= 2)
      most = max(most, __shfl_xor_sync(~0u, most, step));
    const GranuleScale s = scale_of_granule(a.act, input, GranuleFacts{most, 0.0f, 0.0f});
    if (i + 8 <= a.K) {
      __align__(16) uint8_t eight[16];
#pragma unroll
      for (int j = 0; j < 8; ++j) store(eight, j, a.act, s, v[j]);
      if (bytes == 2)
        *reinterpret_cast<uint4*>(to + i * 2) = *reinterpret_cast<const uint4*>(eight);
      else
        *reinterpret_cast<uint2*>(to + i) = *reinterpret_cast<const uint2*>(eight);
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j)
        if (i + j < a.K) store(to, i + j, a.act, s, v[j]);
    }
    if (!store.inside && i < a.K && i % width == 0)
      a.scales[static_cast<size_t>(row) * (a.padded / kGroupInputs) + i / width] = s.stored;
  }
  if (!store.inside)
    for (int g = groups + tid; g < a.padded / kGroupInputs; g += kOperandThreads)
      a.scales[static_cast<size_t>(row) * (a.padded / kGroupInputs) + g] = 1.0f;
}

__global__ void __launch_bounds__(256) activate_kernel(const __grid_constant__ ActivateArgs a) {
  const int row = static_cast<int>(blockIdx.x);
  if (a.total != nullptr && row >= *a.total) return;
  const float* y = a.y + static_cast<size_t>(row) * a.outputs;
  const float* bias = a.bias;
  if (bias != nullptr && a.expert != nullptr)
    bias += static_cast<size_t>(a.expert[row]) * a.outputs;
  const auto output = [&](int o) { return bias != nullptr ? y[o] + bias[o] : y[o]; };
  for (int i = static_cast<int>(threadIdx.x); i < a.I; i += 256) {
    const int o = a.joined ? i / 8 * 16 + i % 8 : i;
    const float h = a.joined ? activated(a.activation, output(o), output(o + 8))
                             : activated(a.activation, 0.0f, output(o));
    put_number(a.h, a.type, static_cast<size_t>(row) * a.I + i, h);
  }
}

}  // namespace

void make_operands(const OperandArgs& a, cudaStream_t stream) {
  if (a.rows.rows == 0) return;
  launch(operand_kernel, static_cast<unsigned>(a.rows.rows), kOperandThreads, /*bytes=*/0,
         /*early=*/false, stream, "operands", a);
}

void activate_outputs(const ActivateArgs& a, cudaStream_t stream) {
  if (a.rows == 0) return;
  launch(activate_kernel, static_cast<unsigned>(a.rows), 256, 0, false, stream, "activation", a);
}

}  // namespace moebius::cuda
