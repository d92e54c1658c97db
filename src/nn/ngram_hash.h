// SPDX-License-Identifier: Apache-2.0
// Hashed n-grams (Qwen4): a token and those before it select one row of a large table per head.
// Orders are 2 to N; each has `heads` heads. With t_0 the row's token, t_1 the token before it,
// ...,
//
//   id(order, head) = ((t_0 m_0) xor ... xor (t_(order-1) m_(order-1))) mod size(order, head) + offset,
//
// in 64 bits. A token before the sequence, or before the end of a text (the token eos), counts as
// eos: t_s is eos if one of t_1 .. t_(s-1) is.
//
// Multipliers are odd, from splitmix64 of the seed; sizes are primes in ascending order, those of a
// table after those of the table before it. Files may state all three.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nn/recurrent.h"

namespace moebius {

struct NGramSpec {
  size_t size = 3, heads = 8;  // size: N, the longest n-gram; heads: per order
  int64_t vocab = 0, base = 0, seed = 0, eos = 0;
  size_t divisor = 128;  // the number of table rows is a multiple of this
  size_t features = 0;   // columns of the looked-up rows of all heads together
  size_t convolution = 4;

  size_t all_heads() const { return (size - 1) * heads; }
  size_t head_features() const { return features / all_heads(); }
  size_t dilation() const { return size; }
  // Returns how many tokens the dilated convolution covers, zero taps included.
  size_t taps() const { return (convolution - 1) * dilation() + 1; }
};

struct NGramHash {
  size_t size = 0, heads = 0;
  std::vector<int64_t> multipliers, sizes, offsets;  // [size], then [all heads] twice

  // Returns the hash of table number `table` of a model.
  static NGramHash of(const NGramSpec& spec, size_t table);
  int64_t rows() const { return offsets.back() + sizes.back(); }
  // Computes the rows ids[all heads] for tokens t[size].
  void ids(const int64_t* t, int64_t* ids) const noexcept;
};

// Collects the tokens t_0 .. t_(N-1) of each row, as numbers. A row of `in` is a token, and the
// state is the N - 1 tokens before it, the latest first.
class TokenContext final : public Recurrent {
 public:
  TokenContext(size_t size, int64_t eos);  // throws Error for size < 2 or eos out of range

  void finish(const RecurrentRows& r, const float* from, size_t t) const noexcept override;
  void keep(const RecurrentRows& r, const RecurrentRun& run,
            const float* from) const noexcept override;

 private:
  float before(const RecurrentRows& r, const float* from, size_t t, size_t back) const noexcept;
  size_t size_;
  float eos_;
};

}  // namespace moebius
