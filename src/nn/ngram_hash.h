// SPDX-License-Identifier: Apache-2.0
// Hashed n-grams (Qwen4): a token with the ones before it chooses a row of a large table for every head.
// Orders are 2 to N; each has `heads` heads. With tokens t_0 (the row's own), t_1, ... behind one another,
//
//   id(order, head) = ((t_0 m_0) xor ... xor (t_(order-1) m_(order-1))) mod size(order, head) + offset,
//
// in 64 bits. A token before the sequence, or before the end of a text (the token eos), counts as eos:
// t_s is eos where one of t_1 .. t_(s-1) is.
//
// Multipliers are odd, from splitmix64 of the seed; sizes are primes in ascending order, those of a table
// behind those of the one before it. Files may state all three.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nn/recurrent.h"

namespace moebius {

struct NGramSpec {
  size_t size = 3, heads = 8;  // N; of each order
  int64_t vocab = 0, base = 0, seed = 0, eos = 0;
  size_t divisor = 128;  // of the table's rows
  size_t features = 0;   // of all heads together
  size_t convolution = 4;

  size_t all_heads() const { return (size - 1) * heads; }
  size_t head_features() const { return features / all_heads(); }
  size_t dilation() const { return size; }
  // The convolution's taps, with those between them that are zero.
  size_t taps() const { return (convolution - 1) * dilation() + 1; }
};

struct NGramHash {
  size_t size = 0, heads = 0;
  std::vector<int64_t> multipliers, sizes, offsets;  // [size], [all heads] twice

  // Of table number `table` among those of a model.
  static NGramHash of(const NGramSpec& spec, size_t table);
  int64_t rows() const { return offsets.back() + sizes.back(); }
  // ids[all heads] of t[size].
  void ids(const int64_t* t, int64_t* ids) const noexcept;
};

// The tokens t_0 .. t_(N-1) of each row, as numbers: a row of `in` is a token, and the state is the N - 1
// tokens before, the last one first.
class TokenContext final : public Recurrent {
 public:
  TokenContext(size_t size, int64_t eos);  // throws Error

  void finish(const RecurrentRows& r, const float* from, size_t t) const noexcept override;
  void keep(const RecurrentRows& r, const RecurrentRun& run,
            const float* from) const noexcept override;

 private:
  float before(const RecurrentRows& r, const float* from, size_t t, size_t back) const noexcept;
  size_t size_;
  float eos_;
};

}  // namespace moebius
