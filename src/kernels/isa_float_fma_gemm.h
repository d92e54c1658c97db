// SPDX-License-Identifier: Apache-2.0
// The float family by f32 fused multiply-adds: any float problem. Weights of a chunk of K
// are decoded to f32 in a scratch that stays in the first-level cache; each output is one chain of
// fused multiply-adds over its group in the order of K, then f = fma(dot, scale, f): the operations
// of the definition in their order, so the class is exact. Internal linkage; the unit that includes
// it defines vectors and decoding (Isa).
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include "kernels/isa_float_fma.h"
#include "kernels/isa_float_pack.h"
#include "kernels/isa_float_tables.h"

namespace moebius {
namespace {
namespace fma_float {

// ---- panels ----

// Writes inputs [k, end) of a prepared row as numbers that are `apart` elements apart.
inline void put_values(const Problem& p, const uint8_t* codes, const int32_t* columns, size_t k,
                       size_t end, float* to, size_t apart) {
  const float* numbers = p.act.code == ActCode::kFp8   ? kFp8Numbers.of
                         : p.act.code == ActCode::kFp4 ? kFp4Numbers.of
                                                       : nullptr;
  for (; k < end; ++k, to += apart) {
    const size_t at = columns != nullptr ? static_cast<size_t>(columns[k]) : k;
    if (numbers != nullptr) {
      *to = numbers[codes[at]];
    } else {
      __builtin_memcpy(to, codes + 4 * at, 4);
    }
  }
}
// Transposes up to 8 rows of f32, 8 inputs at a time, into rows of `apart` numbers; returns the
// number of inputs written.
template <class Words>
size_t put_eight(const uint8_t* const (&rows)[8], size_t count, size_t K, float* to, size_t apart) {
  size_t k = 0;
  for (; k + 8 <= K; k += 8) {
    typename Words::V v[8];
    MOEBIUS_UNROLL for (size_t i = 0; i < 8; ++i) v[i] = Words::load(rows[i] + 4 * k);
    Words::transpose(v);
    MOEBIUS_UNROLL for (size_t i = 0; i < 8; ++i) {
      float* at = to + (k + i) * apart;
      count == 8 ? Words::store(at, v[i]) : Words::store_some(at, v[i], count);
    }
  }
  return k;
}
template <class Words>
void make_row_panel(const RowPanelArgs& a) {
  const Problem& p = *a.problem;
  const Shape s = fma_shape(p);
  const PanelLayout l = panel_layout(p, s, a.M);
  const PreparedLayout row = prepared_layout(p);
  auto* group_factors = reinterpret_cast<float*>(a.panel + l.group_factors);
  const bool floats = p.act.code == ActCode::kAsIs && a.w->columns == nullptr;
  const auto row_of = [&](size_t m) {
    return a.rows + (a.ids != nullptr ? static_cast<size_t>(a.ids[m]) : m) * row.row_bytes;
  };
  for (size_t m = 0; m < a.M;) {
    const auto [tile, tile_rows] = tile_of(m, a.M);
    const size_t left = tile + tile_rows - m, count = left < 8 ? left : 8;
    float* to = reinterpret_cast<float*>(a.panel) + tile * p.K + (m - tile);
    const uint8_t* codes[8];
    for (size_t i = 0; i < 8; ++i) codes[i] = row_of(m + (i < count ? i : 0)) + row.codes;
    size_t done = 0;
    if (floats && tile_rows == 1) {
      __builtin_memcpy(to, codes[0], 4 * p.K);
      done = p.K;
    } else if (floats) {
      done = put_eight<Words>(codes, count, p.K, to, tile_rows);
    } else {
      constexpr size_t kSome = 64;  // inputs that are decoded before they are transposed
      float some[8][kSome];
      const uint8_t* numbers[8];
      for (size_t i = 0; i < 8; ++i)
        numbers[i] = reinterpret_cast<const uint8_t*>(some[i < count ? i : 0]);
      for (; done + kSome <= p.K; done += kSome) {
        for (size_t i = 0; i < count; ++i)
          put_values(p, codes[i], a.w->columns, done, done + kSome, some[i], 1);
        put_eight<Words>(numbers, count, kSome, to + done * tile_rows, tile_rows);
      }
    }
    for (size_t i = 0; i < count; ++i, ++m) {
      put_values(p, codes[i], a.w->columns, done, p.K, to + done * tile_rows + i, tile_rows);
      const uint8_t* from = row_of(m);
      reinterpret_cast<float*>(a.panel + l.factors)[m] = row_factor(p, from);
      for (size_t g = 0; s.row_groups && g < s.groups; ++g)
        __builtin_memcpy(&group_factors[g * a.M + m], from + 4 * (g * s.group_k / s.row_k), 4);
    }
  }
}

// ---- the loop nest ----

// Returns how many codes are in 32 bits.
constexpr size_t unit_of(Form form) {
  return form == Form::kInt4 || form == Form::kFp4   ? 8
         : form == Form::kInt8 || form == Form::kFp8 ? 4
         : form == Form::kF32                        ? 1
                                                     : 2;
}

// Says what a group has besides its scale: nothing, zero points, or offsets.
enum class Beside : uint8_t { kNothing, kZeros, kOffsets };

// Numbers that are broadcast from memory.
struct FromMemory {
  const float* from;
  explicit FromMemory(const float* p) : from(p) {}
};

// Prefetches the line at p and the next one.
inline void prefetch(const uint8_t* p) {
  __builtin_prefetch(p);
  __builtin_prefetch(p + 64);
}

// Computes the product. Isa has Vec, kWidth; load, store, store_some, broadcast, fma, mul, div;
// Inputs<count>, numbers side by side that fma takes as its first factor; scales of 2 bytes and
// integers of 1; Codes(table, by), how codes become numbers: 4-bit ones by the table, bytes less
// `by`; decode<Form, zeros>(codes, units, zeros, out): decodes a unit of kWidth outputs, input by
// input.
template <class Isa>
struct Gemm {
  using Vec = typename Isa::Vec;
  // Number of vectors of a panel.
  static constexpr size_t kWidth = Isa::kWidth, kVecs = kNr / kWidth;
  const GemmArgs& a;
  const Problem& p;
  const Shape s;
  const PanelLayout l;
  const size_t panels;  // number of panels processed together: few rows need more outputs in flight
  const size_t chunk;
  const float factor;
  const GlobalScale G;
  const typename Isa::Codes how;

  explicit Gemm(const GemmArgs& args)
      : a(args),
        p(*args.w->problem),
        s(fma_shape(p)),
        l(panel_layout(p, s, args.M)),
        panels(args.M == 1 || direct()    ? 8 / kVecs
               : args.M < 4 && kVecs == 2 ? 2
                                          : 1),
        chunk(panels == 1 && (p.K <= kChunk || args.M > kSomeRows) ? kChunk
              : panels <= 2                                        ? kChunk / 2
                                                                   : kChunk / 4),
        factor(static_factor(*args.w)),
        G(result_scale(*args.w)),
        how(table_of(p, s.form), static_cast<float>(128 - counted_from(p))) {}

  float* weights() const { return reinterpret_cast<float*>(a.scratch); }
  // Returns the sums of row m: `dot` of the outputs being computed, then `f` of the same outputs.
  float* sums(size_t m) const {
    return reinterpret_cast<float*>(a.scratch + kSumsAt) + m * panels * kNr * 2;
  }
  const uint8_t* packed(size_t n) const { return a.w->data + n / kNr * s.stride(); }

  // --- decoding ---

  // Calls f<form, what is beside codes>() for the problem.
  template <Form kForm, class F>
  void with_beside(const F& f) const {
    if (p.offsets) return f.template operator()<kForm, Beside::kOffsets>();
    p.zero_points ? f.template operator()<kForm, Beside::kZeros>()
                  : f.template operator()<kForm, Beside::kNothing>();
  }
  template <class F>
  void with_form(const F& f) const {
    switch (s.form) {
      case Form::kInt4:
        return with_beside<Form::kInt4>(f);
      case Form::kInt8:
        return with_beside<Form::kInt8>(f);
      case Form::kFp4:
        return f.template operator()<Form::kFp4, Beside::kNothing>();
      case Form::kFp8:
        return f.template operator()<Form::kFp8, Beside::kNothing>();
      case Form::kBf16:
        return f.template operator()<Form::kBf16, Beside::kNothing>();
      case Form::kF16:
        return f.template operator()<Form::kF16, Beside::kNothing>();
      case Form::kF32:
        return f.template operator()<Form::kF32, Beside::kNothing>();
    }
  }
  // Returns the scales of a vector, or 1; `supers`: of its super-block.
  template <Scales kScales>
  [[gnu::always_inline]] static Vec numbers(const uint8_t* table, const uint8_t* supers,
                                            size_t vec) {
    if constexpr (kScales == Scales::kNone) return Isa::broadcast(1.0f);
    const auto* floats = reinterpret_cast<const float*>(kScales == Scales::kF32 ? table : supers);
    if constexpr (kScales == Scales::kF32) return Isa::load(floats + kWidth * vec);
    if constexpr (kScales == Scales::kTwoLevel)
      return Isa::mul(Isa::integers(table + kWidth * vec), Isa::load(floats + kWidth * vec));
    return Isa::halves(table + 2 * kWidth * vec, kScales == Scales::kF16);
  }
  // Loads scales, or offsets, of group g for N vectors from vector `in` of a panel on: how they are
  // stored is asked once for all.
  template <size_t N>
  [[gnu::always_inline]] void load_scales(const uint8_t* panel, size_t in, size_t g, bool offsets,
                                          Vec (&c)[N]) const {
    const uint8_t* table = panel + (offsets ? s.zeros_at() : s.code_bytes) + g * s.scale_bytes;
    const uint8_t* supers = panel + s.supers_at() + (offsets ? s.super_bytes : 0) +
                            ((g + s.super_phase) >> s.super_bits) * kNr * 4;
    const size_t apart = s.stride();
    const auto load = [&]<Scales kScales>() {
      MOEBIUS_UNROLL for (size_t i = 0; i < N; ++i) c[i] =
          numbers<kScales>(table + i / kVecs * apart, supers + i / kVecs * apart, in + i % kVecs);
    };
    s.scales == Scales::kBf16       ? load.template operator()<Scales::kBf16>()
    : s.scales == Scales::kF16      ? load.template operator()<Scales::kF16>()
    : s.scales == Scales::kF32      ? load.template operator()<Scales::kF32>()
    : s.scales == Scales::kTwoLevel ? load.template operator()<Scales::kTwoLevel>()
                                    : load.template operator()<Scales::kNone>();
  }

  // Decodes inputs [k0, k1) of a panel to scratch.
  template <Form kForm, Beside kBeside>
  [[gnu::noinline]] void decode(const uint8_t* panel, Group g, size_t k0, size_t k1,
                                float* out) const {
    constexpr size_t kUnit = unit_of(kForm);
    const Groups groups{p, s, a.w->group_ends};
    for (; g.index < s.groups && g.begin < k1; g = groups.next(g)) {
      const size_t first = g.begin > k0 ? g.begin : k0, end = g.end < k1 ? g.end : k1;
      const uint8_t* zeros = panel + s.zeros_at() + g.index * s.zero_bytes;
      Vec c[kVecs], b[kVecs];
      if constexpr (kBeside == Beside::kOffsets) {
        load_scales(panel, 0, g.index, false, c);
        load_scales(panel, 0, g.index, true, b);
      }
      size_t k = first / s.unit * s.unit;
      const uint8_t* codes = panel + s.code_at(g.at + k - g.from);
      for (; k < end; k += s.unit, codes += kNr * 4) {
        alignas(64) float some[8 * kNr];  // for a unit that belongs to this group only in part
        const bool whole = first <= k && k + s.unit <= end;
        float* to = whole ? out + (k - k0) * kNr : some;
        prefetch(codes + 2048);
        MOEBIUS_UNROLL for (size_t v = 0; v < kVecs; ++v) {
          Vec row[kUnit];
          Isa::template decode<kForm, kBeside == Beside::kZeros>(how, codes + 4 * kWidth * v,
                                                                 zeros + kWidth * v, row);
          MOEBIUS_UNROLL for (size_t i = 0; i < kUnit; ++i) {
            if constexpr (kBeside == Beside::kOffsets) row[i] = Isa::fma(row[i], c[v], b[v]);
            Isa::store(to + i * kNr + kWidth * v, row[i]);
          }
        }
        for (size_t i = 0; !whole && i < s.unit; ++i)
          if (first <= k + i && k + i < end)
            __builtin_memcpy(out + (k + i - k0) * kNr, some + i * kNr, 4 * kNr);
      }
    }
  }
  // --- products ---

  // Loads the factors of a group's sums; where weights have offsets they are without their scale.
  template <size_t N>
  [[gnu::always_inline]] void load_factors(const uint8_t* panel, size_t in, size_t g,
                                           Vec (&c)[N]) const {
    const Vec by = Isa::broadcast(factor);
    if (!p.offsets) load_scales(panel, in, g, false, c);
    if (p.offsets) {
      MOEBIUS_UNROLL for (size_t i = 0; i < N; ++i) c[i] = by;
    } else if (factor != 1.0f) {
      MOEBIUS_UNROLL for (size_t i = 0; i < N; ++i) c[i] = Isa::mul(c[i], by);
    }
  }
  // Adds the products of one input of R rows with N vectors of weights.
  template <size_t R, size_t N>
  [[gnu::always_inline]] static void multiply(const float* x, const Vec (&b)[N], Vec (&dot)[R][N]) {
    const typename Isa::template Inputs<R> by(x);
    MOEBIUS_UNROLL for (size_t r = 0; r < R; ++r) MOEBIUS_UNROLL for (size_t i = 0; i < N; ++i)
        dot[r][i] = Isa::fma(by, r, b[i], dot[r][i]);
  }
  // Returns true if all inputs are decoded at once and form one group: sums go from registers to y.
  bool whole() const { return s.groups == 1 && !p.ragged && p.K <= chunk; }
  template <int R, int N>
  void whole_tile(size_t n, size_t m, size_t v, const RowTile& t) const {
    const size_t apart = t.rows;
    const float *x = reinterpret_cast<const float*>(a.panel) + t.first * p.K + (m - t.first), *w[N];
    MOEBIUS_UNROLL for (size_t i = 0; i < N; ++i) w[i] =
        weights() + (v + i) / kVecs * chunk * kNr + (v + i) % kVecs * kWidth;
    Vec dot[R][N];
    MOEBIUS_UNROLL for (size_t r = 0; r < R; ++r) MOEBIUS_UNROLL for (size_t i = 0; i < N; ++i)
        dot[r][i] = Isa::broadcast(0.0f);
    for (size_t at = 0; at < p.K * kNr; at += kNr, x += apart) {
      Vec b[N];
      MOEBIUS_UNROLL for (size_t i = 0; i < N; ++i) b[i] = Isa::load(w[i] + at);
      multiply<R, N>(x, b, dot);
    }
    Vec c[N];
    load_factors(packed(n + v / kVecs * kNr), v % kVecs, 0, c);
    MOEBIUS_UNROLL for (size_t i = 0; i < N; ++i) put_whole<R, N>(n, m, v, c[i], i, dot);
  }
  // Multiplies inputs [k0, k1) for R rows of tile t from m on, and N vectors of outputs from vector
  // v on.
  template <int R, int N>
  void tile(size_t n, size_t m, size_t v, const RowTile& t, Group g, size_t k0, size_t k1) const {
    if (whole()) return whole_tile<R, N>(n, m, v, t);
    Vec dot[R][N];
    MOEBIUS_UNROLL for (size_t r = 0; r < R; ++r) MOEBIUS_UNROLL for (size_t i = 0; i < N; ++i)
        dot[r][i] = Isa::load(sums(m + r) + kWidth * (v + i));
    const float* x =
        reinterpret_cast<const float*>(a.panel) + t.first * p.K + k0 * t.rows + (m - t.first);
    const float* w[N];
    MOEBIUS_UNROLL for (size_t i = 0; i < N; ++i) w[i] =
        weights() + (v + i) / kVecs * chunk * kNr + (v + i) % kVecs * kWidth;
    const Groups groups{p, s, a.w->group_ends};
    const Ends ends = ends_of(m, v);
    size_t at = 0;  // index into the chunk's weights
    for (size_t k = k0; k < k1; g = groups.next(g)) {
      const size_t end = g.end < k1 ? g.end : k1;
      for (; k < end; ++k, x += t.rows, at += kNr) {
        Vec b[N];
        MOEBIUS_UNROLL for (size_t i = 0; i < N; ++i) b[i] = Isa::load(w[i] + at);
        multiply<R, N>(x, b, dot);
      }
      if (g.end > k1) break;
      if (g.begin == g.end) continue;
      Vec c[N];
      load_factors(packed(n + v / kVecs * kNr), v % kVecs, g.index, c);
      MOEBIUS_UNROLL for (size_t i = 0; i < N; ++i) {
        add_group<R, N>(ends, g.index, c[i], i, dot);
        MOEBIUS_UNROLL for (size_t r = 0; r < R; ++r) dot[r][i] = Isa::broadcast(0.0f);
      }
    }
    MOEBIUS_UNROLL for (size_t r = 0; r < R; ++r) MOEBIUS_UNROLL for (size_t i = 0; i < N; ++i)
        Isa::store(sums(m + r) + kWidth * (v + i), dot[r][i]);
  }
  // Addresses needed at the end of a group, for the rows from m on and the vectors from v on.
  struct Ends {
    float* f;
    size_t apart;          // number of floats between rows of f
    const float* factors;  // factors of the first group's rows, or null
    size_t rows;           // number of rows of all tiles
  };
  Ends ends_of(size_t m, size_t v) const {
    const auto* factors = reinterpret_cast<const float*>(a.panel + l.group_factors) + m;
    return {sums(m) + panels * kNr + kWidth * v, panels * kNr * 2, s.row_groups ? factors : nullptr,
            a.M};
  }
  // Adds vector i of a group for R rows, with scales c; the first group is added to zeros.
  template <size_t R, size_t N>
  [[gnu::always_inline]] static void add_group(const Ends& e, size_t g, Vec c, size_t i,
                                               const Vec (&dot)[R][N]) {
    float* const f = e.f + kWidth * i;
    if (e.factors == nullptr) {
      MOEBIUS_UNROLL for (size_t r = 0; r < R; ++r)
          Isa::store(f + r * e.apart, Isa::fma(dot[r][i], c, Isa::load(f + r * e.apart)));
      return;
    }
    const float* const factors = e.factors + g * e.rows;
    MOEBIUS_UNROLL for (size_t r = 0; r < R; ++r) {
      const Vec by = Isa::mul(c, Isa::broadcast(factors[r]));
      Isa::store(f + r * e.apart, Isa::fma(dot[r][i], by, Isa::load(f + r * e.apart)));
    }
  }
  // Writes results of a matrix with one group.
  template <size_t R, size_t N>
  [[gnu::always_inline]] void put_whole(size_t n, size_t m, size_t v, Vec c, size_t i,
                                        const Vec (&dot)[R][N]) const {
    const auto* factors = reinterpret_cast<const float*>(a.panel + l.group_factors) + m;
    MOEBIUS_UNROLL for (size_t r = 0; r < R; ++r) {
      const Vec by = s.row_groups ? Isa::mul(c, Isa::broadcast(factors[r])) : c;
      put_vector(m + r, n + kWidth * (v + i), Isa::fma(dot[r][i], by, Isa::broadcast(0.0f)));
    }
  }

  // Calls f<R>() for R rows; R must be at most kMost.
  template <int kMost, class F>
  static void with_rows(size_t R, const F& f) {
    if constexpr (kMost > 1)
      if (R < kMost) return with_rows<kMost - 1>(R, f);
    f.template operator()<kMost>();
  }
  template <int N>
  void rows(size_t n, size_t v, const Group& g, size_t k0, size_t k1) const {
    constexpr int kMost = N == 2 ? Isa::kRows : N == 4 ? 2 : 1;
    for (size_t m = 0; m < a.M;) {
      const RowTile t = tile_of(m, a.M);
      for (const size_t end = t.first + t.rows; m < end;) {
        const size_t parts = (end - m + kMost - 1) / kMost, R = (end - m + parts - 1) / parts;
        with_rows<kMost>(R, [&]<int kR>() { tile<kR, N>(n, m, v, t, g, k0, k1); });
        m += R;
      }
    }
  }

  // --- few rows whose groups are whole units: decoded weights stay in registers ---

  bool direct() const {
    const size_t most = s.unit == 4 ? Isa::kDirectBytes : kDirect;  // most rows; measured
    return a.M <= most && !p.ragged && p.K % kStep == 0 &&
           (s.groups == 1 || s.group_k % kStep == 0);
  }
  // Computes R rows from m on and N vectors of outputs from vector v of the panels at n on: as many
  // chains as hide the latency of the FMA, but no more than fit into registers with a unit of
  // weights.
  template <Form kForm, Beside kBeside, size_t R, size_t N>
  [[gnu::noinline]] void few(size_t n, size_t m, size_t v) const {
    constexpr size_t kUnit = unit_of(kForm);
    const float* x = reinterpret_cast<const float*>(a.panel) + m;
    const size_t apart = s.stride(), in = v % kVecs, M = a.M;
    const uint8_t* const panel = packed(n + v / kVecs * kNr);
    const uint8_t* codes = panel + 4 * kWidth * in;
    const uint8_t* zeros = panel + s.zeros_at() + kWidth * in;
    const PanelsAhead ahead = ahead_of(a, s, n + v / kVecs * kNr, (N + kVecs - 1) / kVecs, kAhead);
    const Ends ends = ends_of(m, v);
    const size_t extra_bytes = s.extra_bytes();
    if (s.groups > 1)
      MOEBIUS_UNROLL for (size_t r = 0; r < R; ++r) MOEBIUS_UNROLL for (size_t i = 0; i < N; ++i)
          Isa::store(ends.f + r * ends.apart + kWidth * i, Isa::broadcast(0.0f));
    for (size_t g = 0, k = 0; g < s.groups; ++g, zeros += s.zero_bytes) {
      const size_t end = k + s.group_k < p.K ? k + s.group_k : p.K;
      Vec dot[R][N];
      MOEBIUS_UNROLL for (size_t r = 0; r < R; ++r) MOEBIUS_UNROLL for (size_t i = 0; i < N; ++i)
          dot[r][i] = Isa::broadcast(0.0f);
      Vec c[N], b[N];
      if constexpr (kBeside == Beside::kOffsets) {
        load_scales(panel, in, g, false, c);
        load_scales(panel, in, g, true, b);
      }
      for (; k < end; k += kUnit, codes += 4 * kNr) {
        const std::ptrdiff_t then = soon<kUnit>(ahead, codes);
        // A number of a row is broadcast once for all vectors whose weights fit into registers.
        constexpr size_t kFree = (Isa::kRegisters - R * N - 4) / kUnit;
        constexpr size_t kTogether = kFree >= N ? N : kFree >= 4 ? 4 : kFree >= 2 ? 2 : 1;
        MOEBIUS_UNROLL for (size_t i = 0; i < N; i += kTogether) {
          Vec w[kTogether][kUnit];
          MOEBIUS_UNROLL for (size_t j = 0; j < kTogether; ++j) {
            const size_t at = (i + j) / kVecs * apart, next = (i + j) % kVecs * kWidth;
            if (next == 0) prefetch(codes + at + then);
            Isa::template decode<kForm, kBeside == Beside::kZeros>(how, codes + at + 4 * next,
                                                                   zeros + at + next, w[j]);
            MOEBIUS_UNROLL for (size_t u = 0; kBeside == Beside::kOffsets && u < kUnit; ++u)
                w[j][u] = Isa::fma(w[j][u], c[i + j], b[i + j]);
          }
          // The inputs of a single row are side by side.
          MOEBIUS_UNROLL for (size_t u = 0; u < kUnit; ++u) {
            const typename Isa::template Inputs<R == 1 ? kUnit : R> by(R == 1 ? x : x + u * M);
            MOEBIUS_UNROLL for (size_t r = 0; r < R; ++r)
                MOEBIUS_UNROLL for (size_t j = 0; j < kTogether; ++j) dot[r][i + j] =
                    Isa::fma(by, R == 1 ? u : r, w[j][u], dot[r][i + j]);
          }
        }
        x += kUnit * M;
      }
      MOEBIUS_UNROLL for (size_t i = 0; i < N; i += kVecs)
          prefetch(panel + i / kVecs * apart + ahead.next + s.code_bytes + g * extra_bytes);
      load_factors(panel, in, g, c);
      if (s.groups > 1) {
        MOEBIUS_UNROLL for (size_t i = 0; i < N; ++i) add_group<R, N>(ends, g, c[i], i, dot);
      } else {
        MOEBIUS_UNROLL for (size_t i = 0; i < N; ++i) put_whole<R, N>(n, m, v, c[i], i, dot);
      }
    }
  }
  // Returns the vectors of outputs computed at once for R rows. Units of four numbers leave
  // registers for more than 8 chains.
  template <Form kForm, size_t R>
  static constexpr size_t few_vectors() {
    constexpr size_t kMost = (unit_of(kForm) == 4 ? Isa::kRegisters / 2 : 8) / R;
    return kMost >= 8 ? 8 : kMost >= 4 ? 4 : 2;
  }
  // Computes vectors [v, end) of the panels at n.
  template <size_t R>
  void few_rows(size_t n, size_t m, size_t v, size_t end) const {
    with_form([&]<Form kForm, Beside kBeside>() {
      constexpr size_t N = few_vectors<kForm, R>();
      for (; v + N <= end; v += N) few<kForm, kBeside, R, N>(n, m, v);
      if constexpr (N > kVecs)
        for (; v < end; v += kVecs) few<kForm, kBeside, R, kVecs>(n, m, v);
    });
  }
  void some_rows(size_t R, size_t n, size_t m, size_t v, size_t end) const {
    if constexpr (Isa::kFew > 4) {
      if (R == 5) return few_rows<5>(n, m, v, end);
      if (R == 6) return few_rows<6>(n, m, v, end);
      if (R == 7) return few_rows<7>(n, m, v, end);
      if (R == 8) return few_rows<8>(n, m, v, end);
    }
    switch (R) {
      case 1:
        return few_rows<1>(n, m, v, end);
      case 2:
        return few_rows<2>(n, m, v, end);
      case 3:
        return few_rows<3>(n, m, v, end);
      default:
        return few_rows<4>(n, m, v, end);
    }
  }
  void run_few() const {
    for (size_t n = a.n0; n < a.n1; n += panels * kNr) {
      const size_t left = (a.n1 - n + kNr - 1) / kNr, count = left < panels ? left : panels;
      // All rows are computed with a panel before the next one, so that memory is read as evenly as
      // multiplications run.
      const size_t step = a.M <= Isa::kFew ? count * kVecs : kVecs;
      for (size_t v = 0; v < count * kVecs; v += step)
        for (size_t m = 0; m < a.M;) {
          // Tiles of equal size: with at most 4 rows per tile, 6 rows are 3 and 3.
          const size_t left_rows = a.M - m, tiles = (left_rows + Isa::kFew - 1) / Isa::kFew;
          const size_t R = (left_rows + tiles - 1) / tiles;
          some_rows(R, n, m, v, v + step);
          m += R;
        }
      if (s.groups > 1) put(n, n + panels * kNr < a.n1 ? n + panels * kNr : a.n1);
    }
  }

  // --- outputs [n, n + 32 * panels) ---

  // Writes a vector of outputs of row m, from `at` on.
  void put_vector(size_t m, size_t at, Vec v) const {
    if (at >= a.n1) return;
    if (p.act.code != ActCode::kAsIs)
      v = Isa::mul(v, Isa::broadcast(reinterpret_cast<const float*>(a.panel + l.factors)[m]));
    if (G.value != 1.0f)
      v = G.multiplies ? Isa::mul(v, Isa::broadcast(G.value))
                       : Isa::div(v, Isa::broadcast(G.value));
    float* y = a.y + m * a.ldy + (at - a.n0);
    const size_t left = a.n1 - at;
    left >= kWidth ? Isa::store(y, v) : Isa::store_some(y, v, left);
  }
  void put(size_t n, size_t end) const {
    for (size_t m = 0; m < a.M; ++m) {
      const float* f = sums(m) + panels * kNr;
      for (size_t i = 0; n + i < end; i += kWidth) put_vector(m, n + i, Isa::load(f + i));
    }
  }
  // Computes `count` panels from n on; `count` equals `panels`, or is 1.
  void outputs(size_t n, size_t count) const {
    const Groups groups{p, s, a.w->group_ends};
    for (size_t i = 0; !whole() && i < a.M * panels * kNr * 2; i += kWidth)
      Isa::store(sums(0) + i, Isa::broadcast(0.0f));
    Group g = groups.first();
    for (size_t k0 = 0; k0 < p.K; k0 += chunk) {
      const size_t k1 = k0 + chunk < p.K ? k0 + chunk : p.K;
      while (g.end <= k0) g = groups.next(g);
      for (size_t i = 0; i < count; ++i)
        with_form([&]<Form kForm, Beside kBeside>() {
          decode<kForm, kBeside>(packed(n + i * kNr), g, k0, k1, weights() + i * chunk * kNr);
        });
      if (count * kVecs == 8) {
        rows<8>(n, 0, g, k0, k1);
      } else if (count * kVecs == 4 && a.M < 4) {
        rows<4>(n, 0, g, k0, k1);
      } else {
        for (size_t v = 0; v < count * kVecs; v += 2) rows<2>(n, v, g, k0, k1);
      }
    }
  }
  void run() const {
    if (a.M == 0) return;
    if (direct()) return run_few();
    for (size_t n = a.n0; n < a.n1; n += panels * kNr) {
      const size_t left = (a.n1 - n + kNr - 1) / kNr;
      outputs(n, left < panels ? left : panels);
      if (!whole()) put(n, n + panels * kNr < a.n1 ? n + panels * kNr : a.n1);
    }
  }
};

template <class Words>
void pack(const PackArgs& a) {
  float_panels::pack<Words>(a, fma_shape(*a.problem));
}
template <class Isa>
void gemm(const GemmArgs& a) {
  Gemm<Isa>(a).run();
}

}  // namespace fma_float
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
