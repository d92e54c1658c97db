// SPDX-License-Identifier: Apache-2.0
// Lightning attention (MiniMax-Text-01): linear attention with a fixed decay rate per head. A head
// has a state S [D, D]; token by token
//
//   q, k, v = silu(row)
//   S       = S * exp(-rate) + k v
//   y       = norm over all heads of q S, times sigmoid(gate)
//
// A row is [q k v of head 0 | of head 1 | ... | gate].
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "nn/norm.h"
#include "nn/recurrent.h"

namespace moebius {

struct LightningSpec {
  size_t heads = 0, head_dim = 0;

  size_t features() const { return heads * head_dim; }
  RecurrentShape shape() const {
    return {4 * features(), 3 * features(), features(), heads, features() * head_dim};
  }
};

class LightningAttention : public Recurrent {
 public:
  // Throws Error if the sizes of rates [heads] or norm [features] do not fit the spec.
  LightningAttention(const LightningSpec& spec, const std::vector<float>& rates, Norm norm,
                     XType type);

  void convolve(const RecurrentRows& r, const float* from, size_t t) const noexcept override;
  void scan(const RecurrentRows& r, std::span<const RecurrentRun> runs,
            size_t head) const noexcept override;
  void finish(const RecurrentRows& r, const float* from, size_t t) const noexcept override;

 private:
  LightningSpec spec_;
  std::vector<float> decays_;
  Norm norm_;
  XType type_;
};

}  // namespace moebius
