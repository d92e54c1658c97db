// SPDX-License-Identifier: Apache-2.0
// Float weights on Arm at their stored width: decodes weights and multiplies with FMLA (layouts:
// arm_float.h). For up to 4 rows weights are decoded in registers; for more rows a chunk of a panel
// is decoded to scratch once for all rows. Internal linkage.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include <arm_neon.h>

#include <type_traits>
#include <utility>

#include "kernels/arm/arm_float.h"
#include "kernels/arm/arm_float_tiles.h"

#define MOEBIUS_UNROLL _Pragma("GCC unroll 16")

namespace moebius {
namespace {
namespace float_family {

// --- instructions --- Volatile asm, so that they stay in this order; the compiler would decode far
// ahead and run out of registers. The compiler chooses registers.

template <size_t kOffset>
[[gnu::always_inline]] inline uint8x16_t load(const void* p) {
  uint8x16_t v;
  asm volatile("ldr %q0, [%1, %2]" : "=w"(v) : "r"(p), "i"(kOffset));
  return v;
}
template <size_t kOffset>
[[gnu::always_inline]] inline float32x4_t load_floats(const void* p) {
  return vreinterpretq_f32_u8(load<kOffset>(p));
}
// Functions, because clang's intrinsics of this kind are macros, which parameter packs and
// initializers do not accept.
[[gnu::always_inline]] inline uint8x16_t load_bytes(const uint8_t* p) { return vld1q_u8(p); }
[[gnu::always_inline]] inline float32x4_t load_four(const float* p) { return vld1q_f32(p); }
[[gnu::always_inline]] inline void store_four(float* p, float32x4_t v) { vst1q_f32(p, v); }
template <int lane>
[[gnu::always_inline]] inline void fmla(float32x4_t& acc, float32x4_t w, float32x4_t x) {
  asm volatile("fmla %0.4s, %1.4s, %2.s[%3]" : "+w"(acc) : "w"(w), "w"(x), "i"(lane));
}
// Returns the rows of a tile, padded to a power of two; element (k, row) of the tile is at k *
// padded + row.
constexpr int padded(int rows) { return rows <= 2 ? rows : rows <= 4 ? 4 : 8; }

// --- decoding --- A codec converts 16 bytes, the codes of kVectors vectors of outputs for one
// input, to f32: begin() first, then one vector after another.

struct Bf16 {
  static constexpr size_t kSize = 2;
  static constexpr int kVectors = 2;
  using Begun = uint8x16_t;
  const uint32x4_t upper = vdupq_n_u32(0xffff0000u);
  [[gnu::always_inline]] inline Begun begin(uint8x16_t codes) const { return codes; }
  template <int i>
  [[gnu::always_inline]] inline float32x4_t vector(const Begun& c) const {
    float32x4_t v;
    if constexpr (i == 0) {
      asm volatile("shl %0.4s, %1.4s, #16" : "=w"(v) : "w"(c));
    } else {
      asm volatile("and %0.16b, %1.16b, %2.16b" : "=w"(v) : "w"(c), "w"(upper));
    }
    return v;
  }
};
struct F16 {
  static constexpr size_t kSize = 2;
  static constexpr int kVectors = 2;
  using Begun = uint8x16_t;
  [[gnu::always_inline]] inline Begun begin(uint8x16_t codes) const { return codes; }
  template <int i>
  [[gnu::always_inline]] inline float32x4_t vector(const Begun& c) const {
    float32x4_t v;
    if constexpr (i == 0) {
      asm volatile("fcvtl %0.4s, %1.4h" : "=w"(v) : "w"(c));
    } else {
      asm volatile("fcvtl2 %0.4s, %1.8h" : "=w"(v) : "w"(c));
    }
    return v;
  }
};
struct F32 {
  static constexpr size_t kSize = 4;
  static constexpr int kVectors = 1;
  using Begun = uint8x16_t;
  [[gnu::always_inline]] inline Begun begin(uint8x16_t codes) const { return codes; }
  template <int>
  [[gnu::always_inline]] inline float32x4_t vector(const Begun& c) const {
    return vreinterpretq_f32_u8(c);
  }
};

struct Fp8Tables {
  uint8_t upper[16], place[4][16];
};
constexpr Fp8Tables fp8_tables() {
  Fp8Tables t{};
  for (unsigned i = 0; i < 16; ++i) {  // sign and three bits of the exponent
    t.upper[i] = static_cast<uint8_t>((i & 8) << 4 | (i & 7));
    for (unsigned q = 0; q < 4; ++q)
      t.place[q][i] = static_cast<uint8_t>(i % 4 == 3   ? 4 * q + i / 4
                                           : i % 4 == 2 ? 16 + 4 * q + i / 4
                                                        : 255);
  }
  return t;
}
alignas(16) constexpr Fp8Tables kFp8Tables = fp8_tables();
struct Fp8 : Fp8InF32 {
  static constexpr size_t kSize = 1;
  static constexpr int kVectors = 4;
  using Begun = uint8x16x2_t;  // upper bytes of the numbers, lower bytes
  const uint8x16_t nibble = vdupq_n_u8(15), lower = vdupq_n_u8(0xf0),
                   upper = load_bytes(kFp8Tables.upper);
  const uint8x16_t place[4] = {load_bytes(kFp8Tables.place[0]), load_bytes(kFp8Tables.place[1]),
                               load_bytes(kFp8Tables.place[2]), load_bytes(kFp8Tables.place[3])};
  [[gnu::always_inline]] inline Begun begin(uint8x16_t codes) const {
    Begun b;
#ifdef __clang__  // clang has no asm operands that are pairs of registers
    b.val[0] = vqtbl1q_u8(upper, vandq_u8(codes, nibble));
    b.val[1] = vandq_u8(codes, lower);
#else
    asm volatile(
        "and %S0.16b, %1.16b, %2.16b\n\t"
        "and %T0.16b, %1.16b, %3.16b\n\t"
        "tbl %S0.16b, {%4.16b}, %S0.16b"
        : "=&w"(b)
        : "w"(codes), "w"(nibble), "w"(lower), "w"(upper));
#endif
    return b;
  }
  template <int i>
  [[gnu::always_inline]] inline float32x4_t vector(const Begun& b) const {
#ifdef __clang__
    return vreinterpretq_f32_u8(vqtbl2q_u8(b, place[i]));
#else
    float32x4_t v;
    asm volatile("tbl %0.16b, {%S1.16b - %T1.16b}, %2.16b" : "=w"(v) : "w"(b), "w"(place[i]));
    return v;
#endif
  }
};
// Decodes int8: code + 128 is placed into the lowest byte of 2^23, or into the second byte of 2^15.
struct Int8 {
  static constexpr size_t kSize = 1;
  static constexpr int kVectors = 4;
  using Begun = uint8x16x2_t;  // words as stored, and their upper halves
  static constexpr uint32_t kLarge[2] = {0x4b000000, 0x47000000};
  const uint32x4_t byte[2] = {vdupq_n_u32(0xff), vdupq_n_u32(0xff00)};
  const float32x4_t offset[2] = {vdupq_n_f32(8388608 + 128), vdupq_n_f32(32768 + 128)};
  [[gnu::always_inline]] inline Begun begin(uint8x16_t codes) const {
    Begun b;
    b.val[0] = codes;
    asm volatile("ushr %0.4s, %1.4s, #16" : "=w"(b.val[1]) : "w"(codes));
    return b;
  }
  template <int i>
  [[gnu::always_inline]] inline float32x4_t vector(const Begun& b) const {
    alignas(16) static constexpr uint32_t kVector[4] = {kLarge[i % 2], kLarge[i % 2], kLarge[i % 2],
                                                        kLarge[i % 2]};
    float32x4_t v;  // loaded again, because copying a register would take a pipe
    asm volatile("ldr %q0, %1" : "=w"(v) : "m"(kVector));
    asm volatile("bit %0.16b, %1.16b, %2.16b" : "+w"(v) : "w"(b.val[i / 2]), "w"(byte[i % 2]));
    asm volatile("fsub %0.4s, %0.4s, %1.4s" : "+w"(v) : "w"(offset[i % 2]));
    return v;
  }
};

// Multiplies a decoded vector of outputs with four numbers of rows; codecs may specialize it.
template <class Codec>
struct Meeting {
  // For matrices in turn: number of vectors between decoding and use.
  static constexpr int kAhead = 4;
  // otherwise: number of 16-byte units of codes between decoding and use.
  static constexpr int kUnitsAhead = 0;
  using Rows = float32x4_t;
  [[gnu::always_inline]] static Rows rows(float32x4_t x) { return x; }
  template <int, int lane>
  [[gnu::always_inline]] static void add(float32x4_t& acc, float32x4_t w, Rows x) {
    fmla<lane>(acc, w, x);
  }
};
template <>
struct Meeting<F32> : Meeting<Bf16> {
  static constexpr int kAhead = 0;  // nothing to decode: loaded right before use
};

// Holds four inputs of R rows and multiplies each with the j-th 16 bytes of its codes; w is the
// address for the first input.
template <class Codec, int R>
struct Inputs {
  using How = Meeting<Codec>;
  using Begun = typename Codec::Begun;
  typename How::Rows x[padded(R)];
  explicit Inputs(const float* p) : Inputs(p, std::make_integer_sequence<int, padded(R)>{}) {}
  template <int... i>
  Inputs(const float* p, std::integer_sequence<int, i...>)
      : x{How::rows(load_four(p + 4 * i))...} {}
  template <int input, int j>
  [[gnu::always_inline]] static Begun begin(const Codec& codec, const uint8_t* w) {
    return codec.begin(load<input * kNr * Codec::kSize + 16 * j>(w));
  }
  template <int input, int j, int V>
  [[gnu::always_inline]] void meet(const Codec& codec, const Begun& begun,
                                   float32x4_t (&acc)[R][V]) const {
    each<input, j * Codec::kVectors>(codec, begun, acc,
                                     std::make_integer_sequence<int, Codec::kVectors>{});
  }
  template <int input, int first, int V, int... i>
  [[gnu::always_inline]] void each(const Codec& codec, const Begun& begun, float32x4_t (&acc)[R][V],
                                   std::integer_sequence<int, i...>) const {
    (rows<input, first + i>(codec.template vector<i>(begun), acc,
                            std::make_integer_sequence<int, R>{}),
     ...);
  }
  // Computes acc[r][i] += x of row r at the input * w.
  template <int input, int i, int V, int... r>
  [[gnu::always_inline]] void rows(float32x4_t w, float32x4_t (&acc)[R][V],
                                   std::integer_sequence<int, r...>) const {
    (How::template add<i % Codec::kVectors, (input * padded(R) + r) % 4>(
         acc[r][i], w, x[(input * padded(R) + r) / 4]),
     ...);
  }
};

template <int R, int V>
[[gnu::always_inline]] inline void set_zero(float32x4_t (&acc)[R][V]) {
  MOEBIUS_UNROLL for (int r = 0; r < R; ++r)
      MOEBIUS_UNROLL for (int i = 0; i < V; ++i) asm volatile("movi %0.4s, #0" : "=w"(acc[r][i]));
}

// --- the loop nest ---

// Implements the parts of the product that do not depend on the codec.
struct Product {
  const GemmArgs& a;
  const Problem& p;
  const Shape s;
  const PanelLayout l;
  const float factor;
  const GlobalScale G;
  // Factor of sums of e4m3: undoes what remains of weights being too small and rows being raised.
  const float rest;

  Product(const GemmArgs& args, float rest_of_codes)
      : a(args),
        p(*args.w->problem),
        s(shape_of(p)),
        l(panel_layout(s, args.M)),
        factor(!s.as_is && p.act.granule == ActGranule::kStatic ? args.w->act.scale : 1.0f),
        G(result_scale(*args.w)),
        rest(s.as_is ? 1.0f : rest_of_codes) {}

  const uint8_t* panel(size_t n) const { return a.w->data + n / kNr * s.stride(); }
  float panel_float(size_t at) const {
    float v;
    __builtin_memcpy(&v, a.panel + at, 4);
    return v;
  }
  // Returns the scales of 4 outputs, vector i of the panel whose scales begin at `at`.
  [[gnu::always_inline]] float32x4_t scales(const uint8_t* at, size_t i) const {
    float32x4_t c = vdupq_n_f32(1);
    if (s.bf16) {
      c = vreinterpretq_f32_u32(
          vshll_n_u16(vld1_u16(reinterpret_cast<const uint16_t*>(at) + 4 * i), 16));
    } else if (s.scale_bytes != 0) {
      c = vld1q_f32(reinterpret_cast<const float*>(at) + 4 * i);
    }
    return factor != 1.0f ? vmulq_n_f32(c, factor) : c;
  }
  // Ends group g for four outputs of a row: f = fma(dot, scale, f).
  [[gnu::always_inline]] void add_group(size_t g, size_t row, float32x4_t c, float32x4_t dot,
                                        float* f) const {
    if (s.row_groups) c = vmulq_n_f32(c, panel_float(l.group_factors + 4 * (g * a.M + row)));
    if (rest != 1.0f) dot = vmulq_n_f32(dot, rest);
    vst1q_f32(f, vfmaq_f32(vld1q_f32(f), dot, c));
  }
  template <int R, int V>
  [[gnu::always_inline]] void finish_group(const uint8_t* at, size_t g, size_t first,
                                           const float32x4_t (&dot)[R][V],
                                           float* const (&f)[R]) const {
    MOEBIUS_UNROLL for (int i = 0; i < V; ++i) {
      const float32x4_t c = scales(at, first + static_cast<size_t>(i));
      MOEBIUS_UNROLL for (int r = 0; r < R; ++r)
          add_group(g, static_cast<size_t>(r), c, dot[r][i], f[r] + 4 * i);
    }
  }
  // Stores finished outputs of row m from n on.
  void put(size_t m, size_t n, size_t count, const float* f) const {
    const float by = panel_float(l.factors + 4 * m);
    float* y = a.y + m * a.ldy + (n - a.n0);
    if (n + count > a.n1) count = n < a.n1 ? a.n1 - n : 0;
    for (size_t i = 0; i < count; ++i) {
      const float v = f[i] * by;
      y[i] = with_scale(v, G);
    }
  }
  float* weights() const { return reinterpret_cast<float*>(a.scratch); }
  // Returns the address of the sums `dot` of row m for the 8 outputs from `first` on; their results
  // f follow 64 floats later.
  float* sums(size_t m, size_t first) const {
    return weights() + kChunk * kNr + (m / kTile * 4 + first / 8) * 128 + m % kTile * 8;
  }

  // --- many rows: inputs [k0, k1) of a panel are in scratch ---

  // Multiplies a vector of outputs at one input; operands are loaded right before their first use.
  // All four inputs of one vector come before the next vector, because a core can read few
  // registers per cycle that are complete, and sums that were just written are not.
  template <int R, int B, int input, int i, int... r>
  [[gnu::always_inline]] static void meet(const float* x, const float* w,
                                          float32x4_t (&v)[(padded(R) + 3) / 4],
                                          float32x4_t (&dot)[R][2 * B],
                                          std::integer_sequence<int, r...>) {
    constexpr int kRows = padded(R);
    const float32x4_t b =
        load_floats<4 * (8 * input + 4 * (i % 2))>(w + static_cast<size_t>(i / 2) * (kChunk * 8));
    const auto row = [&]<int at>() __attribute__((always_inline)) {
      constexpr int kElement = input * kRows + at, kVector = at / 4;
      if constexpr (kElement % 4 == 0) v[kVector] = load_floats<4 * kElement>(x);
      fmla<kElement % 4>(dot[at][i], b, v[kVector]);
    };
    (row.template operator()<r>(), ...);
  }
  template <int R, int B, int... i>
  [[gnu::always_inline]] static void four(const float* x, const float* w,
                                          float32x4_t (&v)[(padded(R) + 3) / 4],
                                          float32x4_t (&dot)[R][2 * B],
                                          std::integer_sequence<int, i...>) {
    (meet<R, B, i % 4, i / 4>(x, w, v, dot, std::make_integer_sequence<int, R>{}), ...);
  }
  // Computes R rows from m on (at most 4), 8 * B outputs from `first` on.
  template <int R, int B>
  [[gnu::noinline]] void tile(const uint8_t* w, size_t m, size_t first, size_t k0,
                              size_t k1) const {
    constexpr size_t kRows = padded(R);
    const float* x = reinterpret_cast<const float*>(a.panel) + m * s.K_padded + k0 * kRows;
    float32x4_t dot[R][2 * B];
    const auto at = [&](int r, int i) {
      return sums(m + static_cast<size_t>(r), first + static_cast<size_t>(i / 2) * 8) + 4 * (i % 2);
    };
    MOEBIUS_UNROLL for (int r = 0; r < R; ++r) MOEBIUS_UNROLL for (int i = 0; i < 2 * B; ++i)
        dot[r][i] = vld1q_f32(at(r, i));
    const float* block = weights() + first / 8 * (kChunk * 8);
    for (size_t k = k0; k < k1;) {
      const size_t g = k / s.group_k, group_end = (g + 1) * s.group_k,
                   end = group_end < k1 ? group_end : k1;
      for (; k < end; k += kKr, x += kKr * kRows, block += 8 * kKr) {
        float32x4_t v[(padded(R) + 3) / 4];
        four<R, B>(x, block, v, dot, std::make_integer_sequence<int, 8 * B>{});
      }
      if (end != group_end) break;
      MOEBIUS_UNROLL for (int i = 0; i < 2 * B; ++i) {
        const float32x4_t c =
            scales(w + g * s.group_bytes() + s.code_bytes, first / 4 + static_cast<size_t>(i));
        MOEBIUS_UNROLL for (int r = 0; r < R; ++r)
            add_group(g, m + static_cast<size_t>(r), c, dot[r][i], at(r, i) + 64);
      }
      set_zero(dot);
    }
    MOEBIUS_UNROLL for (int r = 0; r < R; ++r) MOEBIUS_UNROLL for (int i = 0; i < 2 * B; ++i)
        vst1q_f32(at(r, i), dot[r][i]);
  }
  // Cache lines to prefetch: one for every four inputs of a tile of 8 rows.
  struct Ahead {
    const uint8_t* at;
    size_t stride;
  };
  // Computes up to 8 rows from m on, 8 outputs from `first` on.
  [[gnu::noinline]] void eight(const uint8_t* w, size_t m, size_t first, size_t k0, size_t k1,
                               Ahead next) const {
    const float* x = reinterpret_cast<const float*>(a.panel) + m * s.K_padded + k0 * kTile;
    float* const dot = sums(m, first);
    const float* block = weights() + first / 8 * (kChunk * 8);
    for (size_t k = k0; k < k1;) {
      const size_t g = k / s.group_k, group_end = (g + 1) * s.group_k,
                   end = group_end < k1 ? group_end : k1, inputs = end - k;
      const float_tiles::Operands o = {x, block, inputs / kKr, next.at, next.stride};
      next.at += o.count * next.stride;
      x += inputs * kTile;
      block += inputs * 8;
      k = end;
      float32x4_t sum[kTile][2];
      if (inputs == s.group_k) {
        float_tiles::whole(o, sum);
      } else {
        float_tiles::add(o, dot);
        if (end != group_end) return;
        MOEBIUS_UNROLL for (size_t r = 0; r < kTile; ++r)
            MOEBIUS_UNROLL for (size_t i = 0; i < 2; ++i) sum[r][i] =
                vld1q_f32(dot + 8 * r + 4 * i);
        __builtin_memset(dot, 0, 256);
      }
      const uint8_t* behind = w + g * s.group_bytes() + s.code_bytes;
      const float32x4_t c[2] = {scales(behind, first / 4), scales(behind, first / 4 + 1)};
      const float* factors = nullptr;
      if (s.row_groups)
        factors = reinterpret_cast<const float*>(a.panel + l.group_factors) + g * a.M + m;
      add_whole(factors, rest, c, sum, dot + 64);
    }
  }
  // Ends a group of a tile like add_group, without reloading members after every store.
  [[gnu::always_inline]] static void add_whole(const float* factors, float rest,
                                               const float32x4_t (&c)[2],
                                               float32x4_t (&sum)[kTile][2], float* f) {
    if (rest != 1.0f)
      MOEBIUS_UNROLL for (size_t i = 0; i < 2 * kTile; ++i) sum[i / 2][i % 2] =
          vmulq_n_f32(sum[i / 2][i % 2], rest);
    MOEBIUS_UNROLL for (size_t i = 0; i < 2 * kTile; ++i) {
      const float32x4_t by = factors != nullptr ? vmulq_n_f32(c[i % 2], factors[i / 2]) : c[i % 2];
      vst1q_f32(f + 4 * i, vfmaq_f32(vld1q_f32(f + 4 * i), sum[i / 2][i % 2], by));
    }
  }
  template <int R, int B>
  void across(const uint8_t* w, size_t m, size_t k0, size_t k1) const {
    for (size_t first = 0; first < kNr; first += 8 * B) tile<R, B>(w, m, first, k0, k1);
  }
  // Multiplies all rows with inputs [k0, k1) of a panel, while the next inputs are prefetched.
  void multiply(const uint8_t* w, size_t k0, size_t k1) const {
    const size_t tiles = (a.M + kTile - 1) / kTile, share = kNr * s.size / tiles;
    Ahead next = {w + k1 / s.group_k * s.group_bytes() + k1 % s.group_k * kNr * s.size, share};
    for (size_t m = 0; m < a.M; m += kTile) {
      switch (a.M - m) {
        case 1:
          across<1, 4>(w, m, k0, k1);
          break;
        case 2:
          across<2, 4>(w, m, k0, k1);
          break;
        case 3:
          across<3, 2>(w, m, k0, k1);
          break;
        case 4:
          across<4, 2>(w, m, k0, k1);
          break;
        default:
          for (size_t first = 0; first < kNr; first += 8, next.at += share * ((k1 - k0) / kKr))
            eight(w, m, first, k0, k1, next);
          break;
      }
    }
  }
};

template <class Codec>
constexpr float rest_of_codes() {
  if constexpr (requires { Codec::kSmall; }) return 1 << (Codec::kSmall - Codec::kCodesRaised);
  return 1.0f;
}
template <class Codec>
struct Gemm : Product {
  explicit Gemm(const GemmArgs& args) : Product(args, rest_of_codes<Codec>()) {}

  // --- few rows: weights are decoded in registers ---

  // Multiplies four inputs and all vectors of codes: input by input, or all inputs of one vector
  // before the next if a vector has enough sums to hide their latency (see Product::meet).
  template <int R, int V, class Any, int... i>
  [[gnu::always_inline]] static void meet_all(const Inputs<Any, R>& in, const Any& codec,
                                              const uint8_t* w, float32x4_t (&acc)[R][V],
                                              std::integer_sequence<int, i...>) {
    using In = Inputs<Any, R>;
    constexpr int kCount = V / Any::kVectors, kItems = 4 * kCount,
                  kAhead = Meeting<Any>::kUnitsAhead;
    constexpr bool kByVector = R * Any::kVectors >= 6;
    typename Any::Begun begun[kAhead + 1];
    const auto begin = [&]<int at>() __attribute__((always_inline)) {
      if constexpr (at < kItems)
        begun[at % (kAhead + 1)] = In::template begin < kByVector ? at % 4 : at / kCount,
                             kByVector ? at / 4 : at % kCount > (codec, w);
    };
    const auto item = [&]<int at>() __attribute__((always_inline)) {
      begin.template operator()<at + kAhead>();
      in.template meet<kByVector ? at % 4 : at / kCount, kByVector ? at / 4 : at % kCount>(
          codec, begun[at % (kAhead + 1)], acc);
    };
    if constexpr (kAhead > 0) begin.template operator()<0>();
    (item.template operator()<i>(), ...);
  }
  // Computes R rows, V vectors of outputs from `first` on, of S panels that are `apart` panels away
  // from each other.
  template <int R, int V, int S, class Any>
  [[gnu::noinline]] void few_at(size_t n, size_t apart, size_t first) const {
    const Any codec{};
    const size_t stream = apart * s.stride();
    const uint8_t* w = panel(n) + first * Codec::kSize;
    const auto* x = reinterpret_cast<const float*>(a.panel);
    float f[S][R][4 * V];
    __builtin_memset(f, 0, sizeof f);
    for (size_t g = 0; g < s.groups; ++g, w += s.scale_bytes) {
      float32x4_t acc[S][R][V];
      MOEBIUS_UNROLL for (int u = 0; u < S; ++u) set_zero(acc[u]);
      for (size_t k = 0; k < s.group_k;
           k += kKr, x += kKr * padded(R), w += kKr * kNr * Codec::kSize) {
        const Inputs<Any, R> in(x);
        MOEBIUS_UNROLL for (int u = 0; u < S; ++u) {
          meet_all<R, V, Any>(in, codec, w + static_cast<size_t>(u) * stream, acc[u],
                              std::make_integer_sequence<int, V / Any::kVectors * 4>{});
        }
      }
      MOEBIUS_UNROLL for (int u = 0; u < S; ++u) {
        float* to[R];
        MOEBIUS_UNROLL for (int r = 0; r < R; ++r) to[r] = f[u][r];
        finish_group<R, V>(w - first * Codec::kSize + static_cast<size_t>(u) * stream, g, first / 4,
                           acc[u], to);
      }
    }
    for (size_t u = 0; u < S; ++u)
      for (size_t r = 0; r < R; ++r) put(r, n + u * apart * kNr + first, 4 * V, f[u][r]);
  }
  template <int R, int V, int S, class Any>
  void few_streams() const {
    const size_t panels = (a.n1 - a.n0 + kNr - 1) / kNr, each = panels / S;
    for (size_t i = 0; i < each; ++i) few_at<R, V, S, Any>(a.n0 + i * kNr, each, 0);
    for (size_t i = each * S; i < panels; ++i) few_at<R, V, 1, Any>(a.n0 + i * kNr, 0, 0);
  }
  template <class Any>
  void few() const {
    switch (a.M) {
      case 1:
        if constexpr (!std::is_same_v<Any, Fp8>)  // Fp8 decodes slower than memory is read
          if (memory_streams() > 1) return few_streams<1, 8, 2, Any>();
        return few_streams<1, 8, 1, Any>();
      case 2:
        return few_streams<2, 8, 1, Any>();
      default:
        for (size_t n = a.n0; n < a.n1; n += kNr)
          for (size_t first = 0; first < kNr; first += 16) {
            if (a.M == 3) {
              few_at<3, 4, 1, Any>(n, 0, first);
            } else {
              few_at<4, 4, 1, Any>(n, 0, first);
            }
          }
    }
  }

  // --- many rows: weights are decoded to scratch ---

  // Decodes two vectors of outputs, which one instruction stores.
  template <int i>
  [[gnu::always_inline]] static void expand_two(const Codec& codec, const uint8_t* from,
                                                typename Codec::Begun& begun, float* to) {
    float32x4_t v[2];
    if constexpr (i % Codec::kVectors == 0)
      begun = codec.begin(load<i / Codec::kVectors * 16>(from));
    v[0] = codec.template vector<i % Codec::kVectors>(begun);
    if constexpr (Codec::kVectors == 1) begun = codec.begin(load<(i + 1) * 16>(from));
    v[1] = codec.template vector<(i + 1) % Codec::kVectors>(begun);
    asm volatile("stp %q0, %q1, [%2]"
                 :
                 : "w"(v[0]), "w"(v[1]), "r"(to + static_cast<size_t>(i / 2) * (kChunk * 8))
                 : "memory");
  }
  void expand(const uint8_t* w, size_t k0, size_t k1) const {
    const Codec codec{};
    float* to = weights();
    for (size_t k = k0; k < k1;) {
      const size_t g = k / s.group_k, stop = (g + 1) * s.group_k < k1 ? (g + 1) * s.group_k : k1;
      const uint8_t* from = w + g * s.group_bytes() + (k - g * s.group_k) * (kNr * Codec::kSize);
      for (; k < stop; ++k, from += kNr * Codec::kSize, to += 8) {
        typename Codec::Begun begun;
        expand_two<0>(codec, from, begun, to);
        expand_two<2>(codec, from, begun, to);
        expand_two<4>(codec, from, begun, to);
        expand_two<6>(codec, from, begun, to);
      }
    }
  }
  void many() const {
    for (size_t n = a.n0; n < a.n1; n += kNr) {
      const uint8_t* w = panel(n);
      __builtin_memset(sums(0, 0), 0, sums_bytes(a.M));
      for (size_t k0 = 0; k0 < s.K_padded; k0 += kChunk) {
        const size_t k1 = k0 + kChunk < s.K_padded ? k0 + kChunk : s.K_padded;
        expand(w, k0, k1);
        multiply(w, k0, k1);
      }
      for (size_t m = 0; m < a.M; ++m)
        for (size_t first = 0; first < kNr; first += 8) put(m, n + first, 8, sums(m, first) + 64);
    }
  }
};

// Computes the product for any number of rows. Few: the codec for few rows.
template <class Codec, class Few = Codec>
inline void gemm(const GemmArgs& args) {
  const Gemm<Codec> g(args);
  if (args.M > kFew) return g.many();
  if constexpr (!std::is_same_v<Codec, Few>)
    if (g.panel_float(g.l.all_f16) != 0.0f) return g.template few<Few>();
  g.template few<Codec>();
}

}  // namespace float_family
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
