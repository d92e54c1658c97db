// SPDX-License-Identifier: Apache-2.0
// The int8 family on Arm: one call of a kernel, and its form for few rows, whose operands are made
// in registers: divides rows and outputs into tiles. Loops: arm_int8_loops.h, layouts: arm_int8.h,
// many rows: arm_int8_gemm.h. Internal linkage.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include <arm_neon.h>

#include "kernels/arm/arm_int8_choice.h"
#include "kernels/arm/arm_int8_loops.h"

namespace moebius {
namespace {
namespace int8_family {

// Defaults of an engine without hand-written tiles.
//   has_tile       tile() gives the sums as floats
//   has_store      tile_store() leaves finished outputs
//   has_registers  out of packed codes: registers() gives the sums of one tile, registers_streams() of
//                  one row or a pair and 2 panels, registers_two() of 2 pairs and 2 panels;
//                  registers_grouped() (2 pairs) and registers_narrow() (3 to 5) finish groups,
//                  registers_store() (4 pairs) leaves outputs
struct NoTiles {
  template <int P, int kFix, bool kGrouped>
  static constexpr bool has_tile() {
    return false;
  }
  template <int P, int kFix, bool kGrouped>
  static constexpr bool has_store() {
    return false;
  }
  template <class Codec, int kFix, bool kGrouped>
  static constexpr bool has_registers() {
    return false;
  }
};

// Computes one call of the kernel for few rows, for an engine and corrections kFix, with or without
// groups.
template <class E, int kFix, bool kGrouped>
struct FewRows {
  static constexpr Engine kEngine = E::kEngine;
  static constexpr size_t kMost = kGrouped ? kEngine.pairs_grouped : kEngine.pairs;
  const GemmArgs& a;
  const Shape s;
  const PanelLayout l;
  const TileChoice choice;
  const TileMap map;
  const float factor;
  const GlobalScale G;
  const float* row_scales;

  explicit FewRows(const GemmArgs& args)
      : a(args),
        s(shape_of(*args.w->problem)),
        l(panel_layout(s, args.M)),
        choice(choose_tile(kEngine, s, args.M)),
        map(l.pairs, choice.pairs),
        factor(args.w->problem->act.granule == ActGranule::kStatic ? args.w->act.scale
               : !s.fp4 && args.w->problem->code == CodeType::kFp4 ? 0.5f
                                                                   : 1.0f),
        G(result_scale(*args.w)),
        row_scales(reinterpret_cast<const float*>(args.panel + l.scales)) {}

  const uint8_t* panel(size_t n) const { return a.w->data + n / kNr * s.stride(); }
  size_t valid(size_t n) const { return a.n1 - n < kNr ? a.n1 - n : kNr; }
  size_t rows_from(size_t pair) const { return a.M - 2 * pair; }
  float* out(size_t pair, size_t n) const { return a.y + 2 * pair * a.ldy + (n - a.n0); }

  [[gnu::always_inline]] inline Tile packed_tile(size_t pair, size_t n) const {
    Tile t{};
    t.a = a.panel + 2 * pair * s.K_padded;
    t.w = panel(n);
    t.extras = t.w + s.code_bytes;
    t.groups = s.groups;
    t.steps = s.group_k / kKr;
    t.w_group = t.extras_group = s.group_bytes();
    t.zeros_at = s.scale_bytes;
    t.sums_at = s.scale_bytes + s.zero_bytes;
    t.sums =
        s.zero_bytes != 0 ? reinterpret_cast<const int32_t*>(a.panel + l.sums) + 4 * pair : nullptr;
    t.sums_group = 4 * l.pairs;
    t.offset_bias = s.offset_bias;
    t.row_zeros = reinterpret_cast<const int32_t*>(a.panel + l.zeros) + 4 * pair;
    t.row_scales = reinterpret_cast<const float*>(a.panel + l.group_scales) + 4 * pair;
    t.bf16 = s.bf16;
    t.factor = factor;
    return t;
  }

  // Prefetches the codes that are needed next while the tiles of several panels are computed: the
  // same number of lines per tile.
  struct Ahead {
    const uint8_t* next;
    size_t each;
    Ahead(const uint8_t* from, size_t lines, size_t tiles)
        : next(from), each((lines + tiles - 1) / tiles) {}
    void fetch() {
      for (size_t i = 0; i < each; ++i, next += 64) __builtin_prefetch(next, 0, 2);
    }
  };

  // --- few rows: operands are made in registers ---

  template <class Codec>
  static constexpr bool kRegisters = E::template has_registers<Codec, kFix, kGrouped>();

  // Multiplies sums of 4-bit codes, which are 16 times too large, by the scales of their outputs.
  template <int P>
  [[gnu::always_inline]] static inline void finish_sums(const Tile& t, const int32x4_t (&v)[P][4],
                                                        float32x4_t (&f)[P][4]) {
    float32x4_t scales[4];
    pair_scales(t.extras, t.bf16, t.factor, scales);
    MOEBIUS_UNROLL for (int i = 0; i < 4 * P; ++i) f[i / 4][i % 4] =
        vfmaq_f32(vdupq_n_f32(0), to_float<4>(v[i / 4][i % 4]), scales[i % 4]);
  }

  // Computes one row (f[2][2], in order) or a pair (f[2][1][4]) from two panels in assembly; false:
  // not possible for these groups.
  template <bool kPair, class F>
  [[gnu::always_inline]] static inline bool from_streams(const Tile& t, F& f) {
    if constexpr (kGrouped) {
      if (!t.bf16) return false;
      E::template registers_streams<kPair>(t, reinterpret_cast<float32x4_t*>(f));
    } else {
      if (t.steps % 2 != 0) return false;
      int32x4_t v[2][4];
      E::template registers_streams<kPair>(t, v);
      MOEBIUS_UNROLL for (int u = 0; u < 2; ++u) {
        const uint8_t* extras = t.extras + static_cast<size_t>(u) * t.stream;
        float32x4_t scales[kPair ? 4 : 2];
        if constexpr (kPair) {
          pair_scales(extras, t.bf16, t.factor, scales);
          MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) f[u][0][j] =
              vfmaq_f32(vdupq_n_f32(0), to_float<4>(v[u][j]), scales[j]);
        } else {
          two_scales(extras, t.bf16, t.factor, scales);
          MOEBIUS_UNROLL for (int h = 0; h < 2; ++h) f[u][h] = vfmaq_f32(
              vdupq_n_f32(0), to_float<4>(E::four(v[u][2 * h], v[u][2 * h + 1])), scales[h]);
        }
      }
    }
    return true;
  }

  template <class Engine, int P, int S, class Codec>
  void packed(size_t pair, size_t n, size_t apart) const {
    Tile t = packed_tile(pair, n);
    t.stream = apart * s.stride();
    float32x4_t f[S][P][4];
    if constexpr (S == 1 && !kGrouped && kRegisters<Codec>) {
      int32x4_t v[P][4];
      Engine::template registers<P>(t, v);
      finish_sums<P>(t, v, f[0]);
    } else if constexpr (S == 2 && P == 2 && !kGrouped && kRegisters<Codec>) {
      Engine::registers_two(t, f);
    } else if constexpr (S == 1 && P == 2 && kGrouped && kRegisters<Codec>) {
      if (t.bf16) {
        Engine::registers_grouped(t, f[0]);
      } else {
        multiply<Engine, P, S, Codec, kFix, false, kGrouped>(t, f);
      }
    } else if constexpr (S == 2 && P == 1 && kRegisters<Codec>) {
      if (!from_streams<true>(t, f)) multiply<Engine, P, S, Codec, kFix, false, kGrouped>(t, f);
    } else {
      multiply<Engine, P, S, Codec, kFix, false, kGrouped>(t, f);
    }
    MOEBIUS_UNROLL for (int u = 0; u < S; ++u) {
      const size_t at = n + static_cast<size_t>(u) * apart * kNr;
      store<P>(f[u], row_scales + 2 * pair, G, out(pair, at), a.ldy, rows_from(pair), valid(at));
    }
  }
  // Computes a single row, streams_one panels at a time, which are equal shares of the block apart;
  // remaining panels are computed one by one.
  template <int S, class Codec>
  void single_at(size_t n, size_t apart) const {
    Tile t = packed_tile(0, n);
    t.stream = apart * s.stride();
    float32x4_t f[S][2];
    bool done = false;
    if constexpr (S == 2 && kRegisters<Codec>) done = from_streams<false>(t, f);
    if (!done) multiply_one<typename E::One, S, Codec, kFix, kGrouped>(t, f);
    MOEBIUS_UNROLL for (int u = 0; u < S; ++u) {
      const size_t at = n + static_cast<size_t>(u) * apart * kNr;
      float* y = out(0, at);
      const float32x4_t lo = scaled(f[u][0], row_scales[0], G),
                        hi = scaled(f[u][1], row_scales[0], G);
      if (valid(at) == kNr) {
        vst1q_f32(y, lo);
        vst1q_f32(y + 4, hi);
      } else {
        float tmp[kNr];
        vst1q_f32(tmp, lo);
        vst1q_f32(tmp + 4, hi);
        __builtin_memcpy(y, tmp, valid(at) * 4);
      }
    }
  }
  template <class Codec>
  void single() const {
    constexpr int S = kEngine.streams_one;
    const size_t panels = (a.n1 - a.n0 + kNr - 1) / kNr, each = panels / S;
    for (size_t i = 0; i < each; ++i) single_at<S, Codec>(a.n0 + i * kNr, each);
    for (size_t i = each * S; i < panels; ++i) single_at<1, Codec>(a.n0 + i * kNr, 0);
  }
  // Computes a tile with S streams through the block, each a share of its panels; remaining panels
  // are computed one by one.
  template <class Engine, int P, int S, class Codec>
  void streams(size_t pair) const {
    const size_t panels = (a.n1 - a.n0 + kNr - 1) / kNr, each = panels / S;
    for (size_t i = 0; i < each; ++i) packed<Engine, P, S, Codec>(pair, a.n0 + i * kNr, each);
    for (size_t i = each * S; i < panels; ++i) packed<Engine, P, 1, Codec>(pair, a.n0 + i * kNr, 0);
  }
  // Computes 8 whole rows and outputs, finished in assembly.
  void whole(size_t pair, size_t n) const {
    const Tile t = packed_tile(pair, n);
    float32x4_t scales[4];
    pair_scales(t.extras, t.bf16, t.factor, scales);
    E::registers_store(t.a, t.w, t.steps, scales, row_scales + 2 * pair, out(pair, n), a.ldy);
  }
  // Computes 3 to 5 pairs of rows with groups, 4 outputs at a time.
  template <int P>
  void narrow(size_t pair, size_t n) const {
    float32x4_t f[P][4] = {};
    E::template registers_narrow<P>(packed_tile(pair, n), f);
    store<P>(f, row_scales + 2 * pair, G, out(pair, n), a.ldy, rows_from(pair), valid(n));
  }
  template <int P, class Codec>
  void tile_at(size_t pair, size_t n) const {
    // For longer groups, 6 sums at a time are too few.
    if constexpr (kGrouped && kRegisters<Codec> && P >= 3)
      if (P > 3 || (choice.four_outputs && s.group_k == 32)) return narrow<P>(pair, n);
    // A single tile waits for memory, so finishing in assembly gains nothing.
    if constexpr (!kGrouped && kRegisters<Codec> && P == 4)
      if (map.tiles > 1 && rows_from(pair) >= 8 && valid(n) == kNr) return whole(pair, n);
    if constexpr (P <= (kGrouped ? kEngine.pairs_grouped : kEngine.pairs_few))
      packed<E, P, 1, Codec>(pair, n, 0);
  }
  // Computes 3 to 5 pairs of rows over inputs k0 to k1 of a panel; `waiting` holds sums (floats, if
  // grouped) of earlier chunks and receives those for the next one.
  template <int P>
  void chunk_at(size_t pair, size_t n, size_t k0, size_t k1, uint8_t* waiting) const {
    Tile t = packed_tile(pair, n);
    t.a += 2 * P * k0;
    float32x4_t f[P][4] = {};
    if constexpr (kGrouped) {
      t.w += k0 / s.group_k * s.group_bytes();
      t.groups = (k1 - k0) / s.group_k;
      if (k0 > 0) __builtin_memcpy(f, waiting, sizeof f);
      E::template registers_narrow<P>(t, f);
      if (k1 < s.K_padded) return static_cast<void>(__builtin_memcpy(waiting, f, sizeof f));
    } else {
      t.w += k0 * (kNr / 2);
      t.steps = (k1 - k0) / kKr;
      int32x4_t v[P][4];
      E::template registers<P>(t, v);
      if (k0 > 0)
        MOEBIUS_UNROLL for (int i = 0; i < 4 * P; ++i) v[i / 4][i % 4] =
            vaddq_s32(v[i / 4][i % 4], vreinterpretq_s32_u8(vld1q_u8(waiting + 16 * i)));
      if (k1 < s.K_padded) return static_cast<void>(__builtin_memcpy(waiting, v, sizeof v));
      finish_sums<P>(t, v, f);
    }
    store<P>(f, row_scales + 2 * pair, G, out(pair, n), a.ldy, rows_from(pair), valid(n));
  }
  // Computes several tiles of rows with long K: all tiles over a chunk of K, then over the next
  // one, so that codes come from the first-level cache for all tiles but the first, and prefetches
  // are spread evenly.
  void chunks_from(size_t n) const {
    const size_t chunk = choice.chunk;
    const auto at = [&](size_t k) {
      return kGrouped ? k / s.group_k * s.group_bytes() : k * (kNr / 2);
    };
    for (; n < a.n1; n += kNr)
      for (size_t k0 = 0, k1; k0 < s.K_padded; k0 = k1) {
        k1 = k0 + chunk < s.K_padded ? k0 + chunk : s.K_padded;
        const bool last = k1 == s.K_padded;
        const uint8_t* next = last ? panel(n + kNr) : panel(n) + at(k1);
        Ahead ahead(next, last && n + kNr >= a.n1 ? 0 : at(chunk) / 64, map.tiles);
        for (size_t t = 0; t < map.tiles; ++t) {
          ahead.fetch();
          const size_t pair = map.first(t);
          uint8_t* waiting = a.scratch + 64 * pair;
          switch (map.size(t)) {
            case 3:
              chunk_at<3>(pair, n, k0, k1, waiting);
              break;
            case 4:
              chunk_at<4>(pair, n, k0, k1, waiting);
              break;
            default:
              chunk_at<5>(pair, n, k0, k1, waiting);
              break;
          }
        }
      }
  }
  // Computes all tiles of rows with one panel after another, from n on.
  template <class Codec>
  void tiles_from(size_t n) const {
    if constexpr (kRegisters<Codec>)
      if (choice.chunk != 0) return chunks_from(n);
    constexpr size_t kTiles = kRegisters<Codec> ? kEngine.pairs_few : kMost;
    for (; n < a.n1; n += kNr) {
      const bool more = map.tiles > 1 && n + kNr < a.n1;
      Ahead ahead(panel(n + kNr), more ? s.stride() / 64 : 0, map.tiles);
      for (size_t t = 0; t < map.tiles; ++t) {
        ahead.fetch();
        const size_t pair = map.first(t);
        switch (map.size(t)) {
          case 1:
            tile_at<1, Codec>(pair, n);
            break;
          case 2:
            if constexpr (kTiles >= 2) tile_at<2, Codec>(pair, n);
            break;
          case 3:
            if constexpr (kTiles >= 3) tile_at<3, Codec>(pair, n);
            break;
          case 4:
            if constexpr (kTiles >= 4) tile_at<4, Codec>(pair, n);
            break;
          default:
            if constexpr (kTiles >= 5) tile_at<5, Codec>(pair, n);
            break;
        }
      }
    }
  }
  template <class Codec>
  void few() const {
    if (choice.form == Form::kOneRow) return single<Codec>();
    if (choice.form == Form::kFewRows) {
      if (l.pairs == 1) return streams<E, 1, kEngine.streams_pair, Codec>(0);
      constexpr int kStreams = kGrouped ? 1 : kEngine.streams_two_pairs;
      if constexpr (kMost >= 2) return streams<E, 2, kStreams, Codec>(0);
    }
    tiles_from<Codec>(a.n0);
  }
};
}  // namespace int8_family
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
