// SPDX-License-Identifier: Apache-2.0
// Float weights on Arm for many small matrices that are multiplied in turn, like keys and values
// (GemmArgs::next): little is computed per matrix, the next one is prefetched meanwhile, and sums
// go from registers to y. The bytes are those of the other loops, because chains are the same.
// Layouts: arm_float.h. Internal linkage.
//
// For up to 8 rows weights are decoded in registers, four vectors ahead of their use and spread
// between the products: decoding right before use costs a third of the speed. For more rows they
// are decoded to scratch, 8 outputs at a time.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include "kernels/arm/arm_float_gemm.h"

namespace moebius {
namespace {
namespace float_family {

constexpr size_t kSmallMatrix = 131072;  // number of weights that stay in the second-level cache

// Number of outputs that are decoded to scratch together.
template <class Codec>
constexpr size_t kTogether = Codec::kVectors < 2 ? 8 : 4 * Codec::kVectors;
// Most rows for which weights are decoded in registers.
template <class Codec>
constexpr size_t kFewInTurn = Codec::kVectors <= 2 ? 8 : 4;

template <class Codec>
inline bool fits_in_turn(const Problem& p) {
  return p.act.code == ActCode::kAsIs && p.N * p.K <= kSmallMatrix &&
         p.K * kTogether<Codec> <= kChunk * kNr &&
         (p.scale_type == ScaleType::kNone || p.block_k >= p.K);
}

template <size_t kOffset>
[[gnu::always_inline]] inline void ask_for(const uint8_t* p) {
  asm volatile("prfm pldl2keep, [%0, %1]" : : "r"(p), "i"(kOffset));
}

// Multiplies four inputs of R rows and V vectors of outputs. An item is a vector of outputs at one
// input.
template <class Codec, int R, int V>
struct Step {
  using How = Meeting<Codec>;
  static constexpr int kRows = padded(R), kItems = 4 * V, kAhead = How::kAhead, kRing = 8;
  static constexpr size_t kInput = kNr * Codec::kSize, kBytes = kKr * kInput;
  // Cache lines of the next matrix to prefetch per step, so that all steps together cover the whole
  // matrix.
  static constexpr int kLines =
      V * static_cast<int>(Codec::kSize) < 4 ? 1 : V * static_cast<int>(Codec::kSize) / 4;

  const Codec codec{};
  typename Codec::Begun begun;
  float32x4_t ring[kRing];
  typename How::Rows x[kRows];
  float32x4_t acc[R][V];

  // Decodes item i of the step at w, or of the step at `after` if i is beyond its end.
  template <int i>
  [[gnu::always_inline]] void decode([[maybe_unused]] const uint8_t* w,
                                     [[maybe_unused]] const uint8_t* after) {
    constexpr int kItem = i % kItems, kVector = kItem % V;
    constexpr size_t kAt = kItem / V * kInput + 4 * kVector * Codec::kSize;
    if constexpr (kVector % Codec::kVectors == 0)
      begun = codec.begin(load<kAt>(i < kItems ? w : after));
    ring[i % kRing] = codec.template vector<kVector % Codec::kVectors>(begun);
  }
  template <int... i>
  [[gnu::always_inline]] void begin([[maybe_unused]] const uint8_t* w,
                                    std::integer_sequence<int, i...>) {
    set_zero(acc);
    (decode<i>(w, w), ...);
  }
  template <int input, int v, int from, int... r>
  [[gnu::always_inline]] void products([[maybe_unused]] float32x4_t w,
                                       std::integer_sequence<int, r...>) {
    (How::template add<v % Codec::kVectors, (input * kRows + from + r) % 4>(
         acc[from + r][v], w, x[(input * kRows + from + r) / 4]),
     ...);
  }
  template <int i>
  [[gnu::always_inline]] void item(const uint8_t* w, const uint8_t* after, const float* rows,
                                   const uint8_t* next) {
    constexpr int kInputOf = i / V, kVector = i % V, kHalf = R / 2;
    if constexpr (i * kLines % kItems < kLines) ask_for<i * kLines / kItems * 64>(next);
    if constexpr (kVector == 0) {
      constexpr int kFirst = (kInputOf * kRows + 3) / 4, kEnd = ((kInputOf + 1) * kRows + 3) / 4;
      if constexpr (kEnd > kFirst) x[kFirst] = How::rows(load_floats<16 * kFirst>(rows));
      if constexpr (kEnd > kFirst + 1)
        x[kFirst + 1] = How::rows(load_floats<16 * (kFirst + 1)>(rows));
    }
    if constexpr (kAhead == 0) decode<i>(w, after);
    products<kInputOf, kVector, 0>(ring[i % kRing], std::make_integer_sequence<int, kHalf>{});
    if constexpr (kAhead > 0) decode<i + kAhead>(w, after);
    products<kInputOf, kVector, kHalf>(ring[i % kRing],
                                       std::make_integer_sequence<int, R - kHalf>{});
  }
  template <int... i>
  [[gnu::always_inline]] void run(const uint8_t* w, const uint8_t* after, const float* rows,
                                  const uint8_t* next, std::integer_sequence<int, i...>) {
    (item<i>(w, after, rows, next), ...);
  }
};

struct InTurnProduct {
  const GemmArgs& a;
  const Shape s;
  const PanelLayout l;

  explicit InTurnProduct(const GemmArgs& args)
      : a(args), s(shape_of(*args.w->problem)), l(panel_layout(s, args.M)) {}

  const uint8_t* panel(size_t n) const { return a.w->data + n / kNr * s.stride(); }
  // Ends a chain like a group: f = fma(dot, scale, 0), times the factor of the row.
  template <int R, int V>
  [[gnu::always_inline]] void put(const float32x4_t (&acc)[R][V], size_t m, size_t n) const {
    float* y = a.y + m * a.ldy + (n - a.n0);
    if (s.scale_bytes == 0 && n + 4 * V <= a.n1) {
      MOEBIUS_UNROLL for (int r = 0; r < R; ++r) MOEBIUS_UNROLL for (int i = 0; i < V; ++i)
          vst1q_f32(y + static_cast<size_t>(r) * a.ldy + 4 * i,
                    vaddq_f32(acc[r][i], vdupq_n_f32(0)));
      return;
    }
    // A copy, because sums whose address is taken would not stay in registers.
    float32x4_t out[R][V];
    MOEBIUS_UNROLL for (int r = 0; r < R; ++r) MOEBIUS_UNROLL for (int i = 0; i < V; ++i)
        out[r][i] = acc[r][i];
    put_scaled<R, V>(out, m, n);
  }
  template <int R, int V>
  [[gnu::noinline]] void put_scaled(const float32x4_t (&acc)[R][V], size_t m, size_t n) const {
    const uint8_t* scales = panel(n) + s.code_bytes;
    const size_t left = n < a.n1 ? a.n1 - n : 0, count = left < 4 * V ? left : 4 * V;
    for (size_t r = 0; r < R; ++r) {
      float f[4 * V], by;
      __builtin_memcpy(&by, a.panel + l.factors + 4 * (m + r), 4);
      for (size_t i = 0; i < V; ++i) {
        const size_t at = n % kNr + 4 * i;
        float32x4_t c = vdupq_n_f32(1);
        if (s.scale_bytes != 0 && s.bf16)
          c = vreinterpretq_f32_u32(
              vshll_n_u16(vld1_u16(reinterpret_cast<const uint16_t*>(scales) + at), 16));
        else if (s.scale_bytes != 0)
          c = vld1q_f32(reinterpret_cast<const float*>(scales) + at);
        vst1q_f32(f + 4 * i, vmulq_n_f32(vfmaq_f32(vdupq_n_f32(0), acc[r][i], c), by));
      }
      __builtin_memcpy(a.y + (m + r) * a.ldy + (n - a.n0), f, 4 * count);
    }
  }

  // --- many rows: 8 outputs are in scratch at w, [input][8] ---

  template <int R, int input, int i, int... r>
  [[gnu::always_inline]] static void meet(const float* x, const float* w,
                                          float32x4_t (&v)[(padded(R) + 3) / 4],
                                          float32x4_t (&acc)[R][2],
                                          std::integer_sequence<int, r...>) {
    const float32x4_t b = load_floats<4 * (8 * input + 4 * i)>(w);
    const auto row = [&]<int at>() __attribute__((always_inline)) {
      constexpr int kElement = input * padded(R) + at;
      if constexpr (i == 0 && kElement % 4 == 0) v[at / 4] = load_floats<4 * kElement>(x);
      fmla<kElement % 4>(acc[at][i], b, v[at / 4]);
    };
    (row.template operator()<r>(), ...);
  }
  template <int R, int... i>
  [[gnu::always_inline]] static void four(const float* x, const float* w,
                                          float32x4_t (&v)[(padded(R) + 3) / 4],
                                          float32x4_t (&acc)[R][2],
                                          std::integer_sequence<int, i...>) {
    (meet<R, i / 2, i % 2>(x, w, v, acc, std::make_integer_sequence<int, R>{}), ...);
  }
  template <int R, size_t kLines>
  [[gnu::noinline]] void tile(const float* w, size_t m, size_t n, const uint8_t* next) const {
    const float* x = reinterpret_cast<const float*>(a.panel) + m * s.K_padded;
    float32x4_t acc[R][2], v[(padded(R) + 3) / 4];
    set_zero(acc);
    for (size_t k = 0; k < s.K_padded; k += kKr, x += kKr * padded(R), w += 8 * kKr) {
      if constexpr (kLines > 0) ask_for<0>(next);
      if constexpr (kLines > 1) ask_for<64>(next);
      next += 64 * kLines;
      four<R>(x, w, v, acc, std::make_integer_sequence<int, 2 * kKr>{});
    }
    put<R, 2>(acc, m, n);
  }
  // Computes the rows after the whole tiles: at most R.
  template <int R = kTile>
  void last_tile(const float* w, size_t m, size_t n) const {
    if (a.M - m == R) return tile<R, 0>(w, m, n, nullptr);
    if constexpr (R > 1) last_tile<R - 1>(w, m, n);
  }
};

template <class Codec>
struct InTurn : InTurnProduct {
  using InTurnProduct::InTurnProduct;

  template <int R, int V>
  [[gnu::noinline]] void few() const {
    using One = Step<Codec, R, V>;
    constexpr std::make_integer_sequence<int, One::kItems> kAll{};
    constexpr std::make_integer_sequence<int, One::kAhead> kFirst{};
    const uint8_t* next = a.next->data;
    for (size_t n = a.n0; n < a.n1; n += 4 * V) {
      const uint8_t* w = panel(n) + n % kNr * Codec::kSize;
      const auto* x = reinterpret_cast<const float*>(a.panel);
      One step;
      step.begin(w, kFirst);
      for (size_t k = 0; k < s.K_padded; k += kKr, x += kKr * padded(R), next += 64 * One::kLines) {
        const uint8_t* after = k + kKr < s.K_padded ? w + One::kBytes : w;
        step.run(w, after, x, next, kAll);
        w = after;
      }
      put<R, V>(step.acc, 0, n);
    }
  }
  // Computes at most R rows; with fewer rows there are registers for more vectors of outputs.
  template <int R = kFewInTurn<Codec>>
  void any_few() const {
    constexpr int kOutputVectors = R <= 2 ? 8 : R <= 4 ? 4 : 2;
    if (a.M == R) return few<R, kOutputVectors>();
    if constexpr (R > 1) any_few<R - 1>();
  }

  // Decodes one input of the outputs that are decoded together: [outputs / 8][input][8].
  template <int... i>
  [[gnu::always_inline]] void expand_input(const Codec& codec, const uint8_t* from, float* to,
                                           std::integer_sequence<int, i...>) const {
    typename Codec::Begun begun;
    ((i % Codec::kVectors == 0
          ? static_cast<void>(begun = codec.begin(load<i / Codec::kVectors * 16>(from)))
          : static_cast<void>(0),
      store_four(to + static_cast<size_t>(i / 2) * 8 * s.K_padded + 4 * (i % 2),
                 codec.template vector<i % Codec::kVectors>(begun))),
     ...);
  }
  void many() const {
    constexpr size_t kCount = kTogether<Codec>, kLines = Codec::kSize == 4 ? 2 : 1;
    const Codec codec{};
    const uint8_t* next = a.next->data;
    for (size_t n = a.n0; n < a.n1; n += kCount) {
      const uint8_t* from = panel(n) + n % kNr * Codec::kSize;
      auto* to = reinterpret_cast<float*>(a.scratch);
      for (size_t k = 0; k < s.K_padded; ++k, from += kNr * Codec::kSize, to += 8)
        expand_input(codec, from, to, std::make_integer_sequence<int, kCount / 4>{});
      // Makes sure that operands are written before they are loaded.
      asm volatile("" : : : "memory");
      for (size_t i = 0; i < kCount && n + i < a.n1; i += 8) {
        const float* w = reinterpret_cast<const float*>(a.scratch) + i * s.K_padded;
        size_t m = 0;
        if (i == 0 && a.M >= kTile) {
          tile<8, kLines>(w, 0, n, next);
          next += s.K_padded / kKr * 64 * kLines;
          m = kTile;
        }
        for (; m + kTile <= a.M; m += kTile) tile<8, 0>(w, m, n + i, nullptr);
        if (m < a.M) last_tile(w, m, n + i);
      }
    }
  }
};

// Computes the product for matrices that are multiplied in turn. Few: the codec for few rows.
template <class Codec, class Few>
inline void gemm_in_turn(const GemmArgs& args) {
  const InTurn<Codec> g(args);
  if (args.M > kFewInTurn<Codec>) return g.many();
  if constexpr (!std::is_same_v<Codec, Few>) {
    float all_f16;
    __builtin_memcpy(&all_f16, args.panel + g.l.all_f16, 4);
    if (all_f16 != 0.0f) return InTurn<Few>(args).any_few();
  }
  g.any_few();
}
// Implements the kernel's gemm: chooses between both loop nests.
template <class Codec, class Few = Codec>
inline void gemm_any(const GemmArgs& args) {
  if (args.next != nullptr && fits_in_turn<Codec>(*args.w->problem))
    return gemm_in_turn<Codec, Few>(args);
  gemm<Codec, Few>(args);
}

}  // namespace float_family
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
