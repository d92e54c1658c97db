// SPDX-License-Identifier: Apache-2.0
// Attends to a block of 128 keys and values with many rows, on CPUs with AMX (kernels/attend.h). 32
// rows at a time: their scores leave the tiles, a softmax of 16 rows at once makes bf16
// probabilities in the order that tiles want, and the products with values are added to the sums of
// the rows one panel late. Codes of 8 bits become bf16 once for all rows. What bounds it:
// docs/kernels_x86.md, "Attention".
#include <type_traits>

#include "base/math_functions.h"
#include "kernels/attend.h"
#include "kernels/x86/x86_amx_float.h"
#include "kernels/x86/x86_amx_float_codecs.h"
#include "kernels/x86/x86_amx_float_rows.h"
#include "kernels/x86/x86_amx_tiles.h"
#include "kernels/x86/x86_float_facts.h"

namespace moebius {
namespace {

using namespace amx_float;

constexpr size_t kKeys = 128, kRows = 2 * kTile;
// Scratch holds scores [32][128], probabilities [tile][step][16][32], sums of two panels [32][32],
// and keys and values decoded from codes to bf16.
constexpr size_t kScores = 4 * kRows * kKeys, kShares = 2 * kRows * kKeys, kSums = 4 * kRows * kNr;
constexpr size_t kScratch = kScores + kShares + 2 * kSums;
constexpr size_t kScratchOfCodes = kScratch + 2 * 2 * kKeys * x86_float_facts::kAttendedDim;

#ifdef MOEBIUS_KERNEL_BODIES

constexpr size_t kStep = 32, kTileHalves = kTile * kStep;  // numbers of a tile of rows

// Joins 16 rows of 16 lanes to one number per row: lanes 4 apart first, then 8, 2, 1, the order in
// which the softmax adds.
template <class Join>
[[gnu::always_inline]] inline __m512 join_lanes(const __m512 (&row)[16], Join join) {
  __m512 a[8], b[4], c[2];
  MOEBIUS_UNROLL for (int i = 0; i < 8; ++i) a[i] =
      join(_mm512_shuffle_f32x4(row[2 * i], row[2 * i + 1], 0x88),
           _mm512_shuffle_f32x4(row[2 * i], row[2 * i + 1], 0xDD));
  MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) b[i] =
      join(_mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0x88),
           _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0xDD));
  MOEBIUS_UNROLL for (int i = 0; i < 2; ++i) c[i] =
      join(_mm512_shuffle_ps(b[2 * i], b[2 * i + 1], 0x44),
           _mm512_shuffle_ps(b[2 * i], b[2 * i + 1], 0xEE));
  const __m512 all = join(_mm512_shuffle_ps(c[0], c[1], 0x88), _mm512_shuffle_ps(c[0], c[1], 0xDD));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_ps(order, all);
}

// Computes exp_coarse_f32 of 16 numbers.
[[gnu::always_inline]] inline __m512 exp_coarse(__m512 x) {
  using namespace numeric_detail;
  const __m512 log2e = _mm512_set1_ps(kLog2E), magic = _mm512_set1_ps(kExpMagic127);
  // A NaN in x stays.
  const __m512 c = _mm512_max_ps(_mm512_set1_ps(kExpCoarseLeast), x);
  const __m512 t = _mm512_fmadd_ps(c, log2e, magic);
  const __m512 f = _mm512_fmsub_ps(c, log2e, _mm512_sub_ps(t, magic));
  __m512 q = _mm512_fmadd_ps(_mm512_set1_ps(kExpCoarse4), f, _mm512_set1_ps(kExpCoarse3));
  q = _mm512_fmadd_ps(q, f, _mm512_set1_ps(kExpCoarse2));
  q = _mm512_fmadd_ps(q, f, _mm512_set1_ps(kExpCoarse1));
  const __m512 power = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(t), 23));
  return _mm512_fmadd_ps(_mm512_mul_ps(q, f), power, power);
}

// Handles a block of 32 rows, of which the last ones may be missing. Codec: decodes 8-bit codes;
// void: keys and values are bf16.
template <class Codec>
struct Attend {
  static constexpr bool kCodes = !std::is_void_v<Codec>;
  const AttendArgs& a;
  const Shape keys, values;
  float* const scores;
  uint16_t* const shares;
  float* const sums;
  const uint8_t *k, *v;           // panels of bf16
  size_t key_panel, value_panel;  // bytes
  const uint8_t *ask = nullptr, *ask_end = nullptr;
  size_t ask_each = 0;
  alignas(64) float best[kRows], total[kRows], keep[kRows];

  explicit Attend(const AttendArgs& args)
      : a(args),
        keys(amx_shape(*args.keys)),
        values(amx_shape(*args.values)),
        scores(reinterpret_cast<float*>(args.scratch)),
        shares(reinterpret_cast<uint16_t*>(args.scratch + kScores)),
        sums(reinterpret_cast<float*>(args.scratch + kScores + kShares)),
        k(args.k),
        v(args.v),
        key_panel(keys.stride()),
        value_panel(values.stride()) {
    if constexpr (kCodes) {
      uint8_t *const to = args.scratch + kScratch, *const then = to + 2 * kKeys * keys.K_padded;
      k = to;
      key_panel = expand(args.k, keys, a.columns / kNr, to);
      v = then;
      value_panel = expand(args.v, values, a.values->N / kNr, then);
    }
  }

  // Decodes panels of codes to bf16, in the order in which tiles read them; returns the bytes of
  // one panel.
  static size_t expand(const uint8_t* from, const Shape& s, size_t panels, uint8_t* to) {
    const Codec codec;
    const auto zeros = Codec::zeros(nullptr);
    constexpr size_t kRow = 4 * kNr;  // bytes of a unit of codes and of a pair of bf16
    const size_t units = s.K_padded / Codec::kUnit;
    for (size_t n = 0; n < panels; ++n, from += s.stride())
      for (size_t u = 0; u < units; ++u, to += kRow * Codec::kUnit / 2)
        MOEBIUS_UNROLL for (size_t half = 0; half < kRow; half += 64) {
          __m512i row[Codec::kUnit / 2];
          codec.decode(_mm512_loadu_si512(from + kRow * u + half), zeros, row);
          MOEBIUS_UNROLL for (size_t i = 0; i < Codec::kUnit / 2; ++i)
              _mm512_store_si512(to + kRow * i + half, row[i]);
        }
    return 2 * kNr * s.K_padded;
  }

  template <bool kTwo>
  [[gnu::always_inline]] static void multiply_step(const uint16_t* x, size_t apart,
                                                   const uint8_t* w) {
    _tile_loadd(6, w, 128);
    _tile_loadd(7, w + 64, 128);
    _tile_loadd(4, x, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kTwo) {
      _tile_loadd(5, x + apart, 64);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  // Multiplies rows with one panel of 32 outputs into tiles 0 to 3, four steps at a time.
  template <bool kTwo>
  [[gnu::always_inline]] static void multiply(const uint16_t* x, size_t apart, const uint8_t* w,
                                              size_t steps) {
    constexpr size_t kOn = kStep * kNr * 2;
    amx::zero_sums<kTwo>();
    for (; steps >= 4; steps -= 4, x += 4 * kTileHalves, w += 4 * kOn)
      MOEBIUS_UNROLL for (size_t s = 0; s < 4; ++s)
          multiply_step<kTwo>(x + s * kTileHalves, apart, w + s * kOn);
    for (; steps > 0; --steps, x += kTileHalves, w += kOn) multiply_step<kTwo>(x, apart, w);
  }

  void mask(size_t first, size_t count) const {
    for (size_t i = 0; i < count; ++i) {
      const uint8_t* seen = a.seen + 2 * (first + i);
      const __m512 none = _mm512_set1_ps(f32_from_bits(0xFF800000u));
      float* s = scores + i * kKeys;
      for (size_t j = 0; j < kKeys; j += 16) {
        const auto below = [&](size_t end) {
          return end <= j ? 0u : end >= j + 16 ? 0xFFFFu : (1u << (end - j)) - 1u;
        };
        _mm512_mask_store_ps(s + j, static_cast<__mmask16>(below(seen[0]) | ~below(seen[1])), none);
      }
    }
  }

  void scale_scores(size_t count) const {
    for (size_t i = 0; i < count; ++i)
      for (size_t j = 0; j < a.columns; j += 16) {
        float* s = scores + i * kKeys + j;
        _mm512_store_ps(s, _mm512_mul_ps(_mm512_load_ps(s), _mm512_loadu_ps(a.key_scales + j)));
      }
  }

  // Computes a row by the definition, because it sees nothing or has a NaN.
  [[gnu::noinline]] void odd_row(size_t i, float m, float l) {
    float* s = scores + i * kKeys;
    keep[i] = a.softmax_step(s, kKeys, a.scale, true, &m, &l);
    best[i] = m;
    total[i] = l;
    for (size_t j = 0; j < kKeys; j += kStep)
      put_shares(i, j, _mm512_load_ps(s + j), _mm512_load_ps(s + j + 16));
  }
  // Writes the probabilities of row i and keys [j, j + 32): neighbours form pairs; with codes the
  // order is 0 2 1 3.
  [[gnu::always_inline]] void put_shares(size_t i, size_t j, __m512 low, __m512 high) const {
    if constexpr (kCodes) {
      low = _mm512_mul_ps(low, _mm512_loadu_ps(a.value_scales + j));
      high = _mm512_mul_ps(high, _mm512_loadu_ps(a.value_scales + j + 16));
    }
    auto both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
    if constexpr (kCodes) {
      const __m128i order = _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
      both = _mm512_shuffle_epi8(both, _mm512_broadcast_i32x4(order));
    }
    _mm512_store_si512(share_of(i, j), both);
  }
  [[gnu::always_inline]] uint16_t* share_of(size_t i, size_t key) const {
    return shares + i / kTile * kTile * kKeys + key / kStep * kTileHalves + i % kTile * kStep;
  }

  // Runs the softmax of rows [first, first + 16) of the block.
  [[gnu::noinline]] void softmax(size_t first) {
    const float* s = scores + first * kKeys;
    const __m512 by = _mm512_set1_ps(a.scale);
    __m512 row[16];
    MOEBIUS_UNROLL for (size_t i = 0; i < kTile; ++i) {
      const float* at = s + i * kKeys;
      __m512 x = _mm512_load_ps(at), y = _mm512_load_ps(at + 16);
      MOEBIUS_UNROLL for (size_t j = kStep; j < kKeys; j += kStep) {
        x = _mm512_max_ps(x, _mm512_load_ps(at + j));
        y = _mm512_max_ps(y, _mm512_load_ps(at + j + 16));
      }
      row[i] = _mm512_max_ps(x, y);
    }
    const __m512 most = join_lanes(row, [](__m512 x, __m512 y) { return _mm512_max_ps(x, y); });
    const __m512 m = _mm512_load_ps(best + first), l = _mm512_load_ps(total + first);
    const __m512 here = _mm512_mul_ps(most, by);
    const __m512 top = _mm512_mask_mov_ps(m, _mm512_cmp_ps_mask(here, m, _CMP_GT_OQ), here);
    const __mmask16 moved = _mm512_cmp_ps_mask(m, top, _CMP_NEQ_UQ);
    _mm512_store_ps(best + first, top);
    _mm512_store_ps(keep + first, _mm512_set1_ps(1.0f));
    if (moved != 0) {
      alignas(64) float down[kTile];
      _mm512_store_ps(down, _mm512_sub_ps(m, top));
      for (float& x : down) x = exp_f32(x);
      _mm512_mask_store_ps(keep + first, moved, _mm512_load_ps(down));
    }
    for (size_t i = 0; i < kTile; ++i) {
      ask_for_some();
      const __m512 from = _mm512_set1_ps(best[first + i]);
      const float* at = s + i * kKeys;
      __m512 lane = _mm512_setzero_ps();
      MOEBIUS_UNROLL for (size_t j = 0; j < kKeys; j += kStep) {
        const __m512 x = exp_coarse(_mm512_sub_ps(_mm512_mul_ps(_mm512_load_ps(at + j), by), from));
        const __m512 y =
            exp_coarse(_mm512_sub_ps(_mm512_mul_ps(_mm512_load_ps(at + j + 16), by), from));
        lane = _mm512_add_ps(_mm512_add_ps(lane, x), y);
        put_shares(first + i, j, x, y);
      }
      _mm512_store_ps(lanes_of(i), lane);
    }
    MOEBIUS_UNROLL for (size_t i = 0; i < kTile; ++i) row[i] = _mm512_load_ps(lanes_of(i));
    const __m512 sum = join_lanes(row, [](__m512 x, __m512 y) { return _mm512_add_ps(x, y); });
    _mm512_store_ps(total + first,
                    _mm512_add_ps(_mm512_mul_ps(l, _mm512_load_ps(keep + first)), sum));
    const __mmask16 usual =
        _mm512_cmp_ps_mask(top, _mm512_set1_ps(f32_from_bits(0xFF800000u)), _CMP_GT_OQ) &
        _mm512_cmp_ps_mask(sum, sum, _CMP_ORD_Q);
    if (__builtin_expect(usual != 0xFFFF, 0)) {
      alignas(64) float old_m[kTile], old_l[kTile];
      _mm512_store_ps(old_m, m);
      _mm512_store_ps(old_l, l);
      for (size_t i = 0; i < kTile; ++i)
        if ((usual >> i & 1) == 0) odd_row(first + i, old_m[i], old_l[i]);
    }
  }
  float* lanes_of(size_t i) const {
    return sums + i * 16;
    // `sums` is free until the values are multiplied.
  }

  // Adds the sums of a panel to the results of `count` rows.
  void add(const float* from, float* out, size_t count) const {
    const size_t dv = a.values->N;
    for (size_t i = 0; i < count; ++i, from += kNr, out += dv) {
      const __m512 by = _mm512_set1_ps(keep[i]);
      MOEBIUS_UNROLL for (size_t h = 0; h < kNr; h += 16) _mm512_storeu_ps(
          out + h,
          _mm512_add_ps(_mm512_mul_ps(_mm512_loadu_ps(out + h), by), _mm512_load_ps(from + h)));
    }
  }

  // Prefetches a part of the next block with every row of the softmax, which leaves memory idle.
  [[gnu::always_inline]] void ask_for_some() {
    for (size_t i = 0; i < ask_each && ask < ask_end; ++i, ask += 64)
      _mm_prefetch(reinterpret_cast<const char*>(ask), _MM_HINT_T1);
  }

  template <bool kTwo>
  void block(size_t first, const uint16_t* x, size_t apart) {
    const size_t count = a.M - first < kRows ? a.M - first : kRows;
    const float lowest = f32_from_bits(0xFF800000u);
    for (size_t i = 0; i < kRows; ++i) {
      best[i] = i < count ? a.best[first + i] : lowest;
      total[i] = i < count ? a.total[first + i] : 0.0f;
    }
    const uint8_t* w = k;
    for (size_t n = 0; n < a.columns; n += kNr, w += key_panel) {
      multiply<kTwo>(x, apart, w, keys.K_padded / kStep);
      amx::store_sums<kTwo>(scores + n, 4 * kKeys);
    }
    amx::written();
    if constexpr (kCodes) scale_scores(count);
    if (a.seen != nullptr) mask(first, count);
    softmax(0);
    if constexpr (kTwo) softmax(kTile);
    amx::written();
    w = v;
    float* out = a.out + first * a.values->N;
    const size_t panels = a.values->N / kNr;
    for (size_t n = 0; n < panels; ++n, w += value_panel) {
      multiply<kTwo>(shares, kTile * kKeys, w, kKeys / kStep);
      amx::store_sums<kTwo>(sums + n % 2 * kRows * kNr, 4 * kNr);
      amx::written();
      if (n != 0) add(sums + (n - 1) % 2 * kRows * kNr, out + (n - 1) * kNr, count);
    }
    add(sums + (panels - 1) % 2 * kRows * kNr, out + (panels - 1) * kNr, count);
    for (size_t i = 0; i < count; ++i) {
      a.best[first + i] = best[i];
      a.total[first + i] = total[i];
    }
  }

  void run() {
    const PanelLayout l = panel_layout(*a.keys, keys, a.M);
    const size_t blocks = (l.tiles + 1) / 2, apart = l.tiles_bytes / 2;
    const auto bytes = static_cast<size_t>(a.v - a.k) + a.values->N / kNr * values.stride();
    ask = a.next;
    ask_end = a.next + bytes;
    ask_each = bytes / 64 / a.M + 1;
    const amx::TileConfig config(kTile, 2 * kStep);
    amx::written();
    _tile_loadconfig(&config);
    for (size_t b = 0; b < blocks; ++b) {
      const auto* x = reinterpret_cast<const uint16_t*>(a.q + 2 * b * l.tiles_bytes);
      if (2 * b + 1 < l.tiles) {
        block<true>(b * kRows, x, apart);
      } else {
        block<false>(b * kRows, x, apart);
      }
    }
    _tile_release();
  }
};

template <class Codec>
void run(const AttendArgs& args) {
  Attend<Codec>(args).run();
}
#define MOEBIUS_BODY(f) f
#else
#define MOEBIUS_BODY(f) nullptr
#endif  // MOEBIUS_KERNEL_BODIES

constexpr AttendKernel attend(const char* codec, size_t scratch, void (*body)(const AttendArgs&)) {
  return {"x86_amx", codec, x86_float_facts::amx_attends, scratch, kTile + 1, 512, body};
}
constexpr AttendKernel kAttends[] = {
    attend("bf16", kScratch, MOEBIUS_BODY(run<void>)),
    attend("int8_float", kScratchOfCodes, MOEBIUS_BODY(run<IntBytes>)),
    attend("fp8", kScratchOfCodes, MOEBIUS_BODY(run<Fp8>)),
};

}  // namespace

extern const AttendTable kX86AmxAttends;
const AttendTable kX86AmxAttends = {kAttends, sizeof kAttends / sizeof kAttends[0]};

}  // namespace moebius
