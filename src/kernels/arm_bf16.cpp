// SPDX-License-Identifier: Apache-2.0
// The float family on CPUs with BF16: FP8, NVFP4, MXFP4, MXFP8, weight-only integers and dense bf16. Layouts: arm_bf16.h;
// decoding and loops: arm_bf16_gemm.h. Here: which rows and outputs meet in a tile.
#include "kernels/arm_bf16.h"
#include "kernels/arm_bf16_gemm.h"
#include "kernels/arm_bf16_pack.h"
#include "kernels/arm_bf16_tiles.h"

namespace moebius {
namespace {

using namespace bf16_family;

#ifdef __aarch64__
constexpr size_t kPairs = 4, kPairsGrouped = 3;
constexpr size_t kMany = 12;  // rows from which operands in scratch pay

template <class Codec, bool kGrouped>
struct Gemm {
  static constexpr size_t kMost = kGrouped ? kPairsGrouped : kPairs;
  const GemmArgs& a;
  const Shape s;
  const PanelLayout l;
  const TileMap map;
  const float factor, G;
  const float* factors;

  explicit Gemm(const GemmArgs& args)
      : a(args),
        s(shape_of(*args.w->problem)),
        l(panel_layout(s, args.M)),
        map(l.pairs, kMost),
        factor(args.w->problem->act.code != ActCode::kAsIs &&
                       args.w->problem->act.granule == ActGranule::kStatic
                   ? args.w->act.scale
                   : 1.0f),
        G(args.w->problem->act.code == ActCode::kFp4 && args.w->problem->act.scale == ActScale::kFp8
              ? args.w->act.global_scale * args.w->global_scale
              : args.w->global_scale),
        factors(reinterpret_cast<const float*>(args.panel + l.factors)) {}

  size_t valid(size_t n) const { return a.n1 - n < kNr ? a.n1 - n : kNr; }
  Tile packed_tile(size_t pair, size_t n) const {
    Tile t{};
    t.a = a.panel + 4 * pair * s.K_padded;
    t.w = a.w->data + n / kNr * s.stride();
    t.extras = s.scale_bytes != 0 ? t.w + s.code_bytes : nullptr;
    t.groups = s.groups, t.steps = s.group_k / kKr;
    t.w_group = t.extras_group = s.group_bytes();
    t.zeros_at = s.zero_bytes != 0 ? s.scale_bytes : 0;
    t.flags_at = s.scale_bytes + s.zero_bytes;
    if (s.row_groups)
      t.row_groups = reinterpret_cast<const float*>(a.panel + l.group_factors) + 4 * pair;
    t.row_groups_stride = 4 * l.pairs;
    t.bf16 = s.bf16, t.factor = factor;
    return t;
  }
  template <int P>
  void put(const float32x4_t (&f)[P][4], size_t pair, size_t n) const {
    store<P>(f, factors + 2 * pair, G, a.y + 2 * pair * a.ldy + (n - a.n0), a.ldy, a.M - 2 * pair,
             valid(n));
  }

  // --- few rows: operands are made in registers ---

  template <int P, int S>
  void packed(size_t pair, size_t n, size_t apart) const {
    Tile t = packed_tile(pair, n);
    t.stream = apart * s.stride();
    const Codec codec{};
    float32x4_t f[S][P][4];
    multiply<P, S, Codec, false, kGrouped>(t, codec, f);
    MOEBIUS_UNROLL for (int u = 0; u < S; ++u)
        put<P>(f[u], pair, n + static_cast<size_t>(u) * apart * kNr);
  }
  template <int P, int S>
  void streams() const {
    const size_t panels = (a.n1 - a.n0 + kNr - 1) / kNr, each = panels / S;
    for (size_t i = 0; i < each; ++i) packed<P, S>(0, a.n0 + i * kNr, each);
    for (size_t i = each * S; i < panels; ++i) packed<P, 1>(0, a.n0 + i * kNr, 0);
  }
  void few() const {
    if (l.pairs == 1) return streams<1, 2>();
    for (size_t n = a.n0; n < a.n1; n += kNr)
      for (size_t t = 0; t < map.tiles; ++t) switch (map.size(t)) {
          case 1:
            packed<1, 1>(map.first(t), n, 0);
            break;
          case 2:
            packed<2, 1>(map.first(t), n, 0);
            break;
          case 3:
            packed<3, 1>(map.first(t), n, 0);
            break;
          default:
            if constexpr (kMost >= 4) packed<4, 1>(map.first(t), n, 0);
            break;
        }
  }

  // --- many rows: operands of a few panels in scratch ---

  struct Scratch {
    Blocking b;
    uint8_t *codes, *extras, *state;
    size_t groups, steps, k0, g0;  // of this piece of K, and where it begins
    bool first, last;
  };
  // Operands of some steps into scratch; returns where the next ones go.
  template <class Any>
  static uint8_t* write(const Any& codec, const uint8_t* from, size_t steps,
                        const int8x16_t (&zeros)[4], uint8_t* to) {
    for (size_t i = 0; i < steps; ++i, from += Any::kStep, to += 256)
      MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) {
        uint8x16_t b[4];
        codec.decode(from + Any::kPair * static_cast<size_t>(j), zeros[j], b);
        MOEBIUS_UNROLL for (int q = 0; q < 4; ++q) vst1q_u8(to + 64 * q + 16 * j, b[q]);
      }
    return to;
  }
  void expand(const Scratch& c, size_t n, uint8_t* codes, uint8_t* extras) const {
    const Codec codec{};
    const uint8_t* w = a.w->data + n / kNr * s.stride() + c.g0 * s.group_bytes();
    for (size_t g = 0; g < c.groups; ++g, w += s.group_bytes(), extras += 64) {
      const uint8_t* x = w + s.code_bytes;
      if (s.form != Form::kBf16) {
        int8x16_t zeros[4];
        const int8x8_t z =
            s.zero_bytes != 0 ? vreinterpret_s8_u8(vld1_u8(x + s.scale_bytes)) : vdup_n_s8(0);
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
      if (s.scale_bytes != 0) pair_scales(x, s.bf16, factor, f);
      MOEBIUS_UNROLL for (int j = 0; j < 4; ++j)
          vst1q_u8(extras + 16 * j, vreinterpretq_u8_f32(f[j]));
    }
  }
  // What is the same for all tiles of a piece.
  Tile piece_tile(const Scratch& c) const {
    Tile t = packed_tile(0, a.n0);
    t.groups = c.groups, t.steps = c.steps;
    if (s.form != Form::kBf16) t.w_group = 2 * kNr * s.group_k;
    t.extras_group = 64;
    if (t.row_groups != nullptr) t.row_groups += c.g0 * t.row_groups_stride;
    return t;
  }
  template <int P>
  [[gnu::always_inline]] void tile(const Tile& t, float32x4_t (&f)[P][4]) const {
    alignas(16) static constexpr uint8_t kZero[256] = {};
    const uint8_t* begin = t.state_in != nullptr ? t.state_in : kZero;
    if constexpr (P == 4 && !kGrouped) {
      bf16_tiles::channel_8x8(t.a, t.w, t.steps, begin, f);
      if (t.state_out != nullptr) return store_state<P>(t.state_out, f);
      MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) {
        const float32x4_t scale = vreinterpretq_f32_u8(vld1q_u8(t.extras + 16 * j));
        MOEBIUS_UNROLL for (int i = 0; i < P; ++i) {
          const float32x4_t by =
              t.row_groups != nullptr ? vmulq_f32(scale, vld1q_f32(t.row_groups + 4 * i)) : scale;
          f[i][j] = vfmaq_f32(vdupq_n_f32(0), f[i][j], by);
        }
      }
    } else if constexpr (P == 3 && kGrouped) {
      bf16_tiles::grouped_6x8(t.a, t.w, t.extras, t.groups, t.steps, t.w_group - 256 * t.steps,
                              t.row_groups, 4 * t.row_groups_stride, begin, f);
      if (t.state_out != nullptr) store_state<P>(t.state_out, f);
    } else {
      float32x4_t g[1][P][4];
      multiply<P, 1, Operands, true, kGrouped>(t, Operands{}, g);
      MOEBIUS_UNROLL for (int i = 0; i < P; ++i) MOEBIUS_UNROLL for (int j = 0; j < 4; ++j)
          f[i][j] = g[0][i][j];
    }
  }
  // One tile of rows against the panels from n on.
  template <int P>
  void expanded(const Scratch& c, const Tile& same, size_t pair, size_t n, size_t end) const {
    Tile t = same;
    t.a = a.panel + 4 * pair * s.K_padded + 4 * P * c.k0;
    t.extras = c.extras;
    const bool stored = s.form == Form::kBf16;
    t.w = stored ? a.w->data + n / kNr * s.stride() +
                       (kGrouped ? c.g0 * s.group_bytes() : c.k0 / kKr * s.step_bytes)
                 : c.codes;
    const size_t w_next = stored ? s.stride() : c.b.codes, state_next = up(a.M, 2) * kNr * 4;
    if (t.row_groups != nullptr) t.row_groups += 4 * pair;
    uint8_t* state = c.state + 2 * pair * kNr * 4;
    for (; n < end; n += kNr, t.w += w_next, t.extras += c.b.extras, state += state_next) {
      t.state_in = c.first ? nullptr : state;
      t.state_out = c.last ? nullptr : state;
      float32x4_t f[P][4];
      tile<P>(t, f);
      if (c.last) put<P>(f, pair, n);
    }
  }
  void piece(const Scratch& c, size_t n, size_t end) const {
    for (size_t i = 0; n + i * kNr < end; ++i)
      expand(c, n + i * kNr, c.codes + i * c.b.codes, c.extras + i * c.b.extras);
    const Tile same = piece_tile(c);
    for (size_t t = 0; t < map.tiles; ++t) switch (map.size(t)) {
        case 1:
          expanded<1>(c, same, map.first(t), n, end);
          break;
        case 2:
          expanded<2>(c, same, map.first(t), n, end);
          break;
        case 3:
          expanded<3>(c, same, map.first(t), n, end);
          break;
        default:
          if constexpr (kMost >= 4) expanded<4>(c, same, map.first(t), n, end);
          break;
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
      for (size_t i = 0; i < c.b.pieces; ++i) {
        c.k0 = i * c.b.piece_k;
        const size_t k1 = c.k0 + c.b.piece_k < s.K_padded ? c.k0 + c.b.piece_k : s.K_padded;
        c.g0 = kGrouped ? c.k0 / s.group_k : 0;
        c.groups = kGrouped ? (k1 - c.k0) / s.group_k : 1;
        c.steps = kGrouped ? s.group_k / kKr : (k1 - c.k0) / kKr;
        c.first = i == 0, c.last = i + 1 == c.b.pieces;
        piece(c, n, end);
      }
    }
  }

  void run() const {
    if (a.M < kMany) {
      few();
    } else {
      many();
    }
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
  const bool grouped = shape_of(p).grouped();
  switch (form_of(p)) {
    case Form::kInt4:
      return p.zero_points ? run<NibblesZero>(args, grouped)
                           : run<Nibbles<kIntTable>>(args, grouped);
    case Form::kFp4:
      return run<Nibbles<kFp4Table>>(args, grouped);
    case Form::kFp8:
      return run<Fp8>(args, grouped);
    case Form::kInt8:
      return run<IntBytes>(args, grouped);
    case Form::kBf16:
      return run<Operands>(args, grouped);
  }
}
void make_panel_bf16(const PanelArgs& args) {
  make_panel(args, shape_of(*args.problem).grouped() ? kPairsGrouped : kPairs);
}
#define MOEBIUS_BODY(f) f
#else
#define MOEBIUS_BODY(f) nullptr
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

constexpr Kernel kernel(const char* codec, const char* (*fits)(const Problem&)) {
  return {"arm_bf16",
          codec,
          Arch::kAarch64,
          kNeon | kArmBf16,
          kNr,
          fits,
          numerics,
          packed_bytes,
          MOEBIUS_BODY(pack),
          row_bytes,
          MOEBIUS_BODY(prepare_rows),
          panel_bytes,
          MOEBIUS_BODY(make_panel_bf16),
          scratch_bytes,
          MOEBIUS_BODY(gemm)};
}
constexpr Kernel kKernels[] = {
    kernel("int4", supports_only<Form::kInt4>), kernel("fp4", supports_only<Form::kFp4>),
    kernel("fp8", supports_only<Form::kFp8>),   kernel("int8", supports_only<Form::kInt8>),
    kernel("bf16", supports_only<Form::kBf16>),
};

}  // namespace

extern const KernelTable kArmBf16Kernels;
const KernelTable kArmBf16Kernels = {kKernels, sizeof kKernels / sizeof kKernels[0]};

}  // namespace moebius
