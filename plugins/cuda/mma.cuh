// SPDX-License-Identifier: Apache-2.0
// Tensor-core products of one warp (mma.sync, compute capability 8.0 and newer), asynchronous
// copies to shared memory, and instructions that C++ does not express. When compiled for the host
// (tests/gpu/host_cuda.h), the threads of a warp are emulated and compute the same results.
//
// Lane l has rows l / 4 and l / 4 + 8 of a 16 x 16 (bytes: 16 x 32) operand, column l / 4 of the
// other one, and of the 16 x 8 result rows l / 4 and l / 4 + 8 of columns 2 (l % 4) and the next.
#pragma once
#include <cstdint>

#if !defined(MOEBIUS_HOST_CUDA)

namespace moebius::cuda {

// Multiplies 16-bit operands of a type. to: constraint of the results; sum: what is added; then the
// operands of `sum`, if it has its own.
#define MOEBIUS_MMA(type, to, sum, ...)                                      \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type        \
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " sum ";" \
               : to(d[0]), to(d[1]), to(d[2]), to(d[3])                      \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1)__VA_ARGS__)

// Computes d += a b.
template <bool kF16>
__device__ __forceinline__ void mma_halves(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                           uint32_t b1) {
  if constexpr (kF16)
    MOEBIUS_MMA("f16", "+f", "{%0, %1, %2, %3}");
  else
    MOEBIUS_MMA("bf16", "+f", "{%0, %1, %2, %3}");
}

// Computes d = a b.
template <bool kF16>
__device__ __forceinline__ void mma_first(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                          uint32_t b1) {
  if constexpr (kF16)
    MOEBIUS_MMA("f16", "=f", "{%10, %10, %10, %10}", , "f"(0.0f));
  else
    MOEBIUS_MMA("bf16", "=f", "{%10, %10, %10, %10}", , "f"(0.0f));
}
#undef MOEBIUS_MMA

__device__ __forceinline__ void mma_bytes(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                          uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
      "%9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Computes d = a b + sum.
__device__ __forceinline__ void mma_first_bytes(int32_t (&d)[4], const uint32_t (&a)[4],
                                                uint32_t b0, uint32_t b1, int32_t sum) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
      "%9}, {%10, %10, %10, %10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(sum));
}

// Copies sixteen bytes of global memory into shared memory asynchronously; both addresses are
// multiples of sixteen. The thread sees them when at most kLeft of its groups (each ended by
// end_copies) are in flight, other threads after a barrier following that.
__device__ __forceinline__ void copy_sixteen(void* shared, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
               "l"(from)
               : "memory");
}
__device__ __forceinline__ void end_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kLeft>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// Returns the larger number, NaN if either is NaN.
__device__ __forceinline__ float max_or_nan(float a, float b) {
  float m;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
  return m;
}
// Returns two 16-bit numbers, rounded to even, the first in the lower half.
template <bool kF16>
__device__ __forceinline__ uint32_t two_numbers(float low, float high) {
  uint32_t two;
  if constexpr (kF16)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
  return two;
}

__device__ __forceinline__ void fetch_ahead(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

}  // namespace moebius::cuda

#endif
