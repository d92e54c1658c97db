// SPDX-License-Identifier: Apache-2.0
// Element types of tensors as safetensors names them. Sub-byte types count bits; shapes always
// count logical elements.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace moebius {

enum class DType : uint8_t {
  kBool,
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kU64,
  kI64,
  kF16,
  kBf16,
  kF32,
  kF64,
  kC64,
  kF8E4M3,
  kF8E5M2,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kF8E8M0,
  kF6E2M3,
  kF6E3M2,
  kF4,
};

struct DTypeInfo {
  DType dtype;
  std::string_view name;  // name as a safetensors header spells it
  unsigned bits;
};

inline constexpr DTypeInfo kDTypes[] = {
    {DType::kBool, "BOOL", 8},
    {DType::kU8, "U8", 8},
    {DType::kI8, "I8", 8},
    {DType::kU16, "U16", 16},
    {DType::kI16, "I16", 16},
    {DType::kU32, "U32", 32},
    {DType::kI32, "I32", 32},
    {DType::kU64, "U64", 64},
    {DType::kI64, "I64", 64},
    {DType::kF16, "F16", 16},
    {DType::kBf16, "BF16", 16},
    {DType::kF32, "F32", 32},
    {DType::kF64, "F64", 64},
    {DType::kC64, "C64", 64},
    {DType::kF8E4M3, "F8_E4M3", 8},
    {DType::kF8E5M2, "F8_E5M2", 8},
    {DType::kF8E4M3Fnuz, "F8_E4M3FNUZ", 8},
    {DType::kF8E5M2Fnuz, "F8_E5M2FNUZ", 8},
    {DType::kF8E8M0, "F8_E8M0", 8},
    {DType::kF6E2M3, "F6_E2M3", 6},
    {DType::kF6E3M2, "F6_E3M2", 6},
    {DType::kF4, "F4", 4},
};

inline constexpr const DTypeInfo& info_of(DType t) { return kDTypes[static_cast<size_t>(t)]; }
inline constexpr std::string_view name_of(DType t) { return info_of(t).name; }
inline constexpr unsigned bits_of(DType t) { return info_of(t).bits; }

inline constexpr std::optional<DType> dtype_from_name(std::string_view name) {
  for (const DTypeInfo& i : kDTypes)
    if (i.name == name) return i.dtype;
  return std::nullopt;
}

// Returns true for the three types that activations may have.
inline constexpr bool is_activation_type(DType t) {
  return t == DType::kF32 || t == DType::kBf16 || t == DType::kF16;
}

}  // namespace moebius
