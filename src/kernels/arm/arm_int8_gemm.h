// SPDX-License-Identifier: Apache-2.0
// The int8 family on Arm: products of many rows, whose operands are decoded into scratch memory,
// and the choice between all forms of the product. Few rows: arm_int8_few.h, loops:
// arm_int8_loops.h, layouts: arm_int8.h. Internal linkage.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include <arm_neon.h>

#include "kernels/arm/arm_int8.h"
#include "kernels/arm/arm_int8_few.h"
#include "kernels/arm/arm_int8_loops.h"

namespace moebius {
namespace {
namespace int8_family {

template <class E, int kFix, bool kGrouped>
struct Gemm : FewRows<E, kFix, kGrouped> {
  using Base = FewRows<E, kFix, kGrouped>;
  using Base::a, Base::s, Base::l, Base::choice, Base::map, Base::factor, Base::G, Base::row_scales;
  using Base::Base;
  using Base::kMost, Base::panel, Base::valid, Base::rows_from, Base::out, Base::packed_tile;
  using typename Base::Ahead;
  static constexpr bool kRegisters = Base::template kRegisters<Nibbles>;

  // --- many rows, 4 bits, no groups: 12 outputs at a time are decoded, if the engine has tiles of
  // that width ---

  // Decodes the codes of 16 inputs of `pairs` pairs of outputs to operands.
  template <int pairs>
  [[gnu::always_inline]] static inline void expand_pairs(const uint8_t* from, uint8_t* to) {
    uint8x16_t even[pairs], odd[pairs];
    MOEBIUS_UNROLL for (int j = 0; j < pairs; ++j)
        split<Nibbles>(vld1q_u8(from + 16 * j), even[j], odd[j]);
    store_pairs(to, even);
    store_pairs(to + 96, odd);
  }
  // Decodes twelve outputs: a whole panel and half of a neighbour, which is the next one (kFirst)
  // or the previous one.
  template <bool kFirst>
  void expand_twelve(size_t n, size_t k0, size_t steps, uint8_t* to,
                     float32x4_t (&scales)[6]) const {
    const uint8_t *left = panel(n), *right = left + s.stride();
    float32x4_t first[4], second[4];
    pair_scales(left + s.code_bytes, s.bf16, factor, first);
    pair_scales(right + s.code_bytes, s.bf16, factor, second);
    MOEBIUS_UNROLL for (int j = 0; j < 6; ++j) scales[j] =
        kFirst ? (j < 4 ? first[j % 4] : second[j % 4])
               : (j < 2 ? first[(j + 2) % 4] : second[(j + 2) % 4]);
    left += k0 * (kNr / 2);
    right += k0 * (kNr / 2);
    for (size_t i = 0; i < steps; ++i, left += 64, right += 64, to += 192) {
      if constexpr (kFirst) {
        expand_pairs<4>(left, to);
        expand_pairs<2>(right, to + 64);
      } else {
        expand_pairs<2>(left + 32, to);
        expand_pairs<4>(right, to + 32);
      }
    }
  }
  // Computes a tile of rows over one chunk of K; sums of chunks wait in `sums`.
  template <int P>
  void twelve(const uint8_t* x, const uint8_t* w, size_t steps, int32_t* sums, bool last,
              const float32x4_t* scales, size_t pair, float* y) const {
    if (!last) return E::template twelve_sums<P>(x, w, steps, sums);
    const float* r = row_scales + 2 * pair;
    const size_t rows = rows_from(pair);
    if (rows >= 2 * P) return E::template twelve<P>(x, w, steps, sums, scales, r, y, a.ldy);
    float all[2 * P * kTwelve];
    E::template twelve<P>(x, w, steps, sums, scales, r, all, kTwelve);
    for (size_t i = 0; i < rows; ++i)
      __builtin_memcpy(y + i * a.ldy, all + i * kTwelve, kTwelve * sizeof(float));
  }
  // Computes outputs n .. n + 11.
  template <bool kFirst>
  void twelves(const Blocking& b, size_t n, uint8_t* codes, int32_t* sums) const {
    float32x4_t scales[6];
    if (b.chunks > 1) __builtin_memset(sums, 0, map.tiles * kTwelveSums * 4);
    for (size_t i = 0, k0 = 0; i < b.chunks; ++i, k0 += b.chunk_k) {
      const bool last = i + 1 == b.chunks;
      const size_t steps = ((last ? s.K_padded : k0 + b.chunk_k) - k0) / kKr;
      const size_t at = n / kNr * kNr;
      expand_twelve<kFirst>(at, k0, steps, codes, scales);
      // Prefetches what is needed next: the next chunk, or the following panels (of which a first
      // block has used one and a half).
      const uint8_t* next =
          last ? panel(at) + 2 * s.stride() : panel(at) + (k0 + b.chunk_k) * (kNr / 2);
      const size_t end = (a.n1 - a.n0) / (2 * kTwelve) * (2 * kTwelve) + a.n0;
      const bool more = !last || at + 2 * kNr < end;
      const size_t lines = more ? b.chunk_k * (kNr / 2) / 64 : 0;
      Ahead ahead(next, lines, map.tiles);
      Ahead beside(next + s.stride(), last && (kFirst || at + 3 * kNr >= end) ? 0 : lines,
                   map.tiles);
      for (size_t t = 0; t < map.tiles; ++t) {
        ahead.fetch();
        beside.fetch();
        const size_t pair = map.first(t), P = map.size(t);
        const uint8_t* x = a.panel + 2 * pair * s.K_padded + 2 * P * k0;
        int32_t* waiting = b.chunks > 1 ? sums + t * kTwelveSums : nullptr;
        float* y = out(pair, n);
        if (P == 4) {
          twelve<4>(x, codes, steps, waiting, last, scales, pair, y);
        } else {
          twelve<3>(x, codes, steps, waiting, last, scales, pair, y);
        }
      }
    }
  }
  void by_twelve() const {
    const Blocking b = blocking_of(s, a.M);
    uint8_t* codes = scratch_apart();
    int32_t* sums = reinterpret_cast<int32_t*>(codes + kTwelve * b.chunk_k);
    size_t n = a.n0;
    for (; n + 2 * kTwelve <= a.n1; n += 2 * kTwelve) {
      twelves<true>(b, n, codes, sums);
      twelves<false>(b, n + kTwelve, codes, sums);
    }
    this->template tiles_from<Nibbles>(n);
  }

  // --- many rows: several panels are decoded with their scales, then read by every tile of rows
  // ---

  struct Scratch {
    Blocking b;
    uint8_t *codes, *extras, *state;
    size_t groups, steps;  // number of groups, and of steps of 16 inputs, in this chunk of K
    size_t k0, g0;         // first input and first group of the chunk
    bool first, last;
  };

  // Splits 32 codes into operands: those of even inputs and those of odd inputs.
  template <class Codec>
  [[gnu::always_inline]] static inline void split(uint8x16_t v, uint8x16_t& even, uint8x16_t& odd) {
    if constexpr (kFix == kRowScales) {
      const uint8x16_t twice = vreinterpretq_u8_s8(Fp4Nibbles::table());
      even = vqtbl1q_u8(twice, vandq_u8(v, vdupq_n_u8(15)));
      odd = vqtbl1q_u8(twice, vshrq_n_u8(v, 4));
    } else if constexpr (Codec::kShift == 4) {
      even = vshlq_n_u8(v, 4);
      odd = vandq_u8(v, vdupq_n_u8(0xf0));
    } else {
      const int8x16_t both = vreinterpretq_s8_u8(v);
      even = vreinterpretq_u8_s8(vshrq_n_s8(vshlq_n_s8(both, 4), 4));
      odd = vreinterpretq_u8_s8(vshrq_n_s8(both, 4));
    }
  }
  template <class Codec>
  void expand(const Scratch& c, size_t n, uint8_t* codes, uint8_t* extras) const {
    const uint8_t* w = panel(n) + c.g0 * s.group_bytes();
    for (size_t g = 0; g < c.groups; ++g, w += s.group_bytes()) {
      if (!s.bytes) {
        const uint8_t* from = w + (kGrouped ? 0 : c.k0 * (kNr / 2));
        for (size_t i = 0; i < c.steps; ++i, from += 64, codes += 128) {
          uint8x16_t even[4], odd[4];
          MOEBIUS_UNROLL for (int j = 0; j < 4; ++j)
              split<Codec>(vld1q_u8(from + 16 * j), even[j], odd[j]);
          store_four(codes, even);
          store_four(codes + 64, odd);
        }
      }
      const uint8_t* x = w + s.code_bytes;
      float32x4_t f[4];
      pair_scales(x, s.bf16, factor, f);
      store_four(extras, f);
      extras += 64;
      int32x4_t z[4];
      if constexpr (kFix == kWithOffsets) {
        pair_scales(x + s.scale_bytes, false, 1.0f, f);
        store_four(extras, f);
        extras += 64;
      } else if (s.zero_bytes != 0) {
        pair_zeros(x + s.scale_bytes, Codec::kShift, z);
        store_four(extras, z);
        extras += 64;
      }
      if (s.sum_bytes != 0) {
        pair_sums(x + s.scale_bytes + s.zero_bytes, Codec::kShift, z);
        store_four(extras, z);
        extras += 64;
      }
    }
  }

  // Returns the part of Tile that is equal for all tiles of a chunk.
  template <class Codec>
  Tile chunk_tile(const Scratch& c) const {
    Tile t = packed_tile(0, a.n0);
    t.groups = c.groups;
    t.steps = c.steps;
    if (!s.bytes) t.w_group = kNr * s.group_k;
    t.extras_group = c.b.extras / c.b.chunk_groups;
    t.zeros_at = 64;
    t.sums_at = s.zero_bytes != 0 ? 128 : 64;
    if (t.sums != nullptr) t.sums += c.g0 * t.sums_group;
    if (kFix == kRowScales) t.row_scales += c.g0 * t.sums_group;
    return t;
  }
  // Computes one tile of rows with the panels from n on.
  template <int P, class Codec>
  void expanded(const Scratch& c, const Tile& same, size_t pair, size_t n, size_t end) const {
    Tile t = same;
    t.a = a.panel + 2 * pair * s.K_padded + 2 * P * c.k0;
    t.extras = c.extras;
    t.w = s.bytes ? panel(n) + (kGrouped ? c.g0 * s.group_bytes() : c.k0 * kNr) : c.codes;
    const size_t w_next = s.bytes ? s.stride() : c.b.codes, state_next = up(a.M, 2) * kNr * 4;
    if (kFix != kPlain && t.sums != nullptr) t.sums += 4 * pair;
    if (kFix == kRowZeros) t.row_zeros += 4 * pair;
    if (kFix == kRowScales) t.row_scales += 4 * pair;
    uint8_t* state = c.state + 2 * pair * kNr * 4;
    float* y = out(pair, n);
    const float* scales = row_scales + 2 * pair;
    const size_t rows = rows_from(pair);
    for (; n < end;
         n += kNr, t.w += w_next, t.extras += c.b.extras, state += state_next, y += kNr) {
      if constexpr (E::template has_store<P, kFix, kGrouped>())
        if (c.first && c.last && rows >= 2 * P && valid(n) == kNr && G.value == 1.0f) {
          E::tile_store(t, scales, y, a.ldy);
          continue;
        }
      t.state_in = c.first ? nullptr : state;
      t.state_out = c.last ? nullptr : state;
      float32x4_t f[1][P][4];
      bool done = false;
      if constexpr (E::template has_tile<P, kFix, kGrouped>())
        if (!kGrouped || kFix == kRowScales || t.steps % 2 == 0) {
          E::template tile<Codec::kShift>(t, s.group_k, f[0]);
          done = true;
        }
      if (!done) multiply<E, P, 1, Codec, kFix, true, kGrouped>(t, f);
      if (c.last) store<P>(f[0], scales, G, y, a.ldy, rows, valid(n));
    }
  }

  template <class Codec>
  void chunk(const Scratch& c, size_t n, size_t end) const {
    for (size_t i = 0; n + i * kNr < end; ++i)
      expand<Codec>(c, n + i * kNr, c.codes + i * c.b.codes, c.extras + i * c.b.extras);
    const Tile same = chunk_tile<Codec>(c);
    const uint8_t* next = nullptr;  // panels that are decoded next, to prefetch
    size_t lines = 0;
    if (!s.bytes && !c.last) {
      next = panel(n) +
             (kGrouped ? (c.g0 + c.groups) * s.group_bytes() : (c.k0 + c.b.chunk_k) * (kNr / 2));
      lines = c.b.chunk_k * (kNr / 2) / 64;
    } else if (!s.bytes && end < a.n1) {
      next = panel(end);
      lines = (a.n1 - end < end - n ? a.n1 - end : end - n) / kNr * s.stride() / 64 / c.b.chunks;
    }
    Ahead ahead(next, lines, map.tiles);
    for (size_t t = 0; t < map.tiles; ++t) {
      ahead.fetch();
      switch (map.size(t)) {
        case 1:
          expanded<1, Codec>(c, same, map.first(t), n, end);
          break;
        case 2:
          if constexpr (kMost >= 2) expanded<2, Codec>(c, same, map.first(t), n, end);
          break;
        case 3:
          if constexpr (kMost >= 3) expanded<3, Codec>(c, same, map.first(t), n, end);
          break;
        default:
          if constexpr (kMost >= 4) expanded<4, Codec>(c, same, map.first(t), n, end);
          break;
      }
    }
  }
  uint8_t* scratch_apart() const {
    return a.scratch + (reinterpret_cast<uintptr_t>(a.panel) + kApart -
                        reinterpret_cast<uintptr_t>(a.scratch)) %
                           kWay;
  }
  template <class Codec>
  void many() const {
    Scratch c{};
    c.b = blocking_of(s, a.M);
    c.codes = scratch_apart();
    c.extras = c.codes + c.b.panels * c.b.codes;
    c.state = c.codes + c.b.state;
    for (size_t n = a.n0; n < a.n1; n += c.b.panels * kNr) {
      const size_t end = n + c.b.panels * kNr < a.n1 ? n + c.b.panels * kNr : a.n1;
      for (size_t i = 0; i < c.b.chunks; ++i) {
        c.k0 = i * c.b.chunk_k;
        const size_t k1 = c.k0 + c.b.chunk_k < s.K_padded ? c.k0 + c.b.chunk_k : s.K_padded;
        c.g0 = kGrouped ? c.k0 / s.group_k : 0;
        c.groups = kGrouped ? (k1 - c.k0) / s.group_k : 1;
        c.steps = kGrouped ? s.group_k / kKr : (k1 - c.k0) / kKr;
        c.first = i == 0;
        c.last = i + 1 == c.b.chunks;
        chunk<Codec>(c, n, end);
      }
    }
  }

  void run() const {
    if constexpr (kFix == kRowScales) {
      choice.form == Form::kScratch ? many<Bytes<2>>() : this->template few<Fp4Nibbles>();
      return;
    }
    if constexpr (kRegisters && !kGrouped)
      if (choice.form == Form::kTwelveOutputs) return by_twelve();
    if (choice.form != Form::kScratch)
      return s.bytes ? this->template few<Bytes<0>>() : this->template few<Nibbles>();
    // The hot case saves an operation per operand; all others share the code for one byte per code.
    if constexpr (kFix == kPlain && kGrouped)
      if (!s.bytes) return many<Bytes<4>>();
    many<Bytes<0>>();
  }
};

template <class E, int kFix>
inline void gemm_fixed(const GemmArgs& args, bool grouped) {
  if (grouped) {
    Gemm<E, kFix, true>(args).run();
  } else {
    Gemm<E, kFix, false>(args).run();
  }
}
template <class E>
inline void gemm(const GemmArgs& args) {
  const Problem& p = *args.w->problem;
  const Shape s = shape_of(p);
  if (s.fp4) {
    Gemm<E, kRowScales, true>(args).run();
  } else if (s.row_zeros) {
    gemm_fixed<E, kRowZeros>(args, s.grouped());
  } else if (p.zero_points) {
    gemm_fixed<E, kWeightZeros>(args, s.grouped());
  } else if (p.offsets) {
    gemm_fixed<E, kWithOffsets>(args, s.grouped());
  } else {
    gemm_fixed<E, kPlain>(args, s.grouped());
  }
}
}  // namespace int8_family
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
