// SPDX-License-Identifier: Apache-2.0
// Passes rows through the layers of this process: the loaded part of a model, and the parts of one
// step, which a whole model runs in a row (step_runner.h) and ranks run between their exchanges.
#pragma once
#include "model/graph/graph.h"
#include "model/load/layer_set_loader.h"
#include "model/run/decoder.h"
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

class PassRunner {
 public:
  // Refers to an item and to the memory that its block numbers mean.
  struct Work {
    BatchItem item;
    KvPool* pool;
    uint64_t sequence = 0;  // sequence whose memory the block numbers mean; 0: the engine's
  };
  // Holds rows on their way through the layers of this process.
  struct Pass {
    Step step;
    Step last;  // rows that the last block runs, if it does not run all of them
    std::vector<Work> work;
    std::vector<uint32_t> counts;  // rows of every expert, layer by layer
    bool projected = false;        // true: logits were computed
    uint64_t unread = 0;           // pages of packed weights that could not be read when it began
  };

  // Loads the part.
  PassRunner(const Checkpoint& checkpoint, const ModelOptions& options, ModelPart part,
             ExpertsOf experts_of);

  const ModelPart& part() const { return part_; }
  LayerSet& layer_set() { return layers_; }
  const Graph& graph() const { return graph_; }
  const Predictor* predictor() const { return predictor_.get(); }
  void make_room(const Work& work);  // allocates memory for the blocks that the work writes
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

 protected:
  // Drafts tokens for the items that ask for them and appends them; `rows` owns the tokens.
  void draft(std::span<Work> work, size_t queue, std::vector<Predictor::Sequence>& rows,
             StepOutput& out) const;
  void run(Pass& pass, StepOutput& out);
  // Makes a block of `tokens` tokens of one that had more.
  void cut(const KvPool& pool, size_t kind, BlockId id, size_t tokens) const;

  ModelOptions options_;
  ModelPart part_;
  std::shared_ptr<PackedStore> packed_;   // file of packed weights; null: they are in memory
  std::shared_ptr<ExpertStore> experts_;  // has experts that are not in memory; null: none
  LayerSet layers_;
  KvPlan kv_plan_;
  Graph graph_;
  std::unique_ptr<Predictor> predictor_;  // null: there is none
  size_t state_kind_ = SIZE_MAX;
  Profile profile_{};

 private:
  std::vector<uint32_t> rows_for_logits(Pass& pass) const;
  // Returns the step that the last block and the output run: rows `asked` alone, if nothing else
  // reads the others.
  Step& last_step_of(Pass& pass, const std::vector<uint32_t>& asked) const;
  std::vector<StateRun> states_of(const Work& work, size_t kind) const;
  void keep_states(const Pass& pass) noexcept;
  void add_times(const Pass& pass, StepStats& stats);
  void wait(Pass& pass);  // waits for all devices; throws Error if weights could not be read
};

}  // namespace moebius
