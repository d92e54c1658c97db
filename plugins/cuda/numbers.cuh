// SPDX-License-Identifier: Apache-2.0
// Reads scales of weights in device code, and starts kernels early. Numbers of rows are read and
// rounded by device/cuda/device_lanes.h.
#pragma once
#include "base/math_functions.h"
#include "base/numeric.h"
#include "device/cuda/cuda_table.h"
#include "device/cuda/device_activation.h"
#include "device/cuda/device_lanes.h"
#include "quant/moe_spec.h"

namespace moebius::cuda {

// Returns entry i of a table of scales as f32.
__device__ __forceinline__ float table_number(const uint8_t* table, ScaleType type, size_t i) {
  switch (type) {
    case ScaleType::kF32:
      return reinterpret_cast<const float*>(table)[i];
    case ScaleType::kBf16:
      return bf16_to_f32(reinterpret_cast<const uint16_t*>(table)[i]);
    case ScaleType::kF16:
      return f16_to_f32(reinterpret_cast<const uint16_t*>(table)[i]);
    case ScaleType::kFp8:
      return e4m3_to_f32(table[i]);
    case ScaleType::kE8m0:
      return e8m0_to_f32(table[i]);
    case ScaleType::kTwoLevel:  // the first level
      return static_cast<float>(static_cast<int8_t>(table[i]));
    case ScaleType::kNone:
      break;
  }
  return 1.0f;
}

// Early launch: wait_for_predecessor() waits for the preceding kernel, let_successor_start() allows
// the next kernel to start. Neither has an effect on kernels launched without the attribute.
__device__ __forceinline__ void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void let_successor_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace moebius::cuda
