// SPDX-License-Identifier: Apache-2.0
// Attends to a block of 128 keys and values in one call, for any number of rows, on CPUs with BF16
// (kernels/attend.h). Rows form tiles of up to 12: a tile's scores stay in the 2x2 blocks of
// BFMMLA, two keys of two rows; so does the softmax, which makes bf16 probabilities in the order
// that the product with the values takes, and their products are added to the sums of the rows. Up
// to three tiles meet some panels of keys or values while these are in the first-level cache. 8-bit
// codes become bf16 in scratch, once for all rows. What comes next is asked for all the way.
// docs/kernels.md, "Attention".
#include "kernels/arm/arm_bf16.h"
#include "kernels/arm/arm_bf16_gemm.h"
#include "kernels/arm/arm_bf16_tiles.h"
#include "kernels/arm/arm_exp_coarse.h"
#include "kernels/attend.h"

namespace moebius {
namespace {

using namespace bf16_family;

constexpr size_t kKeys = 128, kMostDim = 256;
// Rows of a tile; tiles that are computed together.
constexpr size_t kTileRows = 2 * kMostPairs, kTogether = 3;
// Keys, or features of values, that are decoded together.
constexpr size_t kChunk = 4 * kNr;
// Scratch: for each tile scores [pair][64][2x2] and probabilities as a panel of rows; then keys and
// values of codes.
constexpr size_t kScores = 4 * kTileRows * kKeys, kShares = 2 * kTileRows * kKeys;
constexpr size_t kScratch = kTogether * (kScores + kShares);
constexpr size_t kScales = 4 * 2 * kKeys;  // scales of keys, then of values, twice each
constexpr size_t kScratchOfCodes = kScratch + 2 * kScales + 2 * 2 * kKeys * kMostDim;

// Checks for whole steps of inputs and whole panels of outputs.
bool attends(const Problem& keys, const Problem& values) {
  for (const Problem* p : {&keys, &values})
    if (p->x_type != XType::kBf16 || p->act.code != ActCode::kAsIs || p->zero_points ||
        p->K % kKr != 0 || p->N % kNr != 0)
      return false;
  const bool fits = keys.code == CodeType::kBf16 || (keys.K <= kMostDim && values.N <= kMostDim);
  return fits && keys.code == values.code && keys.N == kKeys && values.K == kKeys;
}

#ifdef MOEBIUS_KERNEL_BODIES

constexpr size_t kPairFloats = 2 * kKeys;  // scores of a pair of rows

// Stores two vectors with one instruction: two instructions take four times as long.
template <class Vector>
[[gnu::always_inline]] inline void store_two(void* p, Vector a, Vector b) {
  asm volatile("stp %q0, %q1, [%2]" : : "w"(a), "w"(b), "r"(p) : "memory");
}
// Returns a vector with r[0] in its lower and r[1] in its upper half.
[[gnu::always_inline]] inline float32x4_t both_rows(const float* r) {
  return vcombine_f32(vdup_n_f32(r[0]), vdup_n_f32(r[1]));
}

// Holds the softmax state of two rows; the second may be missing.
struct Pair {
  size_t rows;
  float best[2], total[2], keep[2];
  float raised[2];           // factor of the row's raised probabilities; only with e4m3
  alignas(16) float top[4];  // the largest scores so far
};
struct TileOfRows {
  size_t first;  // first pair
  size_t size;   // number of pairs
  const uint8_t* q;
  float *scores, *out;
  uint8_t* shares;
  bool kept;  // no sum of its rows has to shrink
  Pair pairs[kMostPairs];
};

// Codec: decodes 8-bit codes; Operands: keys and values are bf16 already.
template <class Codec>
struct Attend {
  static constexpr bool kCodes = !std::is_same_v<Codec, Operands>,
                        kRaised = std::is_same_v<Codec, Fp8>;
  const AttendArgs& a;
  const size_t dk, dv;
  // Scales of two keys each, for both rows of a pair; only with codes.
  const float *key_scales, *value_scales;
  const uint8_t* next;       // memory of the next block, to prefetch
  size_t lines_of_pair = 0;  // cache lines to prefetch during a pair's softmax

  explicit Attend(const AttendArgs& args)
      : a(args), dk(args.keys->K), dv(args.values->N), next(args.next) {
    auto* scales = reinterpret_cast<float*>(args.scratch + kScratch);
    key_scales = scales;
    value_scales = scales + 2 * kKeys;
    if constexpr (kCodes)
      for (const float* from : {args.key_scales, args.value_scales})
        for (size_t k = 0; k < kKeys; k += 2, scales += 4)
          vst1q_f32(scales, vcombine_f32(vld1_f32(from + k), vld1_f32(from + k)));
  }

  // --- operands ---

  // Decodes outputs [n0, n1) of a matrix of codes to bf16. Keys and values are written code by
  // code, so no group of e4m3 is known to be plain.
  static void expand(const uint8_t* from, const Problem& p, size_t n0, size_t n1, uint8_t* to) {
    const Codec codec{};
    const size_t stride = shape_of(p).stride(), steps = p.K / kKr;
    for (size_t n = n0; n < n1; n += kNr) {
      const uint8_t* codes = from + n / kNr * stride;
      for (size_t i = 0; i < steps; ++i, codes += Codec::kStep, to += 256)
        MOEBIUS_UNROLL for (size_t j = 0; j < 4; j += 2) {
          uint8x16_t b[2][4];
          MOEBIUS_UNROLL for (size_t h = 0; h < 2; ++h)
              codec.decode(codes + Codec::kPair * (j + h), vdupq_n_s8(0), b[h]);
          MOEBIUS_UNROLL for (size_t q = 0; q < 4; ++q)
              store_two(to + 64 * q + 16 * j, b[0][q], b[1][q]);
        }
    }
  }

  // --- scores ---

  // Computes scores of keys [n, end) of the panels at w, S panels at a time, as long as S are left.
  template <int P, int S, int kLines>
  [[gnu::noinline]] size_t score(TileOfRows& t, const uint8_t* w, size_t n, size_t end) {
    bf16_tiles::Ahead ahead = {next, 64 * kLines * S};
    const size_t steps = dk / kKr, bytes = 2 * kNr * dk;
    float* to = t.scores + 2 * n;
    for (; n + (S - 1) * kNr < end; n += S * kNr, w += S * bytes, to += 16 * S) {
      const uint8_t *x = t.q, *panel[S];
      MOEBIUS_UNROLL for (size_t u = 0; u < S; ++u) panel[u] = w + u * bytes;
      asm volatile("" : : : "memory");  // the compiler must store operands before it loads them
      float32x4_t acc[S][P][4];
      MOEBIUS_UNROLL for (int u = 0; u < S; ++u) set_zero<P>(acc[u]);
      bf16_tiles::steps<P, S, kLines * S>(x, panel, steps, ahead, acc);
      float* at = to;
      MOEBIUS_UNROLL for (size_t i = 0; i < P; ++i, at += kPairFloats) {
        float32x4_t top = vld1q_f32(t.pairs[i].top);
        MOEBIUS_UNROLL for (size_t u = 0; u < S; ++u) {
          float32x4_t(&s)[4] = acc[u][i];
          if constexpr (kCodes) {
            const float32x4_t raised = both_rows(t.pairs[i].raised);
            MOEBIUS_UNROLL for (size_t j = 0; j < 4; ++j) {
              if constexpr (kRaised) s[j] = vmulq_f32(s[j], raised);
              s[j] = vmulq_f32(s[j], vld1q_f32(key_scales + 2 * n + 16 * u + 4 * j));
            }
          }
          store_two(at + 16 * u, s[0], s[1]);
          store_two(at + 16 * u + 8, s[2], s[3]);
          MOEBIUS_UNROLL for (size_t j = 0; j < 4; ++j) top = vmaxq_f32(top, s[j]);
        }
        vst1q_f32(t.pairs[i].top, top);
      }
    }
    next = ahead.at;
    return n;
  }

  // Masks the keys that a row does not see.
  void mask(size_t pair, float* s, float* top) const {
    uint32_t first[4] = {}, span[4] = {};
    for (size_t r = 0; r < 2 && 2 * pair + r < a.M; ++r) {
      const uint8_t* seen = a.seen + 2 * (2 * pair + r);
      first[2 * r] = first[2 * r + 1] = seen[0];
      span[2 * r] = span[2 * r + 1] = seen[1] > seen[0] ? seen[1] - seen[0] : 0u;
    }
    static constexpr uint32_t kKey[4] = {0, 1, 0, 1};
    uint32x4_t key = vsubq_u32(vld1q_u32(kKey), vld1q_u32(first));
    const uint32x4_t spans = vld1q_u32(span);
    const float32x4_t none = vdupq_n_f32(f32_from_bits(0xFF800000u));
    float32x4_t most = none;
    for (size_t v = 0; v < kKeys / 2; ++v, s += 4, key = vaddq_u32(key, vdupq_n_u32(2))) {
      const float32x4_t seen = vbslq_f32(vcltq_u32(key, spans), vld1q_f32(s), none);
      vst1q_f32(s, seen);
      most = vmaxq_f32(most, seen);
    }
    vst1q_f32(top, most);
  }

  // --- softmax ---

  // Writes the probabilities of 8 keys of both rows to the even and the odd quarter.
  [[gnu::always_inline]] static void put_shares(const Lanes* t, uint8x16_t order, uint8_t* even,
                                                uint8_t* odd) {
    uint16x8_t low, high;
    asm("bfcvtn %0.4h, %1.4s" : "=w"(low) : "w"(t[0]));
    asm("bfcvtn2 %0.8h, %1.4s" : "+w"(low) : "w"(t[1]));
    asm("bfcvtn %0.4h, %1.4s" : "=w"(high) : "w"(t[2]));
    asm("bfcvtn2 %0.8h, %1.4s" : "+w"(high) : "w"(t[3]));
    vst1q_u8(even, vqtbl1q_u8(vreinterpretq_u8_u16(vuzp1q_u16(low, high)), order));
    vst1q_u8(odd, vqtbl1q_u8(vreinterpretq_u8_u16(vuzp2q_u16(low, high)), order));
  }
  // Writes the probabilities of 16 keys, with `stride` bytes between quarters.
  [[gnu::always_inline]] static void put_shares(const Lanes (&t)[8], uint8_t* to, size_t stride) {
    static constexpr uint8_t kOrder[16] = {0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15};
    const uint8x16_t order = vld1q_u8(kOrder);
    put_shares(t, order, to, to + 2 * stride);
    put_shares(t + 4, order, to + stride, to + 3 * stride);
  }
  // Writes probabilities for e4m3 values, raised as far as the largest one of a row allows
  // (arm_bf16_rows.h).
  static void put_raised(const float* s, uint32x4_t most, Pair& p, uint8_t* to, size_t stride) {
    float by[2];
    for (int r = 0; r < 2; ++r) {
      const uint32_t x = most[2 * r], y = most[2 * r + 1];
      const int larger = headroom(x > y ? x : y);
      by[r] = f32_from_bits(static_cast<uint32_t>(127 + larger) << 23);
      p.raised[r] = f32_from_bits(static_cast<uint32_t>(127 + kRaise - larger) << 23);
    }
    const float32x4_t larger = both_rows(by);
    for (size_t k = 0; k < kKeys; k += kKr, s += 2 * kKr, to += 4 * stride) {
      Lanes t[8];
      MOEBIUS_EACH_OF(8) t[j] = vmulq_f32(vld1q_f32(s + 4 * j), larger);
      put_shares(t, to, stride);
    }
  }

  // Turns the scores s of a pair into probabilities, with `stride` bytes between quarters.
  void softmax(float* s, Pair& p, uint8_t* to, size_t stride) {
    const float lowest = f32_from_bits(0xFF800000u);
    float most[2], top[2];
    const float32x4_t largest = vld1q_f32(p.top);
    vst1_f32(most, vget_low_f32(vpmaxq_f32(largest, largest)));
    bool odd[2];  // the row sees nothing, or has a NaN
    for (int r = 0; r < 2; ++r) {
      const float here = most[r] * a.scale;
      top[r] = here > p.best[r] ? here : p.best[r];
      odd[r] = most[r] != most[r] || top[r] == lowest;
      p.keep[r] = odd[r] || p.best[r] == top[r] ? 1.0f : exp_f32(p.best[r] - top[r]);
    }
    const CoarseConstants c(Lanes{} + a.scale, both_rows(top));
    Lanes sum[8] = {};
    const size_t lines = lines_of_pair / (kKeys / kKr);
    const uint8_t* ask = next;
    uint32x4_t large = vdupq_n_u32(0);
    float* from = s;
    uint8_t* at = to;
    for (size_t k = 0; k < kKeys; k += kKr, from += 2 * kKr, at += 4 * stride) {
      Lanes t[8];
      for (size_t i = 0; i < lines; ++i, ask += 64) bf16_tiles::prefetch<0>(ask);
      exp_coarse_in_order<8>(from, c, t);
      MOEBIUS_EACH_OF(8) sum[j] = add_in_order(sum[j], t[j]);
      if constexpr (kCodes)
        MOEBIUS_EACH_OF(8) t[j] = vmulq_f32(t[j], vld1q_f32(value_scales + 2 * k + 4 * j));
      if constexpr (kRaised) {
        MOEBIUS_EACH_OF(8) {
          vst1q_f32(from + 4 * j, t[j]);
          large = vmaxq_u32(large, vreinterpretq_u32_f32(vabsq_f32(t[j])));
        }
      } else {
        put_shares(t, at, stride);
      }
    }
    next = ask;
    // Adds lanes 4 apart first, then 8, 2, 1.
    const Lanes low = (sum[0] + sum[2]) + (sum[4] + sum[6]),
                high = (sum[1] + sum[3]) + (sum[5] + sum[7]), both = low + high;
    for (int r = 0; r < 2; ++r) {
      if (__builtin_expect(odd[r], 0)) {
        if (most[r] != most[r]) p.total[r] = most[r];
        large[2 * r] = large[2 * r + 1] = 0;
        continue;
      }
      p.total[r] = p.total[r] * p.keep[r] + (both[2 * r] + both[2 * r + 1]);
      p.best[r] = top[r];
    }
    if constexpr (kRaised) put_raised(s, large, p, to, stride);
    for (size_t r = 0; r < 2; ++r)
      for (size_t q = 0; odd[r] && q < kKeys / 4; ++q)
        __builtin_memset(to + q * stride + 8 * r, 0, 8);
  }

  void softmax_of(TileOfRows& t) {
    t.kept = true;
    for (size_t i = 0; i < t.size; ++i) {
      Pair& p = t.pairs[i];
      const size_t row = 2 * (t.first + i);
      float* s = t.scores + i * kPairFloats;
      if (a.seen != nullptr) mask(t.first + i, s, p.top);
      softmax(s, p, t.shares + 16 * i, 16 * t.size);
      for (size_t r = 0; r < p.rows; ++r) {
        a.best[row + r] = p.best[r];
        a.total[row + r] = p.total[r];
        t.kept = t.kept && p.keep[r] == 1.0f;
      }
    }
  }

  // --- values ---

  // Adds +0: a sum under a scale of 1 must not be a negative zero. (A zero kept in a register would
  // be one register too many.)
  [[gnu::always_inline]] static float32x4_t plus_zero(float32x4_t v) {
    float32x4_t zero;
    asm volatile("movi %0.4s, #0" : "=w"(zero));
    return vaddq_f32(v, zero);
  }
  // Adds the sums of 8 outputs to the results.
  template <int P, bool kKept>
  [[gnu::always_inline]] void add(const float32x4_t (&acc)[P][4], const Pair* pairs,
                                  float* out) const {
    MOEBIUS_UNROLL for (size_t i = 0; i < 2 * P; ++i, out += dv) {
      const Pair& p = pairs[i / 2];
      if (i == 2 * P - 1 && p.rows < 2) return;
      float32x4_t sums[2];
      row_of(acc[i / 2], i % 2, sums);
      MOEBIUS_UNROLL for (int h = 0; h < 2; ++h) {
        if constexpr (kCodes) sums[h] = plus_zero(sums[h]);
        if constexpr (kRaised) sums[h] = vmulq_n_f32(sums[h], p.raised[i % 2]);
        float32x4_t before = vld1q_f32(out + 4 * h);
        if constexpr (!kKept) before = vmulq_n_f32(before, p.keep[i % 2]);
        sums[h] = vaddq_f32(before, sums[h]);
      }
      store_two(out, sums[0], sums[1]);
    }
  }
  // Computes features [n, end) of the panels at w.
  template <int P, int S, int kLines, bool kKept>
  [[gnu::noinline]] size_t weigh(const TileOfRows& t, const uint8_t* w, size_t n, size_t end) {
    bf16_tiles::Ahead ahead = {next, 64 * kLines * S};
    constexpr size_t kBytes = 2 * kNr * kKeys;
    for (; n + (S - 1) * kNr < end; n += S * kNr, w += S * kBytes) {
      const uint8_t *x = t.shares, *panel[S];
      MOEBIUS_UNROLL for (size_t u = 0; u < S; ++u) panel[u] = w + u * kBytes;
      // The compiler must store probabilities before it loads them.
      asm volatile("" : : : "memory");
      float32x4_t acc[S][P][4];
      MOEBIUS_UNROLL for (int u = 0; u < S; ++u) set_zero<P>(acc[u]);
      bf16_tiles::steps<P, S, kLines * S>(x, panel, kKeys / kKr, ahead, acc);
      MOEBIUS_UNROLL for (size_t u = 0; u < S; ++u)
          add<P, kKept>(acc[u], t.pairs, t.out + n + u * kNr);
    }
    next = ahead.at;
    return n;
  }

  // --- tiles ---

  // Returns how many panels are multiplied together: one pair has four sums per panel and two have
  // eight, too few for the latency of BFMMLA.
  static constexpr int panels_of(int pairs) { return pairs <= 2 ? 4 / pairs : 1; }

  template <int P, int kLines>
  void score_all(TileOfRows& t, const uint8_t* w, size_t n, size_t end) {
    const size_t begin = n;
    if constexpr (panels_of(P) != 1) n = score<P, panels_of(P), kLines>(t, w, n, end);
    if (n < end) score<P, 1, kLines>(t, w + (n - begin) * 2 * dk, n, end);
  }
  template <int P, int kLines, bool kKept>
  void weigh_all(const TileOfRows& t, const uint8_t* w, size_t n, size_t end) {
    const size_t begin = n;
    if constexpr (panels_of(P) != 1) n = weigh<P, panels_of(P), kLines, kKept>(t, w, n, end);
    if (n < end) weigh<P, 1, kLines, kKept>(t, w + (n - begin) * 2 * kKeys, n, end);
  }

  // Describes which tiles multiply a matrix, and how much of it at a time. The first tiles decode
  // codes to bf16; a matrix that is used once needs scratch for one chunk only.
  struct Meeting {
    size_t chunk;
    bool first, once;
  };
  // Calls f(panels of bf16, outputs [n, end)) for a matrix of codes or of bf16, chunk by chunk.
  template <class F>
  static void in_chunks(const Meeting& m, const uint8_t* from, const Problem& p, size_t outputs,
                        uint8_t* scratch, const F& f) {
    const size_t bytes = 2 * p.K;
    for (size_t n = 0; n < outputs; n += m.chunk) {
      const size_t end = n + m.chunk < outputs ? n + m.chunk : outputs;
      const uint8_t* w = from + n * bytes;
      if constexpr (kCodes) {
        uint8_t* to = scratch + (m.once ? 0 : n * bytes);
        if (m.first) expand(from, p, n, end, to);
        w = to;
      }
      f(w, n, end);
    }
  }

  // Attends with the rows of some tiles.
  template <int kLines>
  void run_tiles(TileOfRows* tiles, size_t count, bool first, bool last) {
    const Meeting m{kCodes || count > 1 ? kChunk : kKeys + dv, first, first && last};
    uint8_t* const keys = a.scratch + kScratch + 2 * kScales;
    uint8_t* const values = keys + 2 * kKeys * dk;
    in_chunks(m, a.k, *a.keys, a.columns, keys, [&](const uint8_t* w, size_t n, size_t end) {
      for (size_t i = 0; i < count; ++i)
        with_pairs(tiles[i].size, [&](auto p) { score_all<p(), kLines>(tiles[i], w, n, end); });
    });
    for (size_t i = 0; i < count; ++i) softmax_of(tiles[i]);
    in_chunks(m, a.v, *a.values, dv, values, [&](const uint8_t* w, size_t n, size_t end) {
      for (size_t i = 0; i < count; ++i)
        with_pairs(tiles[i].size, [&](auto p) {
          if (tiles[i].kept) {
            weigh_all<p(), kLines, true>(tiles[i], w, n, end);
          } else {
            weigh_all<p(), kLines, false>(tiles[i], w, n, end);
          }
        });
    });
  }

  void begin_tile(TileOfRows& t, size_t first, size_t size, size_t place) const {
    t.first = first;
    t.size = size;
    t.q = a.q + 4 * first * dk;
    t.out = a.out + 2 * first * dv;
    t.scores = reinterpret_cast<float*>(a.scratch + place * kScores);
    t.shares = a.scratch + kTogether * kScores + place * kShares;
    const auto* raised = reinterpret_cast<const float*>(a.q + 4 * ((a.M + 1) / 2) * dk);
    for (size_t i = 0; i < size; ++i) {
      Pair& p = t.pairs[i];
      const size_t row = 2 * (first + i);
      p.rows = a.M - row < 2 ? 1 : 2;
      for (size_t r = 0; r < 2; ++r) {
        const size_t m = row + (r < p.rows ? r : 0);
        p.best[r] = a.best[m];
        p.total[r] = a.total[m];
        p.raised[r] = raised[row + r];
      }
      for (float& top : p.top) top = f32_from_bits(0xFF800000u);
    }
  }

  void run() {
    const TileMap map((a.M + 1) / 2, kMostPairs);
    const size_t pairs = (a.M + 1) / 2, lines = kKeys * (dk + dv) * (kCodes ? 1 : 2) / 64;
    TileOfRows tiles[kTogether];
    if (map.tiles == 1) {
      // The softmax of a single pair is too short to prefetch in; with more pairs, it prefetches a
      // quarter of the next block.
      begin_tile(tiles[0], 0, pairs, 0);
      lines_of_pair = pairs == 1 ? 0 : lines / 4 / pairs;
      if (pairs == 1) return run_tiles < kCodes ? 2 : 4 > (tiles, 1, true, true);
      return run_tiles < kCodes ? 2 : 3 > (tiles, 1, true, true);
    }
    lines_of_pair = lines / pairs;
    for (size_t t = 0; t < map.tiles; t += kTogether) {
      const size_t count = map.tiles - t < kTogether ? map.tiles - t : kTogether;
      for (size_t i = 0; i < count; ++i) begin_tile(tiles[i], map.first(t + i), map.size(t + i), i);
      run_tiles<0>(tiles, count, t == 0, t + count == map.tiles);
    }
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
  return {"arm_bf16", codec, attends, scratch, 1, kTileRows * 10, body};
}
constexpr AttendKernel kAttends[] = {
    attend("bf16", kScratch, MOEBIUS_BODY(run<Operands>)),
    attend("int8", kScratchOfCodes, MOEBIUS_BODY(run<IntBytes>)),
    attend("fp8", kScratchOfCodes, MOEBIUS_BODY(run<Fp8>)),
};

}  // namespace

extern const AttendTable kArmBf16Attends;
const AttendTable kArmBf16Attends = {kAttends, sizeof kAttends / sizeof kAttends[0]};

}  // namespace moebius
