// SPDX-License-Identifier: Apache-2.0
// Implements the float family on CPUs with BF16: FP8, NVFP4, MXFP4, MXFP8, weight-only integers and
// dense bf16. Layouts: arm_bf16.h; decoding and loops: arm_bf16_gemm.h. This file decides which
// rows and outputs meet in a tile.
#include "kernels/arm/arm_bf16.h"
#include "kernels/arm/arm_bf16_gemm.h"
#include "kernels/arm/arm_bf16_pack.h"
#include "kernels/arm/arm_bf16_rows.h"
#include "kernels/arm/arm_bf16_tiles.h"
#include "kernels/isa_family.h"

namespace moebius {
namespace {

using namespace bf16_family;

#ifdef MOEBIUS_KERNEL_BODIES
constexpr size_t kMany = 7;        // from this many rows on, operands in scratch pay
constexpr size_t kSmall = 131072;  // weights of a dense matrix that fits the second-level cache
constexpr size_t kAhead = 16384;   // prefetch distance in bytes of weights

// Multiplies operands that lie in memory as BFMMLA reads them; weights may still need decoding.
template <bool kGrouped>
struct Product {
  const GemmArgs& a;
  const Shape s;
  const PanelLayout l;
  const TileMap map;
  const float factor;
  const GlobalScale G;
  const float* factors;

  explicit Product(const GemmArgs& args)
      : a(args),
        s(shape_of(*args.w->problem)),
        l(panel_layout(s, args.M)),
        map(l.pairs, most_pairs(s)),
        factor(args.w->problem->act.code != ActCode::kAsIs &&
                       args.w->problem->act.granule == ActGranule::kStatic
                   ? args.w->act.scale
                   : 1.0f),
        G(result_scale(*args.w)),
        factors(reinterpret_cast<const float*>(args.panel + l.factors)) {}

  size_t valid(size_t n) const { return a.n1 - n < kNr ? a.n1 - n : kNr; }
  Tile packed_tile(size_t pair, size_t n) const {
    Tile t{};
    t.a = a.panel + 4 * pair * s.K_padded;
    t.w = a.w->data + n / kNr * s.stride();
    t.extras = s.scale_bytes != 0 ? t.w + s.code_bytes : nullptr;
    t.groups = s.groups;
    t.steps = s.group_k / kKr;
    t.w_group = t.extras_group = s.group_bytes();
    t.zeros_at = s.zero_bytes != 0 ? s.scale_bytes : 0;
    t.lift = s.lift;
    t.offsets_at = s.offset_bytes != 0 ? s.scale_bytes + s.zero_bytes : 0;
    t.flags_at = s.scale_bytes + s.zero_bytes + s.offset_bytes;
    if (s.row_numbers())
      t.row_groups = reinterpret_cast<const float*>(a.panel + l.group_factors) + 4 * pair;
    t.row_groups_stride = 4 * l.pairs;
    t.bf16 = s.bf16;
    t.supers = s.supers;
    t.factor = factor;
    t.dense = s.dense;
    return t;
  }
  template <int P>
  void put(const float32x4_t (&f)[P][4], size_t pair, size_t n) const {
    store<P>(f, factors + 2 * pair, G, s.dense, a.y + 2 * pair * a.ldy + (n - a.n0), a.ldy,
             a.M - 2 * pair, valid(n));
  }

  // --- many rows: operands of a few panels in scratch ---

  struct Scratch {
    Blocking b;
    uint8_t *codes, *extras, *state;
    // Groups and steps of this chunk of K, and its first input and group.
    size_t groups, steps, k0, g0;
    size_t bytes;  // bytes of this chunk in a packed panel
    bool first, last;
  };
  const uint8_t* packed_at(const Scratch& c, size_t n) const {
    return a.w->data + n / kNr * s.stride() +
           (kGrouped ? c.g0 * s.group_bytes() : c.k0 / kKr * s.step_bytes);
  }
  // Returns the values that all tiles of a chunk share.
  Tile chunk_tile(const Scratch& c) const {
    Tile t = packed_tile(0, a.n0);
    t.groups = c.groups;
    t.steps = c.steps;
    if (s.form != Form::kBf16) t.w_group = 2 * kNr * s.group_k;
    t.extras_group = s.spread_bytes();
    t.flags_group = s.group_bytes();
    if (t.row_groups != nullptr) t.row_groups += c.g0 * t.row_groups_stride;
    return t;
  }
  // Multiplies one tile of rows and one panel over a chunk of K; the sums go to y, or to the state
  // if further chunks follow.
  template <int P, int kLines>
  [[gnu::always_inline]] void tile(const Tile& t, bf16_tiles::Ahead next, size_t pair,
                                   size_t n) const {
    // The compiler must store operands in scratch before it loads them.
    asm volatile("" : : : "memory");
    float32x4_t f[P][4];
    set_zero<P>(f);
    if (t.state_in != nullptr) load_state<P>(t.state_in, f);
    const uint8_t *x = t.a, *w[1] = {t.w};
    for (size_t g = 0; g < (kGrouped ? t.groups : 1); ++g) {
      float32x4_t acc[1][P][4];
      if constexpr (kGrouped) {
        set_zero<P>(acc[0]);
      } else {
        copy<P>(f, acc[0]);
      }
      [[maybe_unused]] const uint8_t* const rows = x;
      bf16_tiles::steps<P, 1, kLines>(x, w, t.steps, next, acc);
      if (t.flags != nullptr) with_subnormals<P>(t.flags + g * t.flags_group, rows, acc[0]);
      if (!kGrouped && t.state_out != nullptr) return store_state<P>(t.state_out, acc[0]);
      if (!kGrouped && t.dense) {
        copy<P>(acc[0], f);
        break;
      }
      if constexpr (!kGrouped) set_zero<P>(f);
      finish<P, true>(t, g, g * t.extras_group, nullptr, acc[0], f);
    }
    if (kGrouped && t.state_out != nullptr) return store_state<P>(t.state_out, f);
    if (!kGrouped && t.dense && valid(n) == kNr)
      return store_dense<P>(f, a.y + 2 * pair * a.ldy + (n - a.n0), a.ldy, a.M - 2 * pair);
    // put() may index it at run time: with f, g++ would store f after every group.
    float32x4_t out[P][4];
    copy<P>(f, out);
    put<P>(out, pair, n);
  }
  // Multiplies tile of rows `index` with the panels from n on.
  template <int P, int kLines>
  void expanded(const Scratch& c, const Tile& same, size_t index, size_t n, size_t end) const {
    Tile t = same;
    const size_t pair = map.first(index);
    t.a = a.panel + 4 * pair * s.K_padded + 4 * P * c.k0;
    t.extras = c.extras;
    const bool stored = s.form == Form::kBf16;
    t.w = stored ? packed_at(c, n) : c.codes;
    const size_t w_next = stored ? s.stride() : c.b.codes, state_next = up(a.M, 2) * kNr * 4;
    if (t.row_groups != nullptr) t.row_groups += 4 * pair;
    uint8_t* state = c.state + 2 * pair * kNr * 4;
    const size_t panels = (end - n + kNr - 1) / kNr;
    // Bytes of the next chunk that each tile and panel prefetches.
    const size_t share = c.bytes / map.tiles;
    const size_t ahead = c.bytes * panels;
    bf16_tiles::Ahead next = {packed_at(c, n) +
                                  (map.tiles == 1 && ahead > kAhead ? kAhead : ahead) +
                                  index * panels * share,
                              share / (c.groups * c.steps)};
    for (; n < end; n += kNr, t.w += w_next, t.extras += c.b.extras, state += state_next) {
      t.state_in = c.first ? nullptr : state;
      t.state_out = c.last ? nullptr : state;
      if (s.form == Form::kFp8) t.flags = packed_at(c, n) + s.code_bytes + t.flags_at;
      tile<P, kLines>(t, next, pair, n);
      next.at += share;
    }
  }
  template <int P>
  void expanded(const Scratch& c, const Tile& same, size_t index, size_t n, size_t end) const {
    if (s.form == Form::kBf16 && map.tiles == 1) {
      expanded<P, 4>(c, same, index, n, end);
    } else {
      expanded<P, 2>(c, same, index, n, end);
    }
  }
  // Multiplies all rows with the panels [n, end) over a chunk of K.
  void multiply_chunk(const Scratch& c, size_t n, size_t end) const {
    const Tile same = chunk_tile(c);
    for (size_t t = 0; t < map.tiles; ++t)
      with_pairs(map.size(t), [&](auto pairs) { expanded<pairs>(c, same, t, n, end); });
  }
};

template <class Codec, bool kGrouped>
struct Gemm : Product<kGrouped> {
  using Base = Product<kGrouped>;
  using Base::a, Base::s, Base::l, Base::map, Base::factor;
  using Scratch = typename Base::Scratch;
  using Base::Base;
  static constexpr bool kDense = std::is_same_v<Codec, Operands>;
  Codec codec_of() const {
    if constexpr (std::is_default_constructible_v<Codec>)
      return {};
    else
      return Codec(*a.w->problem);
  }

  // --- few rows: operands are made in registers ---

  // Not inlined: g++ then has no register to spare for the loop (W4A16 at one row 7.4 instead of
  // 8.7 GB/s).
  template <int P, int S>
  [[gnu::noinline]] void packed(size_t pair, size_t n, size_t apart) const {
    Tile t = this->packed_tile(pair, n);
    t.stream = apart * s.stride();
    const Codec codec = codec_of();
    float32x4_t f[S][P][4];
    multiply<P, S, Codec, kGrouped>(t, codec, f);
    MOEBIUS_UNROLL for (int u = 0; u < S; ++u) this->template put<P>(
        f[u], pair, n + static_cast<size_t>(u) * apart * kNr);
  }
  template <int P, int S>
  void streams() const {
    const size_t panels = (a.n1 - a.n0 + kNr - 1) / kNr, each = panels / S;
    for (size_t i = 0; i < each; ++i) packed<P, S>(0, a.n0 + i * kNr, each);
    for (size_t i = each * S; i < panels; ++i) packed<P, 1>(0, a.n0 + i * kNr, 0);
  }
  void few() const {
    if (l.pairs == 1) return streams<1, 2>();
    if constexpr (kDense) return l.pairs == 2 ? streams<2, 2>() : streams<3, 2>();
    for (size_t n = a.n0; n < a.n1; n += kNr)
      for (size_t t = 0; t < map.tiles; ++t) switch (map.size(t)) {
          case 2:
            packed<2, 1>(map.first(t), n, 0);
            break;
          case 3:
            packed<3, 1>(map.first(t), n, 0);
            break;
          default:
            packed<4, 1>(map.first(t), n, 0);
            break;
        }
  }

  // --- many rows: operands of a few panels in scratch ---

  // Decodes operands of some steps to scratch; returns the position after them.
  template <class Any>
  static uint8_t* write(const Any& codec, const uint8_t* from, size_t steps,
                        const int8x16_t (&zeros)[4], uint8_t* to) {
    if constexpr (requires { Any::kInTurn; }) {
      for (size_t i = 0; i < steps; ++i, from += Any::kStep, to += 256)
        decode_in_turn<0, 4>(codec, &from, vdupq_n_u8(15), [&](auto pair, auto q, uint8x16_t b) {
          vst1q_u8(to + 64 * (q() < 0 ? 0 : q()) + 16 * pair(), b);
        });
      return to;
    }
    for (size_t i = 0; i < steps; ++i, from += Any::kStep, to += 256)
      MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) {
        uint8x16_t b[4];
        codec.decode(from + Any::kPair * static_cast<size_t>(j), zeros[j], b);
        MOEBIUS_UNROLL for (int q = 0; q < 4; ++q) vst1q_u8(to + 64 * q + 16 * j, b[q]);
      }
    return to;
  }
  void expand(const Scratch& c, size_t n, uint8_t* codes, uint8_t* extras) const {
    const Codec codec = codec_of();
    const uint8_t* const panel = a.w->data + n / kNr * s.stride();
    const uint8_t* w = panel + c.g0 * s.group_bytes();
    for (size_t g = 0; g < c.groups; ++g, w += s.group_bytes(), extras += s.spread_bytes()) {
      const uint8_t* x = w + s.code_bytes;
      if constexpr (!kDense) {
        int8x16_t zeros[4];
        const int8x8_t z = zeros_of(x, s.zero_bytes != 0 ? s.scale_bytes : 0, s.lift);
        for (int j = 0; j < 4; ++j) zeros[j] = pair_zeros(z, j);
        const uint8_t* from = w + (kGrouped ? 0 : c.k0 / kKr * Codec::kStep);
        if constexpr (requires { typename Codec::Plain; }) {
          codes = x[s.scale_bytes + s.zero_bytes] != 0
                      ? write(typename Codec::Plain{}, from, c.steps, zeros, codes)
                      : write(codec, from, c.steps, zeros, codes);
        } else {
          codes = write(codec, from, c.steps, zeros, codes);
        }
      }
      float32x4_t f[4] = {vdupq_n_f32(1), vdupq_n_f32(1), vdupq_n_f32(1), vdupq_n_f32(1)};
      const uint8_t* supers = s.supers.of_group(panel, c.g0 + g);
      if (s.scale_bytes != 0) pair_scales(x, s.bf16, supers, factor, f);
      const auto put = [&](uint8_t* to) {
        MOEBIUS_UNROLL for (int j = 0; j < 4; ++j)
            vst1q_u8(to + 16 * j, vreinterpretq_u8_f32(f[j]));
      };
      put(extras);
      if (s.offset_bytes == 0) continue;
      pair_offsets(x + s.scale_bytes + s.zero_bytes, s.bf16, supers, f);
      put(extras + 64);
    }
  }
  void many() const {
    Scratch c{};
    c.b = blocking_of(s, a.M);
    c.codes = a.scratch;
    c.extras = c.codes + c.b.panels * c.b.codes;
    c.state = a.scratch + c.b.state;
    for (size_t n = a.n0; n < a.n1; n += c.b.panels * kNr) {
      const size_t end = n + c.b.panels * kNr < a.n1 ? n + c.b.panels * kNr : a.n1;
      for (size_t i = 0; i < c.b.chunks; ++i) {
        c.k0 = i * c.b.chunk_k;
        const size_t k1 = c.k0 + c.b.chunk_k < s.K_padded ? c.k0 + c.b.chunk_k : s.K_padded;
        c.g0 = kGrouped ? c.k0 / s.group_k : 0;
        c.groups = kGrouped ? (k1 - c.k0) / s.group_k : 1;
        c.steps = kGrouped ? s.group_k / kKr : (k1 - c.k0) / kKr;
        c.bytes = kGrouped ? c.groups * s.group_bytes() : c.steps * s.step_bytes;
        c.first = i == 0;
        c.last = i + 1 == c.b.chunks;
        for (size_t j = 0; n + j * kNr < end; ++j)
          expand(c, n + j * kNr, c.codes + j * c.b.codes, c.extras + j * c.b.extras);
        this->multiply_chunk(c, n, end);
      }
    }
  }

  void run() const {
    if (a.M < kMany && (!kDense || l.pairs < 4)) {
      few();
    } else {
      many();
    }
  }
};

// Multiplies one of many small dense matrices, such as blocks of keys and values. Little is known
// of each matrix; while the first tile of rows is multiplied, the matrix that comes next is
// prefetched. Panels are taken one after the other: more streams, of loads or of prefetches, are
// slower here (docs/kernels.md, "Attention").
struct InTurn {
  const GemmArgs& a;
  const size_t K, stride;  // padded inputs; bytes of a panel

  explicit InTurn(const GemmArgs& args)
      : a(args), K(up(args.w->problem->K, kKr)), stride(2 * kNr * K) {}

  // Stores the sums of 8 outputs from n on.
  template <int P>
  void put(const float32x4_t (&acc)[P][4], float* y, size_t n, size_t rows) const {
    if (__builtin_expect(a.n1 - n >= kNr, 1)) {
      store_dense<P>(acc, y, a.ldy, rows);
    } else {
      float last[2 * P * kNr];
      store_dense<P>(acc, last, kNr, 2 * P);
      for (size_t i = 0; i < 2 * P && i < rows; ++i)
        __builtin_memcpy(y + i * a.ldy, last + i * kNr, (a.n1 - n) * 4);
    }
  }
  // Multiplies S panels at a time from n on, as long as S are left; returns the first panel that is
  // left.
  template <int P, int S, int kLines>
  size_t panels(size_t pair, size_t n, bf16_tiles::Ahead& begin) const {
    bf16_tiles::Ahead next = begin;  // a copy, which stays in registers
    const uint8_t* w = a.w->data + n / kNr * stride;
    const size_t rows = a.M - 2 * pair;
    float* y = a.y + 2 * pair * a.ldy + (n - a.n0);
    for (; n + (S - 1) * kNr < a.n1; n += S * kNr, w += S * stride, y += S * kNr) {
      const uint8_t *x = a.panel + 4 * pair * K, *panel[S];
      MOEBIUS_UNROLL for (size_t u = 0; u < S; ++u) panel[u] = w + u * stride;
      asm volatile("" : : : "memory");  // the compiler must store rows before it loads them
      float32x4_t acc[S][P][4];
      MOEBIUS_UNROLL for (int u = 0; u < S; ++u) set_zero<P>(acc[u]);
      bf16_tiles::steps<P, S, kLines>(x, panel, K / kKr, next, acc);
      MOEBIUS_UNROLL for (size_t u = 0; u < S; ++u) put<P>(acc[u], y + u * kNr, n + u * kNr, rows);
    }
    begin = next;
    return n;
  }
  template <int P>
  void tile(size_t pair) const {
    bf16_tiles::Ahead next = {a.next->data, 256};
    size_t n = a.n0;
    if (pair != 0) {
      panels<P, 1, 0>(pair, n, next);
      return;
    }
    if constexpr (P <= 2) {  // one or two pairs have too few sums for the latency of BFMMLA
      constexpr int kPanels = 4 / P;
      next.stride = 256 * kPanels;
      n = panels<P, kPanels, 4 * kPanels>(pair, n, next);
      next.stride = 256;
    }
    panels<P, 1, 4>(pair, n, next);
  }
  void run(size_t most) const {
    const TileMap map((a.M + 1) / 2, most);
    for (size_t t = 0; t < map.tiles; ++t)
      with_pairs(map.size(t), [&](auto pairs) { tile<pairs>(map.first(t)); });
  }
};

template <class Codec>
void run(const GemmArgs& args, bool grouped) {
  if (grouped) {
    Gemm<Codec, true>(args).run();
  } else {
    Gemm<Codec, false>(args).run();
  }
}
void gemm(const GemmArgs& args) {
  const Problem& p = *args.w->problem;
  if (args.next != nullptr && p.code == CodeType::kBf16 && p.scale_type == ScaleType::kNone &&
      p.act.code == ActCode::kAsIs && p.N * p.K <= kSmall)
    return InTurn(args).run(kMostPairs);
  const bool grouped = shape_of(p).grouped();
  switch (form_of(p)) {
    case Form::kInt4:
      if (p.zero_points) return run<NibblesZero>(args, grouped);
      [[fallthrough]];
    case Form::kFp4:
      return run<Nibbles>(args, grouped);
    case Form::kFp8:
      return run<Fp8>(args, grouped);
    case Form::kInt8:
      return run<IntBytes>(args, grouped);
    case Form::kBf16:
      return run<Operands>(args, grouped);
  }
}
void make_panel_bf16(const RowPanelArgs& args) {
  make_row_panel(args, most_pairs(shape_of(*args.problem)));
}
#endif

const char* supports_form(const Problem& p, Form form) {
  const char* reason = supports(p);
  return reason != nullptr    ? reason
         : form_of(p) == form ? nullptr
                              : "another codec holds these weights";
}
template <Form kForm>
const char* supports_only(const Problem& p) {
  return supports_form(p, kForm);
}

constexpr Kernel kernel(const char* codec, const char* (*fits)(const Problem&), size_t m_tile = 8) {
  const FamilyFacts facts{
      kNr,           numerics, packed_bytes, row_bytes, row_panel_bytes,
      scratch_bytes, kWidths,  m_tile,       code_at,   kOffsets | kTwoLevel | kLut};
  return kernel_of(Arch::kAarch64, "arm_bf16", codec, kNeon | kArmBf16, fits, facts,
                   MOEBIUS_BODIES(pack, prepare_rows, make_panel_bf16, gemm));
}
constexpr Kernel kKernels[] = {
    kernel("int4", supports_only<Form::kInt4>),
    kernel("fp4", supports_only<Form::kFp4>),
    kernel("fp8", supports_only<Form::kFp8>),
    kernel("int8", supports_only<Form::kInt8>),
    kernel("bf16", supports_only<Form::kBf16>, 2 * kMostPairs),
};

}  // namespace

extern const KernelTable kArmBf16Kernels;
const KernelTable kArmBf16Kernels = {kKernels, sizeof kKernels / sizeof kKernels[0]};

}  // namespace moebius
