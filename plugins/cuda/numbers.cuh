// SPDX-License-Identifier: Apache-2.0
// Reads and rounds numbers of rows and weights in device code, with the functions of base/.
#pragma once
#include "base/math_functions.h"
#include "base/numeric.h"
#include "device/cuda/cuda_table.h"
#include "device/cuda/device_activation.h"
#include "quant/moe_spec.h"

namespace moebius::cuda {

__device__ __forceinline__ float round_number(XType type, float v) {
  return type == XType::kBf16  ? bf16_to_f32(f32_to_bf16(v))
         : type == XType::kF16 ? f16_to_f32(f32_to_f16(v))
                               : v;
}
__device__ __forceinline__ float load_number(const void* p, XType type, size_t i) {
  if (type == XType::kF32) return static_cast<const float*>(p)[i];
  const uint16_t h = static_cast<const uint16_t*>(p)[i];
  return type == XType::kBf16 ? bf16_to_f32(h) : f16_to_f32(h);
}
__device__ __forceinline__ void store_number(void* p, XType type, size_t i, float v) {
  if (type == XType::kF32)
    static_cast<float*>(p)[i] = v;
  else
    static_cast<uint16_t*>(p)[i] = type == XType::kBf16 ? f32_to_bf16(v) : f32_to_f16(v);
}

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
