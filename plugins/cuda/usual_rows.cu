// SPDX-License-Identifier: Apache-2.0
// Implements kernels of the usual lists of row operations (usual_rows.cuh).
#include "usual_rows.cuh"

#include "launch.h"
#include "model.h"

namespace moebius::cuda {
namespace {

constexpr unsigned kHeadThreads = 128;

// Waits for the kernel before this one, whose results are visible afterwards, and lets the next
// kernel start.
__device__ __forceinline__ void take_turn() {
  wait_for_predecessor();
  let_successor_start();
}

template <XType kType, int kPieces, bool kNormsX>
__global__ void __launch_bounds__(kUsualThreads)
    usual_norm_kernel(const __grid_constant__ UsualNorm u) {
  __shared__ __align__(16) float terms[kPieces * kUsualThreads * 8 + 4];
  usual_norm_row<kType, kPieces, kNormsX>(u, blockIdx.x, terms, [] { take_turn(); });
}

template <XType kType, int kHeld>
__global__ void __launch_bounds__(kHeadThreads)
    usual_heads_kernel(const __grid_constant__ UsualHeads u) {
  const uint32_t part =
      blockIdx.y * (kHeadThreads / kDeviceSumLanes) + threadIdx.x / kDeviceSumLanes;
  if (part >= head_count(u)) return take_turn();
  usual_head<kType, kHeld>(u, blockIdx.x, part, [] { take_turn(); });
}

template <XType kType, int kPieces>
void run_norm(const UsualNorm& u, cudaStream_t stream) {
  launch_early(u.norms_x ? usual_norm_kernel<kType, kPieces, true>
                         : usual_norm_kernel<kType, kPieces, false>,
               dim3(blocks_of(u.h.rows)), kUsualThreads, 0, stream, "rows", u);
}
template <XType kType>
void run_norm(const UsualNorm& u, cudaStream_t stream) {
  constexpr uint32_t kPiece = 8 * kUsualThreads;
  return u.cols <= kPiece       ? run_norm<kType, 1>(u, stream)
         : u.cols <= 2 * kPiece ? run_norm<kType, 2>(u, stream)
                                : run_norm<kType, 4>(u, stream);
}

template <XType kType>
void run_heads(const UsualHeads& u, size_t rows, cudaStream_t stream) {
  const auto kernel = u.width == 64    ? usual_heads_kernel<kType, 4>
                      : u.width == 128 ? usual_heads_kernel<kType, 8>
                                       : usual_heads_kernel<kType, 16>;
  launch_early(kernel,
               dim3(blocks_of(rows), blocks_of(head_count(u), kHeadThreads / kDeviceSumLanes)),
               kHeadThreads, 0, stream, "rows", u);
}

// Calls f(type) with the type as a compile-time constant.
template <class F>
void by_type(XType type, F f) {
  switch (type) {
    case XType::kBf16:
      return f(std::integral_constant<XType, XType::kBf16>());
    case XType::kF16:
      return f(std::integral_constant<XType, XType::kF16>());
    case XType::kF32:
      return f(std::integral_constant<XType, XType::kF32>());
  }
}

}  // namespace

bool run_usual_rows(const CudaRowProgram* programs, size_t count, cudaStream_t stream) {
  UsualNorm norm;
  UsualHeads heads;
  if (is_usual_norm(programs, count, norm)) {
    by_type(norm.type, [&](auto type) { run_norm<type.value>(norm, stream); });
    return true;
  }
  if (count != 1 || !is_usual_heads(programs[0], heads)) return false;
  by_type(heads.type, [&](auto type) { run_heads<type.value>(heads, programs[0].rows, stream); });
  return true;
}

}  // namespace moebius::cuda
