// SPDX-License-Identifier: Apache-2.0
// Computes every float problem on every 64-bit Arm CPU, in f32: weights are decoded to f32 in a
// scratch that stays in the first-level cache, FMLA multiplies 8 outputs by one input of a row.
// Each output is one chain of fused multiply-adds over its group in the order of K, then f =
// fma(dot, scale, f): the operations of the definition in their order, so the class is exact.
//
// Packed weights: panels of 8 outputs at multiples of 64 bytes; the codes of all inputs, then
// scales 8 x f32 and (with zero points) 8 x int8 per group. Codes of one input k: 4 bit: 4 bytes,
// w[i][k] | w[i+4][k] << 4 (value + 8, or E2M1); 8 bit: 8 bytes; 16 and 32 bit: 8 numbers. An
// output with a NaN e4m3 code in a group has a NaN scale there. A panel of activations: tiles of 8
// rows (the last one smaller); per 4 inputs 4 floats of each row. Then a factor per row, and with
// activation groups factors [group][row].
#include "kernels/arm/arm_shapes.h"
#include "kernels/kernel.h"
#include "kernels/prepared_rows.h"
#include "kernels/unpack.h"

#ifdef MOEBIUS_KERNEL_BODIES
#include <arm_neon.h>

#include "base/numeric.h"
#include "kernels/arm/arm_packing.h"
#endif

namespace moebius {
namespace {

constexpr size_t kNr = 8, kKr = 4, kTile = 8;
constexpr size_t kChunk = 256, kMostPanels = 4;  // inputs that are decoded at once: 8 KiB per panel

using namespace arm_shapes;

struct Shape : FloatGroups {
  size_t K_padded;
  size_t bits;  // per code
  // Bytes of a panel's codes; bytes of scales and zero points of one group.
  size_t code_bytes, extras_bytes;
  size_t stride() const { return up(code_bytes + groups * extras_bytes, 64); }
};

Shape shape_of(const Problem& p) {
  Shape s{};
  static_cast<FloatGroups&>(s) = float_groups(p, kKr);
  s.K_padded = s.groups * s.group_k;
  switch (p.code) {
    case CodeType::kFp4:
      s.bits = 4;
      break;
    case CodeType::kFp8:
      s.bits = 8;
      break;
    case CodeType::kBf16:
    case CodeType::kF16:
      s.bits = 16;
      break;
    case CodeType::kF32:
      s.bits = 32;
      break;
    default:
      s.bits = p.bits > 4 ? 8 : 4;
  }
  s.code_bytes = s.K_padded * kNr * s.bits / 8;
  s.extras_bytes = 4 * kNr + (p.zero_points ? kNr : 0);
  return s;
}

const char* supports(const Problem& p) {
  if (p.act.code == ActCode::kInt) return "the checkpoint declares int8 activations";
  return groups_do_not_fit(p, kKr, "the group size is not a multiple of 4");
}
Numerics numerics(const Problem&) { return Numerics::kExact; }
size_t packed_bytes(const Problem& p) { return up(p.N, kNr) / kNr * shape_of(p).stride(); }
size_t code_at(const Problem& p, size_t n, size_t k) {
  const Shape s = shape_of(p);
  return n / kNr * s.stride() + (k * kNr + n % kNr) * (s.bits / 8);
}

struct PanelLayout {
  size_t factors, group_factors, bytes;
};
PanelLayout panel_layout(const Shape& s, size_t M) {
  PanelLayout l{};
  l.factors = 4 * M * s.K_padded;
  l.group_factors = l.factors + 4 * M;
  l.bytes = up(l.group_factors + (s.row_groups ? 4 * s.groups * M : 0), 64);
  return l;
}
size_t row_panel_bytes(const Problem& p, size_t M) { return panel_layout(shape_of(p), M).bytes; }

// Returns how many panels are worked on together: few rows need more outputs to keep the
// multipliers busy.
size_t panels_for(size_t M) { return M <= 2 ? 4 : M <= 4 ? 2 : 1; }
// Scratch holds decoded weights [panel][chunk][8], then for every row dot and f of the current
// outputs.
size_t scratch_bytes(const Problem&, size_t M) {
  const size_t few = panels_for(1) * (M < 2 ? 1 : 2), many = M * panels_for(M),
               most = few > many ? few : many;
  return kMostPanels * kChunk * kNr * 4 + up(most * kNr * 8, 64);
}

#ifdef MOEBIUS_KERNEL_BODIES
using arm_layout::Order;

// ---------------------------------------------------------------------------------------------- decoding

struct Decoder {
  const Problem& p;
  const Shape& s;
  const uint8_t* panel;

  // Writes code - zero of 8 bytes as f32, in two vectors.
  static void ints(int8x8_t codes, int8x8_t zeros, float* out) {
    const int16x8_t v = vsubl_s8(codes, zeros);
    vst1q_f32(out, vcvtq_f32_s32(vmovl_s16(vget_low_s16(v))));
    vst1q_f32(out + 4, vcvtq_f32_s32(vmovl_high_s16(v)));
  }
  static void fp8(
      uint8x8_t codes,
      float* out) {  // exponent and mantissa in place, 2^120 too small; exact also for subnormals
    const uint16x8_t v = vmovl_u8(codes);
    for (int h = 0; h < 2; ++h) {
      const uint32x4_t c = h == 0 ? vmovl_u16(vget_low_u16(v)) : vmovl_high_u16(v);
      const uint32x4_t sign = vshlq_n_u32(vandq_u32(c, vdupq_n_u32(0x80)), 24);
      const uint32x4_t magnitude = vshlq_n_u32(vandq_u32(c, vdupq_n_u32(0x7f)), 20);
      vst1q_f32(out + 4 * h,
                vmulq_n_f32(vreinterpretq_f32_u32(vorrq_u32(sign, magnitude)), 0x1p120f));
    }
  }
  void nibbles(const uint8_t* from, size_t count, int8x8_t zeros, float* out) const {
    alignas(16) static constexpr int8_t kTwice[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                                      0, -1, -2, -3, -4, -6, -8, -12};
    const bool fp4 = p.code == CodeType::kFp4;
    for (size_t k = 0; k < count; ++k, from += 4, out += kNr) {
      uint32_t four;
      __builtin_memcpy(&four, from, 4);
      const uint8x8_t v = vcreate_u8(four);
      const uint8x8_t index = vreinterpret_u8_u32(vzip1_u32(
          vreinterpret_u32_u8(vand_u8(v, vdup_n_u8(15))), vreinterpret_u32_u8(vshr_n_u8(v, 4))));
      if (fp4) {
        const int16x8_t twice = vmovl_s8(vqtbl1_s8(vld1q_s8(kTwice), index));
        float32x4_t lo = vcvtq_n_f32_s32(vmovl_s16(vget_low_s16(twice)), 1);
        float32x4_t hi = vcvtq_n_f32_s32(vmovl_high_s16(twice), 1);
        vst1q_f32(out, lo);
        vst1q_f32(out + 4, hi);
      } else {
        ints(vreinterpret_s8_u8(vsub_u8(index, vdup_n_u8(8))), zeros, out);
      }
    }
  }
  // Decodes inputs [k, k + count) of one group.
  void run(size_t k, size_t count, size_t g, float* out) const {
    const uint8_t* from = panel + k * kNr * s.bits / 8;
    const int8x8_t zeros =
        p.zero_points
            ? vreinterpret_s8_u8(vld1_u8(panel + s.code_bytes + g * s.extras_bytes + 4 * kNr))
            : vdup_n_s8(0);
    if (s.bits == 4) return nibbles(from, count, zeros, out);
    for (size_t i = 0; i < count; ++i, from += kNr * s.bits / 8, out += kNr) {
      if (s.bits == 32) {
        __builtin_memcpy(out, from, 4 * kNr);
      } else if (s.bits == 16) {
        const uint16x8_t v = vreinterpretq_u16_u8(vld1q_u8(from));
        const bool bf16 = p.code == CodeType::kBf16;
        vst1q_f32(out, bf16 ? vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(v), 16))
                            : vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(v))));
        vst1q_f32(out + 4, bf16 ? vreinterpretq_f32_u32(vshll_high_n_u16(v, 16))
                                : vcvt_high_f32_f16(vreinterpretq_f16_u16(v)));
      } else if (p.code == CodeType::kFp8) {
        fp8(vld1_u8(from), out);
      } else {
        ints(vreinterpret_s8_u8(vld1_u8(from)), zeros, out);
      }
    }
  }
};

// ---------------------------------------------------------------------------------------------- the loop nest

template <int R, int PN>
struct Sums {
  float32x4_t dot[R][2 * PN], f[R][2 * PN];
};

// Multiplies four inputs of R rows with 8 * PN outputs; w[panel][k][8].
template <int R, int PN>
inline void four(float32x4_t (&dot)[R][2 * PN], const float* x, const float* w,
                 size_t panel_floats) {
  float32x4_t v[R];
  MOEBIUS_UNROLL for (int r = 0; r < R; ++r) v[r] = vld1q_f32(x + 4 * r);
  const auto lane = [&]<int k>() __attribute__((always_inline)) {
    MOEBIUS_UNROLL for (int n = 0; n < 2 * PN; ++n) {
      const float32x4_t b =
          vld1q_f32(w + static_cast<size_t>(n / 2) * panel_floats + 8 * k + 4 * (n % 2));
      MOEBIUS_UNROLL for (int r = 0; r < R; ++r) dot[r][n] = vfmaq_laneq_f32(dot[r][n], b, v[r], k);
    }
  };
  lane.template operator()<0>();
  lane.template operator()<1>();
  lane.template operator()<2>();
  lane.template operator()<3>();
}

struct Gemm {
  const GemmArgs& a;
  const Problem& p;
  const Shape s;
  const PanelLayout l;
  const size_t PN;
  const float factor;
  const GlobalScale G;

  explicit Gemm(const GemmArgs& args)
      : a(args),
        p(*args.w->problem),
        s(shape_of(p)),
        l(panel_layout(s, args.M)),
        PN(panels_for(args.M)),
        factor(p.act.code != ActCode::kAsIs && p.act.granule == ActGranule::kStatic
                   ? args.w->act.scale
                   : 1.0f),
        G(result_scale(*args.w)) {}

  const uint8_t* panel(size_t n) const { return a.w->data + n / kNr * s.stride(); }
  float* weights() const { return reinterpret_cast<float*>(a.scratch); }
  // layout: [row][dot: 8 * PN, f: 8 * PN].
  float* sums(size_t m) const {
    return reinterpret_cast<float*>(a.scratch + kMostPanels * kChunk * kNr * 4) + m * PN * kNr * 2;
  }

  // Multiplies inputs [k0, k1) of R rows from m on; panels past the block repeat the last one and
  // are not stored.
  template <int R, int N>
  void tile(size_t n, size_t m, size_t tile_rows, size_t k0, size_t k1) const {
    float32x4_t dot[R][2 * N];
    MOEBIUS_UNROLL for (int r = 0; r < R; ++r) MOEBIUS_UNROLL for (int i = 0; i < 2 * N; ++i)
        dot[r][i] = vld1q_f32(sums(m + static_cast<size_t>(r)) + 4 * i);
    const float* x = reinterpret_cast<const float*>(a.panel) + m / kTile * kTile * s.K_padded +
                     k0 * tile_rows + 4 * (m % kTile);
    for (size_t k = k0; k < k1;) {
      const size_t g = k / s.group_k, group_end = (g + 1) * s.group_k,
                   end = group_end < k1 ? group_end : k1;
      for (; k < end; k += kKr, x += kKr * tile_rows)
        four<R, N>(dot, x, weights() + (k - k0) * kNr, kChunk * kNr);
      if (end != group_end) break;
      MOEBIUS_UNROLL for (int i = 0; i < 2 * N; ++i) {
        const size_t out = n + 8 * static_cast<size_t>(i / 2);
        const auto* at = reinterpret_cast<const float*>(panel(out < a.n1 ? out : n) + s.code_bytes +
                                                        g * s.extras_bytes) +
                         4 * (i % 2);
        float32x4_t c = vld1q_f32(at);
        if (factor != 1.0f) c = vmulq_n_f32(c, factor);
        MOEBIUS_UNROLL for (int r = 0; r < R; ++r) {
          const size_t row = m + static_cast<size_t>(r);
          float* f = sums(row) + kNr * N + 4 * i;
          const float32x4_t by = s.row_groups ? vmulq_n_f32(c, row_factor(row, g)) : c;
          vst1q_f32(f, vfmaq_f32(vld1q_f32(f), dot[r][i], by));
          dot[r][i] = vdupq_n_f32(0);
        }
      }
    }
    MOEBIUS_UNROLL for (int r = 0; r < R; ++r) MOEBIUS_UNROLL for (int i = 0; i < 2 * N; ++i)
        vst1q_f32(sums(m + static_cast<size_t>(r)) + 4 * i, dot[r][i]);
  }
  float row_factor(size_t m, size_t g) const {
    float v;
    __builtin_memcpy(&v, a.panel + l.group_factors + 4 * (g * a.M + m), 4);
    return v;
  }

  template <int N>
  void rows(size_t n, size_t k0, size_t k1) const {
    for (size_t m = 0; m < a.M;) {
      const size_t first = m / kTile * kTile, tile_rows = a.M - first < kTile ? a.M - first : kTile;
      const size_t left = first + tile_rows - m;
      if constexpr (N == 1) {
        if (left >= 8) {
          tile<8, 1>(n, m, tile_rows, k0, k1);
          m += 8;
          continue;
        }
      }
      if constexpr (N <= 2) {
        if (left >= 4) {
          tile<4, N>(n, m, tile_rows, k0, k1);
          m += 4;
          continue;
        }
      }
      if (left >= 2) {
        tile<2, N>(n, m, tile_rows, k0, k1);
        m += 2;
      } else {
        tile<1, N>(n, m, tile_rows, k0, k1);
        m += 1;
      }
    }
  }

  void finish(size_t n, size_t count) const {
    for (size_t m = 0; m < a.M; ++m) {
      const float* f = sums(m) + kNr * PN;
      float by;
      __builtin_memcpy(&by, a.panel + l.factors + 4 * m, 4);
      float* y = a.y + m * a.ldy + (n - a.n0);
      for (size_t i = 0; i < count; ++i) {
        const float v = f[i] * by;
        y[i] = with_scale(v, G);
      }
    }
  }

  void run() const {
    for (size_t n = a.n0; n < a.n1; n += PN * kNr) {
      const size_t end = n + PN * kNr < a.n1 ? n + PN * kNr : a.n1;
      __builtin_memset(sums(0), 0, a.M * PN * kNr * 8);
      for (size_t k0 = 0; k0 < s.K_padded; k0 += kChunk) {
        const size_t k1 = k0 + kChunk < s.K_padded ? k0 + kChunk : s.K_padded;
        for (size_t i = 0; i < PN && n + i * kNr < end; ++i) {
          const Decoder decoder{p, s, panel(n + i * kNr)};
          for (size_t k = k0; k < k1;) {
            const size_t g = k / s.group_k,
                         stop = (g + 1) * s.group_k < k1 ? (g + 1) * s.group_k : k1;
            decoder.run(k, stop - k, g, weights() + (i * kChunk + k - k0) * kNr);
            k = stop;
          }
        }
        for (size_t i = (end - n + kNr - 1) / kNr; i < PN; ++i)
          __builtin_memset(weights() + i * kChunk * kNr, 0, (k1 - k0) * kNr * 4);
        switch (PN) {
          case 4:
            rows<4>(n, k0, k1);
            break;
          case 2:
            rows<2>(n, k0, k1);
            break;
          default:
            rows<1>(n, k0, k1);
        }
      }
      finish(n, end - n);
    }
  }
};

void gemm(const GemmArgs& args) { Gemm(args).run(); }

// ---------------------------------------------------------------------------------------------- packing

// Writes the codes of inputs [k, k + count) of output r as the file has them (of 4 bits: value + 8);
// zeros past N and K. A NaN becomes 0, because the scale carries it.
void codes_of(const PackArgs& a, const Shape& s, size_t r, size_t k, size_t count, uint8_t* out) {
  const QuantMatrix& w = *a.w;
  const size_t end = k + count < w.K ? k + count : w.K, size = s.bits / 8;
  __builtin_memset(out, s.bits == 4 && w.code != CodeType::kFp4 ? 0x88 : 0, count * s.bits / 8);
  if (r >= w.N || k >= end) return;
  if (s.bits == 4) return unpack_nibbles(w, r, k, end, a.columns, out);
  if (w.code == CodeType::kInt8 || w.code == CodeType::kInt8Offset)
    return unpack_int8(w, r, k, end, a.columns, reinterpret_cast<int8_t*>(out));
  const uint8_t* row = w.codes + r * w.row_bytes;
  if (a.columns == nullptr) __builtin_memcpy(out, row + k * size, (end - k) * size);
  for (size_t i = k; a.columns != nullptr && i < end; ++i)
    __builtin_memcpy(out + (i - k) * size, row + static_cast<size_t>(a.columns[i]) * size, size);
  for (size_t i = 0; w.code == CodeType::kFp8 && i < end - k; ++i)
    out[i] = (out[i] & 0x7f) == 0x7f ? uint8_t{0} : out[i];
}

bool has_nan(const PackArgs& a, size_t r, size_t k, size_t end) {
  const uint8_t* row = a.w->codes + r * a.w->row_bytes;
  bool nan = false;
  for (; k < end; ++k)
    nan |= (row[a.columns != nullptr ? static_cast<size_t>(a.columns[k]) : k] & 0x7f) == 0x7f;
  return nan;
}

void pack_extras(const PackArgs& a, const Shape& s, size_t n, size_t g, uint8_t* out) {
  const QuantMatrix& w = *a.w;
  __builtin_memset(out, 0, s.extras_bytes);
  const size_t k = g * s.group_k, end = k + s.group_k < w.K ? k + s.group_k : w.K;
  for (size_t i = 0; i < kNr && n + i < w.N; ++i) {
    const size_t at =
        (n + i + w.n_phase) / (w.block_n == 0 ? 1 : w.block_n) * w.scale_stride + k / s.weight_k;
    float scale = 1.0f;
    if (w.scale_type != ScaleType::kNone)
      decode_scales(w.scale_type, w.scales + scale_size(w.scale_type) * at, 1, &scale);
    if (w.code == CodeType::kFp8 && has_nan(a, n + i, k, end)) scale = __builtin_nanf("");
    __builtin_memcpy(out + 4 * i, &scale, 4);
    if (a.problem->zero_points) out[4 * kNr + i] = static_cast<uint8_t>(w.zero_points[at]);
  }
}

// Packs the codes of a panel from the order kFrom to the order kTo, kInputs at a time.
template <size_t kBits, Order kFrom, Order kTo>
void pack_codes(const PackArgs& a, const Shape& s, size_t n, uint8_t* out) {
  constexpr size_t kRow = kBits <= 8 ? 16 : 32, kInputs = kRow * 8 / kBits, kEach = kRow / 16;
  constexpr size_t kSome = 64;  // inputs that are read at once
  alignas(16) uint8_t codes[kNr][kSome * kBits / 8];
  for (size_t k = 0; k < s.K_padded; k += kInputs) {
    const size_t at = k % kSome * kBits / 8;
    for (size_t i = 0; at == 0 && i < kNr; ++i) codes_of(a, s, n + i, k, kSome, codes[i]);
    uint8x16_t v[kNr * kEach];
    MOEBIUS_UNROLL for (size_t i = 0; i < kNr * kEach; ++i) v[i] =
        vld1q_u8(codes[i / kEach] + at + i % kEach * 16);
    arm_packing::Network<kFrom, kTo, kBits == 4>::arrange(v);
    if (k + kInputs <= s.K_padded) {
      arm_packing::store_in_order(out, v);
      out += sizeof v;
    } else {
      __builtin_memcpy(out, v, (s.K_padded - k) * kNr * kBits / 8);
    }
  }
}
void pack_panel_codes(const PackArgs& a, const Shape& s, size_t n, uint8_t* out) {
  switch (s.bits) {
    case 4:
      return pack_codes<4, Order("k0 k1 k2 k3 k4 o0 o1 o2"), Order("o2 o0 o1 k0 k1 k2 k3 k4")>(
          a, s, n, out);
    case 8:
      return pack_codes<8, Order("k0 k1 k2 k3 o0 o1 o2"), Order("o0 o1 o2 k0 k1 k2 k3")>(a, s, n,
                                                                                         out);
    case 16:
      return pack_codes<16, Order("b0 k0 k1 k2 k3 o0 o1 o2"), Order("b0 o0 o1 o2 k0 k1 k2 k3")>(
          a, s, n, out);
    default:
      return pack_codes<32, Order("b0 b1 k0 k1 k2 o0 o1 o2"), Order("b0 b1 o0 o1 o2 k0 k1 k2")>(
          a, s, n, out);
  }
}

void pack(const PackArgs& a) {
  const Shape s = shape_of(*a.problem);
  for (size_t n = a.n0; n < a.n1; n += kNr) {
    uint8_t* out = a.packed + (a.row0 + n) / kNr * s.stride();
    pack_panel_codes(a, s, n, out);
    out += s.code_bytes;
    for (size_t g = 0; g < s.groups; ++g, out += s.extras_bytes) pack_extras(a, s, n, g, out);
    __builtin_memset(out, 0, s.stride() - s.code_bytes - s.groups * s.extras_bytes);
  }
}

// ---------------------------------------------------------------------------------------------- panels

void make_row_panel(const RowPanelArgs& a) {
  const Problem& p = *a.problem;
  const Shape s = shape_of(p);
  const PanelLayout l = panel_layout(s, a.M);
  const PreparedLayout row = prepared_layout(p);
  auto* values = reinterpret_cast<float*>(a.panel);
  for (size_t m = 0; m < a.M; ++m) {
    const uint8_t* from =
        a.rows + (a.ids != nullptr ? static_cast<size_t>(a.ids[m]) : m) * row.row_bytes;
    const uint8_t* codes = from + row.codes;
    const size_t tile = m / kTile * kTile, tile_rows = a.M - tile < kTile ? a.M - tile : kTile;
    float* to = values + tile * s.K_padded + 4 * (m - tile);
    for (size_t k = 0; k < s.K_padded; k += kKr, to += kKr * tile_rows)
      for (size_t i = 0; i < kKr; ++i) {
        const size_t c = k + i >= p.K              ? 0
                         : a.w->columns != nullptr ? static_cast<size_t>(a.w->columns[k + i])
                                                   : k + i;
        float v = 0.0f;
        if (k + i < p.K) {
          if (p.act.code == ActCode::kAsIs)
            __builtin_memcpy(&v, codes + 4 * c, 4);
          else
            v = p.act.code == ActCode::kFp8 ? e4m3_to_f32(codes[c]) : e2m1_to_f32(codes[c]);
        }
        to[i] = v;
      }
    const auto scale = [&](size_t g) {
      float v;
      __builtin_memcpy(&v, from + 4 * g, 4);
      return v;
    };
    float by = 1.0f;
    if (p.act.code != ActCode::kAsIs && p.act.granule == ActGranule::kRow) by = scale(0);
    if (p.act.code != ActCode::kAsIs && p.act.granule == ActGranule::kStatic &&
        scale(0) != scale(0))
      by = scale(0);
    __builtin_memcpy(a.panel + l.factors + 4 * m, &by, 4);
    for (size_t g = 0; s.row_groups && g < s.groups; ++g) {
      const float v = scale(g * s.group_k / s.row_k);
      __builtin_memcpy(a.panel + l.group_factors + 4 * (g * a.M + m), &v, 4);
    }
  }
}
#define MOEBIUS_BODY(f) f
#else
#define MOEBIUS_BODY(f) nullptr
#endif  // MOEBIUS_KERNEL_BODIES

const Kernel kKernels[] = {
    {"arm_neon", "f32", Arch::kAarch64, kNeon, kNr, supports, numerics, packed_bytes,
     MOEBIUS_BODY(pack), prepared_row_bytes, MOEBIUS_BODY(prepare_rows_canonical), row_panel_bytes,
     MOEBIUS_BODY(make_row_panel), scratch_bytes, MOEBIUS_BODY(gemm), 0, kTile, code_at}};

}  // namespace

extern const KernelTable kArmNeonF32Kernels;
const KernelTable kArmNeonF32Kernels = {kKernels, sizeof kKernels / sizeof kKernels[0]};

}  // namespace moebius
