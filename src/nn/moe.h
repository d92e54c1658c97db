// SPDX-License-Identifier: Apache-2.0
// A mixture-of-experts layer for all schemes. Each projection of each expert has its own kernel. A
// call routes tokens (chooses top_k experts for each, one per slot), groups rows by expert,
// prepares each token once per distinct form of x, multiplies, applies the activation, and combines
// the experts' results.
//
// Experts have global ids, as in the checkpoint, and local indices on this rank; T is the number of
// tokens of a call. Several ranks (processes or threads) may run a layer together (MoeSplit).
//
// For token t: y = sum over its slots, in ascending expert id, then slot, of fma(weight,
// down(act(gate(x), up(x))), y), then + shared expert, then + the weight of identity experts times
// x, then one rounding to the type of y. Bytes do not depend on the number of threads or on the
// other tokens. An identity expert returns its input.
//
// Use: construct from a plan, pass the weights (set_expert: in any order, from any thread, once per
// expert), call finish(), then forward_*, from any thread.
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

// Kernels and problems of one expert's matrices, chosen at load.
struct ExpertPlan {
  ProjectionPlan gate;  // without a kernel if the activation is not gated
  ProjectionPlan up, down;
  bool operator==(const ExpertPlan&) const = default;
};

// Divides a layer over several ranks without adding across ranks (MoeOptions::exchange). Ranks
// that cut experts each compute some outputs of every matrix, and gather intermediate rows. Ranks
// that spread experts each hold some of the experts, and send result rows to the rank that combines
// their columns. Both may be used: `spread` times `cut` ranks. y has the columns of this rank only.
struct MoeSplit {
  size_t cut = 1, cut_place = 0;        // number of ranks that share each expert; index of this one
  size_t spread = 1, spread_place = 0;  // number of ranks with different experts; index of this one
  std::vector<Range> outputs;     // [cut] outputs of the down projection that each rank computes
  std::vector<Range> columns;     // [spread] columns of y that each rank combines
  std::vector<uint32_t> rank_of;  // [physical experts] which of the `spread` ranks holds it
  bool any() const { return cut * spread > 1; }
};
// Throws Error that names `what` if there are fewer columns than ranks.
MoeSplit moe_split(size_t hidden, size_t cut, size_t cut_place, size_t spread, size_t spread_place,
                   std::string_view what);

// Everything a layer is constructed from, except weights.
struct MoePlan {
  MoeSpec spec;
  std::vector<ExpertPlan> plans;  // the distinct plans of experts; usually one
  std::vector<uint32_t> plan_of;  // [local experts] index into plans; empty: all 0
  std::optional<ExpertPlan>
      shared;  // plan of the shared expert, if spec.shared says that this rank has one
  // Physical experts are places for an expert. Without copies of busy experts they are the experts,
  // then the shared slots.
  // [physical] local index, -1: on another rank; empty: all are local
  std::vector<int32_t> expert_map;
  std::vector<uint32_t> expert_of;  // [physical] global expert id; empty: the same number
  MoeSplit split;
  // Among the ranks that share an expert, this one adds the bias of down.
  bool first_tp_rank = true;
  bool first_rank = true;  // among all ranks, this one adds the identity experts
  std::string name;        // used in messages
};

// Weights of one expert, as a format reader returns them. The views must live during the call only.
struct ExpertWeights {
  const QuantMatrix* gate = nullptr;  // null if not gated
  const QuantMatrix* up = nullptr;
  const QuantMatrix* down = nullptr;
  ActParams gate_act, up_act, down_act;
  std::span<const float> gate_bias, up_bias, down_bias;
  float gate_output = 0, up_output = 0,
        down_output = 0;  // scales of output fake quantization; 0: none
};

// Parameters of the router; a vector is empty if the spec does not use it.
struct RouterWeights {
  std::vector<float> bias;          // [experts + zero experts] correction bias
  std::vector<float> expert_scale;  // [experts] factor of each expert's weight
  std::vector<int32_t> table;       // [rows, top_k] expert ids by token id, for routing by table
};

// Options of one forward call.
struct MoeOptions {
  MoeExchange* exchange = nullptr;  // required if ranks run the layer together
  const AmaxReduce* amax_reduce =
      nullptr;  // required for tensor-parallel ranks if the down projection has shared_amax
  const int64_t* token_ids = nullptr;  // [T], for routing by table
  // [T, slots], forward_logits: receives the router's choice; -1: an identity expert
  int32_t* ids_out = nullptr;
  float* weights_out = nullptr;  // [T, slots] receives the weights of ids_out
};

// Memory for one packed expert: own memory, or the place that another expert of the model left.
struct ExpertMemory {
  AlignedBuffer own;
  uint8_t* data = nullptr;
  size_t bytes = 0;
};

class MoeLayer {
 public:
  // Allocates all packed memory; throws Error. `pool`: threads that will run the layer, near which
  // memory is placed; null: anywhere. `kept`: bytes packed before; on one NUMA node the layer takes
  // over their memory. Every expert is then adopted instead of set.
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
  size_t gate_bytes() const;  // of the shared experts' gate, held in addition to packed_bytes()
  const Router& router() const { return router_; }

  // Packs one expert (local index) into the layer's memory. Thread-safe for different experts.
  // Inside a region, or without a pool, packing runs on the calling thread. Throws Error.
  void set_expert(size_t local, const ExpertWeights& weights, ThreadPool* pool = nullptr);
  void set_shared(const ExpertWeights& weights, ThreadPool* pool = nullptr);
  // Takes bytes packed before instead of packing; the shared expert has the index after the last
  // local one.
  void adopt_expert(size_t local, PackedBlock& kept);
  // Number of local experts, plus the shared one.
  size_t all_experts() const { return experts_.size(); }
  std::vector<SlotFacts> facts() const;  // together with packed(), the contents of a PackedBlock
  // Replaces the packed bytes by equal ones elsewhere; between calls. No effect on several NUMA
  // nodes.
  void move_to(PackedBlock kept);
  void set_shared_gate(std::unique_ptr<LinearLayer> gate);  // [1, hidden], for SharedKind::kGated
  void set_router(RouterWeights weights);
  // Call once after all weights are set. Throws Error that names what is missing.
  void finish();

  // --- copies of busy experts, on ranks that spread them ---

  // [physical] global expert ids; empty if there are no copies.
  std::span<const uint32_t> expert_of() const { return plan_.expert_of; }
  // An expert that is packed while the layer runs. Must be destroyed before the layer.
  class StagedExpert;
  size_t expert_bytes(size_t plan) const;  // packed bytes of an expert with plan `plan`
  // Makes an expert of this plan in the given memory; allocates if that is empty.
  std::unique_ptr<StagedExpert> stage(size_t plan, ExpertMemory memory) const;
  // Packs the weights into `staged`. Thread-safe, also while the layer runs.
  void fill_staged(StagedExpert& staged, const ExpertWeights& weights) const;
  // Returns the memory of an expert that is not placed.
  static ExpertMemory take_memory(std::unique_ptr<StagedExpert> staged);
  // Replaces the experts in places, on all ranks alike and between calls. expert_of: [physical] the
  // new global ids. changed: [local] the new packed expert of a place, null: unchanged. Returns the
  // memory of experts that were replaced.
  std::vector<ExpertMemory> place_experts(std::vector<uint32_t> expert_of,
                                          std::vector<std::unique_ptr<StagedExpert>> changed);

  // Runs the experts that the caller chose: ids [T, slots] (global; -1 skips a slot) and weights
  // [T, slots]. Thread-safe; throws Error for views that do not fit.
  void forward_ids(const ConstRows& x, std::span<const int32_t> ids, std::span<const float> weights,
                   const Rows& y, ThreadPool& pool, const MoeOptions& options = {}) const;
  // Routes by logits [T, experts + identity experts], then runs the experts. Thread-safe.
  void forward_logits(const ConstRows& x, const ConstRows& logits, const Rows& y, ThreadPool& pool,
                      const MoeOptions& options = {}) const;

 private:
  struct Expert {
    PackedSlot gate, up, down;
    bool one_panel = false;  // gate and up read the same row panel
  };
  struct Routing;  // ids and weights of one call
  class Forward;   // one call (moe_forward.h)
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
  std::vector<Expert> experts_;  // local experts, then the shared one, if any
  std::unique_ptr<LinearLayer> shared_gate_;
  PreparationTable preparations_;
  MoeShape shape_;  // sizes that the schedule depends on
  Caches caches_ = host_cpu().caches;
  WeightMemory memory_;
  std::vector<size_t> offsets_;  // [experts_][gate, up, down] offset of each matrix in memory_
  // true: experts may not be in memory when they are chosen, and are read ahead
  bool read_ahead_ = false;
  std::vector<ExpertMemory>
      expert_memory_;  // [local] memory of experts that were placed later; empty: in memory_
  // Physical numbers of the copies of expert e: copies_[copies_at_[e]] to copies_[copies_at_[e + 1]
  // - 1]. Empty without copies.
  std::vector<uint32_t> copies_at_, copies_;
  // keep_: intermediate rows of all batches stay until the second phase.
  bool shared_amax_ = false, keep_ = false, finished_ = false;
};

class MoeLayer::StagedExpert {
  friend class MoeLayer;
  Expert expert;
  ExpertMemory memory;
};

// Returns int64 ids as int32. Throws Error that names token and slot of an id outside of int32.
std::vector<int32_t> narrow_ids(std::span<const int64_t> ids, size_t slots);

}  // namespace moebius
