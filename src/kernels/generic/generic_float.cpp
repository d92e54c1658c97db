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

Numerics numerics(const Problem&) { return Numerics::kReordered; }

struct PairTable {
  float pair[256][2];  // [byte] values of the low and the high nibble
};
template <class F>
constexpr PairTable make_pairs(F f) {
  PairTable t{};
  for (unsigned b = 0; b < 256; ++b) {
    t.pair[b][0] = f(b & 15u);
    t.pair[b][1] = f(b >> 4);
  }
  return t;
}
constexpr PairTable kFp4Pairs = make_pairs([](unsigned c) { return e2m1_to_f32(c); });
constexpr PairTable kInt4Pairs =
    make_pairs([](unsigned c) { return static_cast<float>(c) - 8.0f; });

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

void decode_nibbles(const PairTable& table, const uint8_t* codes, size_t K, float* out) {
  for (size_t j = 0; j < K / 2; ++j) std::memcpy(out + 2 * j, table.pair[codes[j]], 8);
  if (K % 2 != 0) out[K - 1] = table.pair[codes[K / 2]][0];
}

size_t row_panel_bytes(const Problem& p, size_t M) {
  return panel_row(p, sizeof(float)).stride * M;
}

float row_value(const Problem& p, const uint8_t* codes, size_t k, int32_t zero) {
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

void make_row_panel(const RowPanelArgs& args) {
  const Problem& p = *args.problem;
  const PreparedLayout l = prepared_layout(p);
  const PanelRow to = panel_row(p, sizeof(float));
  const size_t width = p.act.granule == ActGranule::kGroup ? p.act.group : p.K;
  const int32_t* columns = args.w->columns;
  for (size_t m = 0; m < args.M; ++m) {
    const size_t id = args.ids != nullptr ? static_cast<size_t>(args.ids[m]) : m;
    const uint8_t* from = args.rows + id * l.row_bytes;
    uint8_t* row = args.panel + m * to.stride;
    std::memcpy(row, from, (l.groups + l.zero_points) * 4);
    auto* values = reinterpret_cast<float*>(row + to.values);
    if (p.act.code == ActCode::kAsIs && columns == nullptr) {
      std::memcpy(values, from + l.codes, p.K * sizeof(float));
      continue;
    }
    if (p.act.code == ActCode::kFp8 && columns == nullptr) {
      decode_fp8(from + l.codes, p.K, values);
      continue;
    }
    for (size_t i = 0; i < p.K; ++i) {
      const size_t k = columns != nullptr ? static_cast<size_t>(columns[i]) : i;
      int32_t zero = p.act.granule == ActGranule::kStatic ? args.w->act.zero_point : 0;
      if (l.zero_points != 0) std::memcpy(&zero, from + 4 * (l.groups + k / width), 4);
      values[i] = row_value(p, from + l.codes, k, zero);
    }
  }
}

// ---- gemm ----

using RowScratch = Scratch<float>;

void decode_codes(const Problem& p, const uint8_t* codes, float* out) {
  const size_t K = p.K;
  switch (p.code) {
    case CodeType::kInt8:
    case CodeType::kInt8Offset:
    case CodeType::kInt4Offset:
      if (code_bits_kept(p) == 4) return decode_nibbles(kInt4Pairs, codes, K, out);
      for (size_t i = 0; i < K; ++i) out[i] = static_cast<float>(static_cast<int8_t>(codes[i]));
      return;
    case CodeType::kFp4:
      return decode_nibbles(kFp4Pairs, codes, K, out);
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

// Decodes weights with offsets completely: their scales become 1.
void add_offsets(const GemmArgs& args, const PackedLayout& l, size_t n, float* out, float* scales) {
  const Problem& p = *args.w->problem;
  const uint8_t* offsets = args.w->data + l.offsets + n * l.offset_row;
  const auto half = static_cast<float>(1 << (p.bits - 1));
  for (size_t g = 0; g < p.groups; ++g) {
    const float s = scales[g], b = table_at(offsets, p.scale_type, g);
    const size_t end = group_end(p, args.w->group_ends, g);
    for (size_t i = group_begin(p, args.w->group_ends, g); i < end; ++i)
      out[i] = (out[i] + half) * s + b;
    scales[g] = 1.0f;
  }
}

void decode_row(const GemmArgs& args, const PackedLayout& l, size_t n, float* out, float* scales) {
  const Problem& p = *args.w->problem;
  decode_codes(p, args.w->data + l.codes + n * l.code_row, out);
  if (l.zero_row != 0) {
    const auto* zeros = reinterpret_cast<const int8_t*>(args.w->data + l.zeros + n * l.zero_row);
    for (size_t g = 0; g < p.groups; ++g) {
      const float zero = zeros[g];
      const size_t end = group_end(p, args.w->group_ends, g);
      for (size_t i = group_begin(p, args.w->group_ends, g); i < end; ++i) out[i] -= zero;
    }
  }
  decode_scales(p.scale_type, args.w->data + l.scales + n * l.scale_row, p.groups, scales);
  if (l.offset_row != 0) add_offsets(args, l, n, out, scales);
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

struct Finish {
  bool per_row, inside;
  GlobalScale global;
};

Finish finish_of(const PackedMatrix& w) {
  const ActSpec& act = w.problem->act;
  Finish f{};
  f.per_row = act.code != ActCode::kAsIs && act.granule == ActGranule::kRow;
  f.inside = act.code != ActCode::kAsIs && !f.per_row;
  f.global = result_scale(w);
  return f;
}

void multiply_row(const uint8_t* row, const PanelRow& at, const RowScratch& s, size_t stretches,
                  const Finish& finish, float* y) {
  const auto* scales = reinterpret_cast<const float*>(row);
  const auto* x = reinterpret_cast<const float*>(row + at.values);
  Lanes f[kRows];
  for (size_t i = 0; i < stretches; ++i) {
    const Stretch& t = s.stretches[i];
    Lanes d[kRows];
    dot4(x, s.w, t.begin, t.end, d);
    const float inside = finish.inside ? scales[t.granule] : 1.0f;
    for (size_t j = 0; j < kRows; ++j) {
      const float factor = s.scales[j][t.group] * inside;
      f[j].low += d[j].low * factor;
      f[j].high += d[j].high * factor;
    }
  }
  for (size_t j = 0; j < kRows; ++j) {
    const Vec v = f[j].low + f[j].high;
    float sum = (v[0] + v[2]) + (v[1] + v[3]);
    if (finish.per_row) sum = sum * scales[0];
    y[j] = with_scale(sum, finish.global);
  }
}

void gemm(const GemmArgs& args) {
  const Problem& p = *args.w->problem;
  const PackedLayout l = layout_of(p);
  const PanelRow at = panel_row(p, sizeof(float));
  const RowScratch s(p, args.scratch);
  const size_t stretches = make_stretches(p, args.w->group_ends, s.stretches);
  const Finish finish = finish_of(*args.w);
  for (size_t n = args.n0; n < args.n1; n += kRows) {
    const size_t rows = args.n1 - n < kRows ? args.n1 - n : kRows;
    for (size_t j = 0; j < kRows; ++j)  // a short tile repeats its last row and drops the result
      decode_row(args, l, n + (j < rows ? j : rows - 1), s.w[j], s.scales[j]);
    for (size_t m = 0; m < args.M; ++m) {
      float y[kRows];
      multiply_row(args.panel + m * at.stride, at, s, stretches, finish, y);
      std::memcpy(args.y + m * args.ldy + (n - args.n0), y, rows * sizeof(float));
    }
  }
}

size_t code_at(const Problem& p, size_t n, size_t k) {
  const PackedLayout l = layout_of(p);
  return l.codes + n * l.code_row + k * (code_bits_kept(p) / 8);
}

constexpr Kernel kKernels[] = {{"generic", "stored", Arch::kOther, 0, kRows, supports, numerics,
                                packed_bytes, pack, prepared_row_bytes, prepare_rows_canonical,
                                row_panel_bytes, make_row_panel, RowScratch::bytes, gemm, 0, 8,
                                code_at, kOffsets | kRagged}};

}  // namespace
}  // namespace moebius::generic

namespace moebius {
extern const KernelTable kGenericFloatKernels;
const KernelTable kGenericFloatKernels = {generic::kKernels,
                                          sizeof generic::kKernels / sizeof generic::kKernels[0]};
}  // namespace moebius
