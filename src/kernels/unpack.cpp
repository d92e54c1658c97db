// SPDX-License-Identifier: Apache-2.0
// Decodes canonical views for packers (unpack.h). One template loop per code type is plain enough
// to be vectorised; with a column order the same loop gathers.
#include "kernels/unpack.h"

#include <cstring>

#include "base/numeric.h"
#include "kernels/row_functions.h"
#include "quant/quant_access.h"

namespace moebius {
namespace {

inline unsigned nibble_at(const uint8_t* row, size_t c) {
  return (row[c / 2] >> (4 * (c % 2))) & 15u;
}

template <class Out, class F>
inline void for_columns(size_t k0, size_t k1, const int32_t* columns, Out* out, F f) {
  if (columns != nullptr) {
    for (size_t i = k0; i < k1; ++i) out[i - k0] = f(static_cast<size_t>(columns[i]));
  } else {
    for (size_t i = k0; i < k1; ++i) out[i - k0] = f(i);
  }
}

}  // namespace

void unpack_int8(const QuantMatrix& w, size_t r, size_t k0, size_t k1, const int32_t* columns,
                 int8_t* out) {
  const uint8_t* row = w.codes + r * w.row_bytes;
  const LutNumbers& lut = lut_numbers(w.lut);
  switch (w.code) {
    case CodeType::kInt8:
      return for_columns(k0, k1, columns, out,
                         [=](size_t c) { return static_cast<int8_t>(row[c]); });
    case CodeType::kInt8Offset:
      return for_columns(k0, k1, columns, out,
                         [=](size_t c) { return static_cast<int8_t>(row[c] ^ 0x80u); });
    case CodeType::kInt4Offset:
      return for_columns(k0, k1, columns, out, [=](size_t c) {
        return static_cast<int8_t>(static_cast<int>(nibble_at(row, c)) - 8);
      });
    case CodeType::kFp4:
      return for_columns(k0, k1, columns, out,
                         [=](size_t c) { return e2m1_twice(nibble_at(row, c)); });
    case CodeType::kLut4:
      return for_columns(k0, k1, columns, out,
                         [=, &lut](size_t c) { return lut.of[nibble_at(row, c)]; });
    default:
      return for_columns(k0, k1, columns, out, [](size_t) { return int8_t{0}; });
  }
}

void unpack_f32(const QuantMatrix& w, size_t r, size_t k0, size_t k1, const int32_t* columns,
                float* out) {
  const uint8_t* row = w.codes + r * w.row_bytes;
  const LutNumbers& lut = lut_numbers(w.lut);
  switch (w.code) {
    case CodeType::kInt8:
      return for_columns(k0, k1, columns, out,
                         [=](size_t c) { return static_cast<float>(static_cast<int8_t>(row[c])); });
    case CodeType::kInt8Offset:
      return for_columns(k0, k1, columns, out, [=](size_t c) {
        return static_cast<float>(static_cast<int>(row[c]) - 128);
      });
    case CodeType::kInt4Offset:
      return for_columns(k0, k1, columns, out, [=](size_t c) {
        return static_cast<float>(static_cast<int>(nibble_at(row, c)) - 8);
      });
    case CodeType::kFp4:
      return for_columns(k0, k1, columns, out,
                         [=](size_t c) { return e2m1_to_f32(nibble_at(row, c)); });
    case CodeType::kLut4:
      return for_columns(k0, k1, columns, out, [=, &lut](size_t c) {
        return static_cast<float>(lut.of[nibble_at(row, c)]);
      });
    case CodeType::kFp8:
      return for_columns(k0, k1, columns, out, [=](size_t c) { return e4m3_to_f32(row[c]); });
    case CodeType::kBf16:
      return for_columns(k0, k1, columns, out,
                         [=](size_t c) { return bf16_to_f32(load_u16(row + 2 * c)); });
    case CodeType::kF16:
      return for_columns(k0, k1, columns, out,
                         [=](size_t c) { return f16_to_f32(load_u16(row + 2 * c)); });
    case CodeType::kF32:
      return for_columns(k0, k1, columns, out, [=](size_t c) { return load_f32(row + 4 * c); });
  }
}

void unpack_bf16(const QuantMatrix& w, size_t r, size_t k0, size_t k1, const int32_t* columns,
                 uint16_t* out) {
  constexpr size_t kChunk = 256;
  float values[kChunk];
  for (size_t k = k0; k < k1; k += kChunk) {
    const size_t end = k + kChunk < k1 ? k + kChunk : k1;
    if (w.code == CodeType::kBf16) {
      const uint8_t* row = w.codes + r * w.row_bytes;
      for_columns(k, end, columns, out + (k - k0), [=](size_t c) { return load_u16(row + 2 * c); });
      continue;
    }
    unpack_f32(w, r, k, end, columns, values);
    row_functions().store(XType::kBf16, values, out + (k - k0), end - k);
  }
}

void unpack_nibbles(const QuantMatrix& w, size_t r, size_t k0, size_t k1, const int32_t* columns,
                    uint8_t* out) {
  const uint8_t* row = w.codes + r * w.row_bytes;
  const size_t count = k1 - k0;
  const bool stored_so = code_bits(w.code) == 4;
  const unsigned zero = w.code == CodeType::kFp4 || w.code == CodeType::kLut4 ? 0u : 8u;
  if (stored_so && columns == nullptr && k0 % 2 == 0) {
    std::memcpy(out, row + k0 / 2, (count + 1) / 2);
    if (count % 2 != 0) out[count / 2] = static_cast<uint8_t>((out[count / 2] & 15u) | (zero << 4));
    return;
  }
  const auto code = [&](size_t i) -> unsigned {
    const size_t c = columns != nullptr ? static_cast<size_t>(columns[i]) : i;
    return stored_so ? nibble_at(row, c) : static_cast<unsigned>(int_code(w, r, c) + 8) & 15u;
  };
  for (size_t j = 0; j < (count + 1) / 2; ++j) {
    const unsigned high = 2 * j + 1 < count ? code(k0 + 2 * j + 1) : zero;
    out[j] = static_cast<uint8_t>(code(k0 + 2 * j) | (high << 4));
  }
}

size_t scale_size(ScaleType type) { return scale_bytes(type); }

namespace {

// Writes the entries of row r of w.scales or w.offsets.
void row_raw(const QuantMatrix& w, size_t r, const uint8_t* table, const uint8_t* supers,
             uint8_t* out) {
  const size_t size = scale_bytes(w.scale_type), at = scale_row(w, r);
  if (w.scale_type != ScaleType::kTwoLevel) {
    if (size != 0) std::memcpy(out, table + at * size, w.groups * size);
    return;
  }
  for (size_t g = 0; g < w.groups; ++g) {
    const float v = table_at(w, table, supers, at + g);
    std::memcpy(out + g * sizeof v, &v, sizeof v);
  }
}

}  // namespace

void row_scales_raw(const QuantMatrix& w, size_t r, uint8_t* out) {
  row_raw(w, r, w.scales, w.super_scales, out);
}

void row_offsets_raw(const QuantMatrix& w, size_t r, uint8_t* out) {
  row_raw(w, r, w.offsets, w.super_offsets, out);
}

void row_scales_f32(const QuantMatrix& w, size_t r, float* out) {
  if (w.scale_type == ScaleType::kNone) {
    out[0] = 1.0f;
    return;
  }
  for (size_t g = 0, at = scale_row(w, r); g < w.groups; ++g) out[g] = scale_at(w, at + g);
}

void decode_scales(ScaleType type, const uint8_t* raw, size_t count, float* out) {
  for (size_t i = 0; i < count; ++i) out[i] = table_at(raw, type, i);
}

void row_zero_points(const QuantMatrix& w, size_t r, int8_t* out) {
  if (w.zero_points == nullptr) {
    std::memset(out, 0, w.groups);
    return;
  }
  std::memcpy(out, w.zero_points + scale_row(w, r), w.groups);
}

size_t group_end(const Problem& p, const int32_t* group_ends, size_t g) {
  if (group_ends != nullptr) return static_cast<size_t>(group_ends[g]);
  if (p.block_k >= p.K) return p.K;
  const size_t end = (g + 1) * p.block_k;
  return end < p.K ? end : p.K;
}

size_t group_begin(const Problem& p, const int32_t* group_ends, size_t g) {
  return g == 0 ? 0 : group_end(p, group_ends, g - 1);
}

bool is_integer_problem(const Problem& p) {
  return p.act.code == ActCode::kInt && has_integer_values(p.code);
}

bool is_table_problem(const Problem& p) {
  constexpr size_t kMostInputs = 8192;  // of which f32 holds every sum of halves exactly
  const bool table = p.code == CodeType::kLut4 || p.code == CodeType::kFp4;
  return table && p.block_k <= kMostInputs && p.act.code == ActCode::kInt &&
         p.act.granule == ActGranule::kRow && p.act.symmetric && p.act.mode != Int8Mode::kVllm;
}

bool fits_int32(const Problem& p) {
  const auto largest = [](unsigned bits, bool zero_points) {
    return zero_points ? (1u << bits) - 1u : 1u << (bits - 1);
  };
  const bool x_zero = !p.act.symmetric || p.act.granule == ActGranule::kStatic;
  const unsigned bits = p.code == CodeType::kLut4 ? 8 : p.bits;
  const uint64_t term =
      uint64_t{largest(p.act.bits, x_zero)} * largest(bits, p.zero_points || p.offsets);
  const uint64_t longest = p.ragged || p.groups == 1 ? p.K : p.block_k;
  return longest <= 0x7FFFFFFFu / (term == 0 ? 1 : term);
}

size_t stored_bytes(const Problem& p) {
  const size_t bits = is_integer_code(p.code) ? p.bits : code_bits(p.code);
  const size_t rows = (p.N + p.block_n - 1) / p.block_n, scales = rows * p.groups;
  const bool two_level = p.scale_type == ScaleType::kTwoLevel;
  const size_t supers = two_level ? rows * super_blocks(p) * sizeof(float) : 0;
  return (p.N * p.K * bits + 7) / 8 + (p.zero_points ? (scales * p.bits + 7) / 8 : 0) +
         (scales * scale_bytes(p.scale_type) + supers) * (p.offsets ? 2 : 1);
}

size_t super_blocks(const Problem& p) {
  return (p.super_phase + p.groups - 1) / p.super_groups + 1;
}

}  // namespace moebius
