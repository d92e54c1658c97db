// SPDX-License-Identifier: Apache-2.0
// A mixture-of-experts layer, written once for every scheme. Each projection of each expert has its
// own kernel; the layer routes, groups rows by expert, prepares each token once per distinct way,
// multiplies, applies the activation, and combines.
//
// For token t: y = sum over its slots, in ascending expert id, then slot, of fma(weight,
// down(act(gate(x), up(x))), y), then + shared expert, then + the weight of identity experts times
// x, then one rounding to the type of y. Bytes do not depend on the number of threads or on the
// other tokens.
//
// Build: construct from a plan, give the weights (set_expert: any order, any threads, one call per
// expert), finish(), run.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nn/linear.h"
#include "nn/moe_exchange.h"
#include "nn/ops.h"
#include "nn/projection.h"
#include "nn/router.h"
#include "quant/moe_spec.h"
#include "quant/slice.h"
#include "runtime/memory.h"

namespace moebius {

struct ExpertPlan {
  ProjectionPlan gate;  // without kernel when the activation is not gated
  ProjectionPlan up, down;
  bool operator==(const ExpertPlan&) const = default;
};

// How ranks run a layer together without sums over ranks (MoeOptions::exchange). They cut experts:
// each has some outputs of every matrix, and intermediate rows are gathered. They spread experts: each
// has some of them, and rows go to who combines their columns. Or both: `spread` times `cut` ranks.
// y has the columns of this rank alone.
struct MoeSplit {
  size_t cut = 1, cut_place = 0;        // ranks that have the same experts; this one among them
  size_t spread = 1, spread_place = 0;  // ranks that have the same outputs of other experts
  std::vector<Range> outputs;           // [cut] of down
  std::vector<Range> columns;           // [spread] of these: who combines which columns of y
  std::vector<uint32_t> rank_of;        // [physical experts] which of `spread` has it
  bool any() const { return cut * spread > 1; }
};
// Throws Error naming `what` where there are fewer columns than ranks.
MoeSplit moe_split(size_t hidden, size_t cut, size_t cut_place, size_t spread, size_t spread_place,
                   std::string_view what);

struct MoePlan {
  MoeSpec spec;
  std::vector<ExpertPlan> plans;  // distinct plans of experts; usually one
  std::vector<uint32_t> plan_of;  // [local experts] index into plans; empty: all 0
  std::optional<ExpertPlan>
      shared;  // the shared expert, when spec.shared says there is one on this rank
  // Physical experts are the places where ranks have experts; without copies of busy ones they are
  // the experts, then the shared slots.
  std::vector<int32_t> expert_map;  // [physical] local number, -1 elsewhere; empty: all are here
  std::vector<uint32_t> expert_of;  // [physical] global id; empty: the same number
  MoeSplit split;
  bool first_tp_rank = true;  // of the ranks that share an expert: adds the bias of down
  bool first_rank = true;     // of all ranks: adds the identity experts
  std::string name;           // for messages
};

// Weights of one expert. Views need to live only during the call.
struct ExpertWeights {
  const QuantMatrix* gate = nullptr;  // null when not gated
  const QuantMatrix* up = nullptr;
  const QuantMatrix* down = nullptr;
  ActParams gate_act, up_act, down_act;
  std::span<const float> gate_bias, up_bias, down_bias;
  float gate_output = 0, up_output = 0,
        down_output = 0;  // scales of output fake quantization; 0: none
};

struct RouterWeights {
  std::vector<float> bias;          // correction bias [experts + zero experts]
  std::vector<float> expert_scale;  // [experts]
  std::vector<int32_t> table;       // [rows, top_k]
};

struct MoeOptions {
  MoeExchange* exchange = nullptr;  // for a layer that ranks run together
  const AmaxReduce* amax_reduce =
      nullptr;  // tensor-parallel ranks whose down projection has shared_amax
  const int64_t* token_ids = nullptr;  // [T], for routing by table
  // [T, slots], forward_logits: what the router chose; -1: an identity expert, which is no row of any
  int32_t* ids_out = nullptr;
  float* weights_out = nullptr;  // [T, slots]
};

// Memory for one packed expert: its own, or what another expert of the model left.
struct ExpertMemory {
  AlignedBuffer own;
  uint8_t* data = nullptr;
  size_t bytes = 0;
};

class MoeLayer {
 public:
  // Allocates all packed memory; throws Error. `pool`: whose threads will run the layer, where its
  // memory is to be placed for them (on one NUMA node or without a pool: anywhere).
  // kept: what was packed before, whose memory becomes the layer's on one node; then every expert is
  // adopted (below) instead of set.
  explicit MoeLayer(MoePlan plan, const ThreadPool* pool = nullptr, PackedBlock* kept = nullptr);
  ~MoeLayer();
  MoeLayer(const MoeLayer&) = delete;
  MoeLayer& operator=(const MoeLayer&) = delete;

  const MoeSpec& spec() const { return plan_.spec; }
  size_t local_experts() const { return experts_.size() - (plan_.shared ? 1 : 0); }
  size_t slots() const { return router_.slots(); }
  size_t outputs() const {  // columns of y
    const MoeSplit& t = plan_.split;
    return t.any() ? t.columns[t.spread_place].size() : plan_.spec.hidden;
  }
  size_t packed_bytes() const { return memory_.size(); }
  std::span<const uint8_t> packed() const { return memory_.bytes(); }
  size_t gate_bytes() const;  // of the shared experts' gate, held beside them
  const Router& router() const { return router_; }

  // Packs one expert (local index) into the layer's memory. pool may be null; inside a region
  // packing is inline.
  void set_expert(size_t local, const ExpertWeights& weights, ThreadPool* pool = nullptr);
  void set_shared(const ExpertWeights& weights, ThreadPool* pool = nullptr);
  // The same with what was packed before; the shared expert's number is that behind the last.
  void adopt_expert(size_t local, PackedBlock& kept);
  size_t all_experts() const { return experts_.size(); }  // local ones and the shared one
  std::vector<SlotFacts> facts() const;                   // with packed(): a PackedBlock
  void move_to(PackedBlock kept);  // with equal bytes, between calls; on several nodes they stay
  void set_shared_gate(std::unique_ptr<LinearLayer> gate);  // [1, hidden], for SharedKind::kGated
  void set_router(RouterWeights weights);
  // Call once when everything was given; throws Error naming what is missing.
  void finish();

  // --- copies of busy experts, on ranks that spread them ---

  // [physical] global ids; empty where there are no copies.
  std::span<const uint32_t> expert_of() const { return plan_.expert_of; }
  // An expert that is packed while the layer runs; goes before the layer.
  class StagedExpert;
  size_t expert_bytes(size_t plan) const;  // of an expert with plan number `plan`
  std::unique_ptr<StagedExpert> stage(size_t plan, ExpertMemory memory) const;
  // From any thread.
  void fill_staged(StagedExpert& staged, const ExpertWeights& weights) const;
  static ExpertMemory take_memory(std::unique_ptr<StagedExpert> staged);
  // Between calls, on all ranks alike: what physical experts are from now on. `changed`: [local] the
  // packed expert where that is another one, else null. Returns the rooms of those that went.
  std::vector<ExpertMemory> place_experts(std::vector<uint32_t> expert_of,
                                          std::vector<std::unique_ptr<StagedExpert>> changed);

  // Modular: ids [T, slots] (global; -1 skips a slot) and weights [T, slots] of the caller.
  void forward_ids(const ConstRows& x, std::span<const int32_t> ids, std::span<const float> weights,
                   const Rows& y, ThreadPool& pool, const MoeOptions& options = {}) const;
  // Monolithic: router logits [T, experts + identity experts].
  void forward_logits(const ConstRows& x, const ConstRows& logits, const Rows& y, ThreadPool& pool,
                      const MoeOptions& options = {}) const;

 private:
  struct Expert {
    PackedSlot gate, up, down;
    bool one_panel = false;  // gate and up multiply with the same panel
  };
  struct Routing;  // ids and weights of one call
  class Forward;   // the phases
  void check_x(const ConstRows& x, const Rows& y, const MoeOptions& options) const;
  void run(const ConstRows& x, const Routing& routing, const Rows& y, ThreadPool& pool,
           const MoeOptions& options) const;
  const ExpertPlan& plan_for(size_t expert) const;
  void describe(const ExpertPlan& plan);
  void index_copies();
  void settle_expert(size_t expert);
  void allocate(NodeMemory* nodes, PackedBlock* kept);
  void fetch_experts(std::span<const int32_t> ids) const;
  void fill_expert(Expert& e, const ExpertWeights& w, ThreadPool* pool,
                   const std::string& what) const;

  MoePlan plan_;
  Router router_;
  RouterWeights router_weights_;
  std::vector<Expert> experts_;  // local experts, then the shared one if there is one
  std::unique_ptr<LinearLayer> shared_gate_;
  PreparationTable preparations_;
  MoeShape shape_;  // what a schedule looks at
  Caches caches_ = host_cpu().caches;
  WeightMemory memory_;
  std::vector<size_t> offsets_;  // [experts_][gate, up, down] where a matrix begins
  bool read_ahead_ = false;      // experts may not be in memory when they are chosen
  std::vector<ExpertMemory>
      expert_memory_;  // [local] where an expert lies; without memory: with the others
  // Copies of expert e: copies_[copies_at_[e]] up to those of e + 1, as physical numbers. Empty where
  // there are none.
  std::vector<uint32_t> copies_at_, copies_;
  // keep_: intermediate rows stay until the second phase.
  bool shared_amax_ = false, keep_ = false, finished_ = false;
};

class MoeLayer::StagedExpert {
  friend class MoeLayer;
  Expert expert;
  ExpertMemory memory;
};

// int64 ids as int32; throws Error naming token and slot for values outside int32.
std::vector<int32_t> narrow_ids(std::span<const int64_t> ids, size_t slots);

}  // namespace moebius
