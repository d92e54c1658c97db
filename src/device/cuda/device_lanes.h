// SPDX-License-Identifier: Apache-2.0
// Lanes are threads of a GPU's block that compute something together, or a single lane on the CPU.
// Algorithms are written once for both (device_rows.h, device_attention.h), so that tests on the
// CPU check what the plugin runs. Lanes form groups of sixteen, which add in the order of
// kernels/isa_rows.h.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/numeric.h"
#include "quant/activation.h"

// Stands before a loop whose loads a GPU should keep in flight together.
#if defined(__CUDACC__)
#define MOEBIUS_UNROLL_8 _Pragma("unroll 8")
#define MOEBIUS_UNROLL _Pragma("unroll")
#else
#define MOEBIUS_UNROLL_8
#define MOEBIUS_UNROLL
#endif

namespace moebius {

inline constexpr int kDeviceSumLanes = 16;

MOEBIUS_ALWAYS_INLINE float larger_or_nan(float a, float b) { return b > a || b != b ? b : a; }

// Lanes as the algorithms use them, for a single lane, which is its own group.
struct SingleLane {
  MOEBIUS_ALWAYS_INLINE size_t lane() const { return 0; }
  MOEBIUS_ALWAYS_INLINE size_t lanes() const { return 1; }
  MOEBIUS_ALWAYS_INLINE size_t group() const { return 0; }
  MOEBIUS_ALWAYS_INLINE size_t groups() const { return 1; }
  MOEBIUS_ALWAYS_INLINE size_t in_group() const { return 0; }
  MOEBIUS_ALWAYS_INLINE size_t group_lanes() const { return 1; }
  MOEBIUS_ALWAYS_INLINE void sync() const {}        // waits for all lanes
  MOEBIUS_ALWAYS_INLINE void sync_group() const {}  // waits for the lanes of the group

  // Returns the sum of n terms: lane i % 16 adds term i, in ascending order; then lanes `first`,
  // `second`, 2 and 1 apart are added. Called by a group.
  template <class Term>
  MOEBIUS_ALWAYS_INLINE float sum(size_t n, int first, int second, Term term) const {
    float lane[kDeviceSumLanes] = {};
    for (size_t i = 0; i < n; ++i) lane[i % kDeviceSumLanes] += term(i);
    const int apart[4] = {first, second, 2, 1};
    for (const int d : apart) {
      float next[kDeviceSumLanes];
      for (int l = 0; l < kDeviceSumLanes; ++l) next[l] = lane[l] + lane[l ^ d];
      for (int l = 0; l < kDeviceSumLanes; ++l) lane[l] = next[l];
    }
    return lane[0];
  }
  // Returns the sum of sum() to all lanes, computed by all of them. `eight` returns eight terms
  // from i on, used if by_eight.
  template <class Term, class Eight>
  MOEBIUS_ALWAYS_INLINE float sum_of_all(size_t n, int first, int second, Term term, Eight eight,
                                         bool by_eight) const {
    if (!by_eight) return sum(n, first, second, term);
    float terms[8];
    return sum(n, first, second, [&](size_t i) {
      if (i % 8 == 0) eight(i, terms);
      return terms[i % 8];
    });
  }
  // Returns the largest term; NaN if one is NaN, -infinity if n is 0.
  template <class Term>
  MOEBIUS_ALWAYS_INLINE float largest(size_t n, Term term) const {
    float top = f32_from_bits(0xFF800000u);
    for (size_t i = 0; i < n; ++i) top = larger_or_nan(top, term(i));
    return top;
  }
};

// Read and round numbers of rows in memory.
MOEBIUS_ALWAYS_INLINE float to_numbers(XType type, float v) {
  return type == XType::kBf16  ? bf16_to_f32(f32_to_bf16(v))
         : type == XType::kF16 ? f16_to_f32(f32_to_f16(v))
                               : v;
}
MOEBIUS_ALWAYS_INLINE float number_at(const void* p, XType type, size_t i) {
  if (type == XType::kF32) return static_cast<const float*>(p)[i];
  const uint16_t h = static_cast<const uint16_t*>(p)[i];
  return type == XType::kBf16 ? bf16_to_f32(h) : f16_to_f32(h);
}
MOEBIUS_ALWAYS_INLINE void put_number(void* p, XType type, size_t i, float v) {
  if (type == XType::kF32)
    static_cast<float*>(p)[i] = v;
  else
    static_cast<uint16_t*>(p)[i] = type == XType::kBf16 ? f32_to_bf16(v) : f32_to_f16(v);
}

// Loads eight numbers from an index that is a multiple of eight; rows begin at a multiple of 16
// bytes.
struct alignas(16) SixteenBytes {
  uint32_t word[4];
};
MOEBIUS_ALWAYS_INLINE void eight_at(const void* p, XType type, size_t i, float (&v)[8]) {
  if (type == XType::kF32) {
    const auto* from = reinterpret_cast<const SixteenBytes*>(static_cast<const float*>(p) + i);
    const SixteenBytes a = from[0], b = from[1];
    for (int j = 0; j < 4; ++j) {
      v[j] = f32_from_bits(a.word[j]);
      v[4 + j] = f32_from_bits(b.word[j]);
    }
    return;
  }
  const SixteenBytes a =
      *reinterpret_cast<const SixteenBytes*>(static_cast<const uint16_t*>(p) + i);
  for (int j = 0; j < 8; ++j) {
    const auto h = static_cast<uint16_t>(a.word[j / 2] >> (j % 2 * 16));
    v[j] = type == XType::kBf16 ? bf16_to_f32(h) : f16_to_f32(h);
  }
}
MOEBIUS_ALWAYS_INLINE void put_eight_at(void* p, XType type, size_t i, const float (&v)[8]) {
  SixteenBytes a, b;
  if (type == XType::kF32) {
    for (int j = 0; j < 4; ++j) {
      a.word[j] = f32_bits(v[j]);
      b.word[j] = f32_bits(v[4 + j]);
    }
    auto* to = reinterpret_cast<SixteenBytes*>(static_cast<float*>(p) + i);
    to[0] = a;
    to[1] = b;
    return;
  }
  const auto bits = [&](float x) -> uint32_t {
    return type == XType::kBf16 ? f32_to_bf16(x) : f32_to_f16(x);
  };
  for (int j = 0; j < 4; ++j) a.word[j] = bits(v[2 * j]) | bits(v[2 * j + 1]) << 16;
  *reinterpret_cast<SixteenBytes*>(static_cast<uint16_t*>(p) + i) = a;
}

}  // namespace moebius
