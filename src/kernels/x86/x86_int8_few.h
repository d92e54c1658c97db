// SPDX-License-Identifier: Apache-2.0
// The int8 family on x86-64: products in vector registers (layouts: x86_int8.h). A tile of up to 6
// rows (4 with 256 bits) is multiplied with one or two panels of weights, which are decoded in
// registers; x is broadcast 4 inputs at a time. Weights are unsigned there (value + kBias); the
// sums of x undo the bias, exactly in int32. Templates over an engine E (vectors, dot product);
// internal linkage.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include <immintrin.h>

#include <cfloat>
#include <cstddef>

#include "kernels/isa_panels_ahead.h"
#include "kernels/x86/x86_int8_products.h"

namespace moebius {
namespace {
namespace x86_few {

using namespace x86_int8;

// Selects how a group is finished. kPlain: f = fma(float(sum), c, f); kOffsets: then f = fma(sum of
// x, offset, f); kScaled: kPlain with scales of rows per group, and always of fp4 on both sides;
// kAny: everything else.
enum class Kind : uint8_t { kPlain, kOffsets, kScaled, kAny };

// Finishes products: pointers to all factors and sums. Shared with the tiles of AMX.
struct Finish {
  const Shape& s;
  bool zeros, channel_vllm, grouped_vllm;
  GlobalScale G;  // global scale of results
  float unit;     // factor of a sum: 1/4 if the codes of both sides are doubled
  size_t rows;    // distance between groups in the arrays below
  const int32_t *sums, *row_zeros;
  const float *group_scales, *row_scales, *offset_sums;

  Finish(const GemmArgs& a, const Shape& shape, const RowTiles& t)
      : s(shape),
        zeros(a.w->problem->zero_points),
        channel_vllm(shape.vllm && shape.groups == 1),
        grouped_vllm(shape.vllm && shape.groups > 1),
        G(result_scale(*a.w)),
        unit(shape.codes == Codes::kFp4 ? 0.25f : 1.0f),
        rows(t.padded()) {
    const PanelLayout l = panel_layout(shape, t);
    sums = reinterpret_cast<const int32_t*>(a.panel + l.sums);
    group_scales = reinterpret_cast<const float*>(a.panel + l.group_scales);
    row_scales = reinterpret_cast<const float*>(a.panel + l.scales);
    row_zeros = reinterpret_cast<const int32_t*>(a.panel + l.zeros);
    offset_sums = reinterpret_cast<const float*>(a.panel + l.offset_sums);
  }
  Kind kind() const {
    if (s.offsets) return Kind::kOffsets;
    if (zeros || s.row_zeros || s.vllm) return Kind::kAny;
    return s.group_scales || s.codes == Codes::kFp4 ? Kind::kScaled : Kind::kPlain;
  }
};

// Returns the scales, or the offsets, of a vector of outputs in group g; table: those of a panel.
template <class E>
[[gnu::always_inline]] inline typename E::F scales_at(const Shape& s, Scales type,
                                                      const uint8_t* table, size_t g, size_t v) {
  const uint8_t* group = table + g * s.group_scale_bytes;
  switch (type) {
    case Scales::kBf16:
      return E::from_bf16(group + 2 * E::kLanes * v);
    case Scales::kF16:
      return E::from_f16(group + 2 * E::kLanes * v);
    case Scales::kTwoLevel: {
      const uint8_t* above = table + s.supers + ((g + s.super_phase) >> s.super_shift) * 64;
      return E::mul(E::to_f32(E::from_int8(group + E::kLanes * v)),
                    E::load_f32(above + 4 * E::kLanes * v));
    }
    case Scales::kF32:
      break;
  }
  return E::load_f32(group + 4 * E::kLanes * v);
}

// Loads scales, or offsets, of N vectors of outputs in group g, from vector v of the panels on: how
// they are stored is asked once for all. at: where their table begins in a panel.
template <class E, size_t N, size_t C>
[[gnu::always_inline]] inline void load_scales(const Shape& s, size_t g, size_t v, size_t at,
                                               const uint8_t* const (&panels)[C],
                                               typename E::F (&c)[N]) {
  const auto load = [&]<Scales kType>() {
    MOEBIUS_UNROLL for (size_t i = 0; i < N; ++i) c[i] =
        scales_at<E>(s, kType, panels[(v + i) / E::kParts] + at, g, (v + i) % E::kParts);
  };
  s.scale_type == Scales::kBf16  ? load.template operator()<Scales::kBf16>()
  : s.scale_type == Scales::kF16 ? load.template operator()<Scales::kF16>()
  : s.scale_type == Scales::kF32 ? load.template operator()<Scales::kF32>()
                                 : load.template operator()<Scales::kTwoLevel>();
}

// Returns f after one group: adds `sum` of row m and the v-th vector of a panel's outputs, less the
// contributions of zero points and bias of the weights. c, b: scales, offsets (kOffsets).
template <class E, Kind kKind>
[[gnu::always_inline]] inline typename E::F fold(const Finish& n, const uint8_t* panel, size_t g,
                                                 size_t v, size_t m, int32_t bias,
                                                 typename E::V sum, typename E::F c,
                                                 typename E::F b, typename E::F f) {
  const size_t at = g * n.rows + m;
  if constexpr (kKind == Kind::kPlain) return E::fma(E::to_f32(sum), c, f);
  if constexpr (kKind == Kind::kOffsets)
    return E::fma(E::set1(n.offset_sums[at]), b, E::fma(E::to_f32(sum), c, f));
  if constexpr (kKind == Kind::kScaled) {
    const auto dot = E::mul(E::to_f32(sum), E::set1(n.unit));
    return E::fma(dot, n.s.group_scales ? E::mul(c, E::set1(n.group_scales[at])) : c, f);
  }
  if (n.zeros) {
    const auto zero =
        E::add(E::from_int8(panel + n.s.zeros + g * kOutputs + v * E::kLanes), E::set1(bias));
    sum = E::sub(sum, E::mul(zero, E::set1(n.sums[at])));
  }
  if (n.s.row_zeros) {
    const auto w = E::load(panel + n.s.sums + 4 * (g * kOutputs + v * E::kLanes));
    sum = E::sub(sum, E::mul(w, E::set1(n.row_zeros[at])));
  }
  const typename E::F dot = E::mul(E::to_f32(sum), E::set1(n.unit));
  if (n.channel_vllm) {
    const auto scale = E::mul(E::mul(c, E::set1(0.0625f)), E::set1(n.row_scales[m]));
    const auto y = E::mul(E::mul(dot, E::set1(16.0f)), scale);
    return E::min(E::set1(FLT_MAX), E::max(E::set1(-FLT_MAX), y));  // keeps NaN
  }
  if (n.s.group_scales) c = E::mul(c, E::set1(n.group_scales[at]));
  return E::fma(dot, c, f);
}

template <class E>
[[gnu::always_inline]] inline typename E::F last_factors(const Finish& n, const uint8_t* panel,
                                                         size_t v, size_t m, typename E::F f) {
  if (n.grouped_vllm)
    f = E::fma(E::load_f32(panel + n.s.row_sums + 4 * v * E::kLanes),
               E::set1(static_cast<float>(-n.row_zeros[m])), f);
  if (!n.s.group_scales && !n.channel_vllm) f = E::mul(f, E::set1(n.row_scales[m]));
  if (n.G.value == 1.0f) return f;
  return n.G.multiplies ? E::mul(f, E::set1(n.G.value)) : E::div(f, E::set1(n.G.value));
}

// Stores a vector of results; outputs past n1 are not written.
template <class E>
[[gnu::always_inline]] inline void store(float* y, typename E::F f, size_t n, size_t n1) {
  if (n + E::kLanes <= n1) return E::store(y, f);
  float all[E::kLanes];
  E::store(all, f);
  for (size_t i = 0; n + i < n1; ++i) y[i] = all[i];
}

constexpr std::ptrdiff_t kAhead = 2048;  // number of bytes by which prefetches of a panel are ahead

template <class E, Codes kCodes>
struct Product {
  // Number of vectors per panel.
  static constexpr int kParts = static_cast<int>(kOutputs / E::kLanes);
  static constexpr int32_t kBias = E::bias(kCodes);
  // Number of 64-byte words for 16 inputs.
  static constexpr size_t kWords = kCodes == Codes::kBytes ? 4 : 2;
  using V = typename E::V;
  using F = typename E::F;

  const GemmArgs& a;
  const Shape& s;
  const Finish& finish;
  const uint8_t* panel(size_t n) const { return a.w->data + n / kOutputs * s.stride; }

  // Computes R rows from m on with C panels from output n on.
  template <int R, int C>
  [[gnu::noinline]] void tile(size_t m, size_t n) const {
    constexpr int kVectors = C * kParts;
    const uint8_t* w[C];
    MOEBIUS_UNROLL for (int c = 0; c < C; ++c) w[c] = panel(
        n + static_cast<size_t>(c) * kOutputs < a.n1 ? n + static_cast<size_t>(c) * kOutputs : n);
    const uint8_t* first[C];
    for (int c = 0; c < C; ++c) first[c] = w[c];
    const uint8_t* later = n + C * kOutputs < a.n1 ? panel(n + C * kOutputs)
                           : a.next != nullptr     ? a.next->data + a.n0 / kOutputs * s.stride
                                                   : first[0];
    const PanelsAhead ahead(first[0], later, s.scales, kAhead);
    const uint8_t* x = a.panel + m * s.K_padded;
    const Kind kind = finish.kind();
    const __m128i numbers = E::table(s, kBias);
    F f[R][kVectors];
    MOEBIUS_UNROLL for (int r = 0; r < R; ++r) MOEBIUS_UNROLL for (int v = 0; v < kVectors; ++v)
        f[r][v] = E::zero_f32();
    for (size_t g = 0; g < s.groups; ++g) {
      V sum[R][kVectors];
      const int32_t* start = finish.sums + g * finish.rows + m;
      MOEBIUS_UNROLL for (int r = 0; r < R; ++r) {
        const V from = E::set1(finish.zeros ? 0 : start[r]);
        MOEBIUS_UNROLL for (int v = 0; v < kVectors; ++v) sum[r][v] = from;
      }
      for (size_t k = 0; k < s.padded; k += 16) {
        const std::ptrdiff_t soon = ahead.at(w[0]);
        MOEBIUS_UNROLL for (int c = 0; c < C; ++c) {
          MOEBIUS_UNROLL for (size_t i = 0; i < kWords; ++i)
              _mm_prefetch(reinterpret_cast<const char*>(w[c] + soon + 64 * i), _MM_HINT_T0);
          MOEBIUS_UNROLL for (int part = 0; part < kParts; ++part) {
            V b[E::template kOperands<kCodes>];
            E::template operands<kCodes>(w[c] + 64 / kParts * part, numbers, b);
            MOEBIUS_UNROLL for (int r = 0; r < R; ++r)
                E::template dot<kCodes, 4 * R>(sum[r][c * kParts + part], b, x + 4 * r);
          }
          w[c] += 64 * kWords;
        }
        x += 16 * R;
      }
      MOEBIUS_UNROLL for (int c = 0; c < C; ++c) _mm_prefetch(
          reinterpret_cast<const char*>(first[c] + ahead.next + s.scales + g * s.group_scale_bytes),
          _MM_HINT_T1);
      if (kind == Kind::kOffsets)
        MOEBIUS_UNROLL for (int c = 0; c < C; ++c)
            _mm_prefetch(reinterpret_cast<const char*>(first[c] + ahead.next + s.offsets_at +
                                                       g * s.group_scale_bytes),
                         _MM_HINT_T1);
      // Sums of 4 rows leave no 256-bit registers for scales of several vectors.
      constexpr int kTogether = R * kParts < 8 ? kVectors : 1;
      MOEBIUS_UNROLL for (int v0 = 0; v0 < kVectors; v0 += kTogether) {
        const auto at = static_cast<size_t>(v0);
        F scale[kTogether], offset[kTogether];
        const auto fold_row = [&]<Kind kKind>(int r) {
          MOEBIUS_UNROLL for (int i = 0; i < kTogether; ++i) {
            const int v = v0 + i;
            f[r][v] = fold<E, kKind>(finish, first[v / kParts], g, static_cast<size_t>(v % kParts),
                                     m + static_cast<size_t>(r), kBias, sum[r][v], scale[i],
                                     kKind == Kind::kOffsets ? offset[i] : scale[i], f[r][v]);
          }
        };
        load_scales<E>(s, g, at, s.scales, first, scale);
        if (kCodes != Codes::kFp4 && kind == Kind::kPlain) {
          MOEBIUS_UNROLL for (int r = 0; r < R; ++r) fold_row.template operator()<Kind::kPlain>(r);
        } else if (kCodes != Codes::kFp4 && kind == Kind::kOffsets) {
          load_scales<E>(s, g, at, s.offsets_at, first, offset);
          MOEBIUS_UNROLL for (int r = 0; r < R; ++r)
              fold_row.template operator()<Kind::kOffsets>(r);
        } else if (kCodes != Codes::kTable && kind == Kind::kScaled) {
          MOEBIUS_UNROLL for (int r = 0; r < R; ++r) fold_row.template operator()<Kind::kScaled>(r);
        } else {
          for (int r = 0; r < R; ++r) fold_row.template operator()<Kind::kAny>(r);
        }
      }
    }
    MOEBIUS_UNROLL for (int c = 0; c < C; ++c)
        MOEBIUS_UNROLL for (int part = 0; part < kParts; ++part) {
      const size_t to =
          n + static_cast<size_t>(c) * kOutputs + static_cast<size_t>(part) * E::kLanes;
      if (to >= a.n1) continue;
      for (int r = 0; r < R; ++r) {
        const size_t row = m + static_cast<size_t>(r);
        const F y = last_factors<E>(finish, first[c], static_cast<size_t>(part), row,
                                    f[r][c * kParts + part]);
        store<E>(a.y + row * a.ldy + (to - a.n0), y, to, a.n1);
      }
    }
  }

  template <int R>
  void rows(size_t m, size_t n, size_t end) const {
    constexpr int C = E::template panels<R>();
    for (; n < end; n += static_cast<size_t>(C) * kOutputs) tile<R, C>(m, n);
  }
  void any_rows(size_t m, size_t count, size_t n, size_t end) const {
    switch (count) {
      case 1:
        return rows<1>(m, n, end);
      case 2:
        return rows<2>(m, n, end);
      case 3:
        return rows<3>(m, n, end);
      case 4:
        return rows<4>(m, n, end);
      case 5:
        if constexpr (E::kRows >= 5) return rows<5>(m, n, end);
        break;
      default:
        if constexpr (E::kRows >= 6) return rows<6>(m, n, end);
        break;
    }
  }
};

// Computes blocks of outputs, whose panels stay in the second-level cache for all tiles of rows.
template <class E, Codes kCodes>
inline void gemm(const GemmArgs& a, const Shape& s, const RowTiles& t) {
  constexpr size_t kBlock = 64;  // number of outputs of a block
  const Finish finish(a, s, t);
  const Product<E, kCodes> product{a, s, finish};
  for (size_t n = a.n0; n < a.n1; n += kBlock) {
    const size_t end = n + kBlock < a.n1 && t.tiles > 1 ? n + kBlock : a.n1;
    for (size_t m = 0; m < a.M; m += t.rows)
      product.any_rows(m, a.M - m < t.rows ? a.M - m : t.rows, n, end);
    if (end == a.n1) break;
  }
}
template <class E>
inline void gemm(const GemmArgs& a, const Shape& s, const RowTiles& t) {
  switch (s.codes) {
    case Codes::kNibbles:
      return gemm<E, Codes::kNibbles>(a, s, t);
    case Codes::kBytes:
      return gemm<E, Codes::kBytes>(a, s, t);
    case Codes::kFp4:
      return gemm<E, Codes::kFp4>(a, s, t);
    case Codes::kTable:
      return gemm<E, Codes::kTable>(a, s, t);
  }
}

}  // namespace x86_few
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
