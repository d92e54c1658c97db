// SPDX-License-Identifier: Apache-2.0
// Rows as operands of tensor-core products (hopper.h): what the fast forms of hopper.cu do not do.
#include <cuda_fp16.h>

#include "hopper.h"
#include "rows.cuh"

namespace moebius::cuda {
namespace {

constexpr int kOperandThreads = 256, kGroupInputs = 128;

struct OperandStore {
  RowForm form;
  bool inside;  // the scale goes into the operand
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

// A block per row; a warp per granule, or all threads for a granule of the whole row.
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
    const float v = load_number(a.x.data, a.x.type, from + (columns != nullptr ? columns[i] : i));
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
  store.inside = a.form == RowForm::kBf16;
  const int width = static_cast<int>(a.act.group), lane = tid % 32;
  const int groups = (a.K + width - 1) / width;
  for (int g = tid / 32; g < groups; g += kOperandThreads / 32) {
    const int begin = g * width, end = min(begin + width, a.K);
    uint32_t most = 0;
    for (int i = begin + lane; i < end; i += 32)
      most = max(most, f32_bits(number(i)) & 0x7FFFFFFFu);
    const GranuleScale s =
        scale_of_granule(a.act, input, GranuleFacts{__reduce_max_sync(~0u, most), 0.0f, 0.0f});
    for (int i = begin + lane; i < end; i += 32) store(to, i, a.act, s, number(i));
    if (!store.inside && lane == 0)
      a.scales[static_cast<size_t>(row) * (a.padded / kGroupInputs) + g] = s.stored;
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
    store_number(a.h, a.type, static_cast<size_t>(row) * a.I + i, h);
  }
}

}  // namespace

void make_operands(const OperandArgs& a, cudaStream_t stream) {
  if (a.rows.rows == 0) return;
  operand_kernel<<<static_cast<unsigned>(a.rows.rows), kOperandThreads, 0, stream>>>(a);
  check_launch("operands");
}

void activate_outputs(const ActivateArgs& a, cudaStream_t stream) {
  if (a.rows == 0) return;
  activate_kernel<<<static_cast<unsigned>(a.rows), 256, 0, stream>>>(a);
  check_launch("activation");
}

}  // namespace moebius::cuda
