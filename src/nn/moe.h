// SPDX-License-Identifier: Apache-2.0
// A mixture-of-experts layer for all schemes. Each projection (gate, up, down) of each expert has
// its own kernel. A call routes tokens (chooses top_k experts for each token, one per slot), groups
// rows by expert, prepares each token once per distinct form of x (Kernel::prepare_rows),
// multiplies, applies the activation, and combines the experts' results.
//
// Experts have global ids, as in the checkpoint, and local indices on this rank; T is the number of
// tokens of a call. Several ranks (processes or threads) may run a layer together (MoeSplit). Busy
// experts may then have copies on several ranks: a place for an expert, on any rank, has a physical
// number. Without copies, expert e has physical number e.
//
// For token t: y = sum over its slots, in ascending expert id, then slot, of fma(weight,
// down(act(gate(x), up(x))), y), then + shared expert, then + the weight of identity experts times
// x, then one rounding to the type of y. Bytes do not depend on the number of threads or on the
// other tokens. An identity expert returns its input.
//
// Use: construct the layer from a plan, pass the weights (set_expert: in any order, from any
// thread, once per expert), call finish(), then forward_ids or forward_logits from any thread.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nn/expert_store.h"
#include "nn/linear.h"
#include "nn/moe_exchange.h"
#include "nn/ops.h"
#include "nn/projection.h"
#include "nn/router.h"
#include "quant/moe_spec.h"
#include "quant/slice.h"
#include "runtime/memory.h"

namespace moebius {

// Names the kernel and the problem of each matrix of one expert. Chosen at load; one plan usually
// serves all experts.
struct ExpertPlan {
  ProjectionPlan gate;  // kernel is null if the activation is not gated
  ProjectionPlan up, down;
  bool operator==(const ExpertPlan&) const = default;
};

// Divides a layer over several ranks without adding across ranks. Ranks that cut experts each
// compute some outputs of every matrix, and gather intermediate rows. Ranks that spread experts
// each hold some of the experts, and send result rows to the rank that combines their columns. Both
// may be used together, on `spread` times `cut` ranks; they exchange rows through
// MoeOptions::exchange. y has only the columns that this rank combines.
struct MoeSplit {
  size_t cut = 1, cut_place = 0;        // number of ranks that share each expert; index of this one
  size_t spread = 1, spread_place = 0;  // number of ranks with different experts; index of this one
  std::vector<Range> outputs;     // [cut] outputs of the down projection that each rank computes
  std::vector<Range> columns;     // [spread] columns of y that each rank combines
  std::vector<uint32_t> rank_of;  // [physical] which of the `spread` ranks holds that place
  bool any() const { return cut * spread > 1; }
};
// Returns the split of a layer with `hidden` columns, except rank_of, which the caller fills.
// Throws Error that names `what` if there are fewer columns than ranks.
MoeSplit moe_split(size_t hidden, size_t cut, size_t cut_place, size_t spread, size_t spread_place,
                   std::string_view what);

// Says everything that a layer is constructed from, except weights.
struct MoePlan {
  MoeSpec spec;
  std::vector<ExpertPlan> plans;     // the distinct plans of experts; usually one
  std::vector<uint32_t> plan_of;     // [local experts] index into plans; empty: all 0
  std::optional<ExpertPlan> shared;  // plan of the shared expert; unset: this rank has none
  // [physical] local index of the expert in that place, -1: the place is on another rank; empty:
  // all are local, in order. Physical numbers count the experts, then the shared slots
  // (RouterSpec); with copies of busy experts, the entries of expert_of.
  std::vector<int32_t> expert_map;
  // [physical] global id of the expert in that place; empty: there are no copies
  std::vector<uint32_t> expert_of;
  MoeSplit split;
  // true: each expert begins at a multiple of ExpertStore::kAlignment, as in a file from which
  // single experts are read
  bool apart = false;
  // true: routed experts are in an ExpertStore; the layer's own memory holds the shared expert
  bool streamed = false;
  // True on one of the ranks that cut experts, which adds the bias of down.
  bool first_tp_rank = true;
  bool first_rank = true;  // true on one of all ranks, which adds the identity experts
  std::string name;        // name in messages
};

// Refers to one matrix of an expert, as a format reader returns it.
struct MatrixWeights {
  const QuantMatrix* w = nullptr;  // null: the expert has no such matrix
  ActParams act = {};
  std::span<const float> bias = {};
  // Scale by which outputs are rounded to int8 and back (fake quantization); 0: they are not.
  float output_scale = 0;
};

// Refers to the weights of one expert; read until the call that receives them returns.
struct ExpertWeights {
  MatrixWeights gate, up, down;  // gate: without a matrix if the activation is not gated
};

// Holds the tensors of the router besides its matrix; a vector is empty if the spec does not use
// it.
struct RouterWeights {
  // [experts + identity experts] added to scores for the choice of experts only
  std::vector<float> bias;
  std::vector<float> expert_scale;  // [experts] factor of each expert's weight
  // [vocabulary, top_k] expert ids of each token id, for RouterMethod::kTable
  std::vector<int32_t> table;
};

// Options of one forward call.
struct MoeOptions {
  // Exchanges rows with the other ranks; required if MoeSplit::any().
  MoeExchange* exchange = nullptr;
  // Replaces row maxima by those over all ranks; required if the down projection has shared_amax.
  const AmaxReduce* amax_reduce = nullptr;
  const int64_t* token_ids = nullptr;  // [T] required by RouterMethod::kTable
  // [T, slots] receives the experts that forward_logits chose; -1: an identity expert; null: not
  // wanted
  int32_t* ids_out = nullptr;
  float* weights_out = nullptr;  // [T, slots] receives their weights; null: not wanted
  // For a layer whose experts are in a store: appends experts that the store's next layer may want.
  // Called while this layer's are read; null: nobody knows.
  const std::function<void(std::vector<uint32_t>& experts)>* guess = nullptr;
};

// Memory for one packed expert: `own`, or a piece of the layer's memory that an earlier expert no
// longer uses (then `own` is empty).
struct ExpertMemory {
  AlignedBuffer own;
  uint8_t* data = nullptr;
  size_t bytes = 0;
};

class MoeLayer {
 public:
  // Allocates all packed memory; throws Error if the plan contradicts itself. `pool`: the threads
  // that will run the layer, near which memory is placed; null: anywhere. `kept`: packed bytes that
  // a cache of packed weights holds; with one NUMA node the layer takes over their memory. With
  // `kept`, call adopt_expert() instead of set_expert() for every expert.
  explicit MoeLayer(MoePlan plan, const ThreadPool* pool = nullptr, PackedBlock* kept = nullptr);
  ~MoeLayer();
  MoeLayer(const MoeLayer&) = delete;
  MoeLayer& operator=(const MoeLayer&) = delete;

  const MoeSpec& spec() const { return plan_.spec; }
  size_t local_experts() const { return experts_.size() - (plan_.shared ? 1 : 0); }
  size_t slots() const { return router_.slots(); }
  size_t outputs() const {  // columns of y on this rank
    const MoeSplit& t = plan_.split;
    return t.any() ? t.columns[t.spread_place].size() : plan_.spec.hidden;
  }
  // Returns the bytes of all experts, in memory or in a store.
  size_t packed_bytes() const { return memory_.size() + stored_bytes_; }
  std::span<const uint8_t> packed() const { return memory_.bytes(); }
  bool stored() const { return store_ != nullptr; }  // true: its routed experts are in a store
  // Returns where each expert ends in packed(), the shared one last; for MoePlan::apart.
  std::vector<uint64_t> expert_ends() const;
  // Bytes of the shared expert's gate, which packed_bytes() does not count.
  size_t gate_bytes() const;
  const Router& router() const { return router_; }

  // Pack one expert (local index), or the shared expert, into the layer's memory. Thread-safe for
  // different experts. Without a pool, or when called by a thread that works in a region of the
  // pool, packing runs on the calling thread. Throw Error if a matrix is missing or does not fit
  // the plan.
  void set_expert(size_t local, const ExpertWeights& weights, ThreadPool* pool = nullptr);
  void set_shared(const ExpertWeights& weights, ThreadPool* pool = nullptr);
  // Uses the packed bytes of expert `local` in `kept` instead of packing; the shared expert has the
  // index after the last local one. Throws Error if they do not fit.
  void adopt_expert(size_t local, PackedBlock& kept);
  // Returns the number of local experts, plus one for the shared expert if this rank has it.
  size_t all_experts() const { return experts_.size(); }
  // Returns what, together with packed(), a PackedBlock holds.
  std::vector<SlotFacts> facts() const;
  // For a plan that says `streamed`, in this order, before finish(). adopt_streamed: takes the facts
  // of all experts, and the shared one from its place in the packed bytes of a layer that is
  // `apart`; without packed bytes, call set_shared(). read_from: adds the layer to a store.
  void adopt_streamed(const PackedBlock& kept);
  void read_from(std::shared_ptr<ExpertStore> store, ExpertStore::Source source);
  // Makes the layer read equal packed bytes from other memory, such as a mapped file, and frees its
  // own. Call it between forward calls. With several NUMA nodes nothing changes.
  void move_to(PackedBlock kept);
  // Sets the gate of the shared expert, a matrix [1, hidden], if the spec says SharedKind::kGated.
  void set_shared_gate(std::unique_ptr<LinearLayer> gate);
  void set_router(RouterWeights weights);
  // Makes the layer ready to run; call it once, after all weights are set. Throws Error that names
  // what is missing.
  void finish();

  // --- copies of busy experts, on ranks that spread them ---

  // Returns the [physical] global expert ids; empty if there are no copies.
  std::span<const uint32_t> expert_of() const { return plan_.expert_of; }
  // Holds an expert that is packed while the layer runs, until place_experts() takes it. Must be
  // destroyed before the layer.
  class StagedExpert;
  // Returns the packed bytes of an expert that has plans[plan].
  size_t expert_bytes(size_t plan) const;
  // Makes an empty expert for plans[plan] in the given memory; allocates memory if `memory` is
  // empty. Throws Error if it is too small.
  std::unique_ptr<StagedExpert> stage(size_t plan, ExpertMemory memory) const;
  // Packs the weights into `staged`. Thread-safe for different `staged`, also while the layer runs.
  void fill_staged(StagedExpert& staged, const ExpertWeights& weights) const;
  // Returns the memory of a staged expert that will not be placed.
  static ExpertMemory take_memory(std::unique_ptr<StagedExpert> staged);
  // Gives places to other experts. Every rank must make the same change between the same two calls.
  // expert_of: [physical] the new global ids. changed: [local] the new packed expert of a place;
  // null: unchanged. Returns the memory of experts that were replaced. Throws Error and changes
  // nothing if `changed` does not fit `expert_of`.
  std::vector<ExpertMemory> place_experts(std::vector<uint32_t> expert_of,
                                          std::vector<std::unique_ptr<StagedExpert>> changed);

  // Runs the experts that the caller chose: ids [T, slots] (global; -1 skips a slot) and weights
  // [T, slots]. Thread-safe; calls that share a pool take turns. Throws Error for views whose size
  // or type does not fit the layer.
  void forward_ids(const ConstRows& x, std::span<const int32_t> ids, std::span<const float> weights,
                   const Rows& y, ThreadPool& pool, const MoeOptions& options = {}) const;
  // Routes by logits [T, experts + identity experts], then runs the experts, unless y has no rows.
  // Thread-safe.
  void forward_logits(const ConstRows& x, const ConstRows& logits, const Rows& y, ThreadPool& pool,
                      const MoeOptions& options = {}) const;

 private:
  struct Expert {
    PackedSlot gate, up, down;
    bool one_panel = false;  // gate and up multiply the same row panel
  };
  struct Routing;  // ids and weights of one call
  struct Wave;     // experts of a store that one call runs at a time (moe_stream.cpp)
  class Forward;   // state of one call (moe_forward.h)
  void check_x(const ConstRows& x, const Rows& y, const MoeOptions& options) const;
  void run(const ConstRows& x, const Routing& routing, const Rows& y, ThreadPool& pool,
           const MoeOptions& options) const;
  void run_streamed(const ConstRows& x, const Routing& routing, const Rows& y, ThreadPool& pool,
                    const MoeOptions& options) const;
  // Returns the local indices of the experts that a call needs, ascending.
  std::vector<uint32_t> wanted_experts(std::span<const int32_t> ids) const;
  const ExpertPlan& plan_for(size_t expert) const;
  // Adds the kernels' sizes of a plan to shape_.
  void describe(const ExpertPlan& plan);
  void index_copies();
  // Records which prepared form of x each matrix of a packed expert reads.
  void settle_expert(size_t expert);
  void allocate(NodeMemory* nodes, PackedBlock* kept);
  // Starts reading the chosen experts from the mapped file.
  void fetch_experts(std::span<const int32_t> ids) const;
  void fill_expert(Expert& e, const ExpertWeights& w, ThreadPool* pool,
                   const std::string& what) const;

  MoePlan plan_;
  Router router_;
  RouterWeights router_weights_;
  // Local experts, then the shared one, if any. A call that has its turn in a store changes where
  // they lie.
  mutable std::vector<Expert> experts_;
  std::unique_ptr<LinearLayer> shared_gate_;
  PreparationTable preparations_;
  MoeShape shape_;  // sizes that the schedule depends on
  Caches caches_ = host_cpu().caches;
  WeightMemory memory_;
  std::vector<size_t> offsets_;  // [experts_][gate, up, down] offset of each matrix in memory_
  // true: packed experts are in a mapped file larger than memory, and are read ahead once chosen
  bool read_ahead_ = false;
  std::shared_ptr<ExpertStore> store_;  // has the routed experts; null: memory_ has them
  size_t store_layer_ = 0, stored_bytes_ = 0;
  MoeShape routed_shape_;  // shape_ without the shared expert, for all waves but the last
  // [local] memory that becomes free when the expert of this place is replaced.
  std::vector<ExpertMemory> expert_memory_;
  // Lists the copies of experts by physical number: those of expert e are copies_[copies_at_[e]] to
  // copies_[copies_at_[e + 1] - 1]. Both are empty without copies.
  std::vector<uint32_t> copies_at_, copies_;
  // shared_amax_: row maxima are shared with other ranks. keep_: intermediate rows of all batches
  // stay in memory until the second phase. finished_: finish() was called.
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
