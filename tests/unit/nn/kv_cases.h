// SPDX-License-Identifier: Apache-2.0
// Keys and values of one layer and one sequence, for tests of attention.
#pragma once
#include <algorithm>
#include <vector>

#include "nn/attention.h"

namespace moebius::test {

class LayerCache {
 public:
  explicit LayerCache(const AttentionPlan& plan) : plan_(plan) {}
  size_t length() const { return length_; }
  uint8_t* block(size_t i) { return blocks_[i].data(); }

  // T tokens: k [T, kv_heads * key_dim], v [T, kv_heads * value_dim].
  void append(const float* k, const float* v, size_t T) {
    const AttentionSpec& s = plan_.spec;
    const size_t nk = s.kv_heads * s.key_dim, nv = s.kv_heads * s.value_dim;
    while (blocks_.size() * kKeyBlock < length_ + T) {
      blocks_.emplace_back(plan_.kv.block_bytes());
      std::fill_n(blocks_.back().data(), plan_.kv.block_bytes(), uint8_t{0xff});  // what was there
    }
    for (size_t t = 0; t < T;) {
      const size_t first = (length_ + t) % kKeyBlock, count = std::min(kKeyBlock - first, T - t);
      for (size_t h = 0; h < s.kv_heads; ++h)
        plan_.kv.put(block((length_ + t) / kKeyBlock), h, first, count, k + t * nk + h * s.key_dim,
                     nk, v + t * nv + h * s.value_dim, nv);
      t += count;
    }
    length_ += T;
    addresses_.clear();
    for (AlignedBuffer& b : blocks_) addresses_.push_back(b.data());
  }
  // The newest T tokens.
  AttentionRows rows(const float* q, float* out, size_t T) const {
    return {addresses_.data(), length_ - T, q, out, T};
  }

 private:
  const AttentionPlan& plan_;
  std::vector<AlignedBuffer> blocks_;
  std::vector<const uint8_t*> addresses_;
  size_t length_ = 0;
};

inline void run_all(Attention& attention) {
  AttentionScratch scratch;
  for (size_t i = 0; i < attention.tasks(); ++i) attention.run(i, scratch);
  for (size_t i = 0; i < attention.merges(); ++i) attention.merge(i);
}

}  // namespace moebius::test
