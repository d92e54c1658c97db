// SPDX-License-Identifier: Apache-2.0
// The recurrent layers of a checkpoint: what they read beside their projections.
#pragma once
#include <memory>
#include <vector>

#include "model/arch/decoder_spec.h"
#include "model/load/layer_parts.h"
#include "nn/norm.h"

namespace moebius {

// A projection of the layer's input, or two in a row with few features between them.
struct RecurrentInput {
  const Module *first, *second = nullptr;
  const Module& last() const { return second != nullptr ? *second : *first; }
};

// A convolution of the input, and projections of it that the layer reads beside it (Mamba-1).
struct InnerProjections {
  std::unique_ptr<Recurrent> convolution;
  size_t state_at = 0;               // of the convolution, in floats behind the layer's
  const Module *parameters, *steps;  // convolved -> [dt, B, C]; dt -> a number for each feature
  Norm dt_norm, b_norm, c_norm;
};

struct LoadedRecurrent {
  std::unique_ptr<Recurrent> net;
  std::vector<RecurrentInput> in;  // side by side a row of the net
  const Module* out = nullptr;
  std::unique_ptr<InnerProjections> inner = nullptr;  // null: the layer reads `in` alone
};
// Throws Error naming a module or tensor that is missing or has other sizes.
LoadedRecurrent load_recurrent(const LayerParts& parts, const DecoderSpec& spec, XType type);

}  // namespace moebius
