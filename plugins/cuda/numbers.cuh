// SPDX-License-Identifier: Apache-2.0
// Numbers of rows and weights in device code, by the functions of base/.
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

// A number of a table of scales.
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

// Early launch: a kernel waits for the one before it, and lets the next one start. Without the attribute they do nothing.
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
