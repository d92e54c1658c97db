// SPDX-License-Identifier: Apache-2.0
// Describes the part of a model that one process has: all of it, or a rank's layers, heads and
// columns.
#pragma once
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/parallel.h"
#include "model/arch/decoder_spec.h"
#include "quant/slice.h"

namespace moebius {

class Ranks;

// Returns which layers each of `stages` stages runs: stage s runs layers [s] up to [s + 1].
std::vector<size_t> plan_stages(const Checkpoint& checkpoint, const DecoderSpec& spec,
                                size_t stages);

// Returns for each layer whether a stage may begin with it: the others need keys, choices or
// results of the layer before.
std::vector<bool> stage_begins(const DecoderSpec& spec);

struct ModelPart {
  // Describes a rank's part. repeats: the ranks of a stage spread only experts, and each has
  // everything else.
  ModelPart(const Checkpoint& checkpoint, DecoderSpec whole, Ranks* ranks, bool repeats = false);
  // Describes some layers of a model that this process runs alone, with the token table if the
  // first layer is among them; without logits.
  ModelPart(DecoderSpec whole, Range layers);

  Ranks* ranks;  // ranks that share the model; null: this process has everything
  DecoderSpec whole;
  DecoderSpec spec;  // spec with the heads of this process only
  Range own;         // layers of this process
  // [stages + 1] first layer of each stage, then the number of layers; empty without ranks.
  std::vector<size_t> stages;
  // [member] columns of rows that each rank of this stage has; empty: one rank has all.
  std::vector<Range> columns;
  std::vector<Range> expert_columns;  // [member] columns of the experts' results
  bool cuts_heads = false;            // true: the ranks of this stage share the heads of attention
  bool embeds = true;    // true: this process turns tokens into rows: with ranks, the leader
  bool projects = true;  // true: this process turns rows into logits, in the first stage
  bool repeats = false;  // true: the ranks have whole columns and spread the experts

  bool first_stage() const { return own.begin == 0; }
  DecoderSpec spec_of(size_t member) const;  // returns the spec as another rank of the stage has it
  // Returns the outputs of a projection that belong to this process's heads, `each` outputs per
  // head; {}: all.
  Range heads_of(size_t layer, size_t each) const;
  Range kv_heads_of(size_t layer, size_t each) const;
  // Returns the columns of attended values that each rank of the stage has.
  std::vector<Range> values_of(size_t layer) const;

 private:
  HeadCut cut(size_t layer, size_t member) const;
};

}  // namespace moebius
