// SPDX-License-Identifier: Apache-2.0
// Implements the float family of the portable kernel, class reordered: any weights, activations as
// they are or quantized. Rows of w are decoded to f32 once per block of output columns; a row of x
// then meets four of them in eight lanes. The order of a sum is fixed: lane l of a stretch adds its
// columns begin + l, begin + l + 8, ..., each lane's part is scaled and added to the lane's total,
// and the lanes are added pairwise at the end, whatever M, N or the other rows are.
#include <cstring>

#include "base/numeric.h"
#include "kernels/generic/generic.h"
#include "quant/quant_access.h"
#include "quant/reference.h"

namespace moebius::generic {
namespace {

// Four floats that compilers map to a vector register on every machine that has one.
using Vec = float __attribute__((vector_size(16)));
constexpr size_t kLanes = 8;

inline Vec load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

const char* supports(const Problem& p) {
  if (p.act.mode == Int8Mode::kVllm) return "mode vllm is defined on integers";
  return order_reason(p);
}

constexpr auto kFp4Pairs = make_pairs<float>([](unsigned c) { return e2m1_to_f32(c); });
constexpr auto kInt4Pairs =
    make_pairs<float>([](unsigned c) { return static_cast<float>(c) - 8.0f; });

struct ByteTable {
  float value[256];
};
constexpr ByteTable make_fp8_values() {
  ByteTable t{};
  for (unsigned b = 0; b < 256; ++b) t.value[b] = e4m3_to_f32(static_cast<uint8_t>(b));
  return t;
}
constexpr ByteTable kFp8Values = make_fp8_values();

void decode_fp8(const uint8_t* codes, size_t K, float* out) {
  for (size_t i = 0; i < K; ++i) out[i] = kFp8Values.value[codes[i]];
}

struct Lanes {
  Vec low = {0, 0, 0, 0}, high = {0, 0, 0, 0};
};

inline void add_product(Lanes& a, const float* w, Vec x0, Vec x1) {
  a.low += load(w) * x0;
  a.high += load(w + 4) * x1;
}

// Sums x * w[j] over one stretch into the lanes d[j].
inline void dot4(const float* x, float* const* w, size_t begin, size_t end, Lanes* d) {
  Lanes d0, d1, d2, d3;
  size_t k = begin;
  for (; k + kLanes <= end; k += kLanes) {
    const Vec x0 = load(x + k), x1 = load(x + k + 4);
    add_product(d0, w[0] + k, x0, x1);
    add_product(d1, w[1] + k, x0, x1);
    add_product(d2, w[2] + k, x0, x1);
    add_product(d3, w[3] + k, x0, x1);
  }
  d[0] = d0;
  d[1] = d1;
  d[2] = d2;
  d[3] = d3;
  if (k == end) return;
  float tail[kRows + 1][kLanes] = {};  // the last columns, padded with zeros
  for (size_t i = k; i < end; ++i) {
    tail[kRows][i - k] = x[i];
    for (size_t j = 0; j < kRows; ++j) tail[j][i - k] = w[j][i];
  }
  for (size_t j = 0; j < kRows; ++j)
    add_product(d[j], tail[j], load(tail[kRows]), load(tail[kRows] + 4));
}

struct FloatFamily {
  using Value = float;
  static constexpr Numerics kNumerics = Numerics::kReordered;

  // Fills a row whose columns stay in order and that needs no more than a copy or a table.
  static bool copy_row(const Problem& p, const uint8_t* codes, const int32_t* columns,
                       float* values) {
    if (columns != nullptr || (p.act.code != ActCode::kAsIs && p.act.code != ActCode::kFp8))
      return false;
    if (p.act.code == ActCode::kAsIs)
      std::memcpy(values, codes, p.K * sizeof(float));
    else
      decode_fp8(codes, p.K, values);
    return true;
  }

  static float value(const Problem& p, const uint8_t* codes, size_t k, int32_t zero) {
    switch (p.act.code) {
      case ActCode::kAsIs:
        return load_f32(codes + 4 * k);
      case ActCode::kInt:
        return static_cast<float>(static_cast<int8_t>(codes[k]) - zero);
      case ActCode::kFp8:
        return kFp8Values.value[codes[k]];
      case ActCode::kFp4:
        return e2m1_to_f32(codes[k]);
    }
    return 0.0f;
  }

  static bool subtracts_zeros(const Problem&) { return true; }

  static void decode_codes(const Problem& p, const uint8_t* codes, float* out) {
    const size_t K = p.K;
    switch (p.code) {
      case CodeType::kInt8:
      case CodeType::kInt8Offset:
      case CodeType::kInt4Offset:
        if (code_bits_kept(p) == 4) return decode_pairs(kInt4Pairs, codes, K, out);
        for (size_t i = 0; i < K; ++i) out[i] = static_cast<float>(static_cast<int8_t>(codes[i]));
        return;
      case CodeType::kFp4:
        return decode_pairs(kFp4Pairs, codes, K, out);
      case CodeType::kLut4:
        return decode_lut(lut_numbers(p.lut), codes, K, out);
      case CodeType::kFp8:
        return decode_fp8(codes, K, out);
      case CodeType::kBf16:
        for (size_t i = 0; i < K; ++i) out[i] = bf16_to_f32(load_u16(codes + 2 * i));
        return;
      case CodeType::kF16:
        for (size_t i = 0; i < K; ++i) out[i] = f16_to_f32(load_u16(codes + 2 * i));
        return;
      case CodeType::kF32:
        std::memcpy(out, codes, K * sizeof(float));
        return;
    }
  }

  // Decodes weights with offsets completely: their scales become 1. A product is exact as double.
  static void adjust(const GemmArgs& args, const PackedLayout& l, size_t n, float* out,
                     float* scales) {
    if (l.offset_row == 0) return;
    const Problem& p = *args.w->problem;
    const uint8_t* offsets = args.w->data + l.offsets + n * l.offset_row;
    const auto half = static_cast<float>(1 << (p.bits - 1));
    for (size_t g = 0; g < p.groups; ++g) {
      const double s = scales[g], b = table_at(offsets, kept_scales(p), g);
      const size_t end = group_end(p, args.w->group_ends, g);
      for (size_t i = group_begin(p, args.w->group_ends, g); i < end; ++i)
        out[i] = static_cast<float>(static_cast<double>(out[i] + half) * s + b);
      scales[g] = 1.0f;
    }
  }

  template <class Call>
  static void multiply_row(const Call& c, const uint8_t* row, size_t, float* y) {
    const auto* scales = reinterpret_cast<const float*>(row);
    const auto* x = reinterpret_cast<const float*>(row + c.at.values);
    Lanes f[kRows];
    for (size_t i = 0; i < c.stretches; ++i) {
      const Stretch& t = c.s.stretches[i];
      Lanes d[kRows];
      dot4(x, c.s.w, t.begin, t.end, d);
      const float inside = c.finish.inside ? scales[t.granule] : 1.0f;
      for (size_t j = 0; j < kRows; ++j) {
        const float factor = c.s.scales[j][t.group] * inside;
        f[j].low += d[j].low * factor;
        f[j].high += d[j].high * factor;
      }
    }
    for (size_t j = 0; j < kRows; ++j) {
      const Vec v = f[j].low + f[j].high;
      float sum = (v[0] + v[2]) + (v[1] + v[3]);
      if (c.finish.per_row) sum = sum * scales[0];
      y[j] = with_scale(sum, c.finish.global);
    }
  }
};

size_t code_at(const Problem& p, size_t n, size_t k) {
  const PackedLayout l = layout_of(p);
  return l.codes + n * l.code_row + k * (code_bits_kept(p) / 8);
}

constexpr Kernel make_kernel() {
  Kernel k = Portable<FloatFamily>::kernel("stored", supports);
  k.code_at = code_at;
  k.facts |= kOffsets;
  return k;
}
constexpr Kernel kKernels[] = {make_kernel()};

}  // namespace
}  // namespace moebius::generic

namespace moebius {
extern const KernelTable kGenericFloatKernels;
const KernelTable kGenericFloatKernels = {generic::kKernels,
                                          sizeof generic::kKernels / sizeof generic::kKernels[0]};
}  // namespace moebius
