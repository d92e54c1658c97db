// SPDX-License-Identifier: Apache-2.0
// Runs a model in this process: takes batches, passes them through the graph, and keeps its blocks.
// A rank's part of a model is one, too (ranked_backend.h).
#pragma once
#include <algorithm>
#include <deque>
#include <exception>
#include <future>
#include <mutex>

#include "model/run/expert_places.h"
#include "model/run/pass_runner.h"

namespace moebius {

class StepRunner final : public DecoderModel, public PassRunner {
 public:
  StepRunner(const Checkpoint& checkpoint, const ModelOptions& options, ModelPart part,
             ExpertsOf experts_of);
  ~StepRunner() override;

  void follow() override {}
  std::vector<RankFigures> rank_figures(bool now) override;
  uint64_t loaded_bytes() const override;
  size_t layers() const override { return layers_.layers.size(); }
  XType type() const override { return options_.type; }
  uint64_t packed_bytes() const override;
  uint64_t embedding_bytes() const override;
  const KvPlan& kv_plan() const override { return kv_plan_; }
  uint64_t weight_bytes_per_token() const override { return layers_.bytes_per_token(); }
  SequenceState new_sequence() const override { return sequence(nullptr); }
  void forward(std::span<const StepItem> items, std::vector<float>& logits) override;
  const Profile& profile() const override { return profile_; }
  void clear_profile() override { profile_ = {}; }
  const StepStats& last_step() const override { return last_step_; }

  bool keys_depend_on_length() const override;
  size_t keys_change_beyond() const override;
  size_t vocab() const override { return layers_.vocab; }
  std::span<const KvKind> kv_kinds() const override { return kv_plan_.kinds; }
  uint64_t memory_left() const override { return options_.memory_left; }
  bool reads_experts() const override { return experts_ != nullptr && experts_->reads(); }
  bool drafts() const override { return predictor_ != nullptr && queues_ == 1; }
  size_t batches_in_flight() const override { return queues_; }
  Ticket submit(std::span<const BatchItem> items) override;
  void collect(Ticket ticket, StepOutput& out) override;
  bool lost() const override;
  void copy_block(size_t kind, BlockId from, BlockId to, size_t tokens) override;
  void cut_block(size_t kind, BlockId id, size_t tokens) override;
  size_t stored_bytes(size_t kind) const override;
  void read_block(size_t kind, BlockId id, size_t length, std::span<uint8_t> out) override;
  bool write_block(size_t kind, BlockId id, size_t length, Fill fill) override;
  void commit_blocks(size_t kind, size_t count) override;
  void trim_blocks(size_t kind, size_t count) override;

  // --- for ranks ---

  using RunStep = FunctionRef<void(std::span<const Work>, std::vector<float>&, StepStats&)>;

  std::mutex& mutex() { return mutex_; }
  KvPool& engine_pool() { return pool_; }
  SequenceState sequence(std::shared_ptr<const uint64_t> id) const;
  // Throws Error if the item cannot run (no token, a token out of range, a table too short).
  void check(const BatchItem& item) const;
  // Throws ItemError for the first item that cannot run.
  void check(std::span<const BatchItem> items) const;
  std::vector<Work> work_of(std::span<const BatchItem> items);
  // Implements forward() with `run` as the function that runs a step.
  void forward_by(std::span<const StepItem> items, std::vector<float>& logits, RunStep run);

 private:
  struct Batch {
    Ticket ticket;
    std::vector<BatchItem> items;
    std::deque<BlockTables> tables;  // with several queues: tables as they were when submitted
    size_t queue = 0;
    std::unique_ptr<Pass> pass;  // pass under way
    std::future<void> done;
    bool complete = false;
    std::exception_ptr error;
    StepOutput out;
  };
  void step(std::vector<Work> work, size_t queue, StepOutput& out);
  void finish(Pass& pass, StepStats& stats);  // ends a pass, and counts rows of experts
  bool needs(std::span<const BatchItem> items, std::span<const BatchItem> writers) const;
  bool may_launch(const Batch& batch) const;
  void launch(Batch& batch);
  void complete(Batch& batch) noexcept;
  // Called after a step: lets experts of divided layers change places, if they are ready and no
  // step is under way.
  void look_after_places();
  void complete_all() noexcept;  // waits for submitted work before blocks are changed
  size_t versions(size_t kind) const { return kind == state_kind_ ? 2 : 1; }

  std::unique_ptr<ExpertPlaces> places_;  // null: expert loads are not counted
  size_t queues_ = 1;
  KvPool pool_;                                  // the engine's blocks
  std::vector<std::unique_ptr<Batch>> batches_;  // submitted batches, in order
  Ticket next_ticket_ = 1;
  std::mutex mutex_;
  StepStats last_step_;
};

}  // namespace moebius
