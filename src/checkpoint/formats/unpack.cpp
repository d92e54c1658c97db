// SPDX-License-Identifier: Apache-2.0
// Unpacks bit streams. Dense rows are unpacked eight codes at a time: eight codes are exactly b
// bytes, so one 64-bit load holds them whatever the width. Hosts are little-endian (the words on
// disk are).
#include "checkpoint/formats/unpack.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/checked.h"

namespace moebius {
namespace {

static_assert(std::endian::native == std::endian::little, "codes are viewed as stored");

uint32_t load_word(const uint8_t* p) {
  uint32_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

template <unsigned B>
void split_eight(uint64_t v, int8_t* out) {
#pragma GCC unroll 8
  for (unsigned j = 0; j < 8; ++j)
    out[j] =
        static_cast<int8_t>(static_cast<int>((v >> (j * B)) & ((1u << B) - 1u)) - (1 << (B - 1)));
}

template <unsigned B>
void unpack_dense(const uint8_t* in, size_t n, int8_t* out) {
  const size_t row_bytes = dense_words(n, B) * 4;
  size_t i = 0, at = 0;
  for (; i + 8 <= n && at + 8 <= row_bytes; i += 8, at += B) {
    uint64_t v;
    std::memcpy(&v, in + at, 8);
    split_eight<B>(v, out + i);
  }
  for (; i < n; i += 8, at += B) {  // the last codes, without reading past the row
    uint64_t v = 0;
    std::memcpy(&v, in + at, std::min<size_t>(8, row_bytes - at));
    int8_t eight[8];
    split_eight<B>(v, eight);
    std::memcpy(out + i, eight, std::min<size_t>(8, n - i));
  }
}

template <unsigned B>
void unpack_padded(const uint8_t* in, size_t n, int8_t* out) {
  constexpr unsigned kPerWord = 32 / B;
  constexpr unsigned kMask = (1u << B) - 1u;
  constexpr int kOffset = 1 << (B - 1);
  for (size_t i = 0; i < n; i += kPerWord, in += 4) {
    const uint32_t v = load_word(in);
    const unsigned count = n - i < kPerWord ? static_cast<unsigned>(n - i) : kPerWord;
    for (unsigned j = 0; j < count; ++j)
      out[i + j] = static_cast<int8_t>(static_cast<int>((v >> (j * B)) & kMask) - kOffset);
  }
}

template <unsigned B>
void unpack_width(const uint8_t* in, size_t n, bool padded, int8_t* out) {
  if (padded && 32 % B != 0)
    unpack_padded<B>(in, n, out);
  else
    unpack_dense<B>(in, n, out);
}

}  // namespace

uint64_t dense_words(uint64_t n, unsigned bits) { return ceil_div(n * bits, 32); }
uint64_t padded_words(uint64_t n, unsigned bits) { return ceil_div(n, 32 / bits); }

void unpack_row(const uint8_t* words, size_t n, unsigned bits, bool padded, int8_t* out) {
  constexpr void (*kByWidth[])(const uint8_t*, size_t, bool, int8_t*) = {
      unpack_width<1>, unpack_width<2>, unpack_width<3>, unpack_width<4>,
      unpack_width<5>, unpack_width<6>, unpack_width<7>, unpack_width<8>};
  kByWidth[bits - 1](words, n, padded, out);
}

void unpack_planes(const uint8_t* words, size_t n, unsigned bits, int8_t* out) {
  for (size_t first = 0; first < n; first += 32) {
    unsigned codes[32] = {};
    unsigned offset = 0;
    for (const unsigned width : {4u, 2u, 1u}) {
      if ((bits & width) == 0) continue;
      const unsigned per_word = 32 / width;
      for (unsigned i = 0; i < width; ++i, words += 4)
        for (unsigned j = 0; j < per_word; ++j)
          codes[i * per_word + j] |= (load_word(words) >> (width * j) & ((1u << width) - 1u))
                                     << offset;
      offset += width;
    }
    const size_t count = std::min<size_t>(32, n - first);
    for (size_t i = 0; i < count; ++i)
      out[first + i] = static_cast<int8_t>(static_cast<int>(codes[i]) - (1 << (bits - 1)));
  }
}

void turn_nibbles(const uint8_t* words, size_t n, uint8_t* out, size_t row_bytes) {
  for (size_t k = 0; k < n; k += 8) {
    const size_t count = std::min<size_t>(8, n - k);
    uint32_t x[8] = {};
    std::memcpy(x, words + 4 * k, 4 * count);
    // Nibble r of word c becomes nibble c of word r: exchange halves, quarters, eighths.
    constexpr uint32_t kMasks[] = {0x0000ffffu, 0x00ff00ffu, 0x0f0f0f0fu};
    for (unsigned step = 4, i = 0; step != 0; step /= 2, ++i)
      for (unsigned c = 0; c < 8; ++c) {
        if ((c & step) != 0) continue;
        const uint32_t t = ((x[c] >> (4 * step)) ^ x[c + step]) & kMasks[i];
        x[c + step] ^= t;
        x[c] ^= t << (4 * step);
      }
    const size_t bytes = (count + 1) / 2;
    for (size_t t = 0; t < 8; ++t)
      std::memcpy(out + t * row_bytes + k / 2, &x[kAwqNibble[t]], bytes);
  }
}

int8_t unpack_one(const uint8_t* words, size_t stride, size_t i, unsigned bits, bool padded) {
  const size_t per_word = 32 / bits;
  const size_t bit = padded ? i / per_word * 32 + i % per_word * bits : i * bits;
  uint64_t v = load_word(words + bit / 32 * stride);
  if (bit % 32 + bits > 32)
    v |= static_cast<uint64_t>(load_word(words + (bit / 32 + 1) * stride)) << 32;
  const unsigned u = static_cast<unsigned>(v >> (bit % 32)) & ((1u << bits) - 1u);
  return static_cast<int8_t>(static_cast<int>(u) - (1 << (bits - 1)));
}

}  // namespace moebius
