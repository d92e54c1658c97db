// SPDX-License-Identifier: Apache-2.0
// The forward pass of a model: which operations its rows go through, and in which order.
#pragma once
#include <functional>
#include <vector>

#include "model/graph/layer_set.h"

namespace moebius {

// Names of rows on a device.
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
  kGateLatents,  // of rows that are gated by themselves
  kRowGates,
  kNormalized,  // streams
  kNGrams,      // rows of a table
  kKeysValue,   // of these
  kStreamQueries,
  kStreamValues,
  kMoved,  // on the device they were brought to
  kReturned,
  kOutputRows,
  kLogits,
  kGathered,  // of all ranks
  kPart,      // of this rank
  kBefore,    // of a predictor: what was made of the token before
  kJoined,    // and that beside the token's row
};

class Graph {
 public:
  explicit Graph(const LayerSet& layers) : l_(layers) {}

  RowSet hidden(Step& step, Device& device) const;
  // Rows of the first layer from tokens; of a predictor, from these and before().
  void embed(Step& step) const;
  RowSet before(Step& step) const;
  // The layers that are here. counts: rows of every expert, layer by layer (added). `between` is
  // called behind each layer; null: nobody asks.
  void run(Step& step, std::span<uint32_t> counts, const std::function<void()>& between) const;
  // The keys of the first layer alone, of rows that embed() made.
  void keep_keys(Step& step) const;
  // All rows behind the final norm, once logits() was called.
  RowSet normalized(Step& step) const { return rows(step, l_.devices.ends(), kInput, l_.hidden); }
  // Logits of some rows of h, [rows, vocab].
  void logits(Step& step, RowSet h, std::vector<uint32_t> which, std::vector<float>& out) const {
    std::vector<std::optional<Candidates>> none;
    logits(step, h, std::move(which), {}, out, none);
  }
  // The same, where draws need less of rows (`needs`, by row; empty: of none) and the device can find it: such
  // rows have candidates in `found` and no logits in `out`. Empty: all rows are in `out`.
  void logits(Step& step, RowSet h, std::vector<uint32_t> which,
              std::span<const CandidateNeed> needs, std::vector<float>& out,
              std::vector<std::optional<Candidates>>& found) const;

  Device& first_device() const { return *l_.layers[l_.own.begin]->device; }
  Device& last_device() const { return *l_.layers[l_.own.end - 1]->device; }
  size_t counted_experts() const;  // of all layers here

 private:
  RowSet rows(Step& step, Device& device, RowName name, size_t cols) const {
    return device.rows(step, name, cols, l_.type);
  }
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
  void choose(Step& step, Device& d, const AttentionIndex& index, const RowSet& a,
              const RowSet& query_from) const;
  void mix(Step& step, const GraphLayer& layer, const RowSet& h, const RowSet& a, const RowSet& out,
           std::span<uint32_t> counts) const;
  void experts(Step& step, const ExpertBlock& block, const RowSet& router_x, const RowSet& x,
               const RowSet& y, std::span<uint32_t> counts) const;
  RowSet gates(Step& step, Device& device) const;  // of streams; none: no rows
  // What a branch reads of h, in a.
  void enter(Step& step, const GraphLayer& layer, bool attention, const RowSet& h,
             const RowSet& a) const;
  void mix_streams(Step& step, Device& device, const StreamMixer& mixer, const RowSet& h,
                   const RowSet& a) const;
  void join_ngrams(Step& step, const GraphLayer& layer, const RowSet& h) const;
  void gate_rows(Step& step, Device& device, const RowGate* gate, const RowSet& x) const;
  RowSet convolved(Step& step, const RecurrentOp* convolution, const RowSet& x) const;
  RowSet brought(Step& step, Device& device, RowName name, const RowSet& x) const;
  const LayerSet& l_;
};

}  // namespace moebius
