// SPDX-License-Identifier: Apache-2.0
// Implements the integer family of the portable kernel, class exact: both operands become int16
// with their zero points already subtracted (|q - zp| <= 255, so one product fits int32 and
// compilers have a widening multiply-add for it on every machine), a stretch of K is added in
// int32, and the f32 operations are those of the reference, in its order. fp4 times fp4 belongs
// here too: twice a code is a small integer, and a quarter of the sum is the reference's f32 sum,
// which is exact because every partial sum is a multiple of 1/4 below 2^22.
#include <cfloat>
#include <cmath>
#include <cstring>

#include "base/numeric.h"
#include "kernels/generic/generic.h"
#include "quant/quant_access.h"
#include "quant/reference.h"

namespace moebius::generic {
namespace {

bool is_fp4_pair(const Problem& p) {
  return p.code == CodeType::kFp4 && p.act.code == ActCode::kFp4;
}

const char* supports_common(const Problem& p) {
  if (const char* reason = order_reason(p)) return reason;
  if (is_fp4_pair(p)) {
    const size_t longest = p.act.granule == ActGranule::kGroup ? p.act.group : p.block_k;
    return longest <= 65536 ? nullptr
                            : "a group is longer than the exact sum of fp4 products allows";
  }
  if (!is_integer_problem(p))
    return "integer arithmetic only: integer weights and activations, or fp4 and fp4";
  return fits_int32(p) ? nullptr : "K is so long that a group's sum could leave int32";
}

const char* supports_int4(const Problem& p) {
  if (const char* reason = supports_common(p)) return reason;
  return code_bits_kept(p) == 4 ? nullptr : "4-bit weights only";
}

const char* supports_int8(const Problem& p) {
  if (const char* reason = supports_common(p)) return reason;
  return code_bits_kept(p) == 8 ? nullptr : "weights of 5 to 8 bits only";
}

Numerics numerics(const Problem&) { return Numerics::kExact; }

size_t row_panel_bytes(const Problem& p, size_t M) {
  return panel_row(p, sizeof(int16_t)).stride * M;
}

bool grouped_vllm(const Problem& p) { return p.act.mode == Int8Mode::kVllm && p.groups > 1; }

// Writes the operands of each row in the order of its columns, then in packed order.
void make_row_panel(const RowPanelArgs& args) {
  const Problem& p = *args.problem;
  const PreparedLayout l = prepared_layout(p);
  const PanelRow to = panel_row(p, sizeof(int16_t));
  const size_t width = p.act.granule == ActGranule::kGroup ? p.act.group : p.K;
  const int32_t* columns = args.w->columns;
  for (size_t m = 0; m < args.M; ++m) {
    const size_t id = args.ids != nullptr ? static_cast<size_t>(args.ids[m]) : m;
    const uint8_t* from = args.rows + id * l.row_bytes;
    uint8_t* row = args.panel + m * to.stride;
    std::memcpy(row, from, (l.groups + l.zero_points) * 4);
    const uint8_t* codes = from + l.codes;
    auto* values = reinterpret_cast<int16_t*>(row + to.values);
    for (size_t g = 0; g < l.groups; ++g) {
      int32_t zero = p.act.granule == ActGranule::kStatic ? args.w->act.zero_point : 0;
      if (l.zero_points != 0) std::memcpy(&zero, from + 4 * (l.groups + g), 4);
      if (grouped_vllm(p)) zero = 0;
      const size_t begin = g * width, end = begin + width < p.K ? begin + width : p.K;
      for (size_t i = begin; i < end; ++i) {
        const size_t k = columns != nullptr ? static_cast<size_t>(columns[i]) : i;
        values[i] = p.act.code == ActCode::kFp4
                        ? static_cast<int16_t>(e2m1_twice(codes[k]))
                        : static_cast<int16_t>(static_cast<int8_t>(codes[k]) - zero);
      }
    }
  }
}

// ---- gemm ----

using RowScratch = Scratch<int16_t>;

struct PairTable {
  uint32_t pair[256];  // two int16, the low nibble's first in memory (little-endian hosts)
};
constexpr PairTable make_fp4_pairs() {
  PairTable t{};
  for (unsigned b = 0; b < 256; ++b)
    t.pair[b] = static_cast<uint16_t>(e2m1_twice(b & 15u)) |
                (static_cast<uint32_t>(static_cast<uint16_t>(e2m1_twice(b >> 4))) << 16);
  return t;
}
constexpr PairTable kFp4Pairs = make_fp4_pairs();

void decode_nibbles(const uint8_t* codes, size_t K, int16_t* out) {
  for (size_t j = 0; j < K / 2; ++j) {
    out[2 * j] = static_cast<int16_t>((codes[j] & 15) - 8);
    out[2 * j + 1] = static_cast<int16_t>((codes[j] >> 4) - 8);
  }
  if (K % 2 != 0) out[K - 1] = static_cast<int16_t>((codes[K / 2] & 15) - 8);
}

void decode_fp4(const uint8_t* codes, size_t K, int16_t* out) {
  for (size_t j = 0; j < K / 2; ++j) std::memcpy(out + 2 * j, &kFp4Pairs.pair[codes[j]], 4);
  if (K % 2 != 0) out[K - 1] = e2m1_twice(codes[K / 2]);
}

void decode_bytes(const uint8_t* codes, size_t K, int16_t* out) {
  for (size_t i = 0; i < K; ++i) out[i] = static_cast<int8_t>(codes[i]);
}

void decode_row(const GemmArgs& args, const PackedLayout& l, size_t n, int16_t* out,
                float* scales) {
  const Problem& p = *args.w->problem;
  const uint8_t* codes = args.w->data + l.codes + n * l.code_row;
  if (p.code == CodeType::kFp4)
    decode_fp4(codes, p.K, out);
  else if (code_bits_kept(p) == 4)
    decode_nibbles(codes, p.K, out);
  else
    decode_bytes(codes, p.K, out);
  if (l.zero_row != 0) {
    const auto* zeros = reinterpret_cast<const int8_t*>(args.w->data + l.zeros + n * l.zero_row);
    for (size_t g = 0; g < p.groups; ++g) {
      const int zero = zeros[g];
      const size_t end = group_end(p, args.w->group_ends, g);
      for (size_t i = group_begin(p, args.w->group_ends, g); i < end; ++i)
        out[i] = static_cast<int16_t>(out[i] - zero);
    }
  }
  decode_scales(p.scale_type, args.w->data + l.scales + n * l.scale_row, p.groups, scales);
  if (grouped_vllm(p))
    for (size_t g = 0; g < p.groups; ++g) scales[g] = bf16_to_f32(f32_to_bf16(scales[g]));
}

// Sums four products over one stretch. Separate names keep the accumulators in registers.
inline void dot4(const int16_t* x, int16_t* const* w, size_t begin, size_t end, int32_t* out) {
  const int16_t *w0 = w[0], *w1 = w[1], *w2 = w[2], *w3 = w[3];
  int32_t a0 = 0, a1 = 0, a2 = 0, a3 = 0;
  for (size_t k = begin; k < end; ++k) {
    const int32_t v = x[k];
    a0 += v * w0[k];
    a1 += v * w1[k];
    a2 += v * w2[k];
    a3 += v * w3[k];
  }
  out[0] = a0;
  out[1] = a1;
  out[2] = a2;
  out[3] = a3;
}

struct Finish {
  bool per_row, inside;  // whether the activation scale is per row, or inside the sum
  float unit;            // 0.25 for doubled fp4 codes on both sides
  GlobalScale global;
};

Finish finish_of(const PackedMatrix& w) {
  const ActSpec& act = w.problem->act;
  Finish f{};
  f.per_row = act.granule == ActGranule::kRow;
  f.inside = !f.per_row;
  f.unit = is_fp4_pair(*w.problem) ? 0.25f : 1.0f;
  f.global = result_scale(w);
  return f;
}

// Multiplies one row of x with kRows decoded rows of w; f[j] lacks the last factors.
void multiply_row(const uint8_t* row, const PanelRow& at, const RowScratch& s, size_t stretches,
                  const Finish& finish, float* f) {
  const auto* scales = reinterpret_cast<const float*>(row);
  const auto* x = reinterpret_cast<const int16_t*>(row + at.values);
  for (size_t j = 0; j < kRows; ++j) f[j] = 0.0f;
  for (size_t i = 0; i < stretches; ++i) {
    const Stretch& t = s.stretches[i];
    int32_t acc[kRows];
    dot4(x, s.w, t.begin, t.end, acc);
    for (size_t j = 0; j < kRows; ++j) {
      const float c = s.scales[j][t.group];
      const float factor = finish.inside ? c * scales[t.granule] : c;
      f[j] = std::fma(static_cast<float>(acc[j]) * finish.unit, factor, f[j]);
    }
  }
}

// Multiplies in mode vllm with one scale per row of w: the two scales are multiplied first
// (quant/reference_gemm.cpp).
void multiply_row_vllm_channel(const uint8_t* row, const PanelRow& at, const RowScratch& s,
                               size_t K, float* f) {
  const float step = *reinterpret_cast<const float*>(row);
  int32_t acc[kRows];
  dot4(reinterpret_cast<const int16_t*>(row + at.values), s.w, 0, K, acc);
  for (size_t j = 0; j < kRows; ++j) {
    const float y = (static_cast<float>(acc[j]) * 16.0f) * ((s.scales[j][0] / 16.0f) * step);
    f[j] = clamp_f32(y, -FLT_MAX, FLT_MAX);
  }
}

void gemm(const GemmArgs& args) {
  const Problem& p = *args.w->problem;
  const PackedLayout l = layout_of(p);
  const PanelRow at = panel_row(p, sizeof(int16_t));
  const RowScratch s(p, args.scratch);
  const size_t stretches = make_stretches(p, args.w->group_ends, s.stretches);
  const Finish finish = finish_of(*args.w);
  const bool vllm = p.act.mode == Int8Mode::kVllm;
  for (size_t n = args.n0; n < args.n1; n += kRows) {
    const size_t rows = args.n1 - n < kRows ? args.n1 - n : kRows;
    for (size_t j = 0; j < kRows; ++j)  // a short tile repeats its last row and drops the result
      decode_row(args, l, n + (j < rows ? j : rows - 1), s.w[j], s.scales[j]);
    for (size_t m = 0; m < args.M; ++m) {
      const uint8_t* row = args.panel + m * at.stride;
      const float step = *reinterpret_cast<const float*>(row);
      float f[kRows];
      if (vllm && p.groups == 1)
        multiply_row_vllm_channel(row, at, s, p.K, f);
      else
        multiply_row(row, at, s, stretches, finish, f);
      for (size_t j = 0; j < rows; ++j) {
        float y = f[j];
        if (grouped_vllm(p)) {
          float S;
          std::memcpy(&S, args.w->data + l.sums + (n + j) * sizeof S, sizeof S);
          const auto zero = *reinterpret_cast<const int32_t*>(row + at.zero_points);
          y = std::fma(S, static_cast<float>(-zero), y) * step;
        } else if (!vllm) {
          if (finish.per_row) y = y * step;
          y = with_scale(y, finish.global);
        }
        args.y[m * args.ldy + (n - args.n0) + j] = y;
      }
    }
  }
}

constexpr Kernel kKernels[] = {
    {"generic", "int4", Arch::kOther, 0, kRows, supports_int4, numerics, packed_bytes, pack,
     prepared_row_bytes, prepare_rows_canonical, row_panel_bytes, make_row_panel, RowScratch::bytes,
     gemm, 0, 8, nullptr, kRagged},
    {"generic", "int8", Arch::kOther, 0, kRows, supports_int8, numerics, packed_bytes, pack,
     prepared_row_bytes, prepare_rows_canonical, row_panel_bytes, make_row_panel, RowScratch::bytes,
     gemm, 0, 8, nullptr, kRagged},
};

}  // namespace
}  // namespace moebius::generic

namespace moebius {
extern const KernelTable kGenericIntKernels;
const KernelTable kGenericIntKernels = {generic::kKernels,
                                        sizeof generic::kKernels / sizeof generic::kKernels[0]};
}  // namespace moebius
