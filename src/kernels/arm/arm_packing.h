// SPDX-License-Identifier: Apache-2.0
// Helpers shared by the packers of all Arm families: reading 8 rows of a file side by side,
// arranging their codes as a Layout says (arm_layout.h), storing vectors in the order of addresses,
// transposing scales and zero points of 8 outputs, act-order, and the loop over panels. Internal
// linkage, plain NEON.
//
// Stores in the order of addresses let the core write whole lines without reading them first, and
// no vector is loaded that was just stored in smaller parts: such a load waits for every store
// before it.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include <arm_neon.h>

#include <utility>

#include "base/numeric.h"
#include "kernels/arm/arm_layout.h"
#include "kernels/isa_permuted_rows.h"
#include "kernels/isa_scale_tables.h"
#include "kernels/kernel.h"
#include "kernels/unpack.h"

#define MOEBIUS_UNROLL _Pragma("GCC unroll 16")

namespace moebius {
namespace {
namespace arm_packing {

constexpr size_t kOutputs = 8;  // outputs of a panel
constexpr size_t kAsked =
    16384;  // least distance in bytes from a code to the one that is prefetched with it

// Addresses of 8 rows at one input, and the address to prefetch: codes that are read later, in the
// order of memory.
struct Rows {
  const uint8_t *first, *next;
  size_t stride;
  [[gnu::always_inline]] const uint8_t* row(int i) const {
    return first + static_cast<size_t>(i) * stride;
  }
  template <size_t kBytes>  // kBytes: number of bytes of each row
  [[gnu::always_inline]] void advance() {
    first += kBytes;
    MOEBIUS_UNROLL for (size_t i = 0; i < kOutputs * kBytes; i += 64)
        __builtin_prefetch(next + i, 0, 2);
    next += kOutputs * kBytes;
  }
};
// Stores two registers with one instruction, which takes half the time of two. The operand that
// tells what is written begins at `out`, so that no address is computed for it.
template <int kOffset>
[[gnu::always_inline]] inline void store_pair(uint8_t* out, uint8x16_t first, uint8x16_t second) {
  auto* to_end = reinterpret_cast<uint8x16_t(*)[kOffset / 16 + 2]>(out);
  asm volatile("stp %q1, %q2, [%3, %4]"
               : "+m"(*to_end)
               : "w"(first), "w"(second), "r"(out), "i"(kOffset));
}
template <int... i>
[[gnu::always_inline]] inline void store_pairs([[maybe_unused]] uint8_t* out,
                                               [[maybe_unused]] const uint8x16_t* v,
                                               std::integer_sequence<int, i...>) {
  (store_pair<32 * i>(out, v[2 * i], v[2 * i + 1]), ...);
}
template <int kCount>
[[gnu::always_inline]] inline void store_in_order(uint8_t* out, const uint8x16_t (&v)[kCount]) {
  store_pairs(out, v, std::make_integer_sequence<int, kCount / 2>{});
  if constexpr (kCount % 2 != 0) {
    constexpr int kLast = 16 * (kCount - 1);
    auto* at = reinterpret_cast<uint8x16_t*>(out + kLast);
    asm volatile("str %q1, [%2, %3]" : "=m"(*at) : "w"(v[kCount - 1]), "r"(out), "i"(kLast));
  }
}

[[gnu::always_inline]] inline uint8x16_t low_halves(uint8x16_t a, uint8x16_t b) {
  return vreinterpretq_u8_u64(vzip1q_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)));
}
[[gnu::always_inline]] inline uint8x16_t high_halves(uint8x16_t a, uint8x16_t b) {
  return vreinterpretq_u8_u64(vzip2q_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)));
}

// --- arrangement: computed from two orders when compiling ---

// Vectors of 16 bytes: `lane` says what the bits of a byte's number within a vector are, `reg` what
// the bits of the vector's number are (bits as in Order).
struct Arrangement {
  uint8_t lane[4] = {}, reg[4] = {};
  size_t regs = 0;
  constexpr Arrangement() = default;
  constexpr Arrangement(const arm_layout::Order& order, size_t first) {
    for (size_t i = 0; i < 4; ++i) lane[i] = order.bits[first + i];
    for (size_t i = first + 4; i < order.count; ++i) reg[regs++] = order.bits[i];
  }
  constexpr bool has_lane(uint8_t bit) const {
    return lane[0] == bit || lane[1] == bit || lane[2] == bit || lane[3] == bit;
  }
  constexpr bool same_lanes(const Arrangement& o) const {
    return lane[0] == o.lane[0] && lane[1] == o.lane[1] && lane[2] == o.lane[2] &&
           lane[3] == o.lane[3];
  }
  // Returns the number of the vector (with `lanes` false) or of the byte in it whose bits have the
  // values given by value(bit).
  template <class F>
  constexpr size_t index(bool lanes, const F& value) const {
    size_t at = 0;
    for (size_t i = 0; i < (lanes ? 4 : regs); ++i) at |= value(lanes ? lane[i] : reg[i]) << i;
    return at;
  }
  // Returns the arrangement after an instruction on pairs of vectors that differ in bit r of their
  // numbers, with elements of 2^e bytes.
  constexpr Arrangement trn(size_t r, size_t e) const {
    Arrangement n = *this;
    n.lane[e] = reg[r];
    n.reg[r] = lane[e];
    return n;
  }
  constexpr Arrangement zip(size_t r, size_t e) const {
    Arrangement n = trn(r, e);
    for (size_t i = e + 1; i < 4; ++i) n.lane[i] = lane[i - 1];
    n.reg[r] = lane[3];
    return n;
  }
  constexpr Arrangement uzp(size_t r, size_t e) const {
    Arrangement n = trn(r, e);
    for (size_t i = e; i < 3; ++i) n.lane[i] = lane[i + 1];
    n.lane[3] = reg[r];
    return n;
  }
};

// Instructions that lead from one arrangement to another: for each the bit of vector numbers in
// which its operands differ, and the arrangement after it.
struct Steps {
  static constexpr size_t kMost = 4;
  Arrangement after[kMost + 1];
  size_t reg[kMost] = {}, count = 0;
  // Extends the steps to the lanes of `to`. Each step brings one bit of `to` into the lanes; the last
  // may be any permutation of two vectors (TBL) if `any`. Returns false if it is impossible.
  constexpr bool extend(const Arrangement& to, bool any) {
    const Arrangement from = after[count];
    if (from.same_lanes(to)) return true;
    if (count == kMost) return false;
    size_t missing = 0;
    for (uint8_t bit : to.lane) missing += from.has_lane(bit) ? 0u : 1u;
    for (size_t r = 0; r < from.regs; ++r) {
      if (!to.has_lane(from.reg[r])) continue;
      for (size_t way = 0; way < 12; ++way) {
        const size_t e = way % 4;
        const Arrangement next = way < 4   ? from.trn(r, e)
                                 : way < 8 ? from.zip(r, e)
                                           : from.uzp(r, e);
        if (!to.has_lane(next.reg[r]) && go_on(r, next, to, any)) return true;
      }
      if (!any || missing != 1) continue;
      Arrangement next = from;
      for (size_t i = 0; i < 4; ++i) {
        next.lane[i] = to.lane[i];
        if (!to.has_lane(from.lane[i])) next.reg[r] = from.lane[i];
      }
      return go_on(r, next, to, any);
    }
    return false;
  }

 private:
  constexpr bool go_on(size_t r, const Arrangement& next, const Arrangement& to, bool any) {
    reg[count++] = r;
    after[count] = next;
    if (extend(to, any)) return true;
    --count;
    return false;
  }
};

// Rearranges vectors whose bytes are in the order kFrom into the order kTo by instructions on pairs
// of vectors. Orders of 4-bit codes begin with the half of a byte: an output's bit gets there by
// exchanging halves of bytes between two vectors first.
template <arm_layout::Order kFrom, arm_layout::Order kTo, bool kNibbles>
struct Network {
  static constexpr bool kSwaps = kNibbles && kFrom.bits[0] != kTo.bits[0];
  // Bit of a vector's number.
  static constexpr size_t kSwapped = kSwaps ? kFrom.find(kTo.bits[0]) - 5 : 0;
  static constexpr Arrangement to() { return {kTo, kNibbles ? 1 : 0}; }
  static constexpr Steps steps() {
    for (const bool any : {false, true}) {
      Steps s;
      s.after[0] = Arrangement(kFrom, kNibbles ? 1 : 0);
      if (kSwaps) s.after[0].reg[kSwapped] = kFrom.bits[0];
      if (s.extend(to(), any)) return s;
    }
    return {};
  }
  static constexpr Steps kSteps = steps();
  static_assert(kSteps.after[kSteps.count].same_lanes(to()));

  // Returns the byte of two vectors (16 to 31: of the second) that step `step` puts into byte i of
  // the first or the second result.
  static constexpr int source(size_t step, bool second, size_t i) {
    const Arrangement &before = kSteps.after[step], &after = kSteps.after[step + 1];
    const size_t r = kSteps.reg[step];
    const auto value = [&](uint8_t bit) -> size_t {
      for (size_t l = 0; l < 4; ++l)
        if (after.lane[l] == bit) return i >> l & 1;
      return second ? 1 : 0;
    };
    return static_cast<int>(before.index(true, value) + 16 * value(before.reg[r]));
  }
  // Returns the number of the vector that is vector i at last.
  static constexpr size_t last(size_t i) {
    const Arrangement target = to();
    return kSteps.after[kSteps.count].index(false, [&](uint8_t bit) -> size_t {
      for (size_t r = 0; r < target.regs; ++r)
        if (target.reg[r] == bit) return i >> r & 1;
      return 0;
    });
  }
  template <size_t step, bool second, size_t... i>
  [[gnu::always_inline]] static uint8x16_t shuffle(uint8x16_t a, uint8x16_t b,
                                                   std::index_sequence<i...>) {
    return __builtin_shufflevector(a, b, source(step, second, i)...);
  }
  template <size_t step, size_t kCount>
  [[gnu::always_inline]] static void run(uint8x16_t (&v)[kCount]) {
    if constexpr (step < kSteps.count) {
      constexpr size_t kApart = size_t{1} << kSteps.reg[step];
      constexpr std::make_index_sequence<16> kAll{};
      MOEBIUS_UNROLL for (size_t i = 0; i < kCount; ++i) {
        if ((i & kApart) != 0) continue;
        const uint8x16_t a = v[i], b = v[i + kApart];
        v[i] = shuffle<step, false>(a, b, kAll);
        v[i + kApart] = shuffle<step, true>(a, b, kAll);
      }
      run<step + 1>(v);
    }
  }
  template <size_t kCount, size_t... i>
  [[gnu::always_inline]] static void rename(uint8x16_t (&v)[kCount], std::index_sequence<i...>) {
    const uint8x16_t in_order[] = {v[last(i)]...};
    ((v[i] = in_order[i]), ...);
  }
  template <size_t kCount>
  [[gnu::always_inline]] static void arrange(uint8x16_t (&v)[kCount]) {
    static_assert(kCount == size_t{1} << to().regs);
    if constexpr (kSwaps) {
      constexpr size_t kApart = size_t{1} << kSwapped;
      MOEBIUS_UNROLL for (size_t i = 0; i < kCount; ++i) {
        if ((i & kApart) != 0) continue;
        const uint8x16_t a = v[i], b = v[i + kApart];
        v[i] = vsliq_n_u8(a, b, 4);
        v[i + kApart] = vsriq_n_u8(b, a, 4);
      }
    }
    run<0>(v);
    rename(v, std::make_index_sequence<kCount>{});
  }
};

// Returns the index of an output's first scale, without divisions if possible, which are slow for
// short rows.
inline size_t scale_row(const QuantMatrix& w, size_t r) {
  const size_t row = r + w.n_phase;
  return (w.block_n == 1 ? row : row / w.block_n) * w.scale_stride;
}
// Holds the indices of the first scales of a panel's 8 outputs; those past N repeat the last one.
struct ScaleRows {
  size_t at[kOutputs] = {};
  ScaleRows(const QuantMatrix& w, size_t n) {
    if (w.scale_type == ScaleType::kNone) return;
    for (size_t i = 0; i < kOutputs; ++i) at[i] = scale_row(w, n + i < w.N ? n + i : w.N - 1);
  }
};

// Prefetches scales or zero points (`size` bytes each) of the 8 outputs whose codes are being
// prefetched; `at` has the beginnings of those of the 8 outputs that are being packed. There are
// few, in many places, and packing waits for them.
inline void ask_for_extras(const uint8_t* array, const size_t (&at)[kOutputs], size_t size,
                           size_t row_bytes) {
  const size_t seven = at[kOutputs - 1] - at[0], eight = (seven + seven / (kOutputs - 1)) * size;
  const size_t ahead = kAsked < kOutputs * row_bytes ? 1 : kAsked / (kOutputs * row_bytes);
  const uint8_t* next = array + at[0] * size + ahead * eight;
  for (size_t i = 0; i < eight; i += 64) __builtin_prefetch(next + i, 0, 2);
}

// Transposes bytes of 8 outputs in 8 groups from g on to group by group, two groups per vector.
[[gnu::always_inline]] inline void transpose_bytes(const uint8_t* const (&rows)[kOutputs], size_t g,
                                                   uint8x16_t (&v)[4]) {
  using arm_layout::Order;
  MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) {
    const uint8x8_t a = vld1_u8(rows[2 * i] + g), b = vld1_u8(rows[2 * i + 1] + g);
    v[i] = vcombine_u8(vzip1_u8(a, b), vzip2_u8(a, b));
  }
  Network<Order("o0 k0 k1 k2 o1 o2"), Order("o0 o1 o2 k0 k1 k2"), false>::arrange(v);
}
// Transposes scales of 2 or 4 bytes in 8 or 4 groups.
template <arm_layout::Order kFrom, arm_layout::Order kTo>
[[gnu::always_inline]] inline void transpose_scales(const uint8_t* const (&rows)[kOutputs],
                                                    size_t byte, uint8x16_t (&v)[8]) {
  MOEBIUS_UNROLL for (int i = 0; i < 8; ++i) v[i] = vld1q_u8(rows[i] + byte);
  Network<kFrom, kTo, false>::arrange(v);
}

// Returns how many scales can be read from the first of the last of 8 outputs on: more than it has,
// so that whole vectors can be loaded.
inline size_t scales_there(const QuantMatrix& w, const ScaleRows& rows) {
  return scale_row(w, w.N - 1) + w.groups - rows.at[kOutputs - 1];
}

// Returns the scales of 8 outputs in one group, two bytes each: bf16 and f16 as stored, one-byte
// scales as bf16. Assembled in registers.
[[gnu::always_inline]] inline uint16x8_t scales_of(const QuantMatrix& w,
                                                   const size_t (&rows)[kOutputs], size_t column) {
  const bool byte = w.scale_type == ScaleType::kFp8 || w.scale_type == ScaleType::kE8m0;
  const scale_tables::Table& table =
      w.scale_type == ScaleType::kFp8 ? scale_tables::kE4m3 : scale_tables::kE8m0;
  uint64_t half[2] = {};
  MOEBIUS_UNROLL for (size_t i = 0; i < kOutputs; ++i) {
    uint16_t v;
    if (byte) {
      v = table.bf16[w.scales[rows[i] + column]];
    } else {
      __builtin_memcpy(&v, w.scales + 2 * (rows[i] + column), 2);
    }
    half[i / 4] |= static_cast<uint64_t>(v) << (16 * (i % 4));
  }
  return vcombine_u16(vcreate_u16(half[0]), vcreate_u16(half[1]));
}

// Holds the scales of 8 outputs in one group: 8 x bf16 in v[0], or 8 x f32 in both.
struct Scales {
  uint8x16_t v[2];
};

// Converts f16 scales of 8 outputs to f32.
inline Scales from_f16(uint16x8_t halves) {
  if (vmaxvq_u16(vandq_u16(halves, vdupq_n_u16(0x7fff))) < 0x7c00) {
    const float16x8_t v = vreinterpretq_f16_u16(halves);
    return {{vreinterpretq_u8_f32(vcvt_f32_f16(vget_low_f16(v))),
             vreinterpretq_u8_f32(vcvt_high_f32_f16(v))}};
  }
  uint16_t from[kOutputs];
  float to[kOutputs];
  vst1q_u16(from, halves);
  for (size_t i = 0; i < kOutputs; ++i) to[i] = f16_to_f32(from[i]);
  return {{vreinterpretq_u8_f32(vld1q_f32(to)), vreinterpretq_u8_f32(vld1q_f32(to + 4))}};
}
// Converts one-byte scales of 8 outputs in 8 groups from g on to bf16; returns false if one of them
// is special (negative, zero, subnormal, NaN).
[[gnu::always_inline]] inline bool scales_of_bytes(ScaleType type,
                                                   const uint8_t* const (&rows)[kOutputs], size_t g,
                                                   Scales* out) {
  uint8x16_t c[4];
  transpose_bytes(rows, g, c);
  const bool e8m0 = type == ScaleType::kE8m0;
  const uint8x16_t most = vmaxq_u8(vmaxq_u8(c[0], c[1]), vmaxq_u8(c[2], c[3])),
                   least = vminq_u8(vminq_u8(c[0], c[1]), vminq_u8(c[2], c[3]));
  if (vmaxvq_u8(most) > (e8m0 ? 254 : 126) || vminvq_u8(least) < (e8m0 ? 1 : 8)) return false;
  // Shifted into place, e8m0 is a bf16, and e4m3 a bf16 that is 2^120 too small.
  const uint16x8_t larger = vdupq_n_u16(e8m0 ? 0 : 120 << 7);
  const uint8x16_t shift = vdupq_n_u8(e8m0 ? 128 : 16);
  MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) {
    out[2 * i].v[0] = vreinterpretq_u8_u16(vmlal_u8(larger, vget_low_u8(c[i]), vget_low_u8(shift)));
    out[2 * i + 1].v[0] = vreinterpretq_u8_u16(vmlal_high_u8(larger, c[i], shift));
  }
  return true;
}

// Returns a scale, or an offset, in two levels.
inline float two_level_at(const QuantMatrix& w, const uint8_t* table, const uint8_t* supers,
                          size_t index) {
  float above;
  __builtin_memcpy(&above, supers + (index + w.super_phase) / w.super_groups * 4, 4);
  return static_cast<float>(static_cast<int8_t>(table[index])) * above;
}

// Transposes scales and zero points of the 8 outputs from n on. The packer has this done for kChunk
// groups (from a multiple of kChunk on) before it packs the codes of these groups. Outputs past N
// repeat the last output.
class PanelScales {
 public:
  static constexpr size_t kChunk = 128;
  // inputs: number of inputs of a group; scale_inputs: inputs that one stored scale covers.
  PanelScales(const QuantMatrix& w, size_t n, size_t inputs, size_t scale_inputs)
      : w_(w), rows_(w, n), n_(n), inputs_(inputs), scale_inputs_(scale_inputs) {}

  // Prefetches scales and zero points for the panels after this one.
  void ask() const {
    if (w_.scale_type == ScaleType::kNone) return;
    ask_for_extras(w_.scales, rows_.at, scale_size(w_.scale_type), w_.row_bytes);
    if (w_.offsets != nullptr)
      ask_for_extras(w_.offsets, rows_.at, scale_size(w_.scale_type), w_.row_bytes);
    if (w_.zero_points != nullptr)
      ask_for_extras(reinterpret_cast<const uint8_t*>(w_.zero_points), rows_.at, 1, w_.row_bytes);
  }
  // Writes the second level of scales in two levels.
  void put_supers(const arm_layout::Supers& s, uint8_t* out) const {
    for (size_t j = 0; j < s.count; ++j, out += s.bytes)
      for (size_t i = 0; i < kOutputs; ++i) {
        const size_t at = (rows_.at[i] / w_.super_groups + j) * sizeof(float);
        __builtin_memcpy(out + 4 * i, w_.super_scales + at, 4);
        if (w_.offsets != nullptr)
          __builtin_memcpy(out + 4 * (kOutputs + i), w_.super_offsets + at, 4);
      }
  }
  // Makes the scales of groups [g, g1).
  void make_scales(size_t g, size_t g1, Scales* out) const {
    const size_t size = scale_size(w_.scale_type);
    const bool side_by_side =  // true for a single group
        w_.block_n == 1 && w_.scale_stride == 1 && n_ + kOutputs <= w_.N;
    if (side_by_side && w_.scale_type == ScaleType::kBf16 && g + 1 == g1) {
      out->v[0] = vld1q_u8(w_.scales + 2 * rows_.at[0]);
      return;
    }
    const uint8_t* from[kOutputs];
    for (size_t i = 0; i < kOutputs; ++i) from[i] = w_.scales + rows_.at[i] * size;
    const size_t there = scales_there(w_, rows_);
    for (; g < g1; g += 8, out += 8)  // out has room for whole eights
      if (!eight_scales(from, g, there, out))
        for (size_t i = 0; i < 8 && g + i < g1; ++i) out[i] = scales_at(column(g + i));
  }
  // Makes what `table` has for groups [g, g1): zero points, or scales or offsets of one byte.
  void make_bytes(const void* table, size_t g, size_t g1, uint8x8_t* out) const {
    const uint8_t* from[kOutputs];
    for (size_t i = 0; i < kOutputs; ++i)
      from[i] = static_cast<const uint8_t*>(table) + rows_.at[i];
    for (; inputs_ == scale_inputs_ && g + 8 <= g1; g += 8, out += 8) {
      uint8x16_t v[4];
      transpose_bytes(from, g, v);
      MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) out[2 * i] = vget_low_u8(v[i]),
                                                         out[2 * i + 1] = vget_high_u8(v[i]);
    }
    for (; g < g1; ++g, ++out) {
      uint64_t v = 0;
      for (size_t i = 0; i < kOutputs; ++i) v |= uint64_t{from[i][column(g)]} << (8 * i);
      *out = vcreate_u8(v);
    }
  }

 private:
  // Converts the scales of 8 groups from g on to `out`, if a row has so many (`there` is how many
  // it has) and none of them is special; returns whether it did.
  bool eight_scales(const uint8_t* const (&from)[kOutputs], size_t g, size_t there,
                    Scales* out) const {
    using arm_layout::Order;
    const ScaleType type = w_.scale_type;
    if (type == ScaleType::kNone || type == ScaleType::kTwoLevel || inputs_ != scale_inputs_ ||
        there - g < 8)
      return false;
    uint8x16_t v[8];
    if (type == ScaleType::kFp8 || type == ScaleType::kE8m0)
      return scales_of_bytes(type, from, g, out);
    if (type == ScaleType::kF32) {
      for (size_t four = 0; four < 8; four += 4) {
        transpose_scales<Order("b0 b1 k0 k1 o0 o1 o2"), Order("b0 b1 o0 o1 o2 k0 k1")>(
            from, 4 * (g + four), v);
        MOEBIUS_UNROLL for (size_t i = 0; i < 8; ++i) out[four + i / 2].v[i % 2] = v[i];
      }
      return true;
    }
    transpose_scales<Order("b0 k0 k1 k2 o0 o1 o2"), Order("b0 o0 o1 o2 k0 k1 k2")>(from, 2 * g, v);
    MOEBIUS_UNROLL for (size_t i = 0; i < 8; ++i) out[i].v[0] = v[i];
    for (size_t i = 0; type == ScaleType::kF16 && i < 8; ++i)
      out[i] = from_f16(vreinterpretq_u16_u8(v[i]));
    return true;
  }
  Scales scales_at(size_t g) const {
    const bool two_level = w_.scale_type == ScaleType::kTwoLevel;
    if (two_level || w_.scale_type == ScaleType::kF32 || w_.scale_type == ScaleType::kNone) {
      uint32_t v[kOutputs];
      for (size_t i = 0; i < kOutputs; ++i) {
        v[i] = f32_bits(1.0f);
        if (w_.scale_type == ScaleType::kF32)
          __builtin_memcpy(&v[i], w_.scales + 4 * (rows_.at[i] + g), 4);
        if (two_level)
          v[i] = f32_bits(two_level_at(w_, w_.scales, w_.super_scales, rows_.at[i] + g));
      }
      uint64x2_t pairs[2];
      for (size_t i = 0; i < 2; ++i)
        pairs[i] = vcombine_u64(vcreate_u64(v[4 * i] | uint64_t{v[4 * i + 1]} << 32),
                                vcreate_u64(v[4 * i + 2] | uint64_t{v[4 * i + 3]} << 32));
      return {{vreinterpretq_u8_u64(pairs[0]), vreinterpretq_u8_u64(pairs[1])}};
    }
    const uint16x8_t v = scales_of(w_, rows_.at, g);
    if (w_.scale_type == ScaleType::kF16) return from_f16(v);
    return {{vreinterpretq_u8_u16(v), vdupq_n_u8(0)}};
  }

  size_t column(size_t g) const {
    return inputs_ == scale_inputs_ ? g : g * inputs_ / scale_inputs_;
  }

  const QuantMatrix& w_;
  const ScaleRows rows_;  // indices of the first scales of the 8 outputs
  const size_t n_, inputs_, scale_inputs_;
};

struct NeonBytes {
  using V = uint8x16_t;
  static V load(const uint8_t* p) { return vld1q_u8(p); }
  static void store(uint8_t* p, V v) { vst1q_u8(p, v); }
  [[gnu::always_inline]] static void store_all(uint8_t* p, const V (&v)[16]) {
    store_in_order(p, v);
  }
  static V zip1(V a, V b) { return vzip1q_u8(a, b); }
  static V zip2(V a, V b) { return vzip2q_u8(a, b); }
  static V low(V a, V b) { return vsliq_n_u8(a, b, 4); }
  static V high(V a, V b) { return vsriq_n_u8(b, a, 4); }
};

// Packs all panels of `a`, of `stride` bytes each; a Packer is made for each.
template <class Packer, class Sizes>
inline void pack_panels(const PackArgs& a, const Sizes& s, size_t stride) {
  const auto out = [&](size_t n) { return a.packed + (a.row0 + n) / kOutputs * stride; };
  using Permuted = PermutedRows<NeonBytes, 16>;
  if (!Permuted::takes(a)) {
    for (size_t n = a.n0; n < a.n1; n += kOutputs) Packer(a, s, n, out(n)).pack();
    return;
  }
  Permuted rows(a);
  for (size_t n = a.n0, end; n < a.n1; n = end) {
    rows.read(n);
    end = n + rows.args().w->N < a.n1 ? n + rows.args().w->N : a.n1;
    for (size_t i = n; i < end; i += kOutputs)
      Packer(rows.args(), s, i - n, out(i), a.w->codes + (i + end - n) * a.w->row_bytes).pack();
  }
}

}  // namespace arm_packing
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
