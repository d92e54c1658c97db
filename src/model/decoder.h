// SPDX-License-Identifier: Apache-2.0
// A whole model: embedding, layers of attention and MLP or mixture of experts, output projection.
// Runs rows of any number of sequences in one step; a row's result does not depend on the others,
// on threads, or on how a prompt was cut into steps.
#pragma once
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "model/backend.h"
#include "model/decoder_spec.h"
#include "model/expert_balance.h"
#include "model/kv_memory.h"
#include "model/layer_loader.h"
#include "model/step_plan.h"
#include "nn/attention.h"

namespace moebius {

class Ranks;
struct RankFigures;

struct ModelOptions {
  ThreadPool* pool = nullptr;
  Policy policy;
  ActRequest act;
  XType type = XType::kBf16;  // of activations between layers
  // Of keys and values; none: as the checkpoint declares (kv_cache_scheme), else as the activations.
  std::optional<KvType> kv_type;
  size_t context = 0;  // longest sequence that will be run; 0: what the config allows
  std::function<void(uint64_t bytes)> progress;  // file bytes read
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
};

// What one sequence has seen, in memory of its own: for callers without an engine.
class SequenceState {
 public:
  size_t length() const { return length_; }
  size_t kv_bytes() const { return memory_.bytes(); }

 private:
  friend class DecoderModel;
  explicit SequenceState(std::span<const KvKind> kinds);
  void reserve(size_t tokens);          // blocks for so many more
  void commit(size_t tokens) noexcept;  // they are there; gives away what no token reads again
  std::span<const KvKind> kinds_;       // the model's
  KvMemory memory_;
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

// Where a model keeps keys and values: the kinds of its layers, and each layer's place.
struct KvPlan {
  struct Place {
    // Bytes behind the begin of a block of that kind; kind SIZE_MAX: the layer keeps nothing.
    size_t kind = 0, offset = 0;
  };
  std::vector<KvKind> kinds;
  std::vector<Place> layers;

  uint64_t bytes_per_token() const;        // while nothing is given away; whole blocks, no states
  uint64_t bytes_of(size_t tokens) const;  // that a sequence of so many tokens holds
};
// Of a model that runs with these options. Kinds are those of all layers, in one order on every rank;
// bytes and places those of the layers `own`.
KvPlan plan_kv(const Checkpoint& checkpoint, const DecoderSpec& spec, const ModelOptions& options,
               const Cpu& cpu, Range own = {0, SIZE_MAX});
// Which layers each stage of `stages` runs: stage s those of [s] up to [s + 1].
std::vector<size_t> plan_stages(const Checkpoint& checkpoint, const DecoderSpec& spec,
                                size_t stages);

class DecoderModel : public Backend {
 public:
  // Throws Error: unsupported architecture or module (before anything is read), broken payload.
  static std::unique_ptr<DecoderModel> load(const Checkpoint& checkpoint,
                                            const ModelOptions& options);
  ~DecoderModel() override;

  // On several ranks rank 0 is called like any model and tells the others; these execute what they
  // are told until rank 0's model is gone.
  void follow();
  // Of rank 0, once the others follow: tells them now and then that it is there, and learns that they
  // are.
  void start_beats();
  // What every rank did, as of the last beat (a few seconds old), or asked for now.
  std::vector<RankFigures> rank_figures(bool now);
  uint64_t loaded_bytes() const { return loaded_bytes_; }  // of files, for this rank's part

  bool keys_depend_on_length() const override {
    const auto depends = [](const RopeSpec& r) {
      return r.scaling == RopeScaling::kLongRope || r.scaling == RopeScaling::kDynamic;
    };
    return depends(spec_.rope) ||
           std::any_of(spec_.other_ropes.begin(), spec_.other_ropes.end(), depends);
  }
  size_t keys_change_beyond() const override;
  size_t vocab() const override { return vocab_; }
  size_t layers() const { return layers_.size(); }  // of all ranks
  XType type() const { return options_.type; }
  uint64_t packed_bytes() const;  // weights in memory
  uint64_t embedding_bytes() const { return embedding_.N * embedding_.row_bytes; }  // of these
  const KvPlan& kv_plan() const { return kv_plan_; }
  uint64_t weight_bytes_per_token()
      const;  // packed weights that one token reads (k experts per layer)
  SequenceState new_sequence() const;

  // One step: all items' tokens run through the model. logits: [rows, vocab], items in order, one
  // row each (or one per token). Throws Error for a token id out of range, naming it. Calls from
  // several threads take turns.
  // When it throws, every state is as it was.
  void forward(std::span<const StepItem> items, std::vector<float>& logits);
  const Profile& profile() const { return profile_; }
  void clear_profile() { profile_ = {}; }
  const StepStats& last_step() const { return last_step_; }  // of the last forward()

  // For an engine; one at a time may use the model's blocks.
  std::span<const KvKind> kv_kinds() const override { return kinds_; }
  uint64_t memory_left() const override { return options_.memory_left; }
  size_t batches_in_flight() const override;
  Ticket submit(std::span<const BatchItem> items) override;
  void collect(Ticket ticket, StepOutput& out) override;
  bool lost() const override;
  void copy_block(size_t kind, BlockId from, BlockId to, size_t tokens) override;
  void cut_block(size_t kind, BlockId id, size_t tokens) override;
  void commit_blocks(size_t kind, size_t count) override;
  void trim_blocks(size_t kind, size_t count) override;

 private:
  struct Layer;
  struct Buffers;
  class Timer;
  // An item and the memory that its blocks are numbers of.
  struct Work {
    BatchItem item;
    KvMemory* memory;
    uint64_t sequence = 0;  // whose memory it is; 0: the engine's
  };
  class Ended;
  class Beats;
  DecoderModel();
  void load_parallel(const Checkpoint& checkpoint, size_t index, Layer& layer);
  void load_layer(const Checkpoint& checkpoint, size_t index, Layer& layer);
  void load_attention(const Checkpoint& checkpoint, size_t index, Layer& layer);
  void load_qkv(const Checkpoint& checkpoint, size_t index, Layer& layer);
  void load_latent(const Checkpoint& checkpoint, size_t index, Layer& layer);
  void absorb(const Checkpoint& checkpoint, const Module& kv_b, Layer& layer) const;
  void check(const BatchItem& item) const;
  void step(std::span<const Work> work, std::vector<float>& logits, StepStats& stats);
  void run_step(std::span<const Work> work, std::vector<float>& logits, StepStats& stats);
  // Runs fn, whose time and counts become part of `stats`.
  void measured(StepStats& stats, FunctionRef<void()> fn);
  void note_step(double seconds, double exchange, double wait);  // for rank_figures()
  void embed(std::span<const Work> work, size_t T);
  void run_layers(std::span<const Work> work, size_t T);
  void embed_token(size_t token, float* to) const;
  void load_ends(const Checkpoint& checkpoint);
  void cut_layer(size_t index, Layer& layer) const;
  void take_part(const Checkpoint& checkpoint);  // what of the model is this rank's
  bool leads() const;                            // of several ranks
  void tell(StepPlan plan);                      // the other ranks
  void tell_step(std::span<const Work> work);    // where this rank leads
  void tell_blocks(StepPlan::Kind kind, size_t block_kind, uint64_t from, uint64_t to,
                   uint64_t count);
  void run_plan(StepPlan plan);
  void make_room(const Work& work);  // memory for the blocks that it writes
  // For a block on this rank; of a layer with experts, its number.
  LayerOptions options_of(MoePart part, size_t layer = SIZE_MAX) const;
  Range heads_of(const Layer& layer, size_t each) const;  // outputs that are its heads; {}: all
  Range kv_heads_of(const Layer& layer, size_t each) const;
  void project_attended(size_t index, const float* values, size_t T);
  void gather_output(const float* mine, const std::vector<Range>& columns, float* y, size_t T,
                     const char* phase, size_t index);
  bool gather_logits(size_t rows);  // of b.gathered into b.router; whether this rank has them
  void begin_stage(size_t T);
  struct Staged;
  bool staged() const;  // there are several stages
  std::shared_ptr<Staged> begin_stages(std::span<const Work> work, StepStats& stats);
  void end_stages(Staged& step, std::vector<float>& logits, StepStats& stats);
  std::shared_ptr<Staged> launch(std::span<const Work> work, StepStats& stats);
  void land(Staged& step, std::vector<float>& logits, StepStats& stats);
  void run_plan_step(std::shared_ptr<const StepPlan> plan);
  std::vector<std::vector<Work>> groups_of(std::span<const Work> work) const;
  void attend(size_t layer, std::span<const Work> work, size_t T);
  void project_qkv(const Layer& layer, size_t T);
  void normalize_whole(const Layer& layer, float* row) const;
  void normalize_heads(const Layer& layer, float* q, float* k, float* v) const;
  void project_latent(const Layer& layer, size_t T);
  void rotate_row(size_t layer, size_t row, size_t position) const;
  void gather_blocks(size_t layer, std::span<const Work> work);
  void append(size_t layer, std::span<const Work> work, size_t item, size_t head);
  void load_indexer(const Checkpoint& checkpoint, size_t index, Layer& layer);
  void select_keys(size_t layer, std::span<const Work> work, size_t T);
  void put_index_keys(const Layer& layer, std::span<const Work> work);
  AttentionRows attention_rows(const Layer& layer, const Work& work, size_t item) const;
  void absorb_queries(const Layer& layer, size_t T);
  void run_attention(const Layer& layer, std::span<const Work> work);
  void run_expanded(const Layer& layer, const Work& work, size_t item);
  void expand(const Layer& layer, size_t item, size_t block, size_t tokens);
  void attend_recurrent(size_t layer, std::span<const Work> work, size_t T);
  const float* project_recurrent(const Layer& layer, size_t T);
  void gate_attended(const Layer& layer, size_t T);
  struct StateBlock;
  void commit_states(std::span<const Work> work) const;
  void mix(size_t index, size_t T);
  void run_experts(size_t index, const float* router_x, const float* x, size_t T);
  void run_dense(size_t index, const MoeLayer& layer, const float* x, float* y, size_t T);
  void mix_parallel(size_t index, size_t T);
  void count_experts(size_t index, size_t T);
  // Copies of busy experts (decoder_balance.cpp).
  struct Balancing;
  void begin_balance(const Checkpoint& checkpoint);
  void count_rows(size_t layer, std::span<const uint32_t> rows);
  void begin_move(size_t index, std::vector<uint32_t> expert_of);
  void end_move(bool change);
  void look_after_move();
  bool run_balance_plan(const StepPlan& plan);  // false: it is no such plan
  void report_loads();
  void end_balance_step(StepStats& stats);
  void drop_move();       // of rank 0, before all ranks end
  void finish_balance();  // of all, when no plan follows: nothing stays under way
  void ask_loads();
  void take_loads();
  void lead_move();
  void save_loads() noexcept;
  void warn(const std::string& text) noexcept;
  void add_branch(const std::optional<Norm>& norm, const Residual& residual, float scalar,
                  size_t T);
  void normalize_rows(const std::optional<Norm>& norm, size_t T);
  void project_output(std::span<const Work> work, std::vector<float>& logits);
  void cap_logits(std::vector<float>& logits) const;
  void run_linear(const LinearLayer& layer, const float* x, float* y, size_t T, bool round = true);
  void for_rows(size_t T, FunctionRef<void(size_t)> fn);
  void cut_memory(KvMemory& memory, size_t kind, BlockId id, size_t tokens) const;

  DecoderSpec spec_;  // with the heads of this rank
  DecoderSpec whole_;
  std::vector<Range> columns_;         // of rows, on the ranks of this stage; empty: one has all
  std::vector<Range> expert_columns_;  // the same for what experts give
  bool cuts_heads_ = false;            // attention is shared by the ranks of this stage
  ModelOptions options_;
  LayerOptions layer_options_;
  size_t hidden_ = 0, vocab_ = 0;
  std::vector<std::unique_ptr<Layer>> layers_;  // null: another rank's
  Range own_;                                   // layers
  std::vector<std::unique_ptr<Rope>> ropes_;
  // The token table; or, where the output projection is the same weights and all of them are here,
  // how its rows are read back from these.
  LoadBuffer embedding_memory_;
  QuantMatrix embedding_;
  std::optional<PackedRows> tied_rows_;
  std::optional<Norm> final_norm_;
  std::unique_ptr<LinearLayer> output_;
  size_t output_width_ = 0;  // of all ranks
  std::unique_ptr<Buffers> buffers_;
  std::vector<size_t> stages_;            // first layer of each, and the number of layers
  std::unique_ptr<Balancing> balancing_;  // goes before the layers
  KvPlan kv_plan_;
  std::vector<KvKind> kinds_;            // for an engine: bytes of the rank with the most
  std::unique_ptr<KvMemory> kv_memory_;  // an engine's
  struct Batch {
    Ticket ticket;
    std::vector<BatchItem> items;
    std::shared_ptr<Staged> step;  // under way
    StepStats stats;
  };
  std::vector<Batch> batches_;  // submitted, in order
  // Steps that wait for the last stage, on the other ranks of the first.
  std::deque<std::shared_ptr<Staged>> begun_;
  std::vector<Work> work_of(const Batch& batch);
  Ticket next_ticket_ = 1;
  // Several ranks: plans told so far, sequences that ended since, and at the others their memory.
  uint64_t serial_ = 0, loaded_bytes_ = 0;
  mutable uint64_t next_sequence_ = 1;
  std::shared_ptr<Ended> ended_;
  void beat();
  std::unique_ptr<Beats> beats_;
  struct Figures;  // of all ranks at the last beat, and of this one
  std::shared_ptr<Figures> figures_;
  std::chrono::steady_clock::time_point told_{}, beaten_{};  // the last plan, beat
  std::map<uint64_t, std::unique_ptr<KvMemory>> sequences_;
  std::mutex mutex_;
  StepStats* stats_ = nullptr;  // of the step that runs
  StepStats last_step_;
  Profile profile_{};
};

}  // namespace moebius
