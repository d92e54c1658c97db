// SPDX-License-Identifier: Apache-2.0
#include "nn/ngram_hash.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/random.h"

namespace moebius {
namespace {

constexpr uint64_t kGamma = 0x9E3779B97F4A7C15;

bool is_prime(int64_t n) {
  if (n < 2) return false;
  if (n % 2 == 0) return n == 2;
  for (int64_t d = 3; d <= n / d; d += 2)
    if (n % d == 0) return false;
  return true;
}

}  // namespace

NGramHash NGramHash::of(const NGramSpec& spec, size_t table) {
  NGramHash h;
  h.size = spec.size;
  h.heads = spec.heads;
  const int64_t most = std::numeric_limits<int64_t>::max() / std::max<int64_t>(spec.vocab, 1);
  const auto half = static_cast<uint64_t>(std::max<int64_t>(1, most / 2));
  const uint64_t seed = static_cast<uint64_t>(spec.seed) + 10007 * table;
  for (size_t i = 0; i < spec.size; ++i)
    h.multipliers.push_back(
        static_cast<int64_t>(2 * (SplitMix64(seed + kGamma * (i + 1)).next() % half) + 1));
  int64_t prime = spec.base - 1, offset = 0;
  for (size_t i = 0; i < (table + 1) * spec.all_heads(); ++i) {
    do ++prime;
    while (!is_prime(prime));
    if (i < table * spec.all_heads()) continue;
    h.sizes.push_back(prime), h.offsets.push_back(offset);
    offset += prime;
  }
  return h;
}

void NGramHash::ids(const int64_t* t, int64_t* ids) const noexcept {
  const auto term = [&](size_t i) {
    return static_cast<uint64_t>(t[i]) * static_cast<uint64_t>(multipliers[i]);
  };
  uint64_t mixed = term(0);
  for (size_t order = 2; order <= size; ++order) {
    mixed ^= term(order - 1);
    for (size_t h = (order - 2) * heads; h < (order - 1) * heads; ++h) {
      const int64_t left = static_cast<int64_t>(mixed) % sizes[h];
      ids[h] = (left < 0 ? left + sizes[h] : left) + offsets[h];
    }
  }
}

TokenContext::TokenContext(size_t size, int64_t eos)
    : Recurrent({1, 0, size, 0, size - 1}), size_(size), eos_(static_cast<float>(eos)) {
  if (size < 2 || eos < 0 || eos >= int64_t{1} << 24)
    fail(
        "n-grams of {} tokens whose texts end in token {}; expected at least 2, and an id below {}",
        size, eos, 1 << 24);
}

// Returns the token `back` rows before row t.
float TokenContext::before(const RecurrentRows& r, const float* from, size_t t,
                           size_t back) const noexcept {
  if (back <= t) return r.in[t - back];
  return from == nullptr ? eos_ : from[back - t - 1];
}

void TokenContext::finish(const RecurrentRows& r, const float* from, size_t t) const noexcept {
  float* out = r.out + t * size_;
  out[0] = r.in[t];
  bool ended = false;
  for (size_t s = 1; s < size_; ++s) {
    out[s] = ended ? eos_ : before(r, from, t, s);
    ended = ended || out[s] == eos_;
  }
}

void TokenContext::keep(const RecurrentRows& r, const RecurrentRun& run,
                        const float* from) const noexcept {
  for (size_t s = 0; s + 1 < size_; ++s) run.to[s] = before(r, from, run.end - 1, s);
}

}  // namespace moebius
