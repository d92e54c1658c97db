// SPDX-License-Identifier: Apache-2.0
// What of a model one process has: all of it, or a rank's layers, heads and columns.
#pragma once
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/parallel.h"
#include "model/arch/decoder_spec.h"
#include "quant/slice.h"

namespace moebius {

class Ranks;

// Which layers each stage of `stages` runs: stage s those of [s] up to [s + 1].
std::vector<size_t> plan_stages(const Checkpoint& checkpoint, const DecoderSpec& spec,
                                size_t stages);

// Layers that a stage may begin with: the others take keys, choices or results of the one before.
std::vector<bool> stage_begins(const DecoderSpec& spec);

struct ModelPart {
  // repeats: the ranks of a stage spread experts alone, and each has all the rest.
  ModelPart(const Checkpoint& checkpoint, DecoderSpec whole, Ranks* ranks, bool repeats = false);
  // Some layers of a model that this process has alone, and the token table where they are the first;
  // no logits.
  ModelPart(DecoderSpec whole, Range layers);

  Ranks* ranks;  // null: this process has all
  DecoderSpec whole;
  DecoderSpec spec;            // with the heads that are here
  Range own;                   // layers
  std::vector<size_t> stages;  // first layer of each, and the number of layers; empty without ranks
  std::vector<Range> columns;  // of rows, on the ranks of this stage; empty: one has all
  std::vector<Range> expert_columns;  // the same for what experts give
  bool cuts_heads = false;            // attention is shared by the ranks of this stage
  bool embeds = true;                 // tokens become rows here: of the ranks, the leader
  bool projects = true;               // rows become logits here, in the first stage
  bool repeats = false;               // columns are whole, experts are spread

  bool first_stage() const { return own.begin == 0; }
  DecoderSpec spec_of(size_t member) const;  // as another rank of a stage has it
  // Outputs of a projection that are its heads; {}: all.
  Range heads_of(size_t layer, size_t each) const;
  Range kv_heads_of(size_t layer, size_t each) const;
  // What columns of attended values each rank of the stage has.
  std::vector<Range> values_of(size_t layer) const;

 private:
  HeadCut cut(size_t layer, size_t member) const;
};

}  // namespace moebius
