// SPDX-License-Identifier: Apache-2.0
// Integer weights and int8 rows by SDOT with outputs in the lanes of a vector. Layouts: arm_lanes.h.
#include "kernels/arm_lanes.h"

#ifdef __aarch64__
#include <arm_neon.h>

#include <utility>

#include "base/numeric.h"
#include "kernels/arm_packing.h"
#endif

namespace moebius {
namespace {

using namespace lanes_family;

#ifdef __aarch64__
#define MOEBIUS_UNROLL _Pragma("GCC unroll 16")

// ---------------------------------------------------------------------------------------------- the loop nest

// As volatile asm: in this order and in registers of the compiler's choice.
template <size_t kOffset>
[[gnu::always_inline]] inline uint8x16_t load(const uint8_t* p) {
  uint8x16_t v;
  asm volatile("ldr %q0, [%1, %2]" : "=w"(v) : "r"(p), "i"(kOffset));
  return v;
}
template <int lane>
[[gnu::always_inline]] inline void sdot(int32x4_t& acc, uint8x16_t w, uint8x16_t x) {
  asm volatile("sdot %0.4s, %1.16b, %2.4b[%3]" : "+w"(acc) : "w"(w), "w"(x), "i"(lane));
}
constexpr int padded(int rows) { return rows <= 2 ? rows : rows <= 4 ? 4 : 8; }

// The bits of 1.5 * 2^23, whose last place is 1, and of 1.5 * 2^19, whose last place is 1 / 16.
constexpr int32_t kOnes = 0x4B400000, kSixteenths = 0x49400000;

template <bool kBytes>
struct Gemm {
  const GemmArgs& a;
  const Shape s;
  const PanelLayout l;

  explicit Gemm(const GemmArgs& args)
      : a(args), s(shape_of(*args.w->problem)), l(panel_layout(s, args.M)) {}

  const uint8_t* panel(size_t n) const { return a.w->data + n / kNr * s.stride(); }

  // acc[r][0]: outputs 0 to 3 (int4: of lower nibbles), acc[r][1]: outputs 4 to 7 (int4: of bytes).
  template <int R>
  using Sums = int32x4_t[R][2];

  // Four inputs, those of `quad` of the four quads whose codes are at w and rows at x.
  template <int R, int quad, int... r>
  [[gnu::always_inline]] static void four(const uint8_t* x, const uint8_t* w, uint8x16_t mask,
                                          Sums<R>& acc, std::integer_sequence<int, r...>) {
    constexpr int kFirst = quad * padded(R);  // of the words of rows
    uint8x16_t v[2], in[padded(R) / 4 + 1];
    v[1] = load<(kBytes ? 32 * quad + 16 : 16 * quad)>(w);
    if constexpr (kBytes) {
      v[0] = load<32 * quad>(w);
    } else {
      asm volatile("and %0.16b, %1.16b, %2.16b" : "=w"(v[0]) : "w"(v[1]), "w"(mask));
    }
    const auto row = [&]<int i>() __attribute__((always_inline)) {
      constexpr int kWord = kFirst + i;
      if constexpr (i % 4 == 0) in[i / 4] = load<kWord / 4 * 16>(x);
      sdot<kWord % 4>(acc[i][1], v[1], in[i / 4]);
      sdot<kWord % 4>(acc[i][0], v[0], in[i / 4]);
    };
    (row.template operator()<r>(), ...);
  }
  template <int R>
  [[gnu::always_inline]] static void sixteen(const uint8_t* x, const uint8_t* w, uint8x16_t mask,
                                             Sums<R>& acc) {
    constexpr std::make_integer_sequence<int, R> kRows{};
    four<R, 0>(x, w, mask, acc, kRows);
    four<R, 1>(x, w, mask, acc, kRows);
    four<R, 2>(x, w, mask, acc, kRows);
    four<R, 3>(x, w, mask, acc, kRows);
  }

  template <int R>
  [[gnu::always_inline]] static void begin(const int32_t* sums, bool by_start, Sums<R>& acc) {
    MOEBIUS_UNROLL for (int r = 0; r < R; ++r) {
      if constexpr (kBytes) {
        asm volatile("movi %0.4s, #0" : "=w"(acc[r][0]));
        asm volatile("movi %0.4s, #0" : "=w"(acc[r][1]));
      } else {
        const int32x4_t minus = vld1q_dup_s32(sums + r);
        acc[r][0] = by_start ? vaddq_s32(minus, vdupq_n_s32(kOnes)) : minus;
        acc[r][1] = by_start ? vaddq_s32(acc[r][0], vdupq_n_s32(kSixteenths)) : minus;
      }
    }
  }
  // The sums of a group as floats.
  [[gnu::always_inline]] static void floats(const int32x4_t (&acc)[2], bool by_start,
                                            float32x4_t (&d)[2]) {
    if constexpr (kBytes) {
      d[0] = vcvtq_f32_s32(acc[0]), d[1] = vcvtq_f32_s32(acc[1]);
    } else {
      const int32x4_t upper = vsubq_s32(acc[1], acc[0]);
      if (by_start) {
        d[0] = vsubq_f32(vreinterpretq_f32_s32(acc[0]), vreinterpretq_f32_s32(vdupq_n_s32(kOnes)));
        d[1] = vsubq_f32(vreinterpretq_f32_s32(upper),
                         vreinterpretq_f32_s32(vdupq_n_s32(kSixteenths)));
      } else {
        d[0] = vcvtq_f32_s32(acc[0]), d[1] = vcvtq_n_f32_s32(upper, 4);
      }
    }
  }
  [[gnu::always_inline]] void scales(const uint8_t* p, float32x4_t (&c)[2]) const {
    if (s.bf16) {
      const uint16x8_t h = vreinterpretq_u16_u8(vld1q_u8(p));
      c[0] = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16));
      c[1] = vreinterpretq_f32_u32(vshll_high_n_u16(h, 16));
    } else {
      c[0] = vreinterpretq_f32_u8(vld1q_u8(p)), c[1] = vreinterpretq_f32_u8(vld1q_u8(p + 16));
    }
  }

  // R rows from m on against S panels that are `apart` panels away.
  template <int R, int S, bool kStart>
  [[gnu::noinline]] void tile(size_t m, size_t n, size_t apart) const {
    const uint8x16_t mask = vdupq_n_u8(15);
    const size_t stream = apart * s.stride();
    const uint8_t *x = a.panel + m * s.K_padded, *w = panel(n);
    const int32_t* sums = reinterpret_cast<const int32_t*>(a.panel + l.sums) + m * s.groups;
    float32x4_t f[S][R][2];
    MOEBIUS_UNROLL for (int u = 0; u < S; ++u) MOEBIUS_UNROLL for (int r = 0; r < R; ++r)
        f[u][r][0] = f[u][r][1] = vdupq_n_f32(0);
    for (size_t g = 0; g < s.groups; ++g, w += s.scale_bytes, sums += padded(R)) {
      Sums<R> acc[S];
      MOEBIUS_UNROLL for (int u = 0; u < S; ++u) begin<R>(sums, kStart, acc[u]);
      for (size_t k = 0; k < s.group_k;
           k += kKr, x += kKr * padded(R), w += kKr * kNr / (kBytes ? 1 : 2))
        MOEBIUS_UNROLL for (int u = 0; u < S; ++u)
            sixteen<R>(x, w + static_cast<size_t>(u) * stream, mask, acc[u]);
      MOEBIUS_UNROLL for (int u = 0; u < S; ++u) {
        float32x4_t c[2];
        scales(w + static_cast<size_t>(u) * stream, c);
        MOEBIUS_UNROLL for (int r = 0; r < R; ++r) {
          float32x4_t d[2];
          floats(acc[u][r], kStart, d);
          f[u][r][0] = vfmaq_f32(f[u][r][0], d[0], c[0]);
          f[u][r][1] = vfmaq_f32(f[u][r][1], d[1], c[1]);
        }
      }
    }
    MOEBIUS_UNROLL for (int u = 0; u < S; ++u)
        put<R>(m, n + static_cast<size_t>(u) * apart * kNr, f[u]);
  }
  template <int R>
  void put(size_t m, size_t n, const float32x4_t (&f)[R][2]) const {
    const auto* scale = reinterpret_cast<const float*>(a.panel + l.scales) + m;
    float* y = a.y + m * a.ldy + (n - a.n0);
    const size_t count = a.n1 - n < kNr ? a.n1 - n : kNr;
    MOEBIUS_UNROLL for (int r = 0; r < R; ++r, y += a.ldy) {
      const float32x4_t lo = vmulq_n_f32(f[r][0], scale[r]), hi = vmulq_n_f32(f[r][1], scale[r]);
      if (count == kNr) {
        vst1q_f32(y, lo);
        vst1q_f32(y + 4, hi);
      } else {
        float tmp[kNr];
        vst1q_f32(tmp, lo);
        vst1q_f32(tmp + 4, hi);
        __builtin_memcpy(y, tmp, 4 * count);
      }
    }
  }

  // S streams through the block, each a share of its panels; what is left over goes one by one.
  template <int R, int S, bool kStart>
  void streams() const {
    const size_t panels = (a.n1 - a.n0 + kNr - 1) / kNr, each = panels / S;
    for (size_t i = 0; i < each; ++i) tile<R, S, kStart>(0, a.n0 + i * kNr, each);
    for (size_t i = each * S; i < panels; ++i) tile<R, 1, kStart>(0, a.n0 + i * kNr, 0);
  }
  template <int R, bool kStart>
  void few() const {
    if (memory_streams() > 1) return streams<R, 2, kStart>();
    streams<R, 1, kStart>();
  }
  template <bool kStart>
  void run() const {
    if (a.M == 1) return few<1, kStart>();
    if (a.M == 2) return few<2, kStart>();
    for (size_t n = a.n0; n < a.n1; n += kNr)
      for (size_t m = 0; m < a.M; m += kTile) switch (a.M - m) {
          case 1:
            tile<1, 1, kStart>(m, n, 0);
            break;
          case 2:
            tile<2, 1, kStart>(m, n, 0);
            break;
          case 3:
            tile<3, 1, kStart>(m, n, 0);
            break;
          case 4:
            tile<4, 1, kStart>(m, n, 0);
            break;
          case 5:
            tile<5, 1, kStart>(m, n, 0);
            break;
          case 6:
            tile<6, 1, kStart>(m, n, 0);
            break;
          case 7:
            tile<7, 1, kStart>(m, n, 0);
            break;
          default:
            tile<8, 1, kStart>(m, n, 0);
            break;
        }
  }
};
void gemm_int4(const GemmArgs& args) {
  const Gemm<false> g(args);
  if (g.s.by_start()) {
    g.run<true>();
  } else {
    g.run<false>();
  }
}
void gemm_int8(const GemmArgs& args) { Gemm<true>(args).run<false>(); }

// ---------------------------------------------------------------------------------------------- packing

// 16 inputs of 4 rows, a byte each, quad by quad.
[[gnu::always_inline]] inline void put_quads(const uint8x16_t (&rows)[4], uint8_t* out,
                                             size_t apart) {
  const uint32x4_t a = vreinterpretq_u32_u8(rows[0]), b = vreinterpretq_u32_u8(rows[1]),
                   c = vreinterpretq_u32_u8(rows[2]), d = vreinterpretq_u32_u8(rows[3]);
  const uint32x4_t ac0 = vzip1q_u32(a, c), ac1 = vzip2q_u32(a, c), bd0 = vzip1q_u32(b, d),
                   bd1 = vzip2q_u32(b, d);
  vst1q_u8(out, vreinterpretq_u8_u32(vzip1q_u32(ac0, bd0)));
  vst1q_u8(out + apart, vreinterpretq_u8_u32(vzip2q_u32(ac0, bd0)));
  vst1q_u8(out + 2 * apart, vreinterpretq_u8_u32(vzip1q_u32(ac1, bd1)));
  vst1q_u8(out + 3 * apart, vreinterpretq_u8_u32(vzip2q_u32(ac1, bd1)));
}
// 16 inputs of 8 rows.
[[gnu::always_inline]] inline void put_bytes(const uint8x16_t (&rows)[8], uint8_t* out) {
  put_quads({rows[0], rows[1], rows[2], rows[3]}, out, 32);
  put_quads({rows[4], rows[5], rows[6], rows[7]}, out + 16, 32);
}
// The same of 4-bit codes, value + 8.
[[gnu::always_inline]] inline void put_nibbles(const uint8x16_t (&rows)[8], uint8_t* out) {
  uint8x16_t both[4];
  MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) both[j] =
      vsliq_n_u8(rows[j], veorq_u8(rows[j + 4], vdupq_n_u8(8)), 4);
  put_quads(both, out, 16);
}

struct Packer {
  const PackArgs& a;
  const QuantMatrix& w;
  const Shape s;
  explicit Packer(const PackArgs& args) : a(args), w(*args.w), s(shape_of(*args.problem)) {}

  // 16 inputs of row r from k on, a byte each: values, or 4-bit values + 8; zeros past N and K.
  uint8x16_t codes(size_t r, size_t k) const {
    const size_t end = k + kKr < w.K ? k + kKr : w.K;
    uint8_t c[kKr];
    __builtin_memset(c, s.bytes ? 0 : 8, kKr);
    if (r < w.N && k < end) {
      if (s.bytes) {
        unpack_int8(w, r, k, end, a.columns, reinterpret_cast<int8_t*>(c));
      } else {
        uint8_t packed[kKr];
        unpack_nibbles(w, r, k, end, a.columns, packed);
        for (size_t i = 0; i < end - k; ++i) c[i] = (packed[i / 2] >> (4 * (i % 2))) & 15;
      }
    }
    return vld1q_u8(c);
  }
  void any(size_t n, size_t k, uint8_t* out) const {
    uint8x16_t rows[8];
    for (size_t i = 0; i < 8; ++i) rows[i] = codes(n + i, k);
    if (s.bytes) {
      put_bytes(rows, out);
    } else {
      put_nibbles(rows, out);
    }
  }
  // 32 inputs of 8 whole rows whose 4-bit codes are as stored.
  void stored_nibbles(size_t n, size_t k, uint8_t* out) const {
    uint8x16_t first[8], second[8];
    const uint8_t* from = w.codes + n * w.row_bytes + k / 2;
    MOEBIUS_UNROLL for (int i = 0; i < 8; ++i, from += w.row_bytes) {
      const uint8x16_t v = vld1q_u8(from);
      const uint8x16_t even = vandq_u8(v, vdupq_n_u8(15)), odd = vshrq_n_u8(v, 4);
      first[i] = vzip1q_u8(even, odd), second[i] = vzip2q_u8(even, odd);
    }
    put_nibbles(first, out);
    put_nibbles(second, out + 64);
  }
  // 16 inputs of 8 whole rows, a byte each.
  void small_integers(size_t n, size_t k, uint8_t* out) const {
    uint8x16_t rows[8];
    const uint8_t* from = w.codes + n * w.row_bytes + k;
    MOEBIUS_UNROLL for (int i = 0; i < 8; ++i, from += w.row_bytes) rows[i] =
        vaddq_u8(vld1q_u8(from), vdupq_n_u8(8));
    put_nibbles(rows, out);
  }
  void stored_bytes(size_t n, size_t k, uint8_t* out) const {
    uint8x16_t rows[8];
    const uint8_t* from = w.codes + n * w.row_bytes + k;
    const uint8x16_t flip = vdupq_n_u8(w.code == CodeType::kInt8Offset ? 0x80 : 0);
    MOEBIUS_UNROLL for (int i = 0; i < 8; ++i, from += w.row_bytes) rows[i] =
        veorq_u8(vld1q_u8(from), flip);
    put_bytes(rows, out);
  }
  void scales(size_t n, size_t g, uint8_t* out) const {
    __builtin_memset(out, 0, s.scale_bytes);
    for (size_t i = 0; i < kNr && n + i < w.N; ++i) {
      const size_t at = (n + i + w.n_phase) / (w.block_n == 0 ? 1 : w.block_n) * w.scale_stride + g;
      if (s.bf16) {
        __builtin_memcpy(out + 2 * i, w.scales + 2 * at, 2);
      } else {
        float scale = 1.0f;
        if (w.scale_type != ScaleType::kNone)
          decode_scales(w.scale_type, w.scales + scale_size(w.scale_type) * at, 1, &scale);
        __builtin_memcpy(out + 4 * i, &scale, 4);
      }
    }
  }
  void panel(size_t n, uint8_t* out) const {
    const bool straight = n + kNr <= w.N && a.columns == nullptr;
    const bool nibbles = straight && w.code == CodeType::kInt4Offset && !s.bytes;
    const bool bytes = straight && w.code != CodeType::kInt4Offset && s.bytes;
    const bool small = straight && w.code == CodeType::kInt8 && !s.bytes;
    uint8_t* const begin = out;
    for (size_t g = 0; g < s.groups; ++g) {
      size_t k = g * s.group_k;
      const size_t end = k + s.group_k, last = end < w.K ? end : w.K;
      for (; nibbles && k % 2 == 0 && k + 32 <= last; k += 32, out += 128)
        stored_nibbles(n, k, out);
      for (; small && k + kKr <= last; k += kKr, out += 64) small_integers(n, k, out);
      for (; bytes && k + kKr <= last; k += kKr, out += 128) stored_bytes(n, k, out);
      for (; k < end; k += kKr, out += s.bytes ? 128 : 64) any(n, k, out);
      scales(n, g, out);
      out += s.scale_bytes;
    }
    __builtin_memset(out, 0, static_cast<size_t>(begin + s.stride() - out));
  }
};
void pack(const PackArgs& a) {
  const Packer packer(a);
  for (size_t n = a.n0; n < a.n1; n += kNr) {
    uint8_t* out = a.packed + (a.row0 + n) / kNr * packer.s.stride();
    if (arm_packing::PermutedRows::takes(a, n)) {
      const arm_packing::PermutedRows rows(a, n);
      Packer(rows.args()).panel(0, out);
    } else {
      packer.panel(n, out);
    }
  }
}

// ---------------------------------------------------------------------------------------------- panels

void put_row(const PanelArgs& a, const Shape& s, const int8_t* codes, size_t step, uint8_t* to,
             int32_t* sums) {
  const size_t K = a.problem->K;
  const int32_t* columns = a.w->columns;
  for (size_t g = 0; g < s.groups; ++g, sums += step) {
    int32_t sum = 0;
    for (size_t k = g * s.group_k; k < (g + 1) * s.group_k; k += 4, to += 4 * step) {
      int8_t four[4] = {};
      if (columns == nullptr && k + 4 <= K) {
        __builtin_memcpy(four, codes + k, 4);
      } else {
        for (size_t i = 0; i < 4 && k + i < K; ++i)
          four[i] = codes[columns != nullptr ? static_cast<size_t>(columns[k + i]) : k + i];
      }
      sum += four[0] + four[1] + four[2] + four[3];
      __builtin_memcpy(to, four, 4);
    }
    if (!s.bytes) *sums = -8 * sum;
  }
}
void make_panel(const PanelArgs& a) {
  const Shape s = shape_of(*a.problem);
  const PanelLayout l = panel_layout(s, a.M);
  const PreparedLayout row = prepared_layout(*a.problem);
  __builtin_memset(a.panel, 0, l.bytes);
  for (size_t m = 0; m < a.M; ++m) {
    const uint8_t* from =
        a.rows + (a.ids != nullptr ? static_cast<size_t>(a.ids[m]) : m) * row.row_bytes;
    const size_t tile = m / kTile * kTile,
                 step = padded_rows(a.M - tile < kTile ? a.M - tile : kTile);
    auto* sums = reinterpret_cast<int32_t*>(a.panel + l.sums) + tile * s.groups + (m - tile);
    put_row(a, s, reinterpret_cast<const int8_t*>(from + row.codes), step,
            a.panel + tile * s.K_padded + 4 * (m - tile), sums);
    __builtin_memcpy(a.panel + l.scales + 4 * m, from, 4);
  }
}
#define MOEBIUS_BODY(f) f
#else
#define MOEBIUS_BODY(f) nullptr
#endif  // __aarch64__

constexpr Kernel kernel(const char* codec, const char* (*fits)(const Problem&),
                        void (*multiply)(const GemmArgs&)) {
  return {"arm_dotprod",
          codec,
          Arch::kAarch64,
          kNeon | kDotprod,
          kNr,
          fits,
          numerics,
          packed_bytes,
          MOEBIUS_BODY(pack),
          prepared_row_bytes,
          MOEBIUS_BODY(prepare_rows_canonical),
          panel_bytes,
          MOEBIUS_BODY(make_panel),
          scratch_bytes,
          multiply,
          nullptr,
          48};
}
constexpr Kernel kKernels[] = {
    kernel("int4_lanes", supports_int4, MOEBIUS_BODY(gemm_int4)),
    kernel("int8_lanes", supports_int8, MOEBIUS_BODY(gemm_int8)),
};

}  // namespace

extern const KernelTable kArmDotprodLanesKernels;
const KernelTable kArmDotprodLanesKernels = {kKernels, sizeof kKernels / sizeof kKernels[0]};

}  // namespace moebius
