// SPDX-License-Identifier: Apache-2.0
// Weight-only products by limbs: many bf16 rows with BFMMLA. Operands are whole numbers and no sum
// of a block leaves the 24 bits of a float, so BFMMLA adds exactly what integer instructions would
// (arm_limbs.h). A chunk of a panel is decoded to bf16 in scratch and read by every tile of rows.
// Internal linkage; only for units compiled with BF16.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include "kernels/arm/arm_bf16_tiles.h"
#include "kernels/arm/arm_limbs_gemm.h"

namespace moebius {
namespace {
namespace limbs {

// Tables of the bf16 numbers of the 16 codes of the first and of the second output of a byte: their
// lower and their upper bytes.
struct TopTables {
  uint8_t lower[2][16], upper[2][16];
  template <class Codec>
  explicit TopTables(const Codec& codec) {
    for (uint8_t i = 0; i < 16; ++i) {
      put(0, i, codec.first(i));
      put(1, i, codec.second(static_cast<uint8_t>(i << 4)));
    }
  }
  void put(int half, uint8_t i, float v) {
    const uint32_t bits = f32_bits(v) >> 16;
    lower[half][i] = static_cast<uint8_t>(bits);
    upper[half][i] = static_cast<uint8_t>(bits >> 8);
  }
};

template <class K>
struct Exact {
  using Isa = typename K::Isa;
  using Codec = typename K::Codec;
  const Product<K>& product;
  const GemmArgs& a;
  const Shape& s;
  const TopTables tables;
  const Chunk chunk;
  const TileMap map;

  explicit Exact(const Product<K>& p)
      : product(p),
        a(p.a),
        s(p.s),
        tables(Codec(*a.w->problem)),
        chunk(chunk_of(*a.w->problem, s)),
        map((a.M + 1) / 2, most_pairs(s)) {}

  float* state(size_t pair) const {
    return reinterpret_cast<float*>(a.scratch + chunk.bytes) + pair * 16;
  }
  // Decodes a half of 8 inputs: BFMMLA takes quarters of 4 inputs of two outputs. Each operation
  // runs for all four pairs of outputs before the next one, because pairs one after another would
  // wait for each other's pipes.
  [[gnu::always_inline]] static void expand_half(const uint8x16_t (&lower)[2],
                                                 const uint8x16_t (&upper)[2], uint8x16_t order,
                                                 const uint8_t* from, uint8_t* to) {
    uint8x16_t code[4], lo[4], up[4];
    MOEBIUS_UNROLL for (int j = 0; j < 2; ++j) code[j] = vqtbl1q_u8(vld1q_u8(from + 16 * j), order);
    MOEBIUS_UNROLL for (int j = 0; j < 2; ++j) asm volatile("ushr %0.16b, %1.16b, #4" :
                                                            "=w"(code[2 + j]) : "w"(code[j]));
    MOEBIUS_UNROLL for (int j = 0; j < 2; ++j) code[j] = vandq_u8(code[j], vdupq_n_u8(15));
    MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) asm volatile(
        "tbl %0.16b, {%1.16b}, %2.16b" : "=w"(lo[j]) : "w"(lower[j / 2]), "w"(code[j]));
    MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) asm volatile(
        "tbl %0.16b, {%1.16b}, %2.16b" : "=w"(up[j]) : "w"(upper[j / 2]), "w"(code[j]));
    MOEBIUS_UNROLL for (int j = 0; j < 4; j += 2)
        store_two(to + 16 * j, vzip1q_u8(lo[j], up[j]), vzip1q_u8(lo[j + 1], up[j + 1]));
    MOEBIUS_UNROLL for (int j = 0; j < 4; j += 2)
        store_two(to + 64 + 16 * j, vzip2q_u8(lo[j], up[j]), vzip2q_u8(lo[j + 1], up[j + 1]));
  }
  [[gnu::always_inline]] static void store_two(uint8_t* to, uint8x16_t v, uint8x16_t u) {
    asm volatile("stp %q0, %q1, [%2]" : : "w"(v), "w"(u), "r"(to) : "memory");
  }
  // Decodes blocks [b, end) of a panel to scratch.
  void expand(const uint8_t* w, size_t b, size_t end) const {
    alignas(16) static constexpr uint8_t kOrder[16] = {0, 1, 2, 3, 8,  9,  10, 11,
                                                       4, 5, 6, 7, 12, 13, 14, 15};
    const uint8x16_t lower[2] = {vld1q_u8(tables.lower[0]), vld1q_u8(tables.lower[1])},
                     upper[2] = {vld1q_u8(tables.upper[0]), vld1q_u8(tables.upper[1])},
                     order = vld1q_u8(kOrder);
    const size_t halves = s.block_k / kHalf;
    uint8_t *to = a.scratch, *spread = a.scratch + chunk.operands;
    for (; b < end; ++b, spread += chunk.spread) {
      const size_t group = b / s.group_blocks();
      const uint8_t *head = w + group * s.group_bytes(), *supers = s.supers.of_group(w, group);
      const uint8_t* from = w + half_at(s, b * halves);
      for (size_t h = 0; h < halves; ++h, from += 32, to += 128)
        expand_half(lower, upper, order, from, to);
      float32x4_t c[2];
      load_scales(head, s.bf16, supers, c);
      Isa::spread(c[0], c[1], reinterpret_cast<float*>(spread));
      if constexpr (K::kZero) {
        int32x4_t z[2];
        load_zeros(head + s.scale_bytes, z);
        Isa::spread(vcvtq_f32_s32(z[0]), vcvtq_f32_s32(z[1]),
                    reinterpret_cast<float*>(spread + 64));
      }
      if constexpr (K::kOffset) {
        product.load_offsets(head, supers, c);
        Isa::spread(c[0], c[1], reinterpret_cast<float*>(spread + 64));
      }
    }
  }
  // Computes f = fma(float(dot) * factor, c, f) for a block; behind: factors, then sums of its
  // rows.
  template <int P>
  [[gnu::always_inline]] void finish(const uint8_t* behind, const uint8_t* spread,
                                     float32x4_t (&acc)[P][4], float32x4_t (&f)[P][4]) const {
    const auto load = [](const uint8_t* from) { return vreinterpretq_f32_u8(vld1q_u8(from)); };
    MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) {
      const float32x4_t c = load(spread + 16 * j);
      MOEBIUS_UNROLL for (int i = 0; i < P; ++i) {
        const float32x4_t factor = load(behind + 16 * i);
        [[maybe_unused]] const float32x4_t sum = load(behind + 16 * (P + i));
        if constexpr (K::kZero) acc[i][j] = vfmsq_f32(acc[i][j], load(spread + 64 + 16 * j), sum);
        if constexpr (K::kOffset)
          acc[i][j] = vfmaq_n_f32(acc[i][j], sum, static_cast<float>(s.lift));
        f[i][j] = vfmaq_f32(f[i][j], vmulq_f32(acc[i][j], factor), c);
        if constexpr (K::kOffset)
          f[i][j] = vfmaq_f32(f[i][j], vmulq_f32(sum, factor), load(spread + 64 + 16 * j));
      }
    }
  }
  template <int P>
  [[gnu::always_inline]] static void set_zero(float32x4_t (&v)[P][4]) {
    MOEBIUS_UNROLL for (int i = 0; i < P; ++i)
        MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) asm volatile("movi %0.4s, #0" : "=w"(v[i][j]));
  }
  template <int P>
  [[gnu::always_inline]] static void load(const float* from, float32x4_t (&v)[P][4]) {
    MOEBIUS_UNROLL for (int i = 0; i < P; ++i) MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) v[i][j] =
        vld1q_f32(from + 16 * i + 4 * j);
  }
  template <int P>
  [[gnu::always_inline]] static void store(const float32x4_t (&v)[P][4], float* to) {
    MOEBIUS_UNROLL for (int i = 0; i < P; ++i) MOEBIUS_UNROLL for (int j = 0; j < 4; ++j)
        vst1q_f32(to + 16 * i + 4 * j, v[i][j]);
  }
  // Computes tile t of rows with blocks [b, end) of the panel in scratch.
  template <int P>
  [[gnu::noinline]] void tile(size_t t, size_t n, size_t b, size_t end) const {
    // Makes sure that operands in scratch are written before they are loaded.
    asm volatile("" : : : "memory");
    const size_t pair = map.first(t), steps = s.block_k / kKr, row = 4 * s.block_k + 32;
    const uint8_t* x = a.panel + 2 * pair * tile_row_bytes(s) + b * row * P;
    const uint8_t *w[1] = {a.scratch}, *spread = a.scratch + chunk.operands;
    const bool last = end == s.blocks;
    // Prefetches the codes that come next, a share by every tile.
    const size_t share = (end - b) * s.block_k / kHalf * s.half_bytes / map.tiles;
    bf16_tiles::Ahead next = {
        (last ? product.panel(n + kNr) : product.panel(n) + half_at(s, end * s.block_k / kHalf)) +
            t * share,
        share / ((end - b) * steps)};
    float32x4_t f[P][4];
    set_zero<P>(f);
    if (b != 0) load<P>(state(pair), f);
    for (; b < end; ++b, spread += chunk.spread, x += 32 * P) {
      float32x4_t acc[1][P][4];
      set_zero<P>(acc[0]);
      bf16_tiles::steps<P, 1, 1>(x, w, steps, next, acc);
      finish<P>(x, spread, acc[0], f);
    }
    if (!last) return store<P>(f, state(pair));
    float32x4_t all[P][4];  // indexed at run time: otherwise g++ would store f after every block
    store<P>(f, reinterpret_cast<float*>(all));
    for (size_t i = 0; i < 2 * P && 2 * pair + i < a.M; ++i) {
      const size_t m = 2 * pair + i;
      const Extras extras = rest_of(product.extras_of(0), m);
      float32x4_t out[1][2];
      Isa::rows_of(all[i / 2], i % 2, out[0]);
      if (extras.counts().near != 0) product.template add_near<1>(extras, product.panel(n), 0, out);
      product.put(extras, out[0], m, n);
    }
  }
  template <int P>
  void any_tile(size_t t, size_t n, size_t b, size_t end) const {
    if (map.size(t) == P) return tile<P>(t, n, b, end);
    if constexpr (P > 1) any_tile<P - 1>(t, n, b, end);
  }
  void run() const {
    for (size_t n = a.n0; n < a.n1; n += kNr)
      for (size_t b = 0; b < s.blocks; b += chunk.blocks) {
        const size_t end = b + chunk.blocks < s.blocks ? b + chunk.blocks : s.blocks;
        expand(product.panel(n), b, end);
        for (size_t t = 0; t < map.tiles; ++t) any_tile<6>(t, n, b, end);
      }
  }
};

}  // namespace limbs
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
