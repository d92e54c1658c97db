// SPDX-License-Identifier: Apache-2.0
// Finds candidates in rows of logits (defined in device/cuda/device_candidates.h) with three
// kernels: the greatest logits of pieces of 256 tokens; counts and weights of buckets, whose sums
// are exact in any order; and the tokens of the first buckets, which lie in few pieces. Rows that
// need only the greatest logit need no weights.
#pragma once
#include "device/cuda/cuda_table.h"
#include "device/cuda/device_candidates.h"
#include "rows.cuh"

namespace moebius::cuda {

constexpr int kPieceTokens = 256, kPieceThreads = 256, kPieceWarps = kPieceThreads / 32,
              kChooseThreads = 512, kChooseWarps = kChooseThreads / 32;
constexpr float kNoLogit = -std::numeric_limits<float>::infinity();

// Results that the kernels for one row of logits pass to each other.
struct CandidateWork {
  double weights[kCandidateBuckets];
  uint32_t counts[kCandidateBuckets];
};
constexpr int piece_count(size_t cols) {
  return static_cast<int>((cols + kPieceTokens - 1) / kPieceTokens);
}
// Arrays that follow the CandidateWork of all rows in the scratch memory: [rows, pieces] greatest
// logits, then [rows, pieces] numbers of candidates.
__device__ __forceinline__ CandidateWork* work_of(const CudaCandidates& c, int row) {
  return static_cast<CandidateWork*>(c.work) + row;
}
__device__ __forceinline__ float* maxima_of(const CudaCandidates& c, int row) {
  return reinterpret_cast<float*>(static_cast<CandidateWork*>(c.work) + c.x.rows) +
         static_cast<size_t>(row) * piece_count(c.cols);
}
__device__ __forceinline__ uint32_t* starts_of(const CudaCandidates& c, int row) {
  return reinterpret_cast<uint32_t*>(maxima_of(c, static_cast<int>(c.x.rows))) +
         static_cast<size_t>(row) * piece_count(c.cols);
}
__device__ __forceinline__ const float* row_of(const CudaCandidates& c, int row) {
  return static_cast<const float*>(c.x.data) + static_cast<size_t>(row) * c.x.stride;
}

__device__ __forceinline__ float warp_greatest(float x) {
  return key_float(__reduce_max_sync(~0u, float_key(x)));
}
// Returns the greatest logit of a row, to all threads of the block; `shared`: one float per warp.
__device__ __forceinline__ float greatest_of(const float* maxima, int pieces, float* shared) {
  const int tid = static_cast<int>(threadIdx.x), warps = static_cast<int>(blockDim.x) / 32;
  float top = kNoLogit;
  for (int p = tid; p < pieces; p += static_cast<int>(blockDim.x)) top = max(top, maxima[p]);
  top = warp_greatest(top);
  if (tid % 32 == 0) shared[tid / 32] = top;
  __syncthreads();
  for (int w = 0; w < warps; ++w) top = max(top, shared[w]);
  __syncthreads();
  return top;
}

// Finds the greatest logit of each piece, one warp per piece.
__device__ __forceinline__ void find_maxima(const CudaCandidates& c, int row) {
  const CandidateNeed& need = c.needs[row];
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32,
            piece = static_cast<int>(blockIdx.x) * kPieceWarps + tid / 32;
  if (c.weighs && blockIdx.x == 0) {
    CandidateWork& work = *work_of(c, row);
    for (uint32_t b = threadIdx.x; b < kCandidateBuckets; b += kPieceThreads)
      work.weights[b] = 0.0, work.counts[b] = 0;
  }
  if (piece >= piece_count(c.cols)) return;
  const float* x = row_of(c, row);
  const int first = piece * kPieceTokens,
            end = min(first + kPieceTokens, static_cast<int>(need.vocab));
  float top = kNoLogit;
  for (int i = first + lane; i < end; i += 32) top = is_logit(x[i]) ? max(top, x[i]) : top;
  top = warp_greatest(top);
  if (lane == 0) maxima_of(c, row)[piece] = top;
}

// Adds weights and counts of the tokens of kPieceWarps pieces. shared: a CandidateWork, then one
// float per warp.
__device__ __forceinline__ void weigh_tokens(const CudaCandidates& c, int row, uint8_t* shared) {
  const CandidateNeed& need = c.needs[row];
  if (need.vocab == 0 || !need.weighs()) return;
  auto& here = *reinterpret_cast<CandidateWork*>(shared);
  for (uint32_t b = threadIdx.x; b < kCandidateBuckets; b += kPieceThreads)
    here.weights[b] = 0.0, here.counts[b] = 0;
  const float top = greatest_of(maxima_of(c, row), piece_count(c.cols),
                                reinterpret_cast<float*>(shared + sizeof(CandidateWork)));
  const float* x = row_of(c, row);
  const int first = static_cast<int>(blockIdx.x) * kPieceWarps * kPieceTokens,
            end = min(first + kPieceWarps * kPieceTokens, static_cast<int>(need.vocab));
  for (int i = first + static_cast<int>(threadIdx.x); i < end; i += kPieceThreads) {
    const float v = x[i];
    if (!is_logit(v)) continue;
    const uint32_t b = candidate_bucket(v, top, need.rate);
    const float w = token_weight_f32(v, top, need.rate, need.grid);
    atomicAdd(&here.counts[b], 1u);
    if (w != 0.0f) atomicAdd(&here.weights[b], static_cast<double>(w));
  }
  __syncthreads();
  CandidateWork& all = *work_of(c, row);
  for (uint32_t b = threadIdx.x; b < kCandidateBuckets; b += kPieceThreads)
    if (here.counts[b] != 0) {
      atomicAdd(&all.counts[b], here.counts[b]);
      if (here.weights[b] != 0.0) atomicAdd(&all.weights[b], here.weights[b]);
    }
}

struct ChooseShared {
  CandidateWork work;
  double weights[32];
  uint32_t counts[32];
  float maxima[kChooseWarps];
  uint32_t starts[kChooseThreads];
  uint32_t last, first;
  double total;
};

// Computes last_candidate_bucket() of a row with all threads of the block, from sums over 16
// buckets.
__device__ __forceinline__ void find_last_bucket(const CandidateNeed& need,
                                                 const CandidateWork& from, ChooseShared& s) {
  constexpr uint32_t kEach = kCandidateBuckets / 32;
  const uint32_t tid = threadIdx.x;
  for (uint32_t b = tid; b < kCandidateBuckets; b += kChooseThreads)
    s.work.weights[b] = from.weights[b], s.work.counts[b] = from.counts[b];
  __syncthreads();
  if (tid < 32) {
    s.weights[tid] = 0.0, s.counts[tid] = 0;
    for (uint32_t b = tid * kEach; b < (tid + 1) * kEach; ++b)
      s.weights[tid] += s.work.weights[b], s.counts[tid] += s.work.counts[b];
  }
  __syncthreads();
  if (tid == 0) {
    double total = 0.0, weight = 0.0;
    for (int i = 0; i < 32; ++i) total += s.weights[i];
    uint32_t g = 0, count = 0;
    const auto enough = [&](uint32_t n, double w) {
      return need.top_k > 0 ? n >= need.top_k : w >= need.top_p * total;
    };
    while (g < 31 && !enough(count + s.counts[g], weight + s.weights[g]))
      count += s.counts[g], weight += s.weights[g], ++g;
    uint32_t b = g * kEach;
    while (b + 1 < kCandidateBuckets &&
           !enough(count += s.work.counts[b], weight += s.work.weights[b]))
      ++b;
    s.last = b < need.deepest ? b : need.deepest, s.total = total;
  }
  __syncthreads();
}

// Collects the candidates of a row with a block of kChooseThreads threads.
__device__ __forceinline__ void choose_candidates(const CudaCandidates& c, int row,
                                                  ChooseShared& s) {
  const CandidateNeed& need = c.needs[row];
  if (need.vocab == 0) return;
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32,
            pieces = piece_count(c.cols);
  const float *x = row_of(c, row), *maxima = maxima_of(c, row);
  const float top = greatest_of(maxima, pieces, s.maxima);
  CudaFound& found = c.found[row];
  int32_t* ids = c.ids + static_cast<size_t>(row) * c.most;
  float* logits = c.logits + static_cast<size_t>(row) * c.most;
  if (tid == 0) s.first = need.vocab, s.last = need.deepest, s.total = 0.0;
  __syncthreads();
  if (top == kNoLogit || need.rate == 0.0f) {
    for (int p = warp; top != kNoLogit && p < pieces; p += kChooseWarps) {
      if (maxima[p] != top) continue;
      const int end = min((p + 1) * kPieceTokens, static_cast<int>(need.vocab));
      for (int i = p * kPieceTokens + lane; i < end; i += 32)
        if (x[i] == top) atomicMin(&s.first, static_cast<uint32_t>(i));
    }
    __syncthreads();
    if (tid == 0) {
      found = {0.0, top, top == kNoLogit ? 0u : 1u};
      if (top != kNoLogit) ids[0] = static_cast<int32_t>(s.first), logits[0] = x[s.first];
    }
    return;
  }
  if (need.weighs()) find_last_bucket(need, *work_of(c, row), s);
  const uint32_t last = s.last;
  const auto is_candidate = [&](float v) {
    return is_logit(v) && candidate_bucket(v, top, need.rate) <= last;
  };
  // Count the candidates of each piece.
  uint32_t* starts = starts_of(c, row);
  constexpr int kEach = kPieceTokens / 32;  // consecutive tokens per lane
  const auto count_of = [&](int p) {
    const int first = p * kPieceTokens + lane * kEach;
    uint32_t n = 0;
    for (int i = first; i < min(first + kEach, static_cast<int>(need.vocab)); ++i)
      n += is_candidate(x[i]) ? 1 : 0;
    return n;
  };
  for (int p = warp; p < pieces; p += kChooseWarps) {
    const uint32_t n = is_candidate(maxima[p]) ? __reduce_add_sync(~0u, count_of(p)) : 0u;
    if (lane == 0) starts[p] = n;
  }
  __syncthreads();
  // Compute the first index of each piece's candidates; a thread handles consecutive pieces.
  const int each = (pieces + kChooseThreads - 1) / kChooseThreads;
  uint32_t mine = 0;
  for (int p = tid * each; p < min((tid + 1) * each, pieces); ++p) mine += starts[p];
  s.starts[tid] = mine;
  __syncthreads();
  for (int d = 1; d < kChooseThreads; d *= 2) {
    const uint32_t before = tid >= d ? s.starts[tid - d] : 0;
    __syncthreads();
    s.starts[tid] += before;
    __syncthreads();
  }
  const uint32_t all = s.starts[kChooseThreads - 1];
  uint32_t at = s.starts[tid] - mine;
  for (int p = tid * each; p < min((tid + 1) * each, pieces); ++p) {
    const uint32_t n = starts[p];
    starts[p] = at, at += n;
  }
  __syncthreads();
  if (tid == 0) found = {s.total, top, all};
  if (all > c.most) return;
  for (int p = warp; p < pieces; p += kChooseWarps) {
    if (!is_candidate(maxima[p])) continue;
    const uint32_t own = count_of(p);
    uint32_t to = own;
    for (int d = 1; d < 32; d *= 2) {
      const uint32_t before = __shfl_up_sync(~0u, to, d);
      to += lane >= d ? before : 0;
    }
    to += starts[p] - own;
    const int first = p * kPieceTokens + lane * kEach;
    for (int i = first; i < min(first + kEach, static_cast<int>(need.vocab)); ++i)
      if (is_candidate(x[i])) ids[to] = i, logits[to++] = x[i];
  }
}

}  // namespace moebius::cuda
