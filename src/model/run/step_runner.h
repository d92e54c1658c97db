// SPDX-License-Identifier: Apache-2.0
// Runs a model in this process: takes batches, passes them through the graph, and keeps its blocks.
// A rank's part of a model is one, too (ranked_backend.h).
#pragma once
#include <algorithm>
#include <deque>
#include <exception>
#include <future>
#include <mutex>

#include "model/graph/graph.h"
#include "model/load/layer_set_loader.h"
#include "model/run/decoder.h"
#include "model/run/expert_places.h"
#include "model/run/packed_weights.h"
#include "model/run/predictor.h"

namespace moebius {

// Calls f(block, first position, position after the last) for the blocks of a sequence's tokens.
template <class F>
void each_block(const BatchItem& item, F f) {
  const size_t end = item.position + item.tokens.size() + item.drafts;
  for (size_t at = item.position; at < end;) {
    const size_t block = at / kBlockTokens, until = std::min(end, (block + 1) * kBlockTokens);
    f(block, at, until);
    at = until;
  }
}

class StepRunner final : public DecoderModel {
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

  // --- parts of a step, for ranks ---

  // Refers to an item and to the memory that its block numbers mean.
  struct Work {
    BatchItem item;
    KvPool* pool;
    uint64_t sequence = 0;  // sequence whose memory the block numbers mean; 0: the engine's
  };
  // Holds rows on their way through the layers of this process.
  struct Pass {
    Step step;
    std::vector<Work> work;
    std::vector<uint32_t> counts;  // rows of every expert, layer by layer
    bool projected = false;        // true: logits were computed
    uint64_t unread = 0;           // pages of packed weights that could not be read when it began
  };
  using RunStep = FunctionRef<void(std::span<const Work>, std::vector<float>&, StepStats&)>;

  const ModelPart& part() const { return part_; }
  LayerSet& layer_set() { return layers_; }
  const Graph& graph() const { return graph_; }
  std::mutex& mutex() { return mutex_; }
  KvPool& engine_pool() { return pool_; }
  const Predictor* predictor() const { return predictor_.get(); }
  SequenceState sequence(std::shared_ptr<const uint64_t> id) const;
  // Throws Error if the item cannot run (no token, a token out of range, a table too short).
  void check(const BatchItem& item) const;
  // Throws ItemError for the first item that cannot run.
  void check(std::span<const BatchItem> items) const;
  std::vector<Work> work_of(std::span<const BatchItem> items);
  void make_room(const Work& work);  // allocates memory for the blocks that the work writes
  // Implements forward() with `run` as the function that runs a step.
  void forward_by(std::span<const StepItem> items, std::vector<float>& logits, RunStep run);
  // Starts a pass. Throws Error if a state that it reads is missing.
  std::unique_ptr<Pass> begin(std::vector<Work> work, size_t queue = 0);
  // Waits for all operations of the pass, adds its counts and times to the statistics, and keeps
  // states. Throws what an operation threw.
  void end(Pass& pass, StepStats& stats);
  // Gives up a pass after a failure: waits until no operation needs it.
  void abandon(Pass& pass) noexcept;
  // Starts a pass with the same rows after other ranks ran layers, to compute logits.
  std::unique_ptr<Pass> begin_behind(const Pass& pass);
  void end_behind(Pass& pass, StepStats& stats);
  void logits(Pass& pass, const RowSet& h, std::vector<float>& out);
  // Runs fn and adds its time to `stats`.
  void measured(StepStats& stats, FunctionRef<void()> fn);
  static size_t rows_of(std::span<const Work> work);

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
  // Drafts tokens for the items that ask for them and appends them; `rows` owns the tokens.
  void draft(std::span<Work> work, size_t queue, std::vector<Predictor::Sequence>& rows,
             StepOutput& out) const;
  void cut(const KvPool& pool, size_t kind, BlockId id, size_t tokens) const;
  void run(Pass& pass, StepOutput& out);
  std::vector<uint32_t> rows_for_logits(Pass& pass) const;
  bool needs(std::span<const BatchItem> items, std::span<const BatchItem> writers) const;
  bool may_launch(const Batch& batch) const;
  void launch(Batch& batch);
  void complete(Batch& batch) noexcept;
  // Called after a step: lets experts of divided layers change places, if they are ready and no
  // step is under way.
  void look_after_places();
  void complete_all() noexcept;  // waits for submitted work before blocks are changed
  size_t versions(size_t kind) const { return kind == state_kind_ ? 2 : 1; }
  std::vector<StateRun> states_of(const Work& work, size_t kind) const;
  void keep_states(const Pass& pass) noexcept;
  void add_times(const Pass& pass, StepStats& stats);
  void wait(Pass& pass);  // waits for all devices; throws Error if weights could not be read

  ModelOptions options_;
  ModelPart part_;
  std::shared_ptr<PackedStore> packed_;  // file of packed weights; null: they are in memory
  LayerSet layers_;
  KvPlan kv_plan_;
  // Plan of the predictor; null once that is loaded.
  std::unique_ptr<PredictorPlan> predictor_plan_;
  Graph graph_;
  std::unique_ptr<Predictor> predictor_;  // null: there is none
  std::unique_ptr<ExpertPlaces> places_;  // null: expert loads are not counted
  size_t queues_ = 1;
  size_t state_kind_ = SIZE_MAX;
  KvPool pool_;                                  // the engine's blocks
  std::vector<std::unique_ptr<Batch>> batches_;  // submitted batches, in order
  Ticket next_ticket_ = 1;
  std::mutex mutex_;
  StepStats last_step_;
  Profile profile_{};
};

}  // namespace moebius
