// SPDX-License-Identifier: Apache-2.0
// Attention by tensor cores over keys and values of 16 bits (device_attention.h says for which
// layers, and how blocks are laid out). A warp computes a tile of up to 16 queries of one kv head
// and goes through halves of blocks, 64 keys each. The order is that of device_attention.h with
// these sums: a score is one chain over its features; probabilities of a half are added by four
// lanes and then across them; values of a half are one chain, and both halves of a block are added
// before the block joins what came before. A row's result thus depends on the row and its keys
// alone, and all forms give the same bytes:
//   whole: a warp goes through all keys of its tile;
//   split: sixteen warps have a half each of the eight blocks of a segment, and meet in shared memory;
//   staged (attention_staged.cuh): warps with neighbouring tiles go through all keys together, which come to shared memory once for all.
//
// Operands are sixteen bytes for a lane: a lane has eight neighbouring features of a key (keys lie
// token by token), or eight neighbouring tokens of a feature of values (values lie feature by
// feature), and queries and probabilities are taken in the same order. So column n of the t-th
// product of 32 keys is key 8 (n / 2) + 2 t + n % 2.
#pragma once
#include "attention_plan.h"
#include "mma.cuh"
#include "numbers.cuh"

namespace moebius::cuda {

constexpr int kHalfKeys = 64, kHalfTiles = kHalfKeys / 8;
constexpr auto kBlockKeys = static_cast<uint32_t>(kKeyBlock),
               kSegmentBlocks = static_cast<uint32_t>(kDeviceSegment / kKeyBlock);

// Effect of one block of keys on the running softmax of a row: the new maximum `top`, and the
// factor `keep` by which earlier sums are multiplied.
struct BlockTop {
  float top, keep;
  bool none;  // true: the block adds nothing to the row
};
__device__ __forceinline__ BlockTop block_top(float most, float scale, float best) {
  const float here = most * scale, top = here > best ? here : best;
  const bool none = top == f32_from_bits(0xFF800000u) || most != most;
  return {top, none || best == top ? 1.0f : exp_f32(best - top), none};
}

// Returns e^(score * scale - top): as exp_coarse_f32 with one instruction for its bound, or as
// exp_minus.
template <bool kF16>
__device__ __forceinline__ float probability(float score, float scale, float top) {
  if constexpr (kF16) return exp_minus(score * scale, top);
  using namespace numeric_detail;
  const float c = max_or_nan(fma_f32(score, scale, -top), kExpCoarseLeast);
  const float t = fma_f32(c, kLog2E, kExpMagic127), f = fma_f32(c, kLog2E, kExpMagic127 - t);
  const float q =
      fma_f32(fma_f32(fma_f32(kExpCoarse4, f, kExpCoarse3), f, kExpCoarse2), f, kExpCoarse1);
  const float power = f32_from_bits(f32_bits(t) << 23);
  return fma_f32(q * f, power, power);
}

// Reads keys and values of a block from global memory: the operands of this lane, for 32 features
// of a key or 32 keys of a feature. Loads of several products are in flight together.
template <int D>
struct DirectOperands {
  static constexpr int kKeyTiles = 2, kKeyChunks = D / 32;
  const uint8_t *keys, *values;
  __device__ DirectOperands(const uint8_t* head, unsigned lane)
      : keys(head + lane % 4 * 16), values(keys + kKeyBlock * D * 2) {}
  __device__ uint4 key(unsigned key, unsigned chunk) const {
    return *reinterpret_cast<const uint4*>(keys + key * (D * 2) + chunk * 64);
  }
  __device__ uint4 value(unsigned feature, unsigned chunk) const {
    return *reinterpret_cast<const uint4*>(values + feature * (kKeyBlock * 2) + chunk * 64);
  }
};

template <bool kF16, int D>
class TensorTile {
 public:
  static constexpr int kChunks = D / 32, kTiles = D / 8;
  static constexpr KvType kStored = kF16 ? KvType::kF16 : KvType::kBf16;
  static constexpr XType kType = kF16 ? XType::kF16 : XType::kBf16;

  __device__ TensorTile(const CudaAttend& args, const CudaTokens& tile, unsigned kv_head,
                        unsigned first_head)
      : args_(args), lane_(threadIdx.x % 32), row_(lane_ / 4), quad_(lane_ % 4) {
    const CudaAttention& a = args.layer;
    const CudaSequence& s = args.sequences[tile.sequence];
    const unsigned each = a.heads / a.kv_heads;
    heads_ = each - first_head < kTensorQueries ? each - first_head
                                                : static_cast<unsigned>(kTensorQueries);
    queries_ = tile.count * heads_;
    head_ = kv_head * each + first_head;
    first_row_ = s.first_row + tile.first;
    position_ = static_cast<uint32_t>(s.position) + tile.first;
    newest_ = position_ + tile.count - 1;
    last_oldest_ = static_cast<uint32_t>(oldest_key(a, newest_));
    blocks_ = args.blocks + s.first_block;
    head_offset_ = args.offset + kv_head * DeviceKv{a, kStored}.head_bytes();
    pairs_ = args.out.type == kType && args.out.stride % 2 == 0 &&
             reinterpret_cast<uintptr_t>(args.out.data) % 4 == 0;
    for (int i = 0; i < 2; ++i) {
      const unsigned r = row_ + 8 * i;
      const bool there = r < queries_;
      last_[i] = there ? position_ + r / heads_ : 0;
      first_[i] = there ? static_cast<uint32_t>(oldest_key(a, last_[i])) : 1;
    }
  }

  __device__ unsigned queries() const { return queries_; }
  __device__ uint32_t position_of(unsigned query) const { return position_ + query / heads_; }
  __device__ unsigned head_of(unsigned query) const { return head_ + query % heads_; }
  __device__ size_t row_of(unsigned query) const { return first_row_ + query / heads_; }
  __device__ uint32_t oldest() const {
    return static_cast<uint32_t>(oldest_key(args_.layer, position_));
  }
  __device__ uint32_t newest() const { return newest_; }
  // Returns true if a query of the tile sees any of the 64 keys from key0 on.
  __device__ bool sees(uint32_t key0) const {
    return key0 <= newest_ && (key0 / kKeyBlock + 1) * kKeyBlock > oldest();
  }
  __device__ bool has_row(int i) const { return row_ + 8u * i < queries_; }
  __device__ unsigned query(int i) const { return row_ + 8u * i; }

  __device__ void load_queries() {
    for (int i = 0; i < 2; ++i) {
      const unsigned r = query(i) < queries_ ? query(i) : 0;
      const auto* q = reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(args_.q.data) +
                                                     row_of(r) * args_.q.stride + head_of(r) * D) +
                      quad_;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const uint4 v = q[4 * c];
        q_[c][0][i] = v.x, q_[c][0][2 + i] = v.y, q_[c][1][i] = v.z, q_[c][1][2 + i] = v.w;
      }
    }
  }

  // Prefetches 64 keys from key0 on, and their values.
  __device__ void fetch(uint32_t key0) const {
    const uint8_t *head = head_of_block(key0 / kKeyBlock), *k = head + key0 % kKeyBlock * (D * 2),
                  *v = head + kKeyBlock * D * 2 + key0 % kKeyBlock * 2;
#pragma unroll
    for (int i = 0; i < D / 32; ++i) {
      fetch_ahead(k + (lane_ + 32 * i) * 128);
      fetch_ahead(v + (lane_ + 32 * i) * 256);
    }
  }

  // Returns the keys and values of this tile's head in a block.
  __device__ const uint8_t* head_of_block(uint32_t block) const {
    return blocks_[block] + head_offset_;
  }

  // Computes the scores of 64 keys from key0 on; -infinity for keys that a query does not see.
  template <class Operands>
  __device__ void score(const Operands& from, uint32_t key0, float (&s)[kHalfTiles][4]) const {
    constexpr int kAtOnce = Operands::kKeyTiles, kTogether = Operands::kKeyChunks;
    const unsigned first = key0 % kBlockKeys + row_ / 2 * 8 + row_ % 2;
#pragma unroll
    for (int t0 = 0; t0 < kHalfTiles; t0 += kAtOnce)
#pragma unroll
      for (int c0 = 0; c0 < kChunks; c0 += kTogether) {
        uint4 w[kAtOnce][kTogether];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
          for (int c = 0; c < kTogether; ++c)
            w[i][c] = from.key(first + (t0 + i) / 4 * 32 + (t0 + i) % 4 * 2, c0 + c);
            // Independent chains are interleaved, because a product waits for the previous one of
            // its chain.
#pragma unroll
        for (int c = 0; c < kTogether; ++c) {
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i)
            if (c0 + c == 0)
              mma_first<kF16>(s[t0 + i], q_[0][0], w[i][c].x, w[i][c].y);
            else
              mma_halves<kF16>(s[t0 + i], q_[c0 + c][0], w[i][c].x, w[i][c].y);
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i)
            mma_halves<kF16>(s[t0 + i], q_[c0 + c][1], w[i][c].z, w[i][c].w);
        }
      }
    if (key0 + kHalfKeys <= position_ + 1 && key0 >= last_oldest_) return;  // all keys are seen
#pragma unroll
    for (int t = 0; t < kHalfTiles; ++t)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const uint32_t at = key0 + t / 4 * 32 + quad_ * 8 + t % 4 * 2 + e % 2;
        if (at > last_[e / 2] || at < first_[e / 2]) s[t][e] = f32_from_bits(0xFF800000u);
      }
  }

  // Returns the largest score of a half block, for both rows; NaN if there is one.
  __device__ void largest(const float (&s)[kHalfTiles][4], float (&most)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float m = f32_from_bits(0xFF800000u);
#pragma unroll
      for (int t = 0; t < kHalfTiles; ++t)
        m = max_or_nan(max_or_nan(m, s[t][2 * i]), s[t][2 * i + 1]);
      m = max_or_nan(m, __shfl_xor_sync(~0u, m, 1));
      most[i] = max_or_nan(m, __shfl_xor_sync(~0u, m, 2));
    }
  }

  // Replaces scores by probabilities, as operands of the product with values, and returns their
  // sums. If nothing is added to a row, probabilities are 0 for keys that are not seen; if a score
  // is NaN they do not matter, because the row's sum stays NaN.
  __device__ void weigh(const float (&s)[kHalfTiles][4], const BlockTop (&top)[2],
                        uint32_t (&p)[kHalfTiles / 2][4], float (&sum)[2]) const {
    const float scale = args_.layer.scale;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float from = top[i].none ? 0.0f : top[i].top;
      float total = 0.0f;
#pragma unroll
      for (int t = 0; t < kHalfTiles; ++t) {
        const float a = probability<kF16>(s[t][2 * i], scale, from),
                    b = probability<kF16>(s[t][2 * i + 1], scale, from);
        total = total + a;
        total = total + b;
        p[t / 2][t % 2 * 2 + i] = two_numbers<kF16>(a, b);
      }
      total = total + __shfl_xor_sync(~0u, total, 1);
      sum[i] = total + __shfl_xor_sync(~0u, total, 2);
    }
  }

  // Multiplies values of one or two half blocks by their probabilities: calls to(n, sums of each
  // half) for eight features each, from kBegin to kEnd.
  template <int kBegin = 0, int kEnd = kTiles, int kHalves, class Operands, class To>
  __device__ void add_values(const Operands& from, uint32_t key0,
                             const uint32_t (&p)[kHalves][kHalfTiles / 2][4], To to) const {
    constexpr int kAtOnce = 4 / kHalves;
    const unsigned first = key0 % kBlockKeys / 32;
    const bool whole = key0 + kHalves * kHalfKeys <= newest_ + 1;
#pragma unroll
    for (int n0 = kBegin; n0 < kEnd; n0 += kAtOnce) {
      uint4 w[kAtOnce][2 * kHalves];
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n)
#pragma unroll
        for (int c = 0; c < 2 * kHalves; ++c) w[n][c] = from.value((n0 + n) * 8 + row_, first + c);
      if (!whole) {  // unwritten values may be NaN, and 0 * NaN is NaN
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n)
#pragma unroll
          for (int c = 0; c < 2 * kHalves; ++c) {
            const uint32_t at = key0 + c * 32 + quad_ * 8;
            w[n][c] = {written(w[n][c].x, at), written(w[n][c].y, at + 2),
                       written(w[n][c].z, at + 4), written(w[n][c].w, at + 6)};
          }
      }
      float d[kAtOnce][kHalves][4];
#pragma unroll
      for (int k = 0; k < 4; ++k)  // 16 keys of each half
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n)
#pragma unroll
          for (int h = 0; h < kHalves; ++h) {
            const uint4& v = w[n][2 * h + k / 2];
            const uint32_t b0 = k % 2 == 0 ? v.x : v.z, b1 = k % 2 == 0 ? v.y : v.w;
            if (k == 0)
              mma_first<kF16>(d[n][h], p[h][k], b0, b1);
            else
              mma_halves<kF16>(d[n][h], p[h][k], b0, b1);
          }
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) to(n0 + n, d[n]);
    }
  }

  __device__ void first_of_segment(int i, uint32_t segment, float& best, float& total) const {
    const CudaAttention& a = args_.layer;
    const bool sink = a.sinks != nullptr && has_row(i) && first_[i] / kDeviceSegment == segment;
    best = sink ? a.sinks[head_of(query(i))] : f32_from_bits(0xFF800000u);
    total = sink ? 1.0f : 0.0f;
  }

  __device__ void store(unsigned query, unsigned feature, float v) const {
    put_number(args_.out.data, args_.out.type, place_of(query, feature), to_numbers(kType, v));
  }
  // Stores a feature of even number and the next one.
  __device__ void store_two(unsigned query, unsigned feature, float v, float next) const {
    if (pairs_)
      *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(args_.out.data) +
                                   place_of(query, feature)) = two_numbers<kF16>(v, next);
    else
      store(query, feature, v), store(query, feature + 1, next);
  }

 private:
  __device__ size_t place_of(unsigned query, unsigned feature) const {
    return row_of(query) * args_.out.stride + head_of(query) * D + feature;
  }
  __device__ uint32_t written(uint32_t two, uint32_t at) const {
    return at + 1 <= newest_ ? two : at <= newest_ ? two & 0xFFFFu : 0u;
  }
  const CudaAttend& args_;
  unsigned lane_, row_, quad_, heads_, queries_, head_;
  size_t head_offset_;
  uint32_t first_row_, position_, newest_, last_oldest_, first_[2], last_[2];
  uint8_t* const* blocks_;
  bool pairs_;  // true: results have 16 bits and are stored two at a time
  uint32_t q_[kChunks][2][4];
};

// Running softmax of a tile: adds the blocks of a segment in ascending order, then the segment.
// `all`: [16, D] floats of the warp, used if a tile has several segments; each lane's numbers are
// next to those of its neighbours.
template <bool kF16, int D>
class TileSums {
 public:
  __device__ TileSums(const CudaAttend& args, const TensorTile<kF16, D>& tile, float* all)
      : args_(args),
        t_(tile),
        begin_(tile.oldest() / kBlockKeys),
        end_(tile.newest() / kBlockKeys + 1),
        all_(all + threadIdx.x % 32) {}

  // Return the range of blocks whose keys the tile sees; add() must be called once for each, in
  // ascending order.
  __device__ uint32_t begin() const { return begin_; }
  __device__ uint32_t end() const { return end_; }
  template <class Operands>
  __device__ void add(const Operands& from, uint32_t block) {
    const uint32_t segment = block / kSegmentBlocks, behind = block + 1;
    if (block == begin_ || block % kSegmentBlocks == 0) begin_segment(segment);
    add_block(from, block * kBlockKeys);
    if (behind == end_ || behind % kSegmentBlocks == 0) end_segment(segment);
  }

  __device__ void store() const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!t_.has_row(i)) continue;
      const float total = !several() ? total_[i] : all_total_[i];
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        float v[2];
#pragma unroll
        for (int e = 0; e < 2; ++e)
          v[e] = (!several() ? out_[n][2 * i + e] : all_[(n * 4 + 2 * i + e) * 32]) / total;
        t_.store_two(t_.query(i), n * 8 + threadIdx.x % 4 * 2, v[0], v[1]);
      }
    }
  }

 private:
  __device__ uint32_t first_segment() const { return begin_ / kSegmentBlocks; }
  __device__ bool several() const { return first_segment() != (end_ - 1) / kSegmentBlocks; }

  __device__ void begin_segment(uint32_t segment) {
    for (int i = 0; i < 2; ++i) t_.first_of_segment(i, segment, best_[i], total_[i]);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) out_[n][0] = out_[n][1] = out_[n][2] = out_[n][3] = 0.0f;
  }

  template <class Operands>
  __device__ void add_block(const Operands& from, uint32_t key0) {
    float s[2][kHalfTiles][4], most[2], other[2];
    t_.score(from, key0, s[0]);
    t_.score(from, key0 + kHalfKeys, s[1]);
    t_.largest(s[0], most), t_.largest(s[1], other);
    BlockTop top[2];
    for (int i = 0; i < 2; ++i) {
      most[i] = max_or_nan(most[i], other[i]);
      top[i] = block_top(most[i], args_.layer.scale, best_[i]);
    }
    // For a half that no query sees, probabilities and sums are 0.
    float sum[2], sum2[2];
    uint32_t p[2][kHalfTiles / 2][4];
    t_.weigh(s[0], top, p[0], sum);
    t_.weigh(s[1], top, p[1], sum2);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (top[i].none) {
        if (most[i] != most[i]) total_[i] = most[i];
      } else {
        best_[i] = top[i].top, total_[i] = total_[i] * top[i].keep + (sum[i] + sum2[i]);
      }
    }
    t_.add_values(from, key0, p, [&](int n, const float(&d)[2][4]) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        out_[n][e] = fma_f32(out_[n][e], top[e / 2].keep, d[0][e] + d[1][e]);
    });
  }

  __device__ void end_segment(uint32_t segment) {
    if (!several()) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool none = best_[i] == f32_from_bits(0xFF800000u) && total_[i] == 0.0f;
      const bool fresh = segment == first_segment() ||
                         (all_best_[i] == f32_from_bits(0xFF800000u) && all_total_[i] == 0.0f);
      const float b = segment == first_segment() ? f32_from_bits(0xFF800000u) : all_best_[i];
      const float top = best_[i] > b ? best_[i] : b, before = fresh ? 0.0f : exp_minus(b, top),
                  now = fresh ? 1.0f : exp_minus(best_[i], top);
#pragma unroll
      for (int n = 0; n < D / 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& to = all_[(n * 4 + 2 * i + e) * 32];
          const float v = out_[n][2 * i + e], added = v * now;
          if (fresh)
            to = v;
          else if (!none)
            to = (to * before) + added;
        }
      if (fresh)
        all_best_[i] = best_[i], all_total_[i] = total_[i];
      else if (!none)
        all_total_[i] = all_total_[i] * before + total_[i] * now, all_best_[i] = top;
    }
  }

  const CudaAttend& args_;
  const TensorTile<kF16, D>& t_;
  uint32_t begin_, end_;
  float* all_;
  float all_best_[2], all_total_[2], best_[2], total_[2], out_[D / 8][4];
};

// Computes one tile per warp. `all`: as in TileSums.
template <bool kF16, int D>
__device__ __forceinline__ void attend_whole(const CudaAttend& args, const CudaTokens& tile,
                                             unsigned kv_head, unsigned first_head, float* all) {
  TensorTile<kF16, D> t(args, tile, kv_head, first_head);
  t.load_queries();
  TileSums<kF16, D> sums(args, t, all);
  for (uint32_t block = sums.begin(); block < sums.end(); ++block)
    sums.add(DirectOperands<D>(t.head_of_block(block), threadIdx.x % 32), block);
  sums.store();
}

// Writes the key and value of a sequence's only row if they belong to this segment; called by all
// threads of a block.
template <int D>
__device__ __forceinline__ void append_one(const CudaAttend& args, const CudaTokens& tile,
                                           unsigned kv_head, uint32_t segment) {
  const CudaAttention& a = args.layer;
  const CudaSequence& s = args.sequences[tile.sequence];
  const DeviceKv kv{a, static_cast<KvType>(a.storage)};
  const size_t at = s.position % kKeyBlock, row = s.first_row;
  if (s.position / kDeviceSegment != segment) return;
  uint8_t* head =
      args.blocks[s.first_block + s.position / kKeyBlock] + args.offset + kv_head * kv.head_bytes();
  for (unsigned d = threadIdx.x; d < 2 * D; d += blockDim.x) {
    const bool key = d < D;
    const CudaRows& from = key ? args.k : args.v;
    const float x = number_at(from.data, from.type, row * from.stride + kv_head * D + d % D);
    if (key)
      put_kv(kv.type(), head, kv.key_at(at, d), x, 1.0f);
    else
      put_kv(kv.type(), head + kv.key_bytes(), kv.value_at(at, d - D), x, 1.0f);
  }
}

// Writes keys and values of up to 32 rows of a step, from first_row on, into their blocks; called
// by four warps. Rows begin at multiples of 16 bytes.
constexpr int kAppendRows = 32, kAppendWarps = 4;
template <int D>
__device__ __forceinline__ void append_rows(const CudaAttend& args, size_t first_row,
                                            unsigned kv_head) {
  constexpr unsigned kPieces = D / 8;  // pieces of 16 bytes
  const CudaAttention& a = args.layer;
  const DeviceKv kv{a, static_cast<KvType>(a.storage)};
  // Place to which a row's key and value are written: a head of a block, and the index of the token
  // in it.
  struct KvSlot {
    uint8_t* head;
    size_t at;
  };
  const auto place = [&](size_t row) -> KvSlot {
    size_t i = args.sequence_count - 1;
    while (i > 0 && args.sequences[i].first_row > row) --i;
    const CudaSequence& s = args.sequences[i];
    const size_t position = s.position + (row - s.first_row);
    return {
        args.blocks[s.first_block + position / kKeyBlock] + args.offset + kv_head * kv.head_bytes(),
        position % kKeyBlock};
  };
  const auto piece = [&](const CudaRows& rows, size_t row, unsigned i) {
    return *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(rows.data) +
                                           row * rows.stride + kv_head * D + i * 8);
  };
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const size_t rows = args.k.rows, row = first_row + lane;
  for (unsigned i = threadIdx.x; i < kAppendRows * kPieces; i += 32 * kAppendWarps) {
    const size_t r = first_row + i / kPieces;
    if (r >= rows) break;
    const KvSlot to = place(r);
    *reinterpret_cast<uint4*>(to.head + (to.at * D + i % kPieces * 8) * 2) =
        piece(args.k, r, i % kPieces);
  }
  if (row >= rows) return;
  const KvSlot to = place(row);
  auto* values = reinterpret_cast<uint16_t*>(to.head + kv.key_bytes());
  // Neighbouring lanes have neighbouring tokens.
  for (unsigned i = warp; i < kPieces; i += kAppendWarps) {
    const uint4 v = piece(args.v, row, i);
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (unsigned j = 0; j < 8; ++j)
      values[kv.value_at(to.at, i * 8 + j)] = static_cast<uint16_t>(words[j / 2] >> (j % 2 * 16));
  }
}

// Computes one tile and segment with sixteen warps. kPasses: the halves are combined in shared
// memory (split_bytes) for one share of a head's features after the other.
template <bool kF16, int D, int kPasses>
__device__ __forceinline__ void attend_split(const CudaAttend& args, TensorTile<kF16, D>& t,
                                             uint32_t segment, float* partials, float* shared) {
  const uint32_t oldest = t.oldest(), newest = t.newest();
  if (segment < oldest / kDeviceSegment || segment > newest / kDeviceSegment) return;
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, queries = t.queries();
  float *maxima = shared, *sums = maxima + kSplitWarps * kTensorQueries,
        *halves = sums + kSplitWarps * kTensorQueries;
  const uint32_t key0 = segment * static_cast<uint32_t>(kDeviceSegment) + warp * kHalfKeys;
  const bool there = t.sees(key0);
  float s[kHalfTiles][4], most[2] = {f32_from_bits(0xFF800000u), f32_from_bits(0xFF800000u)};
  if (there) {
    t.load_queries();
    t.score(DirectOperands<D>(t.head_of_block(key0 / kKeyBlock), lane), key0, s);
    t.largest(s, most);
  }
  if (lane % 4 == 0)
    for (int i = 0; i < 2; ++i) maxima[warp * kTensorQueries + lane / 4 + 8 * i] = most[i];
  __syncthreads();
  // The running maximum before this warp's block, and the one after it.
  BlockTop top[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float best, total;
    t.first_of_segment(i, segment, best, total);
    for (unsigned b = 0; b <= warp / 2; ++b) {
      const float* m = maxima + 2 * b * kTensorQueries + lane / 4 + 8 * i;
      top[i] = block_top(max_or_nan(m[0], m[kTensorQueries]), args.layer.scale, best);
      if (!top[i].none) best = top[i].top;
    }
  }
  float sum[2] = {0.0f, 0.0f};
  uint32_t p[1][kHalfTiles / 2][4] = {};
  if (there) t.weigh(s, top, p[0], sum);
  if (lane % 4 == 0)
    for (int i = 0; i < 2; ++i) sums[warp * kTensorQueries + lane / 4 + 8 * i] = sum[i];
  const uint32_t first_block = oldest / kKeyBlock, last_block = newest / kKeyBlock;
  const auto pass = [&]<int kPass>() {
    constexpr unsigned kFeatures = D / kPasses, kFirst = kPass * kFeatures;
    if (there) {
      const DirectOperands<D> from(t.head_of_block(key0 / kKeyBlock), lane);
      t.template add_values<kFirst / 8, (kFirst + kFeatures) / 8>(
          from, key0, p, [&](int n, const float(&d)[1][4]) {
#pragma unroll
            for (int i = 0; i < 2; ++i)
              if (t.has_row(i)) {
                float* to = halves + (warp * queries + t.query(i)) * kFeatures + (n * 8 - kFirst) +
                            lane % 4 * 2;
                to[0] = d[0][2 * i], to[1] = d[0][2 * i + 1];
              }
          });
    }
    __syncthreads();
    // Adds blocks in order; one thread per feature of a query.
    for (unsigned at = threadIdx.x; at < queries * kFeatures; at += blockDim.x) {
      const unsigned r = at / kFeatures, here = at % kFeatures, d = kFirst + here;
      const CudaAttention& a = args.layer;
      const bool sink =
          a.sinks != nullptr && oldest_key(a, t.position_of(r)) / kDeviceSegment == segment;
      float best = sink ? a.sinks[t.head_of(r)] : f32_from_bits(0xFF800000u),
            total = sink ? 1.0f : 0.0f, out = 0.0f;
      for (unsigned b = 0; b < kSplitWarps / 2; ++b) {
        const uint32_t block = segment * (kSplitWarps / 2) + b;
        if (block < first_block || block > last_block) continue;
        const float *m = maxima + 2 * b * kTensorQueries + r,
                    *l = sums + 2 * b * kTensorQueries + r;
        const float highest = max_or_nan(m[0], m[kTensorQueries]);
        const BlockTop now = block_top(highest, a.scale, best);
        if (now.none) {
          if (highest != highest) total = highest;
        } else {
          best = now.top, total = total * now.keep + (l[0] + l[kTensorQueries]);
        }
        const bool second = block * kKeyBlock + kHalfKeys <= newest;
        const float h0 = halves[2 * b * queries * kFeatures + at],
                    h1 = second ? halves[(2 * b + 1) * queries * kFeatures + at] : 0.0f;
        out = fma_f32(out, now.keep, h0 + h1);
      }
      if (partials == nullptr) {
        t.store(r, d, out / total);
      } else {
        float* to =
            partials + ((t.row_of(r) * a.heads + t.head_of(r)) * args.segments + segment) * (D + 2);
        to[d] = out;
        if (d == 0) to[D] = best, to[D + 1] = total;
      }
    }
  };
  pass.template operator()<0>();
  if constexpr (kPasses == 2) {
    __syncthreads();
    pass.template operator()<1>();
  }
}

}  // namespace moebius::cuda
