// SPDX-License-Identifier: Apache-2.0
// Element access to a QuantMatrix in plain scalar code: code, group, scale, zero point, decoded
// weight. These functions define what a QuantMatrix means. Units compiled for the baseline use
// them, kernels for an instruction set do not. Nothing is checked: r < N and c < K, and the format
// reader proved that every index lies inside its table.
#pragma once
#include <cmath>
#include <cstring>

#include "base/numeric.h"
#include "quant/quant_matrix.h"

namespace moebius {

inline constexpr bool is_integer_code(CodeType t) {
  return t == CodeType::kInt8 || t == CodeType::kInt8Offset || t == CodeType::kInt4Offset;
}
// Returns true if codes stand for integers.
inline constexpr bool has_integer_values(CodeType t) {
  return is_integer_code(t) || t == CodeType::kLut4;
}
inline constexpr bool is_dense_code(CodeType t) {
  return t == CodeType::kBf16 || t == CodeType::kF16 || t == CodeType::kF32;
}
inline constexpr size_t code_bits(CodeType t) {  // returns the stored bits per element
  switch (t) {
    case CodeType::kInt4Offset:
    case CodeType::kFp4:
    case CodeType::kLut4:
      return 4;
    case CodeType::kInt8:
    case CodeType::kInt8Offset:
    case CodeType::kFp8:
      return 8;
    case CodeType::kBf16:
    case CodeType::kF16:
      return 16;
    case CodeType::kF32:
      return 32;
  }
  return 0;
}
inline constexpr size_t scale_bytes(ScaleType t) {  // returns the bytes of one stored scale
  switch (t) {
    case ScaleType::kNone:
      return 0;
    case ScaleType::kF32:
      return 4;
    case ScaleType::kBf16:
    case ScaleType::kF16:
      return 2;
    case ScaleType::kFp8:
    case ScaleType::kE8m0:
    case ScaleType::kTwoLevel:
      return 1;
  }
  return 0;
}

// Load a number from any address.
inline uint16_t load_u16(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline float load_f32(const uint8_t* p) {
  float v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline size_t group_of(const QuantMatrix& w, size_t c) {
  return w.g_idx != nullptr ? static_cast<size_t>(w.g_idx[c]) : (c + w.k_phase) / w.block_k;
}

// Return the index of a row's first scale, and of an element's scale and zero point (in elements of
// their tables).
inline size_t scale_row(const QuantMatrix& w, size_t r) {
  return (r + w.n_phase) / w.block_n * w.scale_stride;
}
inline size_t scale_index(const QuantMatrix& w, size_t r, size_t c) {
  return scale_row(w, r) + group_of(w, c);
}

// Returns entry `index` of a table of scales or offsets, as f32; of two levels, the byte alone.
inline float table_at(const uint8_t* table, ScaleType type, size_t index) {
  const uint8_t* p = table + index * scale_bytes(type);
  switch (type) {
    case ScaleType::kNone:
      break;
    case ScaleType::kF32:
      return load_f32(p);
    case ScaleType::kBf16:
      return bf16_to_f32(load_u16(p));
    case ScaleType::kF16:
      return f16_to_f32(load_u16(p));
    case ScaleType::kFp8:
      return e4m3_to_f32(*p);
    case ScaleType::kE8m0:
      return e8m0_to_f32(*p);
    case ScaleType::kTwoLevel:
      return static_cast<float>(static_cast<int8_t>(*p));
  }
  return 1.0f;
}

// Returns an entry of `table`, which is w.scales or w.offsets; `supers`: the same of super-blocks.
inline float table_at(const QuantMatrix& w, const uint8_t* table, const uint8_t* supers,
                      size_t index) {
  const float v = table_at(table, w.scale_type, index);
  if (w.scale_type != ScaleType::kTwoLevel) return v;
  return v * load_f32(supers + (index + w.super_phase) / w.super_groups * sizeof(float));
}
inline float scale_at(const QuantMatrix& w, size_t index) {
  return table_at(w, w.scales, w.super_scales, index);
}
inline float offset_at(const QuantMatrix& w, size_t index) {
  return table_at(w, w.offsets, w.super_offsets, index);
}

// Returns the stored scale of an element, without the global scale; 1 for dense matrices.
inline float scale_of(const QuantMatrix& w, size_t r, size_t c) {
  return w.scale_type == ScaleType::kNone ? 1.0f : scale_at(w, scale_index(w, r, c));
}

inline int zero_point_of(const QuantMatrix& w, size_t r, size_t c) {
  return w.zero_points != nullptr ? w.zero_points[scale_index(w, r, c)] : 0;
}

// Returns the integer that a code stands for: offset removed, zero point not subtracted. Requires
// has_integer_values.
inline int int_code(const QuantMatrix& w, size_t r, size_t c) {
  const uint8_t* row = w.codes + r * w.row_bytes;
  switch (w.code) {
    case CodeType::kInt8:
      return static_cast<int8_t>(row[c]);
    case CodeType::kInt8Offset:
      return static_cast<int>(row[c]) - 128;
    case CodeType::kInt4Offset:
      return static_cast<int>((row[c / 2] >> (4 * (c % 2))) & 15u) - 8;
    case CodeType::kLut4:
      return lut_numbers(w.lut).of[(row[c / 2] >> (4 * (c % 2))) & 15u];
    default:
      return 0;
  }
}

// Returns the number that a code represents, before zero point and scale.
inline float code_value(const QuantMatrix& w, size_t r, size_t c) {
  const uint8_t* row = w.codes + r * w.row_bytes;
  switch (w.code) {
    case CodeType::kInt8:
    case CodeType::kInt8Offset:
    case CodeType::kInt4Offset:
    case CodeType::kLut4:
      return static_cast<float>(int_code(w, r, c));
    case CodeType::kFp4:
      return e2m1_to_f32((row[c / 2] >> (4 * (c % 2))) & 15u);
    case CodeType::kFp8:
      return e4m3_to_f32(row[c]);
    case CodeType::kBf16:
      return bf16_to_f32(load_u16(row + 2 * c));
    case CodeType::kF16:
      return f16_to_f32(load_u16(row + 2 * c));
    case CodeType::kF32:
      return load_f32(row + 4 * c);
  }
  return 0.0f;
}

// Returns the decoded weight in f32: q * s, or (q - zp) * s; for NVFP4 q * (s / G) or q * (s * g);
// with an offset fma(q, s, b). Each operation is rounded once.
inline float weight_at(const QuantMatrix& w, size_t r, size_t c) {
  const float value = code_value(w, r, c);
  if (w.scale_type == ScaleType::kNone) return value;
  const size_t i = scale_index(w, r, c);
  const float zero = w.zero_points != nullptr ? static_cast<float>(w.zero_points[i]) : 0.0f;
  const float s = scale_at(w, i);
  if (w.offsets != nullptr)
    return std::fma(value + static_cast<float>(1 << (w.bits - 1)), s, offset_at(w, i));
  return (value - zero) * with_scale(s, w.global_scale);
}

}  // namespace moebius
