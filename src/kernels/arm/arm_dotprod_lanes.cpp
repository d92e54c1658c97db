// SPDX-License-Identifier: Apache-2.0
// Multiplies integer and fp4 weights with int8 and fp4 rows by SDOT, with outputs in the lanes of a
// vector. Layouts: arm_lanes.h.
#include "kernels/arm/arm_lanes.h"
#include "kernels/arm/arm_panel_pack.h"
#include "kernels/arm/arm_scale.h"

#ifdef MOEBIUS_KERNEL_BODIES
#include <arm_neon.h>

#include <utility>
#endif

namespace moebius {
namespace {

using namespace lanes_family;

#ifdef MOEBIUS_KERNEL_BODIES
void pack(const PackArgs& a) {
  arm_packing::pack_by_layout<kLayout>(a, shape_of(*a.problem).sizes());
}

// ---------------------------------------------------------------------------------------------- the loop nest

// Volatile asm keeps the order of these instructions, and the compiler chooses the registers.
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

// The bits of 1.5 * 2^23, whose last place is 1, of 1.5 * 2^21 (1 / 4) and of 1.5 * 2^19 (1 / 16).
constexpr int32_t kOnes = 0x4B400000, kQuarters = 0x4A400000, kSixteenths = 0x49400000;
alignas(16) constexpr int32_t kStartQuarters[4] = {kQuarters, kQuarters, kQuarters, kQuarters};
alignas(16) constexpr int8_t kE2m1Twice[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                               0, -1, -2, -3, -4, -6, -8, -12};
// A function, because clang forbids its loads in the initializer of a member.
[[gnu::always_inline]] inline int8x16_t e2m1_twice() { return vld1q_s8(kE2m1Twice); }

template <Form kForm>
struct Gemm {
  static constexpr bool kBytes = kForm == Form::kInt8, kFp4 = kForm == Form::kFp4;
  const GemmArgs& a;
  const Shape s;
  const PanelLayout l;
  const GlobalScale G;

  explicit Gemm(const GemmArgs& args)
      : a(args),
        s(shape_of(*args.w->problem)),
        l(panel_layout(s, args.M)),
        G(!kFp4 ? GlobalScale{} : result_scale(*args.w)) {}

  const uint8_t* panel(size_t n) const { return a.w->data + n / kNr * s.stride(); }

  // acc[r][0]: outputs 0 to 3 (int4: of lower nibbles), acc[r][1]: outputs 4 to 7 (int4: of bytes).
  template <int R>
  using Sums = int32x4_t[R][2];
  struct Constants {
    const uint8x16_t mask = vdupq_n_u8(15);
    const int8x16_t table = e2m1_twice();
    const uint32x4_t upper = vdupq_n_u32(0xffff0000u);
  };

  // Unpacks the operands of 4 inputs: quad `quad` of the four whose codes are at w.
  template <int quad>
  [[gnu::always_inline]] static void operands(const uint8_t* w, const Constants& c,
                                              uint8x16_t (&v)[2]) {
    v[1] = load<(kBytes ? 32 * quad + 16 : 16 * quad)>(w);
    if constexpr (kBytes) {
      v[0] = load<32 * quad>(w);
    } else {
      asm volatile("and %0.16b, %1.16b, %2.16b" : "=w"(v[0]) : "w"(v[1]), "w"(c.mask));
    }
    if constexpr (kFp4) {
      asm volatile("ushr %0.16b, %0.16b, #4" : "+w"(v[1]));
      asm volatile("tbl %0.16b, {%1.16b}, %0.16b" : "+w"(v[0]) : "w"(c.table));
      asm volatile("tbl %0.16b, {%1.16b}, %0.16b" : "+w"(v[1]) : "w"(c.table));
    }
  }
  template <int R, int quad, int... r>
  [[gnu::always_inline]] static void four(const uint8_t* x, const uint8_t* w, const Constants& c,
                                          Sums<R>& acc, std::integer_sequence<int, r...>) {
    constexpr int kFirst = quad * padded(R);  // index of the first word of rows
    uint8x16_t v[2], in[padded(R) / 4 + 1];
    operands<quad>(w, c, v);
    const auto row = [&]<int i>() __attribute__((always_inline)) {
      constexpr int kWord = kFirst + i;
      if constexpr (i % 4 == 0) in[i / 4] = load<kWord / 4 * 16>(x);
      sdot<kWord % 4>(acc[i][1], v[1], in[i / 4]);
      sdot<kWord % 4>(acc[i][0], v[0], in[i / 4]);
    };
    (row.template operator()<r>(), ...);
  }
  template <int R>
  [[gnu::always_inline]] static void sixteen(const uint8_t* x, const uint8_t* w, const Constants& c,
                                             Sums<R>& acc) {
    constexpr std::make_integer_sequence<int, R> kRows{};
    four<R, 0>(x, w, c, acc, kRows);
    four<R, 1>(x, w, c, acc, kRows);
    four<R, 2>(x, w, c, acc, kRows);
    four<R, 3>(x, w, c, acc, kRows);
  }

  static constexpr size_t kStep = kBytes ? 128 : 64;  // code bytes of 16 inputs

  // Starts the sums of a group. group: the panel's correction for this group of a row.
  [[gnu::always_inline]] static void begin(const int32_t* group, bool by_start,
                                           int32x4_t (&acc)[2]) {
    if constexpr (kBytes) {
      asm volatile("movi %0.4s, #0" : "=w"(acc[0]));
      asm volatile("movi %0.4s, #0" : "=w"(acc[1]));
    } else if constexpr (kFp4) {
      asm volatile("ldr %q0, [%1]" : "=w"(acc[0]) : "r"(kStartQuarters));
      asm volatile("ldr %q0, [%1]" : "=w"(acc[1]) : "r"(kStartQuarters));
    } else {
      const int32x4_t minus = vld1q_dup_s32(group);
      acc[0] = by_start ? vaddq_s32(minus, vdupq_n_s32(kOnes)) : minus;
      acc[1] = by_start ? vaddq_s32(acc[0], vdupq_n_s32(kSixteenths)) : minus;
    }
  }
  static float32x4_t floats_from(int32x4_t sums, int32_t start) {
    return vsubq_f32(vreinterpretq_f32_s32(sums), vreinterpretq_f32_s32(vdupq_n_s32(start)));
  }
  // Converts the sums of a group to floats.
  [[gnu::always_inline]] static void floats(const int32x4_t (&acc)[2], bool by_start,
                                            float32x4_t (&d)[2]) {
    if constexpr (kBytes) {
      d[0] = vcvtq_f32_s32(acc[0]);
      d[1] = vcvtq_f32_s32(acc[1]);
    } else if constexpr (kFp4) {
      d[0] = floats_from(acc[0], kQuarters);
      d[1] = floats_from(acc[1], kQuarters);
    } else {
      const int32x4_t upper = vsubq_s32(acc[1], acc[0]);
      if (by_start) {
        d[0] = floats_from(acc[0], kOnes);
        d[1] = floats_from(upper, kSixteenths);
      } else {
        d[0] = vcvtq_f32_s32(acc[0]);
        d[1] = vcvtq_n_f32_s32(upper, 4);
      }
    }
  }
  [[gnu::always_inline]] void scales(const uint8_t* p, const Constants& k,
                                     float32x4_t (&c)[2]) const {
    if (kFp4 || s.bf16) {
      const uint32x4_t both = vreinterpretq_u32_u8(vld1q_u8(p));
      c[0] = vreinterpretq_f32_u32(vshlq_n_u32(both, 16));
      c[1] = vreinterpretq_f32_u32(vandq_u32(both, k.upper));
    } else {
      c[0] = vreinterpretq_f32_u8(vld1q_u8(p));
      c[1] = vreinterpretq_f32_u8(vld1q_u8(p + 16));
    }
  }

  // Multiplies R rows from m on with S panels that are `apart` panels away from each other. kSteps:
  // steps of a group, or 0 for any number.
  template <int R, int S, bool kStart, int kSteps>
  [[gnu::noinline]] void tile(size_t m, size_t n, size_t apart) const {
    const Constants k{};
    const size_t stream = apart * s.stride();
    const uint8_t *x = a.panel + m * s.K_padded, *w = panel(n);
    const int32_t* groups = reinterpret_cast<const int32_t*>(a.panel + l.groups) + m * s.groups;
    float32x4_t f[S][R][2];
    MOEBIUS_UNROLL for (int u = 0; u < S; ++u) MOEBIUS_UNROLL for (int r = 0; r < R; ++r)
        f[u][r][0] = f[u][r][1] = vdupq_n_f32(0);
    for (size_t g = 0; g < s.groups; ++g, w += s.scale_bytes, groups += padded(R)) {
      Sums<R> acc[S];
      MOEBIUS_UNROLL for (int u = 0; u < S; ++u) MOEBIUS_UNROLL for (int r = 0; r < R; ++r)
          begin(groups + r, kStart, acc[u][r]);
      const auto step = [&]() __attribute__((always_inline)) {
        MOEBIUS_UNROLL for (int u = 0; u < S; ++u)
            sixteen<R>(x, w + static_cast<size_t>(u) * stream, k, acc[u]);
        x += kKr * padded(R);
        w += kStep;
      };
      if constexpr (kSteps != 0) {
        MOEBIUS_UNROLL for (int i = 0; i < kSteps; ++i) step();
      } else {
        for (size_t i = s.group_k / kKr; i != 0; --i) step();
      }
      MOEBIUS_UNROLL for (int u = 0; u < S; ++u) {
        float32x4_t c[2];
        scales(w + static_cast<size_t>(u) * stream, k, c);
        MOEBIUS_UNROLL for (int r = 0; r < R; ++r) add(groups + r, c, acc[u][r], kStart, f[u][r]);
      }
    }
    MOEBIUS_UNROLL for (int u = 0; u < S; ++u)
        put<R>(m, n + static_cast<size_t>(u) * apart * kNr, f[u]);
  }

  // Adds the finished group of one row to its results.
  [[gnu::always_inline]] static void add(const int32_t* group, const float32x4_t (&c)[2],
                                         const int32x4_t (&acc)[2], bool by_start,
                                         float32x4_t (&f)[2]) {
    float32x4_t d[2];
    floats(acc, by_start, d);
    if constexpr (kFp4) {
      float scale;
      __builtin_memcpy(&scale, group, 4);
      f[0] = vfmaq_f32(f[0], d[0], vmulq_n_f32(c[0], scale));
      f[1] = vfmaq_f32(f[1], d[1], vmulq_n_f32(c[1], scale));
    } else {
      f[0] = vfmaq_f32(f[0], d[0], c[0]);
      f[1] = vfmaq_f32(f[1], d[1], c[1]);
    }
  }
  template <int R>
  void put(size_t m, size_t n, const float32x4_t (&f)[R][2]) const {
    const auto* scale = reinterpret_cast<const float*>(a.panel + l.scales) + m;
    float* y = a.y + m * a.ldy + (n - a.n0);
    const size_t count = a.n1 - n < kNr ? a.n1 - n : kNr;
    MOEBIUS_UNROLL for (int r = 0; r < R; ++r, y += a.ldy) {
      float32x4_t lo = vmulq_n_f32(f[r][0], scale[r]), hi = vmulq_n_f32(f[r][1], scale[r]);
      if (kFp4) {
        lo = with_scale(lo, G);
        hi = with_scale(hi, G);
      }
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

  // Runs S streams through the block, each over a share of its panels; the remaining panels go one
  // by one.
  template <int R, int S, bool kStart, int kSteps>
  void streams() const {
    const size_t panels = (a.n1 - a.n0 + kNr - 1) / kNr, each = panels / S;
    for (size_t i = 0; i < each; ++i) tile<R, S, kStart, kSteps>(0, a.n0 + i * kNr, each);
    for (size_t i = each * S; i < panels; ++i) tile<R, 1, kStart, kSteps>(0, a.n0 + i * kNr, 0);
  }
  template <int R, bool kStart, int kSteps>
  void few() const {
    if (memory_streams() > 1) return streams<R, 2, kStart, kSteps>();
    streams<R, 1, kStart, kSteps>();
  }
  template <int R, bool kStart, int kSteps>
  void any_tile(size_t rows, size_t m, size_t n) const {
    if (rows >= R) return tile<R, 1, kStart, kSteps>(m, n, 0);
    if constexpr (R > 1) any_tile<R - 1, kStart, kSteps>(rows, m, n);
  }
  template <bool kStart, int kSteps>
  void run() const {
    if (a.M == 1) return few<1, kStart, kSteps>();
    if (a.M == 2) return few<2, kStart, kSteps>();
    for (size_t n = a.n0; n < a.n1; n += kNr)
      for (size_t m = 0; m < a.M; m += kTile) any_tile<kTile, kStart, kSteps>(a.M - m, m, n);
  }
};
void gemm_int4(const GemmArgs& args) {
  const Gemm<Form::kInt4> g(args);
  if (!g.s.by_start()) return g.run<false, 0>();
  if (g.s.group_k == 2 * kKr) return g.run<true, 2>();
  g.run<true, 0>();
}
void gemm_int8(const GemmArgs& args) { Gemm<Form::kInt8>(args).run<false, 0>(); }
void gemm_fp4(const GemmArgs& args) {
  const Gemm<Form::kFp4> g(args);
  if (g.s.group_k == kKr) return g.run<true, 1>();
  if (g.s.group_k == 2 * kKr) return g.run<true, 2>();
  g.run<true, 0>();
}

// ---------------------------------------------------------------------------------------------- panels

void put_row(const RowPanelArgs& a, const Shape& s, const int8_t* codes, size_t step, uint8_t* to,
             int32_t* groups) {
  const size_t K = a.problem->K;
  const int32_t* columns = a.w->columns;
  for (size_t g = 0; g < s.groups; ++g, groups += step) {
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
    if (!s.bytes()) *groups = -8 * sum;
  }
}
// Writes E2M1 codes as twice their values. scales: one per group.
void put_fp4_row(const Shape& s, size_t K, const uint8_t* codes, const uint8_t* scales, size_t step,
                 uint8_t* to, int32_t* groups) {
  const int8x16_t table = e2m1_twice();
  for (size_t g = 0; g < s.groups; ++g, groups += step) __builtin_memcpy(groups, scales + 4 * g, 4);
  for (size_t k = 0; k < s.K_padded; k += kKr) {
    uint8x16_t v = vdupq_n_u8(0);
    if (k + kKr <= K) {
      v = vld1q_u8(codes + k);
    } else if (k < K) {
      uint8_t rest[kKr] = {};
      __builtin_memcpy(rest, codes + k, K - k);
      v = vld1q_u8(rest);
    }
    const uint32x4_t twice = vreinterpretq_u32_s8(vqtbl1q_s8(table, v));
    uint32_t quad[4];
    vst1q_u32(quad, twice);
    for (size_t i = 0; i < 4; ++i, to += 4 * step) __builtin_memcpy(to, &quad[i], 4);
  }
}
void make_row_panel(const RowPanelArgs& a) {
  const Shape s = shape_of(*a.problem);
  const PanelLayout l = panel_layout(s, a.M);
  const PreparedLayout row = prepared_layout(*a.problem);
  const float one = 1.0f;
  __builtin_memset(a.panel, 0, l.bytes);
  for (size_t m = 0; m < a.M; ++m) {
    const uint8_t* from =
        a.rows + (a.ids != nullptr ? static_cast<size_t>(a.ids[m]) : m) * row.row_bytes;
    const size_t tile = m / kTile * kTile,
                 step = padded_rows(a.M - tile < kTile ? a.M - tile : kTile);
    auto* groups = reinterpret_cast<int32_t*>(a.panel + l.groups) + tile * s.groups + (m - tile);
    uint8_t* to = a.panel + tile * s.K_padded + 4 * (m - tile);
    if (s.form == Form::kFp4) {
      put_fp4_row(s, a.problem->K, from + row.codes, from, step, to, groups);
    } else {
      put_row(a, s, reinterpret_cast<const int8_t*>(from + row.codes), step, to, groups);
    }
    __builtin_memcpy(a.panel + l.scales + 4 * m,
                     s.form == Form::kFp4 ? reinterpret_cast<const uint8_t*>(&one) : from, 4);
  }
}
#endif  // MOEBIUS_KERNEL_BODIES

constexpr FamilyFacts kFacts{
    kNr, numerics, packed_bytes, prepared_row_bytes, row_panel_bytes, scratch_bytes, 48};
constexpr Kernel kernel(const char* codec, const char* (*fits)(const Problem&), const Bodies& b) {
  return kernel_of(Arch::kAarch64, "arm_dotprod", codec, kNeon | kDotprod, fits, kFacts, b);
}
constexpr Kernel kKernels[] = {
    kernel("int4_lanes", supports_int4,
           MOEBIUS_BODIES(pack, prepare_rows_canonical, make_row_panel, gemm_int4)),
    kernel("int8_lanes", supports_int8,
           MOEBIUS_BODIES(pack, prepare_rows_canonical, make_row_panel, gemm_int8)),
    kernel("fp4_lanes", supports_fp4,
           MOEBIUS_BODIES(pack, prepare_rows_canonical, make_row_panel, gemm_fp4)),
};

}  // namespace

extern const KernelTable kArmDotprodLanesKernels;
const KernelTable kArmDotprodLanesKernels = {kKernels, sizeof kKernels / sizeof kKernels[0]};

}  // namespace moebius
