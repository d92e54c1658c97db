// SPDX-License-Identifier: Apache-2.0
// The int8 family on Arm: packs the usual case: 8 outputs, inputs in the order of the file, whole
// steps of 16 inputs (layouts: arm_int8.h). arm_neon_int8_pack.cpp packs the rest (tails,
// act-order). Internal linkage.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include <arm_neon.h>

#include "kernels/arm/arm_int8.h"
#include "kernels/arm/arm_packing.h"

namespace moebius {
namespace {
namespace int8_family {

using namespace arm_packing;

// Sums of the codes of 8 outputs. Partial sums have 16 bits: call `settle` before they overflow.
struct Sums {
  int16x8_t part[kNr] = {};
  int32x4_t total[2] = {};
  [[gnu::always_inline]] void add(int i, int8x16_t v) { part[i] = vpadalq_s8(part[i], v); }
  [[gnu::always_inline]] void add(int i, uint8x16_t v) {
    part[i] = vreinterpretq_s16_u16(vpadalq_u8(vreinterpretq_u16_s16(part[i]), v));
  }
  void settle(int32_t offset) {  // offset: contained in the sum of every output
    int32x4_t pair[4];
    MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) {
      pair[i] = vpaddq_s32(vpaddlq_s16(part[2 * i]), vpaddlq_s16(part[2 * i + 1]));
      part[2 * i] = part[2 * i + 1] = vdupq_n_s16(0);
    }
    MOEBIUS_UNROLL for (int i = 0; i < 2; ++i) total[i] = vsubq_s32(
        vaddq_s32(total[i], vpaddq_s32(pair[2 * i], pair[2 * i + 1])), vdupq_n_s32(offset));
  }
};

// --- readers --- A reader loads 32 or 16 inputs (then in the lower half) of a row as nibbles of
// the panel. kOffset: by how much a code is too large in the sums.

struct StoredFp4 {
  static constexpr size_t kStep = 8;
  static constexpr int32_t kOffset = 0;
  template <bool kSums>
  [[gnu::always_inline]] static uint8x16_t two(const uint8_t* p, int, Sums&) {
    return vld1q_u8(p);
  }
  template <bool kSums>
  [[gnu::always_inline]] static uint8x16_t one(const uint8_t* p, int, Sums&) {
    return vcombine_u8(vld1_u8(p), vdup_n_u8(0));
  }
};
struct StoredNibbles {
  static constexpr size_t kStep = 8;
  static constexpr int32_t kOffset = 8;
  template <bool kSums>
  [[gnu::always_inline]] static uint8x16_t made(uint8x16_t v, int i, Sums& sums) {
    if constexpr (kSums) sums.add(i, vsraq_n_u8(vandq_u8(v, vdupq_n_u8(15)), v, 4));
    return veorq_u8(v, vdupq_n_u8(0x88));
  }
  template <bool kSums>
  [[gnu::always_inline]] static uint8x16_t two(const uint8_t* p, int i, Sums& sums) {
    return made<kSums>(vld1q_u8(p), i, sums);
  }
  template <bool kSums>
  [[gnu::always_inline]] static uint8x16_t one(const uint8_t* p, int i, Sums& sums) {
    return made<kSums>(vcombine_u8(vld1_u8(p), vdup_n_u8(0)), i, sums);
  }
};
struct SmallIntegers {  // integers of at most 4 bits, one byte each
  static constexpr size_t kStep = 16;
  static constexpr int32_t kOffset = 0;
  template <bool kSums>
  [[gnu::always_inline]] static uint8x16_t made(uint8x16_t lo, uint8x16_t hi, int i, Sums& sums) {
    if constexpr (kSums) sums.add(i, vreinterpretq_s8_u8(lo)), sums.add(i, vreinterpretq_s8_u8(hi));
    return vsliq_n_u8(vuzp1q_u8(lo, hi), vuzp2q_u8(lo, hi), 4);
  }
  template <bool kSums>
  [[gnu::always_inline]] static uint8x16_t two(const uint8_t* p, int i, Sums& sums) {
    return made<kSums>(vld1q_u8(p), vld1q_u8(p + 16), i, sums);
  }
  template <bool kSums>
  [[gnu::always_inline]] static uint8x16_t one(const uint8_t* p, int i, Sums& sums) {
    return made<kSums>(vld1q_u8(p), vdupq_n_u8(0), i, sums);
  }
};

// --- codecs --- A codec packs kSteps steps of 16 inputs at a time to kBytes bytes, and a remaining
// one to `kBytes / kSteps`; the file has kStored bytes for a step of a row.

template <class Reader>
struct NibbleCodec {
  static constexpr size_t kSteps = 2, kBytes = 128, kStored = Reader::kStep;
  static constexpr int32_t kOffset = Reader::kOffset;
  template <bool kSums>
  [[gnu::always_inline]] static void make(Rows& r, uint8x16_t (&first)[4], uint8x16_t (&second)[4],
                                          Sums& sums) {
    MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) {
      const uint8x16_t o = Reader::template two<kSums>(r.row(2 * j), 2 * j, sums),
                       p = Reader::template two<kSums>(r.row(2 * j + 1), 2 * j + 1, sums);
      first[j] = low_halves(o, p);
      second[j] = high_halves(o, p);
    }
    r.template advance<2 * Reader::kStep>();
  }
  template <bool kSums>
  [[gnu::always_inline]] static void put(Rows& r, uint8_t* out, Sums& sums) {
    uint8x16_t first[4], second[4];
    make<kSums>(r, first, second, sums);
    store_in_order(out, first), store_in_order(out + 64, second);
  }
  template <bool kSums>
  static void put_last(Rows& r, uint8_t* out, Sums& sums) {
    uint8x16_t v[4];
    MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) v[j] =
        low_halves(Reader::template one<kSums>(r.row(2 * j), 2 * j, sums),
                   Reader::template one<kSums>(r.row(2 * j + 1), 2 * j + 1, sums));
    store_in_order(out, v);
    r.template advance<Reader::kStep>();
  }
};

// Packs one byte per code, with the bits of kFlip inverted.
template <uint8_t kFlip>
struct ByteCodec {
  static constexpr size_t kSteps = 1, kBytes = 128, kStored = 16;
  static constexpr int32_t kOffset = 0;
  template <bool kSums>
  [[gnu::always_inline]] static void put(Rows& r, uint8_t* out, Sums& sums) {
    uint8x16_t v[8];
    MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) {
      uint8x16_t o = vld1q_u8(r.row(2 * j)), p = vld1q_u8(r.row(2 * j + 1));
      if constexpr (kFlip != 0) {
        o = veorq_u8(o, vdupq_n_u8(kFlip));
        p = veorq_u8(p, vdupq_n_u8(kFlip));
      }
      if constexpr (kSums)
        sums.add(2 * j, vreinterpretq_s8_u8(o)), sums.add(2 * j + 1, vreinterpretq_s8_u8(p));
      v[j] = vuzp1q_u8(o, p);
      v[4 + j] = vuzp2q_u8(o, p);
    }
    store_in_order(out, v);
    r.advance<16>();
  }
  template <bool kSums>
  static void put_last(Rows&, uint8_t*, Sums&) {}
};

template <class Codec, bool kSums>
[[gnu::always_inline]] inline void put_steps(Rows& r, size_t steps, uint8_t* out, Sums& sums) {
  // Steps between settling: two additions of at most 256 per step fit 16 bits.
  constexpr size_t kSettled = 64;
  size_t since = 0;
  for (; steps >= Codec::kSteps; steps -= Codec::kSteps, out += Codec::kBytes) {
    Codec::template put<kSums>(r, out, sums);
    if (kSums && ++since == kSettled) {
      sums.settle(Codec::kOffset * static_cast<int32_t>(since * Codec::kSteps * kKr));
      since = 0;
    }
  }
  if (steps != 0) Codec::template put_last<kSums>(r, out, sums);
  if (kSums)
    sums.settle(Codec::kOffset * static_cast<int32_t>((since * Codec::kSteps + steps) * kKr));
}

}  // namespace int8_family
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
