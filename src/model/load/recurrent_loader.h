// SPDX-License-Identifier: Apache-2.0
// Loads the recurrent layers of a checkpoint: what they read beside their projections.
#pragma once
#include <memory>
#include <vector>

#include "model/arch/decoder_spec.h"
#include "model/plan/layer_parts.h"
#include "nn/norm.h"

namespace moebius {

// Names a projection of the layer's input, or two in a row with few features between them.
struct RecurrentInput {
  const Module *first, *second = nullptr;
  const Module& last() const { return second != nullptr ? *second : *first; }
};

// Describes a convolution of the input, and projections of its result that the layer also reads
// (Mamba-1).
struct InnerProjections {
  std::unique_ptr<Recurrent> convolution;
  // First float of the convolution's state, after the layer's own.
  size_t state_at = 0;
  // Map convolved rows to [dt, B, C], and dt to a number for each feature.
  const Module *parameters, *steps;
  Norm dt_norm, b_norm, c_norm;
};

struct LoadedRecurrent {
  std::unique_ptr<Recurrent> net;
  std::vector<RecurrentInput> in;  // projections whose results form a row, side by side
  const Module* out = nullptr;
  // null: the layer reads only the results of `in`.
  std::unique_ptr<InnerProjections> inner = nullptr;
};
// Loads a recurrent layer. Throws Error that names a module or tensor that is missing or has other
// sizes.
LoadedRecurrent load_recurrent(const LayerParts& parts, const DecoderSpec& spec, XType type);

}  // namespace moebius
