// SPDX-License-Identifier: Apache-2.0
// Runs the forward pass of a model: calls the operations of its layers in order, on rows that
// devices keep by name. A Graph has no state of its own; each call belongs to a step.
#pragma once
#include <functional>
#include <vector>

#include "model/graph/layer_set.h"

namespace moebius {

// Numbers the row buffers of a step; each device has at most one buffer per name.
enum RowName : uint32_t {
  kHidden,
  kInput,
  kBranch,
  kQkv,
  kQueries,
  kKeys,
  kValues,
  kGates,
  kRelatives,
  kConvolved,
  kAttended,
  kLatents,
  kQueryLatents,
  kAbsorbed,
  kIndexInput,
  kIndexKeys,
  kIndexQueries,
  kRecurrent,
  kRouterLogits,
  kRouterInput,
  kExpertsInput,
  kDense,
  kLater,
  kStreamMix,
  kGateLatents,  // intermediate rows of a RowGate, which gates rows by themselves
  kRowGates,
  kNormalized,  // hidden streams after normalization
  kNGrams,      // rows that an NGramOp looked up
  kKeysValue,   // keys and values computed from kNGrams
  kStreamQueries,
  kStreamValues,
  kMoved,  // rows after they were copied to another device
  kReturned,
  kOutputRows,
  kLogits,
  kGathered,  // rows of all ranks
  kPart,      // rows of this rank
  kBefore,    // predictor: the hidden row of the token before
  kJoined,    // predictor: kBefore beside the token's embedding
};

class Graph {
 public:
  explicit Graph(const LayerSet& layers) : l_(layers) {}

  // Returns the hidden rows, which run from layer to layer, on a device.
  RowSet hidden(Step& step, Device& device) const;
  // Writes the first layer's input: embeddings of the step's tokens; for a predictor, joined with
  // before().
  void embed(Step& step) const;
  // Returns the predictor's second input: the hidden row of the token before, which the caller
  // writes.
  RowSet before(Step& step) const;
  // Runs the layers of this process. counts: [layers with experts][experts], to which the rows that
  // each expert ran are added. `between`, if not null, is called after each layer. `last`, if not
  // null, has rows `asked` of the step alone (ascending): the last block runs only these, and the
  // result is hidden(*last). Rows of its experts are counted for the whole step. Requires
  // cuts_last_block().
  void run(Step& step, std::span<uint32_t> counts, const std::function<void()>& between,
           Step* last = nullptr, const std::vector<uint32_t>& asked = {}) const;
  bool cuts_last_block() const;
  // Computes only the keys and values of the first layer and stores them, for rows that embed()
  // wrote.
  void keep_keys(Step& step) const;
  // Returns all rows of the step after the final norm. Valid after logits() and until the step
  // ends.
  RowSet normalized(Step& step) const { return rows(step, l_.devices.ends(), kInput, l_.hidden); }
  // Computes logits of rows `which` of h into out, [which.size(), vocab].
  void logits(Step& step, RowSet h, std::vector<uint32_t> which, std::vector<float>& out) const {
    std::vector<std::optional<Candidates>> none;
    logits(step, h, std::move(which), {}, {}, out, none);
  }
  // Computes logits of rows `which` of h, or candidates if `needs` (one per row; empty: none) asks
  // for them and the device can find them: such rows have an entry in `found` and no logits in
  // `out`. An empty `found` means that all rows are in `out`. `few` (one per row; empty: none) lists
  // the logits of each row that must be in `out`; others may be -infinity there.
  void logits(Step& step, RowSet h, std::vector<uint32_t> which,
              std::span<const CandidateNeed> needs, std::span<const ListTokens* const> few,
              std::vector<float>& out, std::vector<std::optional<Candidates>>& found) const;

  Device& first_device() const { return *l_.layers[l_.own.begin]->device; }
  Device& last_device() const { return *l_.layers[l_.own.end - 1]->device; }
  size_t counted_experts() const;  // number of `counts` that run() takes

 private:
  RowSet rows(Step& step, Device& device, RowName name, size_t cols) const {
    return device.rows(step, name, cols, l_.type);
  }
  // Runs the attention (or recurrent mixer) of a layer on rows a.
  void attend(Step& step, const GraphLayer& layer, const RowSet& a, const RowSet& out) const;
  void forward(Step& step, const GraphLayer& layer, const HeadAttention& m, const RowSet& a,
               const RowSet& out) const;
  void forward(Step& step, const GraphLayer& layer, const LatentAttention& m, const RowSet& a,
               const RowSet& out) const;
  void forward(Step& step, const GraphLayer& layer, const SharedKeyAttention& m, const RowSet& a,
               const RowSet& out) const;
  void forward(Step& step, const GraphLayer& layer, const RecurrentMixer& m, const RowSet& a,
               const RowSet& out) const;
  RowSet inner_rows(Step& step, Device& d, const RecurrentMixer& m, const RowSet& in) const;
  // Lets an indexer select the keys of sparse attention.
  void choose(Step& step, Device& d, const AttentionIndex& index, const RowSet& a,
              const RowSet& query_from) const;
  // Counts the rows of the last block's experts, then moves rows `asked` of its operands to the
  // front.
  void cut_last_block(Step& step, const GraphLayer& layer, const std::vector<uint32_t>& asked,
                      std::span<uint32_t> counts) const;
  // Runs the block of a layer on the rows that enter() wrote, and adds its result to the hidden rows.
  void run_block(Step& step, const GraphLayer& layer, std::span<uint32_t> counts) const;
  // Runs the experts or dense MLP of a layer on rows a.
  void mix(Step& step, const GraphLayer& layer, const RowSet& h, const RowSet& a, const RowSet& out,
           std::span<uint32_t> counts) const;
  void experts(Step& step, const ExpertBlock& block, const RowSet& router_x, const RowSet& x,
               const RowSet& y, std::span<uint32_t> counts) const;
  // Returns the gates of hidden streams; without rows if the model has no streams.
  RowSet gates(Step& step, Device& device) const;
  // Writes the input of a branch (attention or MLP) into a: norm and stream mixing of h.
  void enter(Step& step, const GraphLayer& layer, bool attention, const RowSet& h,
             const RowSet& a) const;
  void mix_streams(Step& step, Device& device, const StreamMixer& mixer, const RowSet& h,
                   const RowSet& a) const;
  void join_ngrams(Step& step, const GraphLayer& layer, const RowSet& h) const;
  void gate_rows(Step& step, Device& device, const RowGate* gate, const RowSet& x) const;
  RowSet convolved(Step& step, const RecurrentOp* convolution, const RowSet& x) const;
  // Returns rows x on `device`; copies them to buffer `name` if they are on another device.
  RowSet brought(Step& step, Device& device, RowName name, const RowSet& x) const;
  const LayerSet& l_;
};

}  // namespace moebius
