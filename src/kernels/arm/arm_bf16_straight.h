// SPDX-License-Identifier: Apache-2.0
// The float family on Arm: packs the usual case: 8 outputs, inputs in the order of the file, whole
// steps of 16 inputs (layouts: arm_bf16.h). arm_bf16_pack.h packs the rest (tails, act-order, NaN
// codes). Internal linkage.
//
// 8 rows are read side by side and stored in the order of addresses (arm_packing.h; dense weights
// 18 to 38 GB/s).
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include <arm_neon.h>

#include "kernels/arm/arm_bf16.h"
#include "kernels/arm/arm_packing.h"

namespace moebius {
namespace {
namespace bf16_family {

using namespace arm_packing;

// --- codes --- A codec packs kSteps steps of 16 inputs at a time to kBytes bytes; the file has
// kStored bytes for a step of a row.

// Records what e4m3 codes of a group contain: the largest of 2 * code, which is 254 for NaN, and of
// -2 * code, which is above 240 for subnormals only (both without the sign). Uses operations
// without constants and two registers that were just written, because this core reads only four
// others per cycle.
struct Seen {
  uint8x16_t most = vdupq_n_u8(0), least = vdupq_n_u8(0);
  [[gnu::always_inline]] void add(uint8x16_t codes) {
    const uint8x16_t twice = vaddq_u8(codes, codes);
    most = vmaxq_u8(most, twice);
    least = vmaxq_u8(least, vreinterpretq_u8_s8(vnegq_s8(vreinterpretq_s8_u8(twice))));
  }
  bool nan() const { return vmaxvq_u8(most) == 254; }
  // Returns a lower bound of the number of subnormal codes; 0 only if there are none.
  size_t subnormals() const { return vaddvq_u8(vshrq_n_u8(vcgtq_u8(least, vdupq_n_u8(240)), 7)); }
};

// Flags in two registers, because a load would wait for the stores of its parts.
struct FlagBits {
  uint64_t low = 0, high = 0;
  size_t count() const { return low >> 8 & 0xff; }
  void put(size_t k, size_t output, uint8_t code) {
    const size_t at = 1 + count();
    (at < 4 ? low : high) |= uint64_t{Flags::entry(k, output, code)} << (16 * (at % 4));
    low += 1 << 8;
  }
};
constexpr FlagBits kNoneListed{1, 0};

struct StoredNibbles {
  static constexpr size_t kStep = 8;
  static uint8x16_t two(const uint8_t* p) { return vld1q_u8(p); }  // 32 inputs
};
struct SmallIntegers {  // integers of at most 4 bits, one byte each
  static constexpr size_t kStep = 16;
  static uint8x16_t two(const uint8_t* p) {
    const uint8x16_t lo = vld1q_u8(p), hi = vld1q_u8(p + 16), eight = vdupq_n_u8(8);
    return vsliq_n_u8(vaddq_u8(vuzp1q_u8(lo, hi), eight), vaddq_u8(vuzp2q_u8(lo, hi), eight), 4);
  }
};
template <class Reader>
struct NibbleCodec {
  static constexpr size_t kSteps = 2, kBytes = 128, kStored = Reader::kStep;
  [[gnu::always_inline]] static void make(Rows& r, uint8x16_t (&first)[4],
                                          uint8x16_t (&second)[4]) {
    MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) {
      const uint32x4_t o = vreinterpretq_u32_u8(Reader::two(r.row(2 * j))),
                       p = vreinterpretq_u32_u8(Reader::two(r.row(2 * j + 1)));
      first[j] = vreinterpretq_u8_u32(vzip1q_u32(o, p));
      second[j] = vreinterpretq_u8_u32(vzip2q_u32(o, p));
    }
    r.template advance<2 * Reader::kStep>();
  }
  [[gnu::always_inline]] static void put(Rows& r, uint8_t* out, Seen&) {
    uint8x16_t first[4], second[4];
    make(r, first, second);
    store_in_order(out, first), store_in_order(out + 64, second);
  }
};

struct E4m3 {
  static uint8x16_t one(const uint8_t* p, Seen& seen) {
    const uint8x16_t v = vld1q_u8(p);
    seen.add(v);
    return v;
  }
};
struct Integers {
  static uint8x16_t one(const uint8_t* p, Seen&) { return vld1q_u8(p); }
};
struct OffsetIntegers {
  static uint8x16_t one(const uint8_t* p, Seen&) { return veorq_u8(vld1q_u8(p), vdupq_n_u8(0x80)); }
};
// Packs 16 inputs of a pair of outputs, one byte each. Both tables are two consecutive registers;
// vqtbl2q_u8 would copy them there for each call.
[[gnu::always_inline]] inline void put_bytes(uint8_t* out, uint8x16_t o, uint8x16_t p) {
  constexpr uint8_t kEven[16] = {0, 2, 4, 6, 16, 18, 20, 22, 8, 10, 12, 14, 24, 26, 28, 30};
  const uint8x16_t even = vld1q_u8(kEven), odd = vaddq_u8(even, vdupq_n_u8(1));
  register uint8x16_t first asm("v16") = o;
  register uint8x16_t second asm("v17") = p;
  uint8x16_t v[2];
  asm("tbl %0.16b, {%2.16b, %3.16b}, %4.16b\n\t"
      "tbl %1.16b, {%2.16b, %3.16b}, %5.16b"
      : "=&w"(v[0]), "=w"(v[1])
      : "w"(first), "w"(second), "w"(even), "w"(odd));
  store_in_order(out, v);
}
template <class Reader>
struct ByteCodec {
  static constexpr size_t kSteps = 1, kBytes = 128, kStored = 16;
  [[gnu::always_inline]] static void put(Rows& r, uint8_t* out, Seen& seen) {
    MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) put_bytes(
        out + 32 * j, Reader::one(r.row(2 * j), seen), Reader::one(r.row(2 * j + 1), seen));
    r.advance<16>();
  }
};

struct Bf16Codec {
  static constexpr size_t kSteps = 1, kBytes = 256, kStored = 32;
  [[gnu::always_inline]] static void put(Rows& r, uint8_t* out, Seen&) {
    uint8x16_t v[16];
    MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) {
      uint64x2_t even[2], odd[2];
      MOEBIUS_UNROLL for (int i = 0; i < 2; ++i) {
        const uint8_t* at = r.row(2 * j + i);
        const uint16x8_t lo = vreinterpretq_u16_u8(vld1q_u8(at)),
                         hi = vreinterpretq_u16_u8(vld1q_u8(at + 16));
        even[i] = vreinterpretq_u64_u16(vuzp1q_u16(lo, hi));
        odd[i] = vreinterpretq_u64_u16(vuzp2q_u16(lo, hi));
      }
      v[j] = vreinterpretq_u8_u64(vzip1q_u64(even[0], even[1]));
      v[4 + j] = vreinterpretq_u8_u64(vzip2q_u64(even[0], even[1]));
      v[8 + j] = vreinterpretq_u8_u64(vzip1q_u64(odd[0], odd[1]));
      v[12 + j] = vreinterpretq_u8_u64(vzip2q_u64(odd[0], odd[1]));
    }
    store_in_order(out, v);
    r.advance<32>();
  }
};

// Packs as many of `steps` steps as the codec can; returns their number.
template <class Codec>
[[gnu::always_inline]] inline size_t put_steps(Rows& r, size_t steps, uint8_t* out, Seen& seen) {
  Seen all = seen;
  size_t i = 0;
  for (; i + Codec::kSteps <= steps; i += Codec::kSteps, out += Codec::kBytes)
    Codec::put(r, out, all);
  seen = all;
  return i;
}

// --- scales ---

// Packs scales and flags of an e4m3 group without NaN. The scales of a plain group are stored 8
// times as large, which must not overflow.
[[gnu::always_inline]] inline void put_e4m3_extras(uint16x8_t scales, FlagBits flags,
                                                   uint8_t* out) {
  constexpr uint16_t kSixteen = 0x4180;
  const bool plain =
      flags.low != 0 && vmaxvq_u16(vandq_u16(scales, vdupq_n_u16(0x7fff))) < kSixteen;
  if (!plain) flags = {};
  const float32x4_t lo = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(scales), 16)),
                    hi = vreinterpretq_f32_u32(vshll_high_n_u16(scales, 16));
  const uint16x8_t larger = vuzp2q_u16(vreinterpretq_u16_f32(vmulq_n_f32(lo, 8)),
                                       vreinterpretq_u16_f32(vmulq_n_f32(hi, 8)));
  const uint16x8_t mask = vdupq_n_u16(plain ? 0xffff : 0);
  store_in_order<2>(
      out, {vreinterpretq_u8_u16(vbslq_u16(mask, larger, scales)),
            vreinterpretq_u8_u64(vcombine_u64(vcreate_u64(flags.low), vcreate_u64(flags.high)))});
}

}  // namespace bf16_family
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
