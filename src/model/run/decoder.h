// SPDX-License-Identifier: Apache-2.0
// Loads and runs a whole model: embedding, layers of attention and MLP or mixture of experts,
// output projection. It runs rows of any number of sequences in one step; a row's result does not
// depend on the others, on threads, on devices of one class, or on how a prompt was cut into steps.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/backend.h"
#include "model/plan/model_plan.h"
#include "model/run/expert_balance.h"

namespace moebius {

class Ranks;
struct RankFigures;

// Holds a wish, and what the process that loads the model provides.
struct ModelOptions : Wish {
  ThreadPool* pool = nullptr;
  std::function<void(uint64_t bytes)> progress;  // called with the bytes of files that were read
  // Ranks that run the model together (ranks.h); null: this process has all of it. They outlive the
  // model.
  Ranks* ranks = nullptr;
  // Settings of expert parallelism: how copies of busy experts are balanced (the numbers of ranks
  // and spare places come from the split).
  BalanceSettings balance;
  std::function<void(const std::string& line)> warn;  // called with failures that do not stop steps
  // Called with notes about the progress of loading.
  std::function<void(const std::string& line)> note;
  // Receives the rows that layers read (device/tap.h); tap and checkpoint outlive the model.
  ModuleTap* tap = nullptr;
  // Returns the folder of packed weights for a model whose experts do not fit memory and take so
  // many bytes, if pack_dir names none; "": they are read from the checkpoint.
  std::function<std::string(uint64_t bytes)> pack_where;
  // Free bytes beside the weights on the rank that has the least, as the plan found them; 0: not
  // known.
  uint64_t memory_left = 0;
};

// Keeps what one sequence has seen, in memory of its own; for callers without an engine.
class SequenceState {
 public:
  SequenceState(std::span<const KvKind> kinds, std::span<const DeviceKinds> devices,
                std::shared_ptr<const uint64_t> id);
  size_t length() const { return length_; }
  size_t kv_bytes() const { return pool_->bytes(); }

 private:
  friend class StepRunner;
  void reserve(size_t tokens);  // allocates blocks for `tokens` more; throws Error
  // Counts `tokens` more tokens as written, and frees blocks that no token reads again.
  void commit(size_t tokens) noexcept;
  std::span<const KvKind> kinds_;  // owned by the model
  std::unique_ptr<KvPool> pool_;
  BlockTables tables_;
  std::vector<std::vector<BlockId>> free_;  // [kind] free blocks
  size_t length_ = 0;
  // Number of the sequence on several ranks; the last copy of the pointer tells them that the
  // sequence ended.
  std::shared_ptr<const uint64_t> id_;
};

struct StepItem {
  SequenceState* state = nullptr;
  std::span<const int32_t> tokens;  // tokens to run, at least one
  bool all_logits = false;          // true: logits of every token; false: of the last one
  // Length of the sequence as far as it is known (BatchItem::length).
  size_t length = 0;
};

std::string_view name_of(Phase phase);

class DecoderModel : public Backend {
 public:
  // Loads the part that the plan gives to this rank (options.ranks; without ranks, the whole
  // model). The plan's decisions apply, not the options' own wish. Rank 0's model runs the whole
  // model. Throws Error for a broken payload.
  static std::unique_ptr<DecoderModel> load(const Checkpoint& checkpoint, const ModelPlan& plan,
                                            const ModelOptions& options);
  // Plans the model for this process without looking at the machine's free memory, then loads it.
  // Throws Error.
  static std::unique_ptr<DecoderModel> load(const Checkpoint& checkpoint,
                                            const ModelOptions& options);

  // For ranks other than 0: executes the steps that rank 0 announces, until rank 0's model is
  // destroyed.
  virtual void follow() = 0;
  // For rank 0, once the others follow: starts to exchange signs of life with them.
  virtual void start_beats() {}
  // Returns what every rank did: as of the last beat, a few seconds ago; `now`: asks the ranks.
  virtual std::vector<RankFigures> rank_figures(bool now) = 0;

  virtual uint64_t loaded_bytes() const = 0;  // bytes of files read for this rank's part
  virtual size_t layers() const = 0;          // number of layers on all ranks
  virtual XType type() const = 0;
  virtual uint64_t packed_bytes() const = 0;     // bytes of packed weights in memory
  virtual uint64_t embedding_bytes() const = 0;  // the part of these that is the token table
  virtual const KvPlan& kv_plan() const = 0;
  // Returns the bytes of packed weights that one token reads.
  virtual uint64_t weight_bytes_per_token() const = 0;
  virtual SequenceState new_sequence() const = 0;

  // Runs one step: all items' tokens pass through the model. logits: [rows, vocab], items in order,
  // one row each (or one per token). Throws Error for a token id out of range; when it throws,
  // every state is as before. Thread-safe: calls take turns.
  virtual void forward(std::span<const StepItem> items, std::vector<float>& logits) = 0;
  virtual const Profile& profile() const = 0;
  virtual void clear_profile() = 0;
  virtual const StepStats& last_step() const = 0;  // measurements of the last forward()
};

}  // namespace moebius
