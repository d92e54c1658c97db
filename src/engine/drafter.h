// SPDX-License-Identifier: Apache-2.0
// Finds drafts for the sequences of a step (draft.h), decides which are worth their rows, and learns
// which were right. Used by the engine's thread alone.
#pragma once
#include "engine/sequence.h"

namespace moebius {

class Drafter {
 public:
  explicit Drafter(const EngineParts& engine);

  // Finds tokens that may follow the sequence's last one: those that the answer's grammar dictates,
  // those that followed the same tokens in the predicted text or in the sequence's own text, or
  // rows that the backend fills in.
  void find(Sequence& s) const;
  // Keeps those drafts that are worth their rows beside `decode`.
  void plan(const Sequences& sequences, const StepShape& decode) const;
  // Returns the nanoseconds that the backend's drafts of a step are predicted to take.
  double predict(const StepBatch& step) const { return pass_ * static_cast<double>(step.passes()); }
  // Learns from a step in which the backend's drafts took so long.
  void observe(const StepBatch& step, uint64_t nanoseconds) noexcept;
  // Makes the backend's drafts the drafts of the sequences that asked for them.
  static void take(const StepBatch& step, std::span<const int32_t> drafts);
  // Commits the drafts of a sequence, whose tokens are in its text already.
  void commit(Sequence& s) noexcept;

 private:
  const EngineParts e_;
  bool cuttable_ = true;  // true: sequences can be cut at any token in every kind of block
  // Mean nanoseconds that the backend needs to draft one token for each sequence that asks.
  double pass_ = 0;
  size_t passes_seen_ = 0;
};

}  // namespace moebius
