// SPDX-License-Identifier: Apache-2.0
// Act-order for the packers of the Arm families: a block of rows of integer codes, as stored but with
// the columns in the order of `columns`, to be packed as if the file had them so. Internal linkage,
// plain NEON.
//
// A gather for every code of every row is slow, so the block is turned: the codes of a column are
// one vector, which moves at once, and the vectors of 16 bytes of a row are turned back. Of 4-bit codes
// a vector has 32 rows (byte p: rows p and p + 16), of bytes 16.
#pragma once
#ifdef __aarch64__
#include <arm_neon.h>

#include "kernels/arm/arm_packing.h"

namespace moebius {
namespace {
namespace arm_packing {

class PermutedRows {
 public:
  static constexpr size_t kMostK = 16384;
  static bool takes(const PackArgs& a) {
    const QuantMatrix& w = *a.w;
    return a.columns != nullptr && w.K <= kMostK &&
           (w.code == CodeType::kInt4Offset || w.code == CodeType::kInt8 ||
            w.code == CodeType::kInt8Offset);
  }
  explicit PermutedRows(const PackArgs& a)
      : from_(*a.w),
        w_(from_),
        args_(a),
        nibbles_(from_.code == CodeType::kInt4Offset),
        // a cache has few places for lines that are a power of two apart
        apart_((from_.K / (nibbles_ ? 2 : 1) + 63) / 64 * 64 + 64) {
    for (size_t k = 0; k < from_.K; ++k) places_[k] = place(static_cast<uint32_t>(a.columns[k]));
    w_.codes = rows_, w_.row_bytes = apart_, w_.g_idx = nullptr;
    args_.w = &w_, args_.columns = nullptr;
  }
  PermutedRows(const PermutedRows&) = delete;
  PermutedRows& operator=(const PermutedRows&) = delete;
  // Takes rows from n on, as many as there are and fit: args().w->N of them.
  void read(size_t n) {
    const size_t most = nibbles_ ? 2 * kVector : kVector, left = from_.N - n;
    w_.N = most < left ? most : left, w_.n_phase = from_.n_phase + n;
    const uint8_t* from[2 * kVector];  // those past N repeat the last one
    for (size_t i = 0; i < most; ++i)
      from[i] = from_.codes + (n + (i < w_.N ? i : w_.N - 1)) * from_.row_bytes;
    if (nibbles_) {
      turn<true>(from), turn_back<true>();
    } else {
      turn<false>(from), turn_back<false>();
    }
  }
  const PackArgs& args() const { return args_; }

 private:
  static constexpr size_t kVector = 16;

  // Where the vector of a column lies in turned_: of 32 columns of nibbles the even ones first.
  uint32_t place(uint32_t c) const {
    const bool whole = nibbles_ && c < from_.K / 32 * 32;
    return 16 * (whole ? (c & ~31u) | (c & 1u) << 4 | (c >> 1 & 15u) : c);
  }
  [[gnu::always_inline]] static void transpose(uint8x16_t (&v)[kVector]) {
    uint8x16_t o[kVector];
    MOEBIUS_UNROLL for (int round = 0; round < 2; ++round) {
      MOEBIUS_UNROLL for (int i = 0; i < 8; ++i) o[2 * i] = vzip1q_u8(v[i], v[i + 8]),
                                                       o[2 * i + 1] = vzip2q_u8(v[i], v[i + 8]);
      MOEBIUS_UNROLL for (int i = 0; i < 8; ++i) v[2 * i] = vzip1q_u8(o[i], o[i + 8]),
                                                       v[2 * i + 1] = vzip2q_u8(o[i], o[i + 8]);
    }
  }
  // Of two bytes of two codes each: the lower ones, or the upper ones.
  template <bool kUpper>
  [[gnu::always_inline]] static uint8x16_t halves(uint8x16_t a, uint8x16_t b) {
    if constexpr (kUpper) return vsriq_n_u8(b, a, 4);
    return vsliq_n_u8(a, b, 4);
  }
  static unsigned nibble(const uint8_t* row, size_t k) {
    return (row[k / 2] >> (4 * (k % 2))) & 15;
  }

  template <bool kNibbles>
  [[gnu::noinline]] void turn(const uint8_t* const (&from)[2 * kVector]) {
    constexpr size_t kBlock = kNibbles ? 32 : 16;  // columns in 16 bytes of a row
    size_t k = 0;
    for (; k + kBlock <= from_.K; k += kBlock) {
      uint8_t* to = turned_ + k * kVector;
      turn_16<kNibbles, false>(from, kNibbles ? k / 2 : k, to);
      if constexpr (kNibbles) turn_16<true, true>(from, k / 2, to + kVector * kVector);
    }
    for (; k < from_.K; ++k)
      for (size_t i = 0; i < kVector; ++i)
        turned_[k * kVector + i] =
            kNibbles ? static_cast<uint8_t>(nibble(from[i], k) | nibble(from[i + kVector], k) << 4)
                     : from[i][k];
  }
  // 16 columns; of nibbles every other one of 32.
  template <bool kNibbles, bool kOdd>
  [[gnu::always_inline]] static void turn_16(const uint8_t* const (&from)[2 * kVector], size_t at,
                                             uint8_t* to) {
    uint8x16_t v[kVector];
    MOEBIUS_UNROLL for (size_t i = 0; i < kVector; ++i) {
      v[i] = vld1q_u8(from[i] + at);
      if constexpr (kNibbles) v[i] = halves<kOdd>(v[i], vld1q_u8(from[i + kVector] + at));
    }
    transpose(v);
    store_in_order(to, v);
  }

  template <bool kNibbles>
  [[gnu::noinline]] void turn_back() {
    constexpr size_t kBlock = kNibbles ? 32 : 16;
    size_t k = 0;
    for (; k + kBlock <= from_.K; k += kBlock) {
      uint8_t* to = rows_ + (kNibbles ? k / 2 : k);
      gather<kNibbles, false>(places_ + k, to);
      if constexpr (kNibbles) gather<true, true>(places_ + k, to + kVector * apart_);
    }
    for (; k < from_.K; ++k) {
      const uint8_t* column = turned_ + places_[k];
      for (size_t i = 0; i < (kNibbles ? 2 : 1) * kVector; ++i) {
        if constexpr (kNibbles) {
          uint8_t& byte = rows_[i * apart_ + k / 2];
          const unsigned code = (column[i % kVector] >> (4 * (i / kVector))) & 15u;
          byte = static_cast<uint8_t>(k % 2 == 0 ? code : byte | code << 4);
        } else {
          rows_[i * apart_ + k] = column[i];
        }
      }
    }
  }
  // 16 bytes of 16 rows: of nibbles those of the lower or of the upper half of the block.
  template <bool kNibbles, bool kUpper>
  [[gnu::always_inline]] void gather(const uint32_t* places, uint8_t* to) const {
    uint8x16_t v[kVector];
    MOEBIUS_UNROLL for (size_t i = 0; i < kVector; ++i) {
      if constexpr (kNibbles) {
        v[i] = halves<kUpper>(vld1q_u8(turned_ + places[2 * i]),
                              vld1q_u8(turned_ + places[2 * i + 1]));
      } else {
        v[i] = vld1q_u8(turned_ + places[i]);
      }
    }
    transpose(v);
    MOEBIUS_UNROLL for (size_t i = 0; i < kVector; ++i) vst1q_u8(to + i * apart_, v[i]);
  }

  const QuantMatrix& from_;
  QuantMatrix w_;
  PackArgs args_;
  const bool nibbles_;
  const size_t apart_;
  uint32_t places_[kMostK];
  alignas(64) uint8_t turned_[kVector * kMostK];
  alignas(64) uint8_t rows_[kVector * (kMostK + 256)];
};

// All panels of what `a` packs, by a Packer each.
template <class Packer, class Shape>
inline void pack_panels(const PackArgs& a, const Shape& s) {
  const auto out = [&](size_t n) { return a.packed + (a.row0 + n) / kOutputs * s.stride(); };
  if (!PermutedRows::takes(a)) {
    for (size_t n = a.n0; n < a.n1; n += kOutputs) Packer(a, s, n, out(n)).pack();
    return;
  }
  PermutedRows rows(a);
  for (size_t n = a.n0, end; n < a.n1; n = end) {
    rows.read(n);
    end = n + rows.args().w->N < a.n1 ? n + rows.args().w->N : a.n1;
    for (size_t i = n; i < end; i += kOutputs)
      Packer(rows.args(), s, i - n, out(i), a.w->codes + (i + end - n) * a.w->row_bytes).pack();
  }
}

}  // namespace arm_packing
}  // namespace
}  // namespace moebius
#endif  // __aarch64__
