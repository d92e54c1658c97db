// SPDX-License-Identifier: Apache-2.0
// A whole model: embedding, layers of attention and MLP or mixture of experts, output projection.
// Runs rows of any number of sequences in one step; a row's result does not depend on the others,
// on threads, on devices of one class, or on how a prompt was cut into steps.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/load_options.h"
#include "device/placement.h"
#include "model/backend.h"
#include "model/load/kv_plan.h"
#include "model/load/model_part.h"
#include "model/ranks/expert_balance.h"

namespace moebius {

class Ranks;
struct RankFigures;

struct ModelOptions {
  ThreadPool* pool = nullptr;
  DevicePlacement placement;
  CudaSettings cuda;  // of a placement that names such a device
  Policy policy;
  ActRequest act;
  XType type = XType::kBf16;  // of activations between layers
  // Of keys and values; none: as the checkpoint declares (kv_cache_scheme), else as the activations.
  std::optional<KvType> kv_type;
  size_t context = 0;  // longest sequence that will be run; 0: what the config allows
  std::function<void(uint64_t bytes)> progress;  // file bytes read
  // Folder of weights that were packed before (device/cpu/packed_store.h); "": packed into memory.
  std::string pack_dir;
  // Beside the weights, on the rank that has the least; 0: not known.
  uint64_t memory_left = 0;
  // Of several that run the model together (ranks.h); null: this process has all of it. Outlives the
  // model.
  Ranks* ranks = nullptr;
  // Ranks with experts of their own each: how copies of busy ones are balanced (ranks and spare places
  // are those of the split), and rank 0's file of loads from run to run ("": none).
  BalanceSettings balance;
  std::string loads_file;
  std::function<void(const std::string& line)> warn;  // of what went wrong beside the steps
  std::function<void(const std::string& line)> note;  // of what is done while weights are loaded
  ModuleTap* tap =
      nullptr;  // sees what layers read (device/tap.h); it and the checkpoint outlive the model

  bool predictor = false;  // with its layer for multi-token prediction (load/predictor_plan.h)

  KvChoice kv() const { return {type, kv_type, policy.accept == Accept::kExact}; }
};

// The KV cache of a model with these options, from headers alone.
KvPlan plan_kv(const Checkpoint& checkpoint, const ModelOptions& options);

// What one sequence has seen, in memory of its own: for callers without an engine.
class SequenceState {
 public:
  SequenceState(std::span<const KvKind> kinds, std::span<const DeviceKinds> devices,
                std::shared_ptr<const uint64_t> id);
  size_t length() const { return length_; }
  size_t kv_bytes() const { return pool_->bytes(); }

 private:
  friend class StepRunner;
  void reserve(size_t tokens);          // blocks for so many more
  void commit(size_t tokens) noexcept;  // they are there; gives away what no token reads again
  std::span<const KvKind> kinds_;       // the model's
  std::unique_ptr<KvPool> pool_;
  BlockTables tables_;
  std::vector<std::vector<BlockId>> free_;  // per kind
  size_t length_ = 0;
  std::shared_ptr<const uint64_t> id_;  // on several ranks: tells them when the last copy goes
};

struct StepItem {
  SequenceState* state = nullptr;
  std::span<const int32_t> tokens;  // at least one
  bool all_logits = false;          // logits of every token, else of the last one
  size_t length = 0;                // of the sequence as far as it is known (BatchItem::length)
};

std::string_view name_of(Phase phase);

class DecoderModel : public Backend {
 public:
  // Throws Error: unsupported architecture or module (before anything is read), broken payload. With
  // ranks, this rank's part: rank 0 is called like any model and tells the others.
  static std::unique_ptr<DecoderModel> load(const Checkpoint& checkpoint,
                                            const ModelOptions& options);

  // On the other ranks: executes what rank 0 tells until its model is gone.
  virtual void follow() = 0;
  // Of rank 0, once the others follow: tells them now and then that it is there, and learns that they
  // are.
  virtual void start_beats() {}
  // What every rank did, as of the last beat (a few seconds old), or asked for now.
  virtual std::vector<RankFigures> rank_figures(bool now) = 0;

  virtual uint64_t loaded_bytes() const = 0;  // of files, for this rank's part
  virtual size_t layers() const = 0;          // of all ranks
  virtual XType type() const = 0;
  virtual uint64_t packed_bytes() const = 0;     // weights in memory
  virtual uint64_t embedding_bytes() const = 0;  // of these
  virtual const KvPlan& kv_plan() const = 0;
  virtual uint64_t weight_bytes_per_token() const = 0;  // packed weights that one token reads
  virtual SequenceState new_sequence() const = 0;

  // One step: all items' tokens run through the model. logits: [rows, vocab], items in order, one
  // row each (or one per token). Throws Error for a token id out of range, naming it. Calls from
  // several threads take turns.
  // When it throws, every state is as it was.
  virtual void forward(std::span<const StepItem> items, std::vector<float>& logits) = 0;
  virtual const Profile& profile() const = 0;
  virtual void clear_profile() = 0;
  virtual const StepStats& last_step() const = 0;  // of the last forward()
};

}  // namespace moebius
