// SPDX-License-Identifier: Apache-2.0
// Holds a loaded model, or a rank's part of one: for every layer the operations that its devices
// made from what the architecture asked for. The graph (graph.h) only calls them in order. In
// comments, {a, b} are the operands of a row program.
#pragma once
#include <memory>
#include <variant>
#include <vector>

#include "device/device.h"
#include "device/placement.h"

namespace moebius {

using Program = std::unique_ptr<RowProgram>;
using Linear = std::unique_ptr<LinearOp>;

// Holds the operations that choose the keys of sparse attention.
struct AttentionIndex {
  Linear key_weights, query;  // inputs: x; and x, its norm or the latent of q
  Program query_input;        // normalizes x, {x, norm}; null: there is no norm
  Program rows;               // applies norm and rotation, {key and weights, q}
  std::unique_ptr<IndexerOp> indexer;
  // Used if a key stands for several tokens: `key_weights` then gives [weights | key | gates].
  struct Pools {
    size_t weights = 0;
    Linear gates;  // input: x; null: no gates
    std::unique_ptr<CompressorOp> keys;
  };
  std::optional<Pools> pools;

  void cut(const KvPool& pool, BlockId id, size_t tokens) const;
};

// Holds attention with keys and values per head.
struct HeadAttention {
  size_t query_width = 0, key_width = 0, value_width = 0, gate_width = 0, out_width = 0,
         relative_width = 0;
  bool keys = true;  // false: keys and values are another layer's
  Linear qkv;
  std::unique_ptr<RecurrentOp> convolution;  // convolves [k | v] of qkv; null: none
  Program input;  // splits, normalizes and rotates, {qkv, q, k, v, gate, relative, convolved}
  std::unique_ptr<AttentionOp> attention;
  Program gate;  // gates attention's result, {gate, attended}; null: no gate
  Linear output;
  std::unique_ptr<AttentionIndex> index;  // chooses keys; null: the layer does not choose keys
};

// Holds attention over latents (MLA). The up-projection from latents to keys and values is either
// multiplied into queries and results ("absorbed"), or expands the latents at each use (then
// query_up and value_up are null).
struct LatentAttention {
  size_t query_latent = 0, key_width = 0, value_width = 0, query_width = 0, absorbed_width = 0,
         attended_width = 0, out_width = 0;
  bool keys = true;  // false: keys are another layer's
  // Projects x to [latent of q | latent of kv, rotated part | gate], those that exist; null: none
  // exists.
  Linear down;
  Program latents;  // splits and normalizes latents, {down, latent of q, k, v, gate}
  Linear query;     // input: the latent of q, or x
  // Splits queries and gates, {result of `query`, q, gate}; null: `query` gives q itself.
  Program query_parts;
  Program rotate;  // rotates operands {q, k}
  Linear query_up, value_up;
  // Copies the rotated part of a query, which is not absorbed, {q, absorbed}; null: there is none.
  Program rotated_part;
  std::unique_ptr<AttentionOp> attention;
  size_t gate_width = 0;
  Program gate;  // gates attention's result, {gate, attended}; null: no gate
  Linear output;
  std::unique_ptr<AttentionIndex> index;
};

// Holds attention with one kv head, whose keys are also its values, and with compressed keys behind
// a window.
struct SharedKeyAttention {
  static constexpr bool keys = true;  // they are never another layer's
  size_t query_latent = 0, query_width = 0, key_width = 0, low_width = 0;
  // Projects x to [latent of q | key | sources of compressed keys | sources of the indexer's |
  // weights].
  Linear down;
  Program latents;  // splits and normalizes, {down, latent of q, key}
  Linear query;     // input: the latent of q
  Program queries;  // normalizes and rotates queries, {q}
  struct Compressed {
    size_t at = 0, width = 0;  // columns [at, at + width) of `down`
    std::unique_ptr<CompressorOp> keys;
  };
  std::optional<Compressed> compressed;
  struct Index {
    Compressed compressed;
    size_t weights_at = 0, heads = 0;
    Linear query;  // input: the latent of q
    Program rows;  // rotates queries, {q}
    std::unique_ptr<IndexerOp> indexer;
  };
  std::optional<Index> index;
  std::unique_ptr<AttentionOp> attention;
  Program attended;         // rotates the result back, {attended}
  std::vector<Linear> low;  // projections of groups of heads, side by side
  Linear output;
};

struct RecurrentMixer {
  Linear in;
  // Moves columns [from, from + width) of `in` to columns `to` of the rows that the layer reads,
  // maybe through a second projection. Used if the projections are stored in another order.
  struct Part {
    size_t from, width, to, to_width;
    Linear second;
  };
  std::vector<Part> second;  // parts that have a second projection
  // Moves all other parts, {in, rows}; null: the layer reads the rows of `in`.
  Program plain;
  size_t width = 0;  // columns of the rows that the layer reads
  // Used if the layer reads a convolution of `in` and projections of it (Mamba-1).
  struct Inner {
    std::unique_ptr<RecurrentOp> convolution;
    Linear parameters, steps;  // inputs: the convolved rows; some columns of `parameters`
    Program parts;  // copies parts to rows, {in, convolved, parameters, input of `steps`, rows}
    size_t steps_at = 0;  // first column of the result of `steps` in a row
  };
  std::unique_ptr<Inner> inner;
  std::unique_ptr<RecurrentOp> recurrent;
  Linear output;
};

using Mixer = std::variant<std::monostate, HeadAttention, LatentAttention, SharedKeyAttention,
                           RecurrentMixer>;

// Holds experts with their router, or a dense MLP.
struct ExpertBlock {
  Linear router;  // computes logits; null: a dense MLP
  std::unique_ptr<ExpertsOp> experts;
  // Holds a dense MLP beside the experts (Gemma-4): norm(MLP(a)) + norm(experts(norm(h))), where
  // the router reads rows of its own.
  struct Beside {
    std::unique_ptr<ExpertsOp> mlp;
    // Makes inputs of router and experts, {h, router rows, experts' rows}; null: both read a.
    Program inputs;
    // Adds both results, {experts' result, MLP's result}; null: the experts' result is for the next
    // layer.
    Program join;
  };
  std::unique_ptr<Beside> beside;
};

// Gates rows by themselves: x * sigmoid(up(silu(down(x)))).
struct RowGate {
  Linear down, up;
  Program between;  // applies silu, {result of `down`}
  Program gate;     // multiplies x with the gate, {result of `up`, x}
};

// Mixes normalized streams to one row: mean of stream_i * sigmoid(up(silu(down(all)))_i). Also
// computes the gates by which the branch's result is added to the streams.
struct StreamMixer {
  Program norms;    // normalizes the streams, {h, normalized}
  Linear down, up;  // inputs: the normalized streams; some columns of `down`
  Program between;  // applies silu and makes gates, {result of `down`, gates of streams}
  Program mix;      // mixes the streams, {result of `up`, normalized, a}
};

// Adds rows of a table, looked up by n-grams of tokens, to the streams: each stream has its own key
// for a common value, and a convolution follows.
struct NGramInput {
  std::unique_ptr<NGramOp> table;
  size_t features = 0;
  Linear keys_value;
  // Gates the value, {h, keys and value, queries, gated values, normalized gated values}
  Program gated;
  std::unique_ptr<RecurrentOp> convolution;
  Program join;  // adds to the streams, {h, gated values, convolved}
};

struct GraphLayer {
  Device *device = nullptr, *experts_device = nullptr;
  // attention_in {h, a} computes attention's input, attention_join {h, result} adds its result to
  // the rows; block_in and block_join do the same for the block. Further operands, where they
  // exist: result of the experts of the layer before, and gates of streams.
  Program attention_in, attention_join, block_in, block_join;
  // Gate the inputs of the branches; null: no gate.
  std::unique_ptr<RowGate> attention_gate, block_gate;
  // Replace attention_in and block_in.
  std::unique_ptr<StreamMixer> attention_mixer, block_mixer;
  std::unique_ptr<NGramInput> ngrams;  // runs before everything else of the layer
  // Convolve the results of the branches.
  std::unique_ptr<RecurrentOp> attention_convolution, block_convolution;
  Mixer mixer;
  std::optional<ExpertBlock> block;
  bool block_reads_attention_input = false;  // true: attention and the block read the same rows
  bool joins_later = false;  // true: adds the result of the experts of the layer before
  uint64_t dense_bytes = 0;  // bytes of packed weights that every step reads, without the experts'
  KvOffset place;            // place of the mixer's keys, values or states

  size_t experts() const { return block ? block->experts->facts().experts : 0; }
  // Return the bytes of all packed weights, and of those that a step reads which uses `used` of the
  // experts.
  uint64_t packed_bytes() const;
  uint64_t read_bytes(size_t used) const;
};

// Makes the input of a predictor's layer: a token's row and the model's result for the token before
// it, each normalized, then joined by a projection.
struct PredictorInput {
  std::unique_ptr<RowStoreOp> made;  // keeps the model's results for tokens
  Program norms;  // normalizes and joins rows, {token's row, result for the token before, both}
  Linear join;
};

struct LayerSet {
  explicit LayerSet(DeviceSet d) : devices(std::move(d)) {}

  DeviceSet devices;  // devices of the model, destroyed after the layers
  size_t hidden = 0, vocab = 0, output_width = 0;
  // A row is `streams` times `hidden` wide; `gates` numbers weigh its streams.
  size_t streams = 1, gates = 0;
  XType type = XType::kBf16;
  Range own;  // layers of this process
  // [layer of the whole model] null: another rank has it.
  std::vector<std::unique_ptr<GraphLayer>> layers;
  bool logits_here = true;  // false: another rank computes logits
  // Embedding and output; null on a rank that has no end of the model.
  std::shared_ptr<EmbeddingOp> embedding;
  // Normalizes the token's row and copies it to all streams, {h}; null: does neither.
  Program embedded;
  Program final_norm;                        // final norm of the rows, {h, a, gates}
  std::unique_ptr<StreamMixer> final_mixer;  // replaces final_norm if not null
  std::shared_ptr<LinearOp> output;
  Program logit_tail;       // changes logits; null: nothing to change
  uint64_t file_bytes = 0;  // bytes of files that were read for this part
  // Set for a predictor, whose embedding and output may be the model's. Null: this is a model.
  std::unique_ptr<PredictorInput> predictor;

  uint64_t end_bytes() const;  // bytes read to compute logits of the last rows
  uint64_t packed_bytes() const;
  uint64_t bytes_per_token() const;  // bytes of packed weights that one token reads
  void cut(const KvPool& pool, size_t kind, BlockId id, size_t tokens) const;
  void wait(Step& step) const;              // waits for all devices; throws what an operation threw
  void abandon(Step& step) const noexcept;  // after a failure: waits until no operation needs it
};

}  // namespace moebius
