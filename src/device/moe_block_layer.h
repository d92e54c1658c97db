// SPDX-License-Identifier: Apache-2.0
// The layers of a MoE block in this process, for callers that run them on rows in host memory, or
// move experts between ranks.
#pragma once
#include <cstddef>
#include <memory>

#include "nn/linear.h"
#include "nn/moe.h"

namespace moebius {

// Loads single experts of a block, also those of other ranks, for layers whose experts move between
// ranks. The checkpoint must outlive it.
class ExpertSource {
 public:
  virtual ~ExpertSource() = default;
  // Returns the index of the layer's plan for an expert.
  virtual size_t plan_of(size_t expert) const = 0;
  // Reads, checks and packs an expert into staged memory. Thread-safe. Throws Error.
  virtual void load(const MoeLayer& layer, MoeLayer::StagedExpert& to, size_t expert) const = 0;
};

// A MoE block: its experts, and the linear layer that computes router logits (f32).
struct MoeBlockLayer {
  std::unique_ptr<MoeLayer> experts;
  std::unique_ptr<LinearLayer> router;
  // Source of experts that come from other ranks; null: experts do not move.
  std::unique_ptr<const ExpertSource> source = nullptr;
};

}  // namespace moebius
