// SPDX-License-Identifier: Apache-2.0
// Unpacks the bit streams of pack-quantized: b-bit codes (1..8), stored unsigned with an offset of
// 2^(b-1), as little-endian 32-bit words.
//   dense   element i occupies bits [i*b, i*b+b) of the row; a code may straddle two words
//   padded  32/b (rounded down) codes per word, the top bits of a word unused; the same as dense
//   when b divides 32
#pragma once
#include <cstddef>
#include <cstdint>

namespace moebius {

// Return the number of 32-bit words that n codes take.
uint64_t dense_words(uint64_t n, unsigned bits);  // n * bits must not overflow
uint64_t padded_words(uint64_t n, unsigned bits);

// Unpacks n codes of one row to signed values. Reads exactly the words that n codes take.
void unpack_row(const uint8_t* words, size_t n, unsigned bits, bool padded, int8_t* out);

// Unpacks codes stored in bit planes (widths that do not divide 32): a block of 32 codes is `bits`
// words, the low plane first; a plane of width p (4, 2 or 1) is p words of 32/p codes each. Reads
// whole blocks.
void unpack_planes(const uint8_t* words, size_t n, unsigned bits, int8_t* out);

// Turns n words that each hold a nibble for 8 outputs, in AWQ's order, into 8 rows of n nibbles,
// low nibble first. An odd row ends with zero bits.
// nibble of the word that holds output t
inline constexpr uint8_t kAwqNibble[8] = {0, 4, 1, 5, 2, 6, 3, 7};
void turn_nibbles(const uint8_t* words, size_t n, uint8_t* out, size_t row_bytes);

// Returns code i of a stream whose words are `stride` bytes apart: zero points are packed along the
// rows of their matrix.
int8_t unpack_one(const uint8_t* words, size_t stride, size_t i, unsigned bits, bool padded);

}  // namespace moebius
