// SPDX-License-Identifier: Apache-2.0
// PermutedRows helps packers with act-order: it reads a block of rows of integer codes with their
// columns in the order of `columns`, so that they are packed as if the file had that order.
// Internal linkage.
//
// A gather for every code of every row is slow. Therefore the block is transposed: the codes of a
// column become one vector, which moves at once; then the vectors are transposed back, to 16 bytes
// of a row. A vector holds 32 rows of 4-bit codes (byte p: rows p and p + 16), or 16 rows of bytes.
#pragma once
#include "kernels/kernel.h"

#define MOEBIUS_UNROLL_16 _Pragma("GCC unroll 16")

namespace moebius {
namespace {

// Transposes 16 x 16 bytes. Bytes: the template parameter of PermutedRows.
template <class Bytes>
[[gnu::always_inline]] inline void transpose_16(typename Bytes::V (&v)[16]) {
  typename Bytes::V o[16];
  MOEBIUS_UNROLL_16 for (int round = 0; round < 2; ++round) {
    MOEBIUS_UNROLL_16 for (int i = 0; i < 8; ++i) o[2 * i] = Bytes::zip1(v[i], v[i + 8]),
                                                        o[2 * i + 1] = Bytes::zip2(v[i], v[i + 8]);
    MOEBIUS_UNROLL_16 for (int i = 0; i < 8; ++i) v[2 * i] = Bytes::zip1(o[i], o[i + 8]),
                                                        v[2 * i + 1] = Bytes::zip2(o[i], o[i + 8]);
  }
}

// Reads rows with their columns in another order (head of this file). Bytes: vectors of 16 bytes of
// an architecture (V), with load and store, store_all of 16 consecutive vectors, zip1 and zip2
// (interleave the lower and the upper halves of two vectors), low and high (the lower or upper
// 4-bit codes of two vectors of pairs, as pairs). kByteRows: rows per block of bytes, 16 or 32.
template <class Bytes, size_t kByteRows>
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
        // Bytes between columns of the transposed block: not a multiple of a large power of two,
        // because such addresses share few cache sets.
        apart_((from_.K / (nibbles_ ? 2 : 1) + 63) / 64 * 64 + 64) {
    for (size_t k = 0; k < from_.K; ++k) places_[k] = place(static_cast<uint32_t>(a.columns[k]));
    w_.codes = rows_;
    w_.row_bytes = apart_;
    w_.g_idx = nullptr;
    args_.w = &w_;
    args_.columns = nullptr;
  }
  PermutedRows(const PermutedRows&) = delete;
  PermutedRows& operator=(const PermutedRows&) = delete;
  // Reads the rows from row n on, as many as exist and fit; args().w->N tells how many these are.
  void read(size_t n) {
    const size_t most = nibbles_ ? 2 * kVector : kByteRows, left = from_.N - n;
    w_.N = most < left ? most : left;
    w_.n_phase = from_.n_phase + n;
    const uint8_t* from[2 * kVector];  // rows past N repeat the last one
    for (size_t i = 0; i < most; ++i)
      from[i] = from_.codes + (n + (i < w_.N ? i : w_.N - 1)) * from_.row_bytes;
    if (nibbles_) {
      turn<true>(from), turn_back<true>(rows_);
    } else {
      for (size_t i = 0; i < w_.N; i += kVector)
        turn<false>(from + i), turn_back<false>(rows_ + i * apart_);
    }
  }
  const PackArgs& args() const { return args_; }

 private:
  using V = typename Bytes::V;
  static constexpr size_t kVector = 16;

  // Returns the offset in turned_ of the vector of column c. Of each 32 columns of nibbles the even
  // ones come first.
  uint32_t place(uint32_t c) const {
    const bool whole = nibbles_ && c < from_.K / 32 * 32;
    return 16 * (whole ? (c & ~31u) | (c & 1u) << 4 | (c >> 1 & 15u) : c);
  }
  // Returns the lower or the upper codes of two bytes with two codes each.
  template <bool kUpper>
  [[gnu::always_inline]] static V halves(V a, V b) {
    return kUpper ? Bytes::high(a, b) : Bytes::low(a, b);
  }
  static unsigned nibble(const uint8_t* row, size_t k) {
    return (row[k / 2] >> (4 * (k % 2))) & 15;
  }

  template <bool kNibbles>
  [[gnu::noinline]] void turn(const uint8_t* const* from) {
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
  // Transposes 16 columns; of nibbles, every other one of 32 (kOdd: the odd ones).
  template <bool kNibbles, bool kOdd>
  [[gnu::always_inline]] static void turn_16(const uint8_t* const* from, size_t at, uint8_t* to) {
    V v[kVector];
    MOEBIUS_UNROLL_16 for (size_t i = 0; i < kVector; ++i) {
      v[i] = Bytes::load(from[i] + at);
      if constexpr (kNibbles) v[i] = halves<kOdd>(v[i], Bytes::load(from[i + kVector] + at));
    }
    transpose_16<Bytes>(v);
    Bytes::store_all(to, v);
  }

  template <bool kNibbles>
  [[gnu::noinline]] void turn_back(uint8_t* rows) {
    constexpr size_t kBlock = kNibbles ? 32 : 16;
    size_t k = 0;
    for (; k + kBlock <= from_.K; k += kBlock) {
      uint8_t* to = rows + (kNibbles ? k / 2 : k);
      gather<kNibbles, false>(places_ + k, to);
      if constexpr (kNibbles) gather<true, true>(places_ + k, to + kVector * apart_);
    }
    for (; k < from_.K; ++k) {
      const uint8_t* column = turned_ + places_[k];
      for (size_t i = 0; i < (kNibbles ? 2 : 1) * kVector; ++i) {
        if constexpr (kNibbles) {
          uint8_t& byte = rows[i * apart_ + k / 2];
          const unsigned code = (column[i % kVector] >> (4 * (i / kVector))) & 15u;
          byte = static_cast<uint8_t>(k % 2 == 0 ? code : byte | code << 4);
        } else {
          rows[i * apart_ + k] = column[i];
        }
      }
    }
  }
  // Transposes a block back: writes 16 bytes of each of 16 rows to `to`; of nibbles, those of the
  // rows in the lower or in the upper half of the block.
  template <bool kNibbles, bool kUpper>
  [[gnu::always_inline]] void gather(const uint32_t* places, uint8_t* to) const {
    // a local variable, because the member would be loaded again after every store
    const size_t apart = apart_;
    V v[kVector];
    MOEBIUS_UNROLL_16 for (size_t i = 0; i < kVector; ++i) {
      if constexpr (kNibbles) {
        v[i] = halves<kUpper>(Bytes::load(turned_ + places[2 * i]),
                              Bytes::load(turned_ + places[2 * i + 1]));
      } else {
        v[i] = Bytes::load(turned_ + places[i]);
      }
    }
    transpose_16<Bytes>(v);
    MOEBIUS_UNROLL_16 for (size_t i = 0; i < kVector; ++i, to += apart) Bytes::store(to, v[i]);
  }

  const QuantMatrix& from_;
  QuantMatrix w_;
  PackArgs args_;
  const bool nibbles_;
  const size_t apart_;
  uint32_t places_[kMostK];
  alignas(64) uint8_t turned_[kVector * kMostK];
  alignas(64) uint8_t rows_[kByteRows * (kMostK + 256)];
};

#undef MOEBIUS_UNROLL_16

}  // namespace
}  // namespace moebius
