// SPDX-License-Identifier: Apache-2.0
// Attention over blocks of 128 tokens, by lanes that process a tile of queries together, in the
// order of nn/attention.cpp. Segments of 1024 keys are a softmax each, of blocks in ascending order
// with a running maximum; segments are merged in ascending order. Products of a query with keys,
// and of probabilities with values, are added in ascending order from 0 by fma, so that a row's
// result depends on the row and its keys alone: not on the tile, on the batch, or on which lanes or
// blocks of a GPU computed which segment.
//
// A layer's part of a block, for every kv head:   keys [key_dim, 128] | values [128, value_dim],
// and of 8-bit codes scales of keys [128] | of values [128]. So lanes that have a key each, or a
// feature of values each, read numbers that lie side by side. Layers that tensor cores run
// (has_tensor_form; plugins/cuda/attention.cuh) have keys [128, key_dim] | values [value_dim, 128]
// instead.
#pragma once
#include "base/math_functions.h"
#include "device/cuda/cuda_table.h"
#include "device/cuda/device_lanes.h"
#include "nn/kv_layout.h"

namespace moebius {

inline constexpr size_t kTileQueries = 8;     // queries of one kv head per tile
inline constexpr size_t kTensorQueries = 16;  // queries of one kv head per tile for tensor cores
inline constexpr size_t kDeviceSegment = 8 * kKeyBlock;

// Returns true if tensor cores can run a layer: queries, keys and values of the same 16-bit type,
// heads of 32, 64 or 128 features.
MOEBIUS_ALWAYS_INLINE constexpr bool has_tensor_form(const CudaAttention& a) {
  const auto stored = static_cast<KvType>(a.storage);
  const bool same = (a.type == XType::kBf16 && stored == KvType::kBf16) ||
                    (a.type == XType::kF16 && stored == KvType::kF16);
  return same && a.key_dim == a.value_dim && a.scale > 0.0f &&
         (a.key_dim == 32 || a.key_dim == 64 || a.key_dim == 128);
}

MOEBIUS_ALWAYS_INLINE constexpr size_t cuda_tile_tokens(const CudaAttention& a) {
  const size_t each = a.heads / a.kv_heads,
               most = has_tensor_form(a) ? kTensorQueries : kTileQueries;
  return each >= most ? 1 : most / each;
}

// Returns the first key that a query at `position` sees.
MOEBIUS_ALWAYS_INLINE size_t oldest_key(const CudaAttention& a, size_t position) {
  size_t from = 0;
  if (a.window != 0 && position + 1 > a.window) from = position + 1 - a.window;
  if (a.chunk != 0 && position / a.chunk * a.chunk > from) from = position / a.chunk * a.chunk;
  return from;
}

// Computes where numbers lie in a layer's part of a block.
struct DeviceKv {
  const CudaAttention& a;
  KvType stored;
  // true: keys are stored token by token, and values feature by feature
  bool by_token = has_tensor_form(a);
  MOEBIUS_ALWAYS_INLINE constexpr KvType type() const { return stored; }
  MOEBIUS_ALWAYS_INLINE size_t key_bytes() const {
    return size_t{a.key_dim} * kKeyBlock * kv_bytes(type());
  }
  MOEBIUS_ALWAYS_INLINE size_t value_bytes() const {
    return size_t{a.value_dim} * kKeyBlock * kv_bytes(type());
  }
  MOEBIUS_ALWAYS_INLINE size_t head_bytes() const {
    return key_bytes() + value_bytes() + (has_scales(type()) ? 2 * kKeyBlock * sizeof(float) : 0);
  }
  MOEBIUS_ALWAYS_INLINE size_t block_bytes() const { return a.kv_heads * head_bytes(); }
  // Return the index of feature d of key j, and of feature d of value j, among the numbers of a
  // head.
  MOEBIUS_ALWAYS_INLINE size_t key_at(size_t j, size_t d) const {
    return by_token ? j * a.key_dim + d : d * kKeyBlock + j;
  }
  MOEBIUS_ALWAYS_INLINE size_t value_at(size_t j, size_t d) const {
    return by_token ? d * kKeyBlock + j : j * a.value_dim + d;
  }
  MOEBIUS_ALWAYS_INLINE float* scales(uint8_t* head) const {
    return reinterpret_cast<float*>(head + key_bytes() + value_bytes());
  }
};

MOEBIUS_ALWAYS_INLINE float kv_number(KvType type, const uint8_t* p, size_t i) {
  switch (type) {
    case KvType::kF32:
      return reinterpret_cast<const float*>(p)[i];
    case KvType::kF16:
      return f16_to_f32(reinterpret_cast<const uint16_t*>(p)[i]);
    case KvType::kBf16:
      return bf16_to_f32(reinterpret_cast<const uint16_t*>(p)[i]);
    case KvType::kInt8:
      return static_cast<float>(static_cast<int8_t>(p[i]));
    case KvType::kFp8:
      return e4m3_to_f32(p[i]);
  }
  return 0.0f;
}

// Writes x as number i at p, encoded as kv_encode of nn/kv_layout.cpp does.
MOEBIUS_ALWAYS_INLINE void put_kv(KvType type, uint8_t* p, size_t i, float x, float scale) {
  if (type == KvType::kF32) {
    reinterpret_cast<float*>(p)[i] = x;
  } else if (!has_scales(type)) {
    reinterpret_cast<uint16_t*>(p)[i] = type == KvType::kBf16 ? f32_to_bf16(x) : f32_to_f16(x);
  } else {
    const float top = type == KvType::kFp8 ? 448.0f : 127.0f;
    const float v = scale != scale ? 0.0f : clamp_f32(x / scale, -top, top);
    p[i] =
        type == KvType::kFp8 ? f32_to_e4m3(v) : static_cast<uint8_t>(static_cast<int8_t>(rne(v)));
  }
}

// Holds one number for each query of a tile.
struct TileNumbers {
  alignas(16) float of[kTileQueries];
};

template <class Lanes, KvType kStored>
class DeviceAttention {
 public:
  MOEBIUS_ALWAYS_INLINE DeviceAttention(const CudaAttend& args, const Lanes& lanes)
      : args_(args), a_(args.layer), kv_{args.layer, kStored}, lanes_(lanes) {}

  // --- storing keys and values of a row ---

  MOEBIUS_ALWAYS_INLINE void append(const CudaSequence& s, size_t token) const {
    const size_t position = s.position + token, at = position % kKeyBlock,
                 row = s.first_row + token;
    uint8_t* block = block_of(s, position / kKeyBlock);
    for (size_t h = lanes_.group(); h < a_.kv_heads; h += lanes_.groups()) {
      uint8_t* head = block + h * kv_.head_bytes();
      put_vector(args_.k, row * args_.k.stride + h * a_.key_dim, a_.key_dim, a_.key_scale, head,
                 kv_.key_at(at, 0), kv_.key_at(0, 1), kv_.scales(head) + at);
      put_vector(args_.v, row * args_.v.stride + h * a_.value_dim, a_.value_dim, a_.value_scale,
                 head + kv_.key_bytes(), kv_.value_at(at, 0), kv_.value_at(0, 1),
                 kv_.scales(head) + kKeyBlock + at);
    }
  }

  // --- a tile of queries ---

  // Returns how many floats of shared memory the lanes need; the memory is aligned to 16 bytes.
  MOEBIUS_ALWAYS_INLINE static constexpr size_t shared_floats(const CudaAttention& a) {
    const size_t blocks = blocks_at_once(a);
    return kTileQueries *
           (a.key_dim + blocks * (kKeyBlock + a.value_dim + 1) + 2 * a.value_dim + 4);
  }
  // Returns how many blocks of a segment are multiplied at a time, as shared memory allows.
  MOEBIUS_ALWAYS_INLINE static constexpr size_t blocks_at_once(const CudaAttention& a) {
    return a.value_dim <= 128 ? 8 : a.value_dim <= 256 ? 4 : 2;
  }
  // Returns the number of floats that the result of one segment takes for one query.
  MOEBIUS_ALWAYS_INLINE static constexpr size_t partial_floats(const CudaAttention& a) {
    return size_t{a.value_dim} + 2;
  }

  // Computes attention of a tile. With `partials`, the result of one segment of keys is stored
  // there, [queries of the step, segments]; if null, all segments are computed and stored as the
  // result. `first_head`: first of the tile's query heads among those that share the kv head.
  MOEBIUS_ALWAYS_INLINE void run(const CudaTokens& tile, size_t kv_head, size_t first_head,
                                 size_t segment, float* partials, float* shared) {
    const CudaSequence& s = args_.sequences[tile.sequence];
    const size_t rep = a_.heads / a_.kv_heads,
                 heads = rep - first_head < kTileQueries ? rep - first_head : kTileQueries;
    sequence_ = &s;
    position_ = s.position + tile.first;
    tokens_ = tile.count;
    row_ = s.first_row + tile.first;
    kv_head_ = kv_head;
    head_ = kv_head * rep + first_head;
    heads_ = heads;
    queries_ = tokens_ * heads;
    const size_t blocks = blocks_at_once(a_);
    q_ = reinterpret_cast<TileNumbers*>(shared);
    s_ = q_ + a_.key_dim;
    sums_ = s_ + blocks * kKeyBlock;
    out_ = reinterpret_cast<float*>(sums_ + blocks * a_.value_dim);
    all_ = out_ + kTileQueries * a_.value_dim;
    keep_ = all_ + kTileQueries * a_.value_dim;
    best_ = keep_ + blocks * kTileQueries;
    total_ = best_ + kTileQueries;
    all_best_ = total_ + kTileQueries;
    all_total_ = all_best_ + kTileQueries;
    const size_t oldest = oldest_seen(position_), newest = position_ + tokens_ - 1;
    const size_t first = oldest / kDeviceSegment, last = newest / kDeviceSegment;
    if (partials != nullptr && (segment < first || segment > last)) return;
    load_queries();
    if (partials != nullptr) {
      run_segment(segment);
      return keep_partials(partials, segment);
    }
    for (size_t i = lanes_.lane(); i < queries_; i += lanes_.lanes()) {
      all_best_[i] = masked();
      all_total_[i] = 0.0f;
    }
    for (size_t i = first; i <= last; ++i) {
      run_segment(i);
      for (size_t r = 0; r < queries_; ++r)
        merge(all_ + r * a_.value_dim, all_best_[r], all_total_[r], out_ + r * a_.value_dim,
              best_[r], total_[r]);
      lanes_.sync();
    }
    for (size_t r = 0; r < queries_; ++r) finish(r, all_ + r * a_.value_dim, all_total_[r]);
  }

  // Merges the segments of one query of the step in order; `shared`: value_dim floats and two more.
  MOEBIUS_ALWAYS_INLINE void merge_segments(const CudaSequence& s, size_t token, size_t head,
                                            const float* partials, float* shared) {
    position_ = s.position + token;
    row_ = s.first_row + token;
    head_ = head;
    heads_ = 1;
    const size_t first = oldest_seen(position_) / kDeviceSegment, last = position_ / kDeviceSegment;
    float *best = shared + a_.value_dim, *total = best + 1;
    if (lanes_.lane() == 0) {
      *best = masked();
      *total = 0.0f;
    }
    lanes_.sync();
    for (size_t i = first; i <= last; ++i) {
      const float* p =
          partials + ((row_ * a_.heads + head) * args_.segments + i) * partial_floats(a_);
      merge(shared, *best, *total, p, p[a_.value_dim], p[a_.value_dim + 1]);
      lanes_.sync();
    }
    finish(0, shared, *total);
  }

 private:
  MOEBIUS_ALWAYS_INLINE static float masked() { return f32_from_bits(0xFF800000u); }
  MOEBIUS_ALWAYS_INLINE uint8_t* block_of(const CudaSequence& s, size_t block) const {
    return args_.blocks[s.first_block + block] + args_.offset;
  }
  MOEBIUS_ALWAYS_INLINE size_t oldest_seen(size_t position) const {
    return oldest_key(a_, position);
  }

  // Encodes n numbers of a row, from column `at` on, into codes that are `step` apart.
  MOEBIUS_ALWAYS_INLINE void put_vector(const CudaRows& x, size_t at, size_t n, float fixed,
                                        uint8_t* to, size_t first, size_t step,
                                        float* scale_at) const {
    float scale = 1.0f;
    if constexpr (has_scales(kStored)) {
      const float top = kStored == KvType::kFp8 ? 448.0f : 127.0f;
      const float most =
          lanes_.largest(n, [&](size_t i) { return abs_f32(number_at(x.data, x.type, at + i)); });
      scale = fixed != 0.0f ? fixed : most / top;
      if (scale == 0.0f) scale = 1.0f;
      if (f32_bits(most) >= 0x7F800000u) scale = f32_from_bits(numeric_detail::kQuietNan);
      if (lanes_.in_group() == 0) *scale_at = scale;
    }
    for (size_t i = lanes_.in_group(); i < n; i += lanes_.group_lanes())
      put_kv(kStored, to, first + i * step, number_at(x.data, x.type, at + i), scale);
  }

  MOEBIUS_ALWAYS_INLINE size_t position_of(size_t query) const {
    return position_ + query / heads_;
  }
  MOEBIUS_ALWAYS_INLINE size_t head_of(size_t query) const { return head_ + query % heads_; }

  MOEBIUS_ALWAYS_INLINE void load_queries() const {
    for (size_t i = lanes_.lane(); i < kTileQueries * a_.key_dim; i += lanes_.lanes()) {
      const size_t r = i / a_.key_dim, d = i % a_.key_dim;
      const size_t at = (row_ + r / heads_) * args_.q.stride + head_of(r) * a_.key_dim + d;
      q_[d].of[r] = r < queries_ ? number_at(args_.q.data, args_.q.type, at) : 0.0f;
    }
    lanes_.sync();
  }

  MOEBIUS_ALWAYS_INLINE void run_segment(size_t segment) const {
    for (size_t r = lanes_.lane(); r < queries_; r += lanes_.lanes()) {
      const bool sink =
          a_.sinks != nullptr && oldest_seen(position_of(r)) / kDeviceSegment == segment;
      best_[r] = sink ? a_.sinks[head_of(r)] : masked();
      total_[r] = sink ? 1.0f : 0.0f;
    }
    for (size_t i = lanes_.lane(); i < queries_ * a_.value_dim; i += lanes_.lanes()) out_[i] = 0.0f;
    lanes_.sync();
    const size_t per = kDeviceSegment / kKeyBlock, oldest = oldest_seen(position_) / kKeyBlock,
                 newest = (position_ + tokens_ - 1) / kKeyBlock;
    const size_t begin = segment * per > oldest ? segment * per : oldest,
                 end = (segment + 1) * per < newest + 1 ? (segment + 1) * per : newest + 1,
                 round = blocks_at_once(a_);
    for (size_t block = begin; block < end; block += round)
      run_blocks(block, end - block < round ? end - block : round);
  }

  // Processes several blocks: their products are computed together, then running maximum and sums
  // are updated block by block.
  MOEBIUS_ALWAYS_INLINE void run_blocks(size_t block, size_t count) const {
    for (size_t i = lanes_.lane(); i < count * kKeyBlock; i += lanes_.lanes())
      score(block + i / kKeyBlock, i % kKeyBlock, s_[i]);
    lanes_.sync();
    for (size_t r = lanes_.group(); r < queries_; r += lanes_.groups()) {
      float best = best_[r], total = total_[r];
      for (size_t b = 0; b < count; ++b) {
        const float keep = softmax_step(r, block + b, s_ + b * kKeyBlock, best, total);
        if (lanes_.in_group() == 0) keep_[b * kTileQueries + r] = keep;
      }
      lanes_.sync_group();
      if (lanes_.in_group() == 0) {
        best_[r] = best;
        total_[r] = total;
      }
    }
    lanes_.sync();
    for (size_t i = lanes_.lane(); i < count * a_.value_dim; i += lanes_.lanes())
      weigh_values(block + i / a_.value_dim, i % a_.value_dim, s_ + i / a_.value_dim * kKeyBlock,
                   sums_[i]);
    lanes_.sync();
    for (size_t i = lanes_.lane(); i < queries_ * a_.value_dim; i += lanes_.lanes()) {
      const size_t r = i / a_.value_dim, d = i % a_.value_dim;
      float out = out_[i];
      for (size_t b = 0; b < count; ++b)
        out = (out * keep_[b * kTileQueries + r]) + sums_[b * a_.value_dim + d].of[r];
      out_[i] = out;
    }
    lanes_.sync();
  }

  MOEBIUS_ALWAYS_INLINE uint8_t* head_of_block(size_t block) const {
    return block_of(*sequence_, block) + kv_head_ * kv_.head_bytes();
  }
  // The range of keys of a block that any query of the tile sees.
  struct Keys {
    size_t first, last;
  };
  MOEBIUS_ALWAYS_INLINE Keys keys_of(size_t block) const {
    const size_t begin = block * kKeyBlock, behind = position_ + tokens_ - begin,
                 oldest = oldest_seen(position_);
    return {oldest > begin ? oldest - begin : 0, behind < kKeyBlock ? behind : kKeyBlock};
  }

  // Computes the scores of one key with every query of the tile.
  MOEBIUS_ALWAYS_INLINE void score(size_t block, size_t j, TileNumbers& to) const {
    uint8_t* head = head_of_block(block);
    const Keys keys = keys_of(block);
    const size_t at = block * kKeyBlock + j;
    const bool there = j >= keys.first && j < keys.last;
    TileNumbers sum{};
    if (there) {
      MOEBIUS_UNROLL_8
      for (size_t d = 0; d < a_.key_dim; ++d) {
        const float k = kv_number(kStored, head, kv_.key_at(j, d));
        const TileNumbers q = q_[d];
        for (size_t r = 0; r < kTileQueries; ++r) sum.of[r] = fma_f32(q.of[r], k, sum.of[r]);
      }
    }
    const float scale = has_scales(kStored) && there ? kv_.scales(head)[j] : 1.0f;
    for (size_t r = 0; r < kTileQueries; ++r) {
      const size_t position = position_of(r);
      const bool seen = there && at <= position && at >= oldest_seen(position);
      sum.of[r] = seen ? (has_scales(kStored) ? sum.of[r] * scale : sum.of[r]) : masked();
    }
    to = sum;
  }

  // Multiplies one feature of a block's values by the probabilities of every query.
  MOEBIUS_ALWAYS_INLINE void weigh_values(size_t block, size_t d, const TileNumbers* p,
                                          TileNumbers& to) const {
    const uint8_t* values = head_of_block(block) + kv_.key_bytes();
    const Keys keys = keys_of(block);
    TileNumbers sum{};
    MOEBIUS_UNROLL_8
    for (size_t j = keys.first; j < keys.last; ++j) {
      const float v = kv_number(kStored, values, kv_.value_at(j, d));
      const TileNumbers of = p[j];
      for (size_t r = 0; r < kTileQueries; ++r) sum.of[r] = fma_f32(of.of[r], v, sum.of[r]);
    }
    to = sum;
  }

  // Computes RowFunctions::softmax_step of one query's 128 scores, which become probabilities times
  // the scale of their value, rounded. Called by a group of lanes, each of which has best and
  // total.
  MOEBIUS_ALWAYS_INLINE float softmax_step(size_t r, size_t block, TileNumbers* scores, float& best,
                                           float& total) const {
    float scale = a_.scale;
    const auto s = [&](size_t i) -> float& { return scores[i].of[r]; };
    const size_t lane = lanes_.in_group(), lanes = lanes_.group_lanes();
    if (!(scale > 0.0f)) {
      for (size_t i = lane; i < kKeyBlock; i += lanes)
        if (s(i) != masked()) s(i) = s(i) * scale;
      scale = 1.0f;
    }
    lanes_.sync_group();
    const float most = lanes_.largest(kKeyBlock, [&](size_t i) { return s(i); });
    const float here = most * scale, top = here > best ? here : best;
    const bool nan = most != most;
    lanes_.sync_group();
    if (top == masked() || nan) {
      for (size_t i = lane; i < kKeyBlock; i += lanes) s(i) = 0.0f;
      if (nan) total = most;
      return 1.0f;
    }
    const float keep = best == top ? 1.0f : exp_f32(best - top);
    for (size_t i = lane; i < kKeyBlock; i += lanes)
      s(i) = a_.type == XType::kBf16 ? exp_coarse_f32(s(i) * scale - top)
                                     : exp_minus(s(i) * scale, top);
    lanes_.sync_group();
    const float sum = lanes_.sum(kKeyBlock, 4, 8, [&](size_t i) { return s(i); });
    lanes_.sync_group();
    for (size_t i = lane; i < kKeyBlock; i += lanes) {
      if (has_scales(kStored) && s(i) != 0.0f)
        s(i) = s(i) * kv_.scales(head_of_block(block))[kKeyBlock + i];
      s(i) = to_numbers(a_.type, s(i));
    }
    best = top;
    total = total * keep + sum;
    return keep;
  }

  // Adds the softmax of a part of the keys to the running softmax; a part of which a query sees no
  // key changes nothing. Called by all lanes.
  MOEBIUS_ALWAYS_INLINE void merge(float* out, float& best, float& total, const float* part,
                                   float part_best, float part_total) const {
    if (part_best == masked() && part_total == 0.0f) return;
    const float had = best, had_total = total;
    lanes_.sync();
    if (had == masked() && had_total == 0.0f) {
      if (lanes_.lane() == 0) {
        best = part_best;
        total = part_total;
      }
      for (size_t d = lanes_.lane(); d < a_.value_dim; d += lanes_.lanes()) out[d] = part[d];
      return;
    }
    const float top = part_best > had ? part_best : had;
    const float before = exp_minus(had, top), now = exp_minus(part_best, top);
    if (lanes_.lane() == 0) {
      best = top;
      total = had_total * before + part_total * now;
    }
    for (size_t d = lanes_.lane(); d < a_.value_dim; d += lanes_.lanes()) {
      const float added = part[d] * now;
      out[d] = (out[d] * before) + added;
    }
  }

  MOEBIUS_ALWAYS_INLINE void keep_partials(float* partials, size_t segment) const {
    for (size_t r = 0; r < queries_; ++r) {
      float* p =
          partials + (((row_ + r / heads_) * a_.heads + head_of(r)) * args_.segments + segment) *
                         partial_floats(a_);
      for (size_t d = lanes_.lane(); d < a_.value_dim; d += lanes_.lanes())
        p[d] = out_[r * a_.value_dim + d];
      if (lanes_.lane() == 0) {
        p[a_.value_dim] = best_[r];
        p[a_.value_dim + 1] = total_[r];
      }
    }
  }

  MOEBIUS_ALWAYS_INLINE void finish(size_t r, const float* out, float total) const {
    const size_t at = (row_ + r / heads_) * args_.out.stride + head_of(r) * a_.value_dim;
    for (size_t d = lanes_.lane(); d < a_.value_dim; d += lanes_.lanes())
      put_number(args_.out.data, args_.out.type, at + d, to_numbers(a_.type, out[d] / total));
  }

  const CudaAttend& args_;
  const CudaAttention& a_;
  DeviceKv kv_;
  const Lanes& lanes_;
  const CudaSequence* sequence_ = nullptr;
  size_t position_ = 0, tokens_ = 0, row_ = 0, kv_head_ = 0, head_ = 0, heads_ = 1, queries_ = 0;
  // q_: [key_dim]; s_: [128] scores, then probabilities, for each block; sums_: [value_dim] for
  // each block.
  TileNumbers *q_ = nullptr, *s_ = nullptr, *sums_ = nullptr;
  float *out_ = nullptr, *all_ = nullptr;
  float *best_ = nullptr, *total_ = nullptr, *keep_ = nullptr, *all_best_ = nullptr,
        *all_total_ = nullptr;
};

}  // namespace moebius
