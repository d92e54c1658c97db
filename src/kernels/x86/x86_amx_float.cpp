// SPDX-License-Identifier: Apache-2.0
// Implements the float family on CPUs with AMX: weight-only integers, FP8, NVFP4, MXFP4, MXFP8 and
// dense bf16, by tiles of bf16. Codes of 32 outputs and a chunk of K become bf16 once and then meet
// all tiles of rows; two tiles of rows times two of outputs share what they load. A single row does
// without tiles, in the order that TDPBF16PS is documented to have.
#include <type_traits>

#include "kernels/isa_family.h"
#include "kernels/isa_float_pack.h"
#include "kernels/x86/x86_amx_float.h"
#include "kernels/x86/x86_amx_float_codecs.h"
#include "kernels/x86/x86_amx_float_rows.h"
#include "kernels/x86/x86_amx_tiles.h"
#include "kernels/x86/x86_float_facts.h"
#include "kernels/x86/x86_float_words.h"

namespace moebius {
namespace {

using namespace amx_float;

#ifdef MOEBIUS_KERNEL_BODIES

// ---- tiles ----

// Configures the tiles: 0 1 and 2 3 hold the sums of two tiles of rows, 4 5 rows, 6 7 weights.
inline void configure(size_t rows, size_t step) {
  const amx::TileConfig config(rows, 2 * step);
  amx::written();
  _tile_loadconfig(&config);
}

constexpr std::ptrdiff_t kAhead = 4096;  // prefetch distance in bytes of a panel

struct Rows {  // Describes a block of one or two tiles of rows.
  size_t first, tiles;
  const uint8_t* at[2];
};

template <class Codec>
struct Gemm {
  static constexpr bool kStored = Codec::kUnit == 2;
  static constexpr bool kFolded = folded<Codec>;
  const GemmArgs& a;
  const Problem& p;
  const Shape s;
  const PanelLayout l;
  const Blocking b;
  const float factor;
  const GlobalScale G;
  const float* const factors;
  const bool single;  // one row of at most two limbs
  bool tame = false;  // a single row whose numbers are neither very large nor very small

  explicit Gemm(const GemmArgs& args)
      : a(args),
        p(*args.w->problem),
        s(amx_shape(p)),
        l(panel_layout(p, s, args.M)),
        b(blocking_of(s, l, p.ragged)),
        factor(static_factor(*args.w)),
        G(result_scale(*args.w)),
        factors(reinterpret_cast<const float*>(args.panel + l.factors)),
        single(is_single(l)) {}

  float* floats(size_t at) const { return reinterpret_cast<float*>(a.scratch + at); }
  bool grouped() const { return !kFolded && (s.groups > 1 || p.ragged); }
  size_t blocks() const { return (l.tiles + 1) / 2; }
  Rows rows_of(size_t block) const {
    Rows r{2 * block * kTile, l.tiles - 2 * block < 2 ? size_t{1} : size_t{2}, {}};
    r.at[0] = a.panel + 2 * block * l.tiles_bytes;
    r.at[1] = r.at[0] + l.tiles_bytes;
    return r;
  }

  // --- a chunk of K: groups from the first on, of which inputs [k0, k1) are meant; where scales are
  // in the weights it is one group with several scales ---

  struct Chunk {
    Group first;
    size_t groups, scales, k0, k1;
    bool last;
    size_t panels;         // one panel, or several for a single row
    const uint8_t* codes;  // codes of the first panel
    const uint8_t* extras;
  };

  // Returns the f32 scales of a chunk for the panel `q` after its own.
  float* scales_of(size_t q) const { return floats(b.scales) + q * b.chunk_groups * kNr; }
  void expand_scales(const Chunk& c, size_t q) const {
    const uint8_t* from = c.extras + q * s.stride() + c.first.index * s.scale_bytes;
    float* to = scales_of(q);
    const __m512 by = _mm512_set1_ps(factor);
    for (size_t i = 0; i < 2 * c.scales; ++i, to += 16) {
      __m512 v;
      if (s.scales == Scales::kF32) {
        v = _mm512_loadu_ps(from + 64 * i);
      } else {
        const uint8_t* h = from + 32 * i;
        v = s.scales == Scales::kF16
                ? _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(h)))
                : from_halves(h);
      }
      _mm512_store_ps(to, factor == 1.0f ? v : _mm512_mul_ps(v, by));
    }
  }
  static constexpr size_t kPairs = Codec::kUnit / 2;
  [[gnu::always_inline]] static void put_rows(const Codec& codec, const uint8_t* codes,
                                              const typename Codec::Zeros& z, uint8_t* to) {
    __m512i row[kPairs];
    codec.decode(_mm512_loadu_si512(codes), z, row);
    MOEBIUS_UNROLL for (size_t i = 0; i < kPairs; ++i) _mm512_store_si512(to + 64 * i, row[i]);
  }
  // Holds the values besides codes that decoding a group needs, for the lower and the upper 16
  // outputs. Scales that are folded into the weights change at input `change`, counted from k0.
  struct Extras {
    const uint8_t *at, *last;
    size_t change;
    typename Codec::Zeros zeros[2];
  };
  static constexpr size_t kHalf = kFolded ? 64 : 16;
  static void read_extras(Extras& e) {
    e.zeros[0] = Codec::zeros(e.at),
    e.zeros[1] = Codec::zeros(e.at == nullptr ? e.at : e.at + kHalf);
  }
  Extras extras_of(const Chunk& c, const Group& g, size_t q) const {
    Extras e{};
    if (kFolded) {
      e.at = reinterpret_cast<const uint8_t*>(scales_of(q));
      e.last = e.at + (c.scales - 1) * kNr * 4, e.change = s.group_k;
    } else if (s.zero_bytes != 0) {
      e.at = c.extras + q * s.stride() + s.groups * s.scale_bytes + g.index * kNr;
    }
    read_extras(e);
    return e;
  }
  // Moves on to the values for the unit at input k of the chunk. Inputs beyond the last one are
  // zero, whatever the scale.
  [[gnu::always_inline]] void move_extras(Extras& e, size_t k) const {
    if (!kFolded || k < e.change || e.at == e.last) return;
    e.at += kNr * 4, e.change += s.group_k;
    read_extras(e);
  }
  static void ask_for(const uint8_t* p) {
    _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(p + 64), _MM_HINT_T0);
  }
  // Prefetches a step of codes. A single tile of rows consumes memory faster, so the second-level
  // cache is asked further ahead.
  void ask_for_step(const uint8_t* codes) const {
    for (size_t i = 0; i < s.step * kNr * 2; i += 64) {
      if (l.tiles == 1)
        _mm_prefetch(reinterpret_cast<const char*>(codes + 2 * kAhead + i), _MM_HINT_T1);
      _mm_prefetch(reinterpret_cast<const char*>(codes + kAhead + i), _MM_HINT_T0);
    }
  }
  PanelsAhead ahead_of(const Chunk& c) const {
    const auto n = static_cast<size_t>(c.codes - a.w->data) / s.stride() * kNr;
    return float_panels::ahead_of(a, s, n, c.panels, kAhead);
  }
  // Prefetches the values besides codes of the next panels.
  void ask_for_extras(const Chunk& c) const {
    const uint8_t* next = c.codes + ahead_of(c).next;
    for (size_t q = 0; q < c.panels; ++q, next += s.stride())
      for (size_t i = s.code_bytes; i < s.stride(); i += 128) ask_for(next + i);
  }
  void expand(const Chunk& c) const {
    for (size_t q = 0; q < c.panels && s.scales != Scales::kNone; ++q) expand_scales(c, q);
    if (single && c.last) ask_for_extras(c);
    if (!kStored && !single) {
      const Codec codec{};
      const Groups groups{p, s, a.w->group_ends};
      uint8_t* to = a.scratch;
      Group g = c.first;
      for (size_t i = 0; i < c.groups; ++i, g = groups.next(g)) {
        Extras e = extras_of(c, g, 0);
        const size_t from = g.at > c.k0 ? g.at : c.k0;
        const size_t end = g.at + g.padded < c.k1 ? g.at + g.padded : c.k1;
        const uint8_t* codes = c.codes + s.code_at(from);
        for (size_t k = from; k < end; k += s.step, to += s.step * kNr * 2)
          for (size_t u = 0; u < s.step; u += Codec::kUnit, codes += 128) {
            ask_for(codes + kAhead);
            move_extras(e, k + u - c.k0);
            put_rows(codec, codes, e.zeros[0], to + u * 32);
            put_rows(codec, codes + 64, e.zeros[1], to + s.step * 32 + u * 32);
          }
      }
    }
  }

  // Adds rows from input `from` on * packed inputs [k, end) to tiles 0 to 3; the chunk begins at
  // k0. Rows are needed again only with other panels: their loads must not drive weights out of the
  // cache.
  template <bool kTwo>
  [[gnu::always_inline]] void multiply(const Rows& r, const Chunk& c, size_t from, size_t k,
                                       size_t end) const {
    const size_t half = kStored ? 64 : s.step * 32, stride = kStored ? 128 : 64;
    const uint8_t* w = kStored ? c.codes + s.code_at(k) : a.scratch + (k - c.k0) * kNr * 2;
    const size_t at = from * 2 * l.limbs * l.tile_rows, row_stride = 2 * s.step;
    const uint8_t *x0 = r.at[0] + at, *x1 = r.at[1] + at;
    // Tiles of rows after the first find the weights in a cache.
    const bool from_memory = kStored && r.first == 0;
    for (; k < end; k += s.step, w += s.step * kNr * 2) {
      if (from_memory) ask_for_step(w);
      _tile_loadd(6, w, stride);
      _tile_loadd(7, w + half, stride);
      for (size_t i = 0; i < l.limbs; ++i, x0 += l.tile_bytes, x1 += l.tile_bytes) {
        _tile_stream_loadd(4, x0, row_stride);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (kTwo) {
          _tile_stream_loadd(5, x1, row_stride);
          _tile_dpbf16ps(2, 5, 6);
          _tile_dpbf16ps(3, 5, 7);
        }
      }
    }
  }
  // --- one scale per output, or none: sums stay in tiles, or wait in the state ---

  template <bool kTwo>
  void whole_block(const Rows& r, const Chunk& c, size_t n) const {
    const bool alone = blocks() == 1, last = c.last;
    float* state = floats(b.state) + r.first * kNr;
    if (c.k0 == 0) {
      amx::zero_sums<kTwo>();
    } else if (!alone) {
      amx::load_sums<kTwo>(state, kNr * 4);
    }
    multiply<kTwo>(r, c, c.k0, c.k0, c.k1);
    const size_t rows = kTwo ? 2 * kTile : l.tile_rows;
    if (last && s.scales == Scales::kNone && p.act.code == ActCode::kAsIs && G.value == 1.0f &&
        n + kNr <= a.n1 && r.first + rows <= a.M)
      return amx::store_sums<kTwo>(a.y + r.first * a.ldy + (n - a.n0), 4 * a.ldy);
    if (last || !alone) amx::store_sums<kTwo>(state, kNr * 4);
    if (last) put(r, n, state, scales_of(0));
  }
  // Stores sums to y, times the scale and the row's factor. Sums of groups have their scale
  // already.
  void put(const Rows& r, size_t n, const float* sums, const float* scales) const {
    const size_t valid = a.n1 - n < kNr ? a.n1 - n : kNr;
    const auto mask = static_cast<uint32_t>((uint64_t{1} << valid) - 1);
    const bool scaled = !kFolded && !grouped() && s.scales != Scales::kNone;
    const bool inside = s.row_groups && s.groups == 1;
    const __m512 by = _mm512_set1_ps(G.value);
    for (size_t i = 0; i < r.tiles * l.tile_rows && r.first + i < a.M; ++i, sums += kNr) {
      float* y = a.y + (r.first + i) * a.ldy + (n - a.n0);
      const __m512 row = _mm512_set1_ps(factors[r.first + i]);
      for (int h = 0; h < 2; ++h) {
        __m512 v = _mm512_loadu_ps(sums + 16 * h);
        if (scaled) {
          __m512 scale = _mm512_load_ps(scales + 16 * h);
          if (inside) scale = _mm512_mul_ps(scale, group_factor(0, r.first + i));
          v = _mm512_mul_ps(v, scale);
        }
        if (p.act.code != ActCode::kAsIs) v = _mm512_mul_ps(v, row);
        if (G.value != 1.0f) v = G.multiplies ? _mm512_mul_ps(v, by) : _mm512_div_ps(v, by);
        _mm512_mask_storeu_ps(y + 16 * h, static_cast<__mmask16>(mask >> (16 * h)), v);
      }
    }
  }
  __m512 group_factor(size_t g, size_t m) const {
    return _mm512_set1_ps(
        reinterpret_cast<const float*>(a.panel + l.group_factors)[g * l.rows() + m]);
  }

  // --- groups: sums leave the tiles after each, some groups are then scaled together ---

  template <bool kTwo>
  void grouped_block(const Rows& r, const Chunk& c, size_t n) const {
    const Groups groups{p, s, a.w->group_ends};
    const size_t rows = r.tiles * l.tile_rows, apart = rows * kNr;
    float *sums = floats(b.sums), *state = floats(b.state) + r.first * kNr;
    if (c.first.index == 0) zero(state, apart);
    Group g = c.first;
    for (size_t done = 0; done < c.groups;) {
      const size_t batch = c.groups - done < b.batch ? c.groups - done : b.batch;
      for (size_t i = 0; i < batch; ++i, g = groups.next(g)) {
        amx::zero_sums<kTwo>();
        multiply<kTwo>(r, c, g.from, g.at, g.at + g.padded);
        amx::store_sums<kTwo>(sums + i * apart, kNr * 4);
      }
      amx::written();
      scale_batch(r, c.first.index + done, batch, floats(b.scales) + done * kNr, sums, apart,
                  state);
      done += batch;
    }
    if (c.last) put(r, n, state, scales_of(0));
  }
  void scale_batch(const Rows& r, size_t g, size_t batch, const float* scales, const float* sums,
                   size_t apart, float* state) const {
    for (; batch >= 4; batch -= 4, g += 4, scales += 4 * kNr, sums += 4 * apart)
      scale_some<4>(r, g, scales, sums, apart, state);
    for (; batch >= 1; --batch, ++g, scales += kNr, sums += apart)
      scale_some<1>(r, g, scales, sums, apart, state);
  }
  template <size_t kGroups>
  void scale_some(const Rows& r, size_t g, const float* scales, const float* sums, size_t apart,
                  float* state) const {
    __m512 c[kGroups][2];
    MOEBIUS_UNROLL for (size_t j = 0; j < 2 * kGroups; ++j) c[j / 2][j % 2] =
        _mm512_load_ps(scales + 16 * j);
    for (size_t i = 0; i < r.tiles * l.tile_rows; ++i, sums += kNr, state += kNr) {
      __m512 f0 = _mm512_load_ps(state), f1 = _mm512_load_ps(state + 16);
      MOEBIUS_UNROLL for (size_t j = 0; j < kGroups; ++j) {
        __m512 c0 = c[j][0], c1 = c[j][1];
        if (s.row_groups) {
          const __m512 by = group_factor(g + j, r.first + i);
          c0 = _mm512_mul_ps(c0, by), c1 = _mm512_mul_ps(c1, by);
        }
        f0 = _mm512_fmadd_ps(_mm512_load_ps(sums + j * apart), c0, f0);
        f1 = _mm512_fmadd_ps(_mm512_load_ps(sums + j * apart + 16), c1, f1);
      }
      _mm512_store_ps(state, f0);
      _mm512_store_ps(state + 16, f1);
    }
  }

  // --- one row ---

  // Decodes a unit to f32, input by input: j and j + kPairs form a pair.
  [[gnu::always_inline]] static void values(const Codec& codec, __m512i v,
                                            const typename Codec::Zeros& z,
                                            __m512 (&out)[Codec::kUnit]) {
    if constexpr (requires { codec.values(v, z, out); }) {
      codec.values(v, z, out);
    } else {
      __m512i pairs[kPairs];
      codec.decode(v, z, pairs);
      const __m512i high = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
      MOEBIUS_UNROLL for (size_t j = 0; j < kPairs; ++j) {
        out[j] = _mm512_castsi512_ps(_mm512_slli_epi32(pairs[j], 16));
        out[j + kPairs] = _mm512_castsi512_ps(_mm512_and_si512(pairs[j], high));
      }
    }
  }

  // Adds to `sums` the same values as TDPBF16PS, for 32 outputs of each panel, `apart` from each
  // other, and `count` groups from g on: within a step, even and odd inputs form chains of their
  // own. kLate: a step's scale is applied to its sums and not to its weights, which is equal for a
  // tame row because powers of two change no rounding. The caller has subnormal numbers flushed;
  // not inlined, so that no operation moves across that setting.
  template <size_t kLimbs, size_t kPanels, bool kLate>
  [[gnu::noinline]] void row_sums(const Chunk& c, Group g, size_t count, float* sums,
                                  size_t apart) const {
    constexpr size_t kVectors = 2 * kPanels;  // vectors of 16 outputs
    const Codec codec{};
    const Groups groups{p, s, a.w->group_ends};
    const size_t stride = s.stride();
    const PanelsAhead ahead = ahead_of(c);
    for (size_t i = 0; i < count; ++i, g = groups.next(g), sums += kNr) {
      Extras e[kPanels];
      MOEBIUS_UNROLL for (size_t q = 0; q < kPanels; ++q) e[q] = extras_of(c, g, q);
      const size_t from = g.at > c.k0 ? g.at : c.k0;
      const size_t end = g.at + g.padded < c.k1 ? g.at + g.padded : c.k1;
      const uint8_t* codes = c.codes + s.code_at(from);
      const float* at = floats(b.row) + kLimbs * (g.from + (from - g.at));
      for (size_t k = from; k < end; k += s.step) {
        __m512 even[kLimbs][kVectors], odd[kLimbs][kVectors];
        MOEBIUS_UNROLL for (size_t t = 0; t < kVectors * kLimbs; ++t)
            even[t / kVectors][t % kVectors] = odd[t / kVectors][t % kVectors] =
                _mm512_setzero_ps();
        for (size_t u = 0; u < s.step; u += Codec::kUnit, codes += 128, at += Codec::kUnit) {
          const std::ptrdiff_t then = soon<Codec::kUnit>(ahead, codes);
          MOEBIUS_UNROLL for (size_t v = 0; v < kVectors; ++v) {
            const uint8_t* here = codes + v / 2 * stride;
            if (v % 2 == 0) {
              ask_for(here + then);
              move_extras(e[v / 2], k + u - c.k0);
            }
            __m512 w[Codec::kUnit];
            const __m512i units = _mm512_loadu_si512(here + v % 2 * 64);
            if constexpr (kLate) {
              using Unscaled = typename Codec::Unscaled;
              Gemm<Unscaled>::values(codec, units, typename Unscaled::Zeros{}, w);
            } else {
              values(codec, units, e[v / 2].zeros[v % 2], w);
            }
            MOEBIUS_UNROLL for (size_t j = 0; j < kPairs; ++j)
                MOEBIUS_UNROLL for (size_t t = 0; t < kLimbs; ++t) {
              const float* xs = at + t * s.step + 2 * j;
              even[t][v] = _mm512_fmadd_ps(_mm512_set1_ps(xs[0]), w[j], even[t][v]);
              odd[t][v] = _mm512_fmadd_ps(_mm512_set1_ps(xs[1]), w[j + kPairs], odd[t][v]);
            }
          }
        }
        MOEBIUS_UNROLL for (size_t v = 0; v < kVectors; ++v) {
          float* sum = sums + v / 2 * apart + v % 2 * 16;
          __m512 all = _mm512_load_ps(sum);
          MOEBIUS_UNROLL for (size_t t = 0; t < kLimbs; ++t) {
            const __m512 both = _mm512_add_ps(even[t][v], odd[t][v]);
            if constexpr (kLate) {
              all = _mm512_fmadd_ps(e[v / 2].zeros[v % 2].scale, both, all);
            } else {
              all = _mm512_add_ps(all, both);
            }
          }
          _mm512_store_ps(sum, all);
        }
        at += (kLimbs - 1) * s.step;
      }
    }
  }
  template <size_t kPanels, bool kLate>
  void flushed_row_sums(const Chunk& c, const Group& g, size_t count, float* sums,
                        size_t apart) const {
    constexpr unsigned kFlush = 0x8040;  // MXCSR bits that flush results and operands
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | kFlush);
    if (l.limbs == 1) {
      row_sums<1, kPanels, kLate>(c, g, count, sums, apart);
    } else if constexpr (kPanels <= 2) {
      row_sums<2, kPanels, kLate>(c, g, count, sums, apart);
    }
    _mm_setcsr(before);
  }
  static void zero(float* to, size_t count) {
    for (size_t i = 0; i < count; i += 16) _mm512_store_ps(to + i, _mm512_setzero_ps());
  }
  template <size_t kPanels>
  void single_row(const Chunk& c, size_t n) const {
    const Rows r = rows_of(0);
    const Groups groups{p, s, a.w->group_ends};
    float *sums = floats(b.sums), *state = floats(b.state);
    if (c.k0 == 0) zero(state, kPanels * kNr);
    if (shifted<Codec> && tame) {
      flushed_row_sums<kPanels, shifted<Codec>>(c, c.first, c.groups, state, kNr);
    } else if (!grouped()) {
      flushed_row_sums<kPanels, false>(c, c.first, c.groups, state, kNr);
    } else {
      Group g = c.first;
      for (size_t done = 0; done < c.groups;) {
        const size_t batch = c.groups - done < b.batch ? c.groups - done : b.batch;
        const size_t apart = batch * kNr;
        zero(sums, kPanels * apart);
        flushed_row_sums<kPanels, false>(c, g, batch, sums, apart);
        for (size_t q = 0; q < kPanels; ++q)
          scale_batch(r, c.first.index + done, batch, scales_of(q) + done * kNr, sums + q * apart,
                      kNr, state + q * kNr);
        done += batch;
        for (size_t i = 0; i < batch; ++i) g = groups.next(g);
      }
    }
    for (size_t q = 0; q < kPanels && c.last; ++q)
      put(r, n + q * kNr, state + q * kNr, scales_of(q));
  }
  // --- the loop nest ---

  void multiply_chunk(const Chunk& c, size_t n) const {
    if (single && c.panels == kRowPanels) return single_row<kRowPanels>(c, n);
    if (single) return c.panels == 2 ? single_row<2>(c, n) : single_row<1>(c, n);
    amx::written();
    for (size_t i = 0; i < blocks(); ++i) {
      const Rows r = rows_of(i);
      if (grouped()) {
        r.tiles == 2 ? grouped_block<true>(r, c, n) : grouped_block<false>(r, c, n);
      } else {
        r.tiles == 2 ? whole_block<true>(r, c, n) : whole_block<false>(r, c, n);
      }
    }
  }
  void begin() {
    if (single) {
      tame = widen_row(a.panel, l.limbs * s.K_rows, floats(b.row));
    } else {
      configure(l.tile_rows, s.step);
    }
  }
  void end() const {
    if (!single) _tile_release();
  }
  size_t panels_at(size_t n) const {
    const size_t left = (a.n1 - n + kNr - 1) / kNr;
    if (!single || left < 2) return 1;
    // Codes that need no decoding are read faster two panels at a time, and two limbs leave no
    // registers for more.
    return left >= kRowPanels && !kStored && l.limbs == 1 ? kRowPanels : 2;
  }
  // Computes the outputs of `panels` panels, of which the first begins at n.
  void multiply_panels(size_t n, size_t panels) const {
    const Groups groups{p, s, a.w->group_ends};
    Chunk c{};
    c.panels = panels;
    c.codes = a.w->data + n / kNr * s.stride();
    c.extras = c.codes + s.code_bytes;
    c.first = groups.first();
    while (!c.last) {
      Group next = c.first;
      if (grouped()) {
        for (c.groups = 0; c.groups < b.chunk_groups && next.index < s.groups; ++c.groups)
          next = groups.next(next);
        c.k1 = next.at, c.scales = c.groups, c.last = next.index == s.groups;
      } else {
        c.k1 = c.k0 + b.chunk_k < s.K_padded ? c.k0 + b.chunk_k : s.K_padded;
        c.groups = 1, c.scales = 1, c.last = c.k1 == s.K_padded;
      }
      if (kFolded) {
        const size_t g = c.k0 / s.group_k, left = s.groups - g;
        c.first = {g, c.k0, c.k1, c.k0, c.k0, c.k1 - c.k0};
        c.scales = left < b.chunk_groups ? left : b.chunk_groups;
      }
      expand(c);
      multiply_chunk(c, n);
      c.k0 = c.k1, c.first = next;
    }
  }
};

template <class Codec>
void run(const GemmArgs& args) {
  if (args.M == 0) return;
  Gemm<Codec> gemm(args);
  gemm.begin();
  for (size_t n = args.n0; n < args.n1;) {
    const size_t panels = gemm.panels_at(n);
    gemm.multiply_panels(n, panels);
    n += panels * kNr;
  }
  gemm.end();
}
// Runs a problem whose scales are powers of two: they are folded into the weights if no product can
// leave the range of bf16.
template <class Codec>
void run_shifted(const GemmArgs& args) {
  if (args.M == 0) return;
  Gemm<Shifted<Codec>> folding(args);
  const Gemm<Codec> gemm(args);
  folding.begin();
  for (size_t n = args.n0; n < args.n1;) {
    const bool inside = moderate(args, folding.s, n);
    size_t panels = folding.panels_at(n);
    for (size_t q = 1; q < panels; ++q)
      if (moderate(args, folding.s, n + q * kNr) != inside) panels = 1;
    inside ? folding.multiply_panels(n, panels) : gemm.multiply_panels(n, panels);
    n += panels * kNr;
  }
  folding.end();
}

void gemm(const GemmArgs& args) {
  const Problem& p = *args.w->problem;
  const bool shifts = folds_e8m0(p);
  switch (form_of(p)) {
    case Form::kInt4:
      return p.zero_points ? run<NibblesZero>(args) : run<Nibbles<kInt4Halves>>(args);
    case Form::kFp4:
      if (folds_fp8(p)) return run<ScaledNibbles>(args);
      return shifts ? run_shifted<Nibbles<kFp4Halves>>(args) : run<Nibbles<kFp4Halves>>(args);
    case Form::kInt8:
      return run<IntBytes>(args);
    case Form::kFp8:
      return shifts ? run_shifted<Fp8>(args) : run<Fp8>(args);
    default:
      return run<Stored>(args);
  }
}
void pack(const PackArgs& a) { float_panels::pack<X86Words>(a, amx_shape(*a.problem)); }
#endif  // MOEBIUS_KERNEL_BODIES

constexpr uint32_t kNeeds = kAvx2 | kFma | kF16c | kAvx512f | kAvx512bw | kAvx512vnni |
                            kAvx512bf16 | kAvx512vbmi | kAmxBf16;
constexpr FamilyFacts kFacts{kNr,
                             x86_float_facts::reordered,
                             x86_float_facts::amx_packed_bytes,
                             x86_float_facts::amx_row_bytes,
                             x86_float_facts::amx_panel_bytes,
                             x86_float_facts::amx_scratch_bytes,
                             kNr,
                             2 * kTile,
                             x86_float_facts::amx_code_at,
                             kRagged};
constexpr Kernel kernel(const char* codec, const char* (*fits)(const Problem&)) {
  return kernel_of(Arch::kX86_64, "x86_amx", codec, kNeeds, fits, kFacts,
                   MOEBIUS_BODIES(pack, prepare_rows, make_row_panel, gemm));
}
constexpr Kernel kKernels[] = {
    kernel("int4_float", x86_float_facts::amx_supports<0>),
    kernel("fp4_float", x86_float_facts::amx_supports<1>),
    kernel("int8_float", x86_float_facts::amx_supports<2>),
    kernel("fp8", x86_float_facts::amx_supports<3>),
    kernel("bf16", x86_float_facts::amx_supports<4>),
};

}  // namespace

extern const KernelTable kX86AmxFloatKernels;
const KernelTable kX86AmxFloatKernels = {kKernels, sizeof kKernels / sizeof kKernels[0]};

}  // namespace moebius
