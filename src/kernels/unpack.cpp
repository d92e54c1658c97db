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
    default:
      return for_columns(k0, k1, columns, out, [](size_t) { return int8_t{0}; });
  }
}

void unpack_f32(const QuantMatrix& w, size_t r, size_t k0, size_t k1, const int32_t* columns,
                float* out) {
  const uint8_t* row = w.codes + r * w.row_bytes;
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
  const bool stored_so = w.code == CodeType::kInt4Offset || w.code == CodeType::kFp4;
  const unsigned zero = w.code == CodeType::kFp4 ? 0u : 8u;
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

void row_scales_raw(const QuantMatrix& w, size_t r, uint8_t* out) {
  const size_t size = scale_bytes(w.scale_type);
  if (size == 0) return;
  std::memcpy(out, w.scales + (r + w.n_phase) / w.block_n * w.scale_stride * size, w.groups * size);
}

void row_offsets_raw(const QuantMatrix& w, size_t r, uint8_t* out) {
  const size_t size = scale_bytes(w.scale_type);
  std::memcpy(out, w.offsets + (r + w.n_phase) / w.block_n * w.scale_stride * size,
              w.groups * size);
}

void row_scales_f32(const QuantMatrix& w, size_t r, float* out) {
  if (w.scale_type == ScaleType::kNone) {
    out[0] = 1.0f;
    return;
  }
  const size_t size = scale_bytes(w.scale_type);
  decode_scales(w.scale_type, w.scales + (r + w.n_phase) / w.block_n * w.scale_stride * size,
                w.groups, out);
}

void decode_scales(ScaleType type, const uint8_t* raw, size_t count, float* out) {
  switch (type) {
    case ScaleType::kNone:
      for (size_t i = 0; i < count; ++i) out[i] = 1.0f;
      return;
    case ScaleType::kF32:
      std::memcpy(out, raw, count * sizeof(float));
      return;
    case ScaleType::kBf16:
      for (size_t i = 0; i < count; ++i) out[i] = bf16_to_f32(load_u16(raw + 2 * i));
      return;
    case ScaleType::kF16:
      for (size_t i = 0; i < count; ++i) out[i] = f16_to_f32(load_u16(raw + 2 * i));
      return;
    case ScaleType::kFp8:
      for (size_t i = 0; i < count; ++i) out[i] = e4m3_to_f32(raw[i]);
      return;
    case ScaleType::kE8m0:
      for (size_t i = 0; i < count; ++i) out[i] = e8m0_to_f32(raw[i]);
      return;
  }
}

void row_zero_points(const QuantMatrix& w, size_t r, int8_t* out) {
  if (w.zero_points == nullptr) {
    std::memset(out, 0, w.groups);
    return;
  }
  std::memcpy(out, w.zero_points + (r + w.n_phase) / w.block_n * w.scale_stride, w.groups);
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
  return p.act.code == ActCode::kInt && is_integer_code(p.code);
}

bool fits_int32(const Problem& p) {
  const auto largest = [](unsigned bits, bool zero_points) {
    return zero_points ? (1u << bits) - 1u : 1u << (bits - 1);
  };
  const bool x_zero = !p.act.symmetric || p.act.granule == ActGranule::kStatic;
  const uint64_t term = uint64_t{largest(p.act.bits, x_zero)} * largest(p.bits, p.zero_points);
  const uint64_t longest = p.ragged || p.groups == 1 ? p.K : p.block_k;
  return longest <= 0x7FFFFFFFu / (term == 0 ? 1 : term);
}

size_t stored_bytes(const Problem& p) {
  const size_t bits = is_integer_code(p.code) ? p.bits : code_bits(p.code);
  const size_t scales = (p.N + p.block_n - 1) / p.block_n * p.groups;
  return (p.N * p.K * bits + 7) / 8 + scales * scale_bytes(p.scale_type) +
         (p.zero_points ? (scales * p.bits + 7) / 8 : 0) +
         (p.offsets ? scales * scale_bytes(p.scale_type) : 0);
}

}  // namespace moebius
