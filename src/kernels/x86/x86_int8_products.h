// SPDX-License-Identifier: Apache-2.0
// The int8 family on x86-64: products of codes and rows for the loops of x86_int8_few.h and
// x86_int8_many.h, by VPDPBUSD (Vnni) or without it (Madd), for vectors of 256 or 512 bits. Both
// multiply unsigned by signed bytes: codes carry a bias. Internal linkage.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include "kernels/x86/x86_int8.h"
#include "kernels/x86/x86_int8_vectors.h"

#define MOEBIUS_UNROLL _Pragma("GCC unroll 8")

namespace moebius {
namespace {

template <class Vectors>
struct Products : Vectors {
  using typename Vectors::V;
  using Vectors::flip, Vectors::load, Vectors::set1;
  static constexpr int kParts = static_cast<int>(x86_int8::kOutputs / Vectors::kLanes);

  // Broadcasts 4 bytes of one row.
  MOEBIUS_INLINE V four(const uint8_t* x) {
    int32_t v;
    __builtin_memcpy(&v, x, 4);
    return set1(v);
  }
  // Returns the v-th of the vectors of outputs that are multiplied together.
  MOEBIUS_INLINE V at(const uint8_t* w, size_t apart, size_t v) {
    constexpr size_t kPart = 64 / kParts;
    return load(w + v / kParts * apart + v % kParts * kPart);
  }
  // Returns the numbers of nibbles, more by `bias`.
  MOEBIUS_INLINE __m128i table(const x86_int8::Shape& s, int32_t bias) {
    if (s.numbers == nullptr) return _mm_setzero_si128();
    return _mm_add_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(s.numbers)),
                        _mm_set1_epi8(static_cast<char>(bias)));
  }
  // Decodes 16 inputs of a vector of outputs to bytes, 4 inputs per operand. by: flips bytes;
  // numbers: of kFp4 and kTable.
  template <x86_int8::Codes kCodes>
  MOEBIUS_INLINE void decode(const uint8_t* w, V by, __m128i numbers, V (&b)[4]) {
    if constexpr (kCodes == x86_int8::Codes::kBytes) {
      MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) b[i] = flip(load(w + 64 * i), by);
    } else {
      MOEBIUS_UNROLL for (int i = 0; i < 2; ++i) {
        const V v = load(w + 64 * i);
        b[2 * i] = Vectors::low_nibbles(v);
        b[2 * i + 1] = Vectors::high_nibbles(v);
      }
    }
    if constexpr (kCodes == x86_int8::Codes::kFp4 || kCodes == x86_int8::Codes::kTable)
      MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) b[i] = Vectors::look_up(numbers, b[i]);
  }
};

// VPDPBUSD adds 4 products to each sum.
template <class Vectors, x86_int8::Engine kIts>
struct Vnni : Products<Vectors> {
  using typename Vectors::V;
  using Products<Vectors>::at, Products<Vectors>::four, Vectors::add_products;
  static constexpr x86_int8::Engine kEngine = kIts;
  static constexpr size_t kInputs = 16;  // most inputs that `dots` takes
  static constexpr int32_t bias(x86_int8::Codes codes) {
    return codes == x86_int8::Codes::kNibbles ? 8 : codes == x86_int8::Codes::kFp4 ? 12 : 128;
  }
  // Number of operands for 16 inputs.
  template <x86_int8::Codes>
  static constexpr size_t kOperands = 4;
  template <x86_int8::Codes kCodes>
  MOEBIUS_INLINE void operands(const uint8_t* w, __m128i numbers, V (&b)[4]) {
    Products<Vectors>::template decode<kCodes>(w, Vectors::set1(static_cast<int32_t>(0x80808080u)),
                                               numbers, b);
  }
  // Adds products of 16 inputs with one row.
  template <x86_int8::Codes, int kApart>
  MOEBIUS_INLINE void dot(V& sum, const V (&b)[4], const uint8_t* x) {
    MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) sum = add_products(sum, b[i], four(x + kApart * i));
  }
  // Adds products of kSome inputs of R rows with N vectors of outputs, whose operands are in
  // scratch; apart: bytes from panel to panel.
  template <x86_int8::Codes, size_t kSome, int R, size_t N>
  MOEBIUS_INLINE void dots(V (&sum)[R][N], const uint8_t* w, size_t apart, const uint8_t* x) {
    MOEBIUS_UNROLL for (size_t i = 0; i < kSome / 4; ++i) {
      V b[N];
      MOEBIUS_UNROLL for (size_t v = 0; v < N; ++v) b[v] = at(w + 64 * i, apart, v);
      MOEBIUS_UNROLL for (size_t r = 0; r < R; ++r) {
        const V by = four(x + 4 * (R * i + r));
        MOEBIUS_UNROLL for (size_t v = 0; v < N; ++v) sum[r][v] = add_products(sum[r][v], b[v], by);
      }
    }
  }
};

// VPMADDUBSW adds two products in 16 bits, saturating: at most 2 * 24 * 128 of nibbles, and eight
// times 2 * 15 * 128 or 2 * 24 * 12 fit. Bytes, and numbers of tables, would not: they are widened,
// and VPMADDWD multiplies.
template <class Vectors, x86_int8::Engine kIts>
struct Madd : Products<Vectors> {
  using typename Vectors::V;
  using Vectors::add, Vectors::add16, Vectors::even, Vectors::odd, Vectors::multiply_bytes,
      Vectors::multiply16;
  using Products<Vectors>::at, Products<Vectors>::four;
  static constexpr x86_int8::Engine kEngine = kIts;
  static constexpr size_t kInputs = 32;
  static constexpr int32_t bias(x86_int8::Codes codes) {
    return codes == x86_int8::Codes::kNibbles ? 8 : codes == x86_int8::Codes::kFp4 ? 12 : 0;
  }
  template <x86_int8::Codes kCodes>
  static constexpr bool kWide =
      kCodes == x86_int8::Codes::kBytes || kCodes == x86_int8::Codes::kTable;
  template <x86_int8::Codes kCodes>
  static constexpr size_t kOperands = kWide<kCodes> ? 8 : 4;
  template <x86_int8::Codes kCodes>
  MOEBIUS_INLINE void operands(const uint8_t* w, __m128i numbers, V (&b)[kOperands<kCodes>]) {
    V bytes[4];
    Products<Vectors>::template decode<kCodes>(w, Vectors::set1(0), numbers, bytes);
    MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) {
      if constexpr (kWide<kCodes>) {
        b[2 * i] = even(bytes[i]);
        b[2 * i + 1] = odd(bytes[i]);
      } else {
        b[i] = bytes[i];
      }
    }
  }
  template <x86_int8::Codes kCodes, int kApart>
  MOEBIUS_INLINE void dot(V& sum, const V (&b)[kOperands<kCodes>], const uint8_t* x) {
    if constexpr (kWide<kCodes>) {
      MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) {
        const V v = four(x + kApart * i);
        sum = add(sum, add(multiply16(b[2 * i], even(v)), multiply16(b[2 * i + 1], odd(v))));
      }
    } else {
      V pairs[4];
      MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) pairs[i] =
          multiply_bytes(b[i], four(x + kApart * i));
      const V all = add16(add16(pairs[0], pairs[1]), add16(pairs[2], pairs[3]));
      sum = add(sum, multiply16(all, Vectors::ones16()));
    }
  }
  template <x86_int8::Codes kCodes, size_t kSome, int R, size_t N>
  MOEBIUS_INLINE void dots(V (&sum)[R][N], const uint8_t* w, size_t apart, const uint8_t* x) {
    if constexpr (kWide<kCodes>) {
      MOEBIUS_UNROLL for (size_t i = 0; i < kSome / 2; ++i)
          each(w + 64 * i, apart, x + 4 * R * i, sum,
               [](V& to, V b, V by) { to = add(to, multiply16(b, by)); });
    } else {
      V pairs[R][N];
      each(w, apart, x, pairs, [](V& to, V b, V by) { to = multiply_bytes(b, by); });
      MOEBIUS_UNROLL for (size_t i = 1; i < kSome / 4; ++i)
          each(w + 64 * i, apart, x + 4 * R * i, pairs,
               [](V& to, V b, V by) { to = add16(to, multiply_bytes(b, by)); });
      MOEBIUS_UNROLL for (size_t r = 0; r < R; ++r) MOEBIUS_UNROLL for (size_t v = 0; v < N; ++v)
          sum[r][v] = add(sum[r][v], multiply16(pairs[r][v], Vectors::ones16()));
    }
  }

 private:
  // Calls f(sum, operand, 4 bytes of the row) for R rows and N vectors. Sums are held
  // in their registers: compilers would compute all products first, store them, and add them as a
  // tree.
  template <int R, size_t N, class F>
  MOEBIUS_INLINE void each(const uint8_t* w, size_t apart, const uint8_t* x, V (&sum)[R][N],
                           const F& f) {
    V b[N];
    MOEBIUS_UNROLL for (size_t v = 0; v < N; ++v) b[v] = at(w, apart, v);
    MOEBIUS_UNROLL for (size_t r = 0; r < R; ++r) {
      const V by = four(x + 4 * r);
      MOEBIUS_UNROLL for (size_t v = 0; v < N; ++v) {
        f(sum[r][v], b[v], by);
        Vectors::hold(sum[r][v]);
      }
    }
  }
};

}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
