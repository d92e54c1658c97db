// SPDX-License-Identifier: Apache-2.0
#include "candidates.cuh"

#include "launch.h"
#include "model.h"

namespace moebius::cuda {
namespace {

__global__ void __launch_bounds__(kPieceThreads)
    maxima_kernel(const __grid_constant__ CudaCandidates c) {
  wait_for_predecessor();
  let_successor_start();
  find_maxima(c, static_cast<int>(blockIdx.y));
}

__global__ void __launch_bounds__(kPieceThreads)
    weigh_kernel(const __grid_constant__ CudaCandidates c) {
  __shared__ __align__(16) uint8_t shared[sizeof(CandidateWork) + kPieceWarps * sizeof(float)];
  wait_for_predecessor();
  let_successor_start();
  weigh_tokens(c, static_cast<int>(blockIdx.y), shared);
}

__global__ void __launch_bounds__(kChooseThreads)
    choose_kernel(const __grid_constant__ CudaCandidates c) {
  __shared__ ChooseShared shared;
  wait_for_predecessor();
  let_successor_start();
  choose_candidates(c, static_cast<int>(blockIdx.x), shared);
}

}  // namespace

size_t candidate_work_bytes(size_t rows, size_t cols) {
  return rows * (sizeof(CandidateWork) +
                 static_cast<size_t>(piece_count(cols)) * (sizeof(float) + sizeof(uint32_t)));
}

void find_candidates(const CudaCandidates& c, cudaStream_t stream) {
  if (c.x.type != XType::kF32) refuse("candidates of rows that are not f32");
  if (c.x.rows > 65535 || c.cols > INT32_MAX / 2) refuse("too many rows or logits");
  if (c.most == 0) refuse("no room for candidates");
  if (c.x.rows == 0) return;
  const auto rows = static_cast<unsigned>(c.x.rows);
  const dim3 pieces(blocks_of(static_cast<size_t>(piece_count(c.cols)), kPieceWarps), rows);
  launch_early(maxima_kernel, pieces, kPieceThreads, 0, stream, "greatest logits", c);
  if (c.weighs) launch_early(weigh_kernel, pieces, kPieceThreads, 0, stream, "weights of tokens", c);
  launch_early(choose_kernel, dim3(rows), kChooseThreads, 0, stream, "candidates", c);
}

}  // namespace moebius::cuda
