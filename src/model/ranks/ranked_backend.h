// SPDX-License-Identifier: Apache-2.0
// Runs a model on several ranks, seen from one of them: rank 0 is called like any model and
// announces each step to the others, which follow. A StepRunner computes a rank's own part; this
// class has the messages between ranks, the way of rows from stage to stage, and busy experts that
// get copies.
#pragma once
#include <chrono>
#include <deque>
#include <map>

#include "model/ranks.h"
#include "model/ranks/expert_moves.h"
#include "model/ranks/step_plan.h"
#include "model/run/step_runner.h"

namespace moebius {

class RankedBackend final : public DecoderModel {
 public:
  RankedBackend(const Checkpoint& checkpoint, const ModelOptions& options, ModelPart part);
  ~RankedBackend() override;

  void follow() override;
  void start_beats() override;
  std::vector<RankFigures> rank_figures(bool now) override;
  uint64_t loaded_bytes() const override { return runner_->loaded_bytes(); }
  size_t layers() const override { return runner_->layers(); }
  XType type() const override { return runner_->type(); }
  uint64_t packed_bytes() const override { return runner_->packed_bytes(); }
  uint64_t embedding_bytes() const override { return runner_->embedding_bytes(); }
  const KvPlan& kv_plan() const override { return runner_->kv_plan(); }
  uint64_t weight_bytes_per_token() const override { return runner_->weight_bytes_per_token(); }
  SequenceState new_sequence() const override;
  void forward(std::span<const StepItem> items, std::vector<float>& logits) override;
  const Profile& profile() const override { return runner_->profile(); }
  void clear_profile() override { runner_->clear_profile(); }
  const StepStats& last_step() const override { return runner_->last_step(); }

  bool keys_depend_on_length() const override { return runner_->keys_depend_on_length(); }
  size_t keys_change_beyond() const override { return runner_->keys_change_beyond(); }
  size_t vocab() const override { return runner_->vocab(); }
  std::span<const KvKind> kv_kinds() const override { return kinds_; }
  uint64_t memory_left() const override { return runner_->memory_left(); }
  size_t batches_in_flight() const override { return leads() ? ranks_.split().pp : 1; }
  Ticket submit(std::span<const BatchItem> items) override;
  void collect(Ticket ticket, StepOutput& out) override;
  bool lost() const override { return ranks_.aborted() || runner_->lost(); }
  void copy_block(size_t kind, BlockId from, BlockId to, size_t tokens) override;
  void cut_block(size_t kind, BlockId id, size_t tokens) override;
  void commit_blocks(size_t kind, size_t count) override;
  void trim_blocks(size_t kind, size_t count) override;

 private:
  using Work = StepRunner::Work;
  using Pass = StepRunner::Pass;
  class Ended;
  class Beats;
  struct Staged;   // a step between the stages
  struct Figures;  // figures of all ranks at the last beat, and of this one
  struct Batch {
    Ticket ticket;
    std::vector<BatchItem> items;
    std::shared_ptr<Staged> step;  // step under way
    StepStats stats;
  };
  bool leads() const { return ranks_.leader(); }
  bool staged() const { return ranks_.split().pp > 1; }
  void tell(StepPlan plan);                    // announces a plan to the other ranks
  void tell_step(std::span<const Work> work);  // announces a step; called if this rank is rank 0
  void tell_blocks(StepPlan::Kind kind, size_t block_kind, uint64_t from, uint64_t to,
                   uint64_t count);
  void beat();
  void run_plan(StepPlan plan);
  void run_plan_step(std::shared_ptr<const StepPlan> plan);
  // Runs a step that all ranks compute together.
  void step(std::span<const Work> work, std::vector<float>& logits, StepStats& stats);
  void run_layers(Pass& pass);
  void end_pass(Pass& pass, StepStats& stats);
  void measured(StepStats& stats, FunctionRef<void()> fn);
  std::vector<std::vector<Work>> groups_of(std::span<const Work> work) const;
  std::shared_ptr<Staged> begin_stages(std::span<const Work> work, StepStats& stats);
  void end_stages(Staged& step, std::vector<float>& logits, StepStats& stats);
  std::shared_ptr<Staged> launch(std::span<const Work> work, StepStats& stats);
  void land(Staged& step, std::vector<float>& logits, StepStats& stats);
  void end_step(StepStats& stats) {
    if (moves_ != nullptr) moves_->end_step(stats);
  }

  Ranks& ranks_;
  std::unique_ptr<StepRunner> runner_;
  std::unique_ptr<ExpertMoves> moves_;  // destroyed before the layers
  // Kinds of blocks as an engine sees them: bytes are those of the rank with the most.
  std::vector<KvKind> kinds_;
  std::vector<Batch> batches_;  // submitted batches, in order
  // Steps that wait for the last stage, on the other ranks of the first stage.
  std::deque<std::shared_ptr<Staged>> begun_;
  Ticket next_ticket_ = 1;
  uint64_t serial_ = 0;  // number of plans announced so far
  mutable uint64_t next_sequence_ = 1;
  // Sequences that ended since the last plan.
  std::shared_ptr<Ended> ended_;
  // on ranks other than 0: memory of each sequence.
  std::map<uint64_t, std::unique_ptr<KvPool>> sequences_;
  std::shared_ptr<Figures> figures_;
  // When rank 0 sent the last plan, and the last beat.
  std::chrono::steady_clock::time_point told_{}, beaten_{};
  std::unique_ptr<Beats> beats_;
};

}  // namespace moebius
