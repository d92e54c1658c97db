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
  CudaSettings cuda;  // used if the placement names a CUDA device
  Policy policy;
  ActRequest act;
  XType type = XType::kBf16;  // type of activations between layers
  // Type of stored keys and values; unset: as the checkpoint declares (kv_cache_scheme), else the
  // activation type.
  std::optional<KvType> kv_type;
  size_t context = 0;  // longest sequence in tokens; 0: the most that the config allows
  std::function<void(uint64_t bytes)> progress;  // called with the bytes of files that were read
  // Folder of weights that were packed before (device/cpu/packed_store.h); "": weights are packed
  // into memory at each load.
  std::string pack_dir;
  // Free bytes beside the weights on the rank that has the least; 0: not known.
  uint64_t memory_left = 0;
  // Ranks that run the model together (ranks.h); null: this process has all of it. They outlive the
  // model.
  Ranks* ranks = nullptr;
  // Expert parallelism: how copies of busy experts are balanced (ranks and spare places come from
  // the split), and rank 0's file that keeps expert loads between runs ("": none).
  BalanceSettings balance;
  std::string loads_file;
  std::function<void(const std::string& line)> warn;  // called with failures that do not stop steps
  // Called with notes about the progress of loading.
  std::function<void(const std::string& line)> note;
  // Sees what layers read (device/tap.h); tap and checkpoint outlive the model.
  ModuleTap* tap = nullptr;

  // Also loads its layer for multi-token prediction (load/predictor_plan.h).
  bool predictor = false;

  KvChoice kv() const { return {type, kv_type, policy.accept == Accept::kExact}; }
};

// Plans the KV cache of a model with these options, from headers alone. Throws Error.
KvPlan plan_kv(const Checkpoint& checkpoint, const ModelOptions& options);

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
  // Counts tokens whose keys are written, and frees blocks that no token reads again.
  void commit(size_t tokens) noexcept;
  std::span<const KvKind> kinds_;  // owned by the model
  std::unique_ptr<KvPool> pool_;
  BlockTables tables_;
  std::vector<std::vector<BlockId>> free_;  // [kind] free blocks
  size_t length_ = 0;
  // On several ranks: its last copy tells them that the sequence ended.
  std::shared_ptr<const uint64_t> id_;
};

struct StepItem {
  SequenceState* state = nullptr;
  std::span<const int32_t> tokens;  // at least one token
  bool all_logits = false;          // true: logits of every token; false: of the last one
  // Length of the sequence as far as it is known (BatchItem::length).
  size_t length = 0;
};

std::string_view name_of(Phase phase);

class DecoderModel : public Backend {
 public:
  // Loads a model. Throws Error for an unsupported architecture or module (before anything is read)
  // and for a broken payload. With ranks it loads this rank's part, and rank 0's model runs the
  // whole model.
  static std::unique_ptr<DecoderModel> load(const Checkpoint& checkpoint,
                                            const ModelOptions& options);

  // Other ranks: executes the steps that rank 0 announces, until its model is destroyed.
  virtual void follow() = 0;
  // Rank 0, once the others follow: starts to exchange signs of life with them.
  virtual void start_beats() {}
  // Returns what every rank did, as of the last beat (a few seconds old), or asked for now.
  virtual std::vector<RankFigures> rank_figures(bool now) = 0;

  virtual uint64_t loaded_bytes() const = 0;  // bytes of files read for this rank's part
  virtual size_t layers() const = 0;          // number of layers on all ranks
  virtual XType type() const = 0;
  virtual uint64_t packed_bytes() const = 0;     // bytes of packed weights in memory
  virtual uint64_t embedding_bytes() const = 0;  // the part of these that is the token table
  virtual const KvPlan& kv_plan() const = 0;
  // Bytes of packed weights that one token reads.
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
