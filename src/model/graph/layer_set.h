// SPDX-License-Identifier: Apache-2.0
// A loaded model, or a rank's part of one: for every layer the operations that its devices made. What
// an architecture asks for has ended in these; the graph (graph.h) only calls them in order.
#pragma once
#include <memory>
#include <variant>
#include <vector>

#include "device/device.h"
#include "device/placement.h"

namespace moebius {

using Program = std::unique_ptr<RowProgram>;
using Linear = std::unique_ptr<LinearOp>;

// What chooses the keys of sparse attention.
struct AttentionIndex {
  Linear key_weights, query;  // of x; of x, its norm or the q latent
  Program query_input;        // {x, norm}; null: none
  Program rows;               // {key and weights, q}: norm, rotation
  std::unique_ptr<IndexerOp> indexer;
  // Keys that stand for several tokens. Then `key_weights` gives [weights | key], and behind these lie
  // the gates.
  struct Pools {
    size_t weights = 0;
    Linear gates;  // of x; null: none
    std::unique_ptr<CompressorOp> keys;
  };
  std::optional<Pools> pools;

  void cut(const KvPool& pool, BlockId id, size_t tokens) const;
};

// Keys and values of heads.
struct HeadAttention {
  size_t query_width = 0, key_width = 0, value_width = 0, gate_width = 0, out_width = 0,
         relative_width = 0;
  bool keys = true;  // of its own; else another layer's
  Linear qkv;
  std::unique_ptr<RecurrentOp> convolution;  // of [k | v] in qkv; null: none
  Program input;  // {qkv, q, k, v, gate, relative, convolved}: parts, norms, rotation
  std::unique_ptr<AttentionOp> attention;
  Program gate;  // {gate, attended}; null: none
  Linear output;
  std::unique_ptr<AttentionIndex> index;  // null: keys are not chosen here
};

// Latents in place of keys and values (MLA). The up-projection is absorbed by queries and results,
// or made of the latents at each use (then query_up and value_up are null).
struct LatentAttention {
  size_t query_latent = 0, key_width = 0, value_width = 0, query_width = 0, absorbed_width = 0,
         attended_width = 0, out_width = 0;
  bool keys = true;  // of its own; else another layer's
  Linear down;  // x -> [q latent | kv latent, rotated part | gate], as far as there are; null: none
  Program latents;      // {down, q latent, k, v, gate}
  Linear query;         // of its latent, or of x
  Program query_parts;  // {what `query` gives, q, gate}; null: it gives q
  Program rotate;       // {q, k}
  Linear query_up, value_up;
  Program rotated_part;  // {q, absorbed}: what of a query is not absorbed; null: nothing
  std::unique_ptr<AttentionOp> attention;
  size_t gate_width = 0;
  Program gate;  // {gate, attended}; null: none
  Linear output;
  std::unique_ptr<AttentionIndex> index;
};

// One kv head for all, whose keys are their own values, with compressed ones behind a window.
struct SharedKeyAttention {
  size_t query_latent = 0, query_width = 0, key_width = 0, low_width = 0;
  Linear
      down;  // x -> [q latent | key | sources of compressed keys | those of the indexer | weights]
  Program latents;  // {down, q latent, key}
  Linear query;     // of its latent
  Program queries;  // {q}
  struct Compressed {
    size_t at = 0, width = 0;  // columns of `down`
    std::unique_ptr<CompressorOp> keys;
  };
  std::optional<Compressed> compressed;
  struct Index {
    Compressed compressed;
    size_t weights_at = 0, heads = 0;
    Linear query;  // of the q latent
    Program rows;  // {q}
    std::unique_ptr<IndexerOp> indexer;
  };
  std::optional<Index> index;
  std::unique_ptr<AttentionOp> attention;
  Program attended;         // {attended}
  std::vector<Linear> low;  // of groups of heads, side by side
  Linear output;
};

struct RecurrentMixer {
  Linear in;
  // Where projections lie side by side in another way than the layer reads them, or some go through a
  // second one: columns [from, from + width) of `in`, and where they go.
  struct Part {
    size_t from, width, to, to_width;
    Linear second;
  };
  std::vector<Part> second;  // parts with a second projection
  Program plain;             // {in, rows}: the others; null: rows are read as `in` gives them
  size_t width = 0;          // of the rows that the layer reads
  // The layer reads a convolution of `in` and projections of that, too (Mamba-1).
  struct Inner {
    std::unique_ptr<RecurrentOp> convolution;
    Linear parameters, steps;  // of what is convolved; of some of what that gives
    Program parts;             // {in, convolved, parameters, what `steps` reads, rows}
    size_t steps_at = 0;       // where they lie in a row
  };
  std::unique_ptr<Inner> inner;
  std::unique_ptr<RecurrentOp> recurrent;
  Linear output;
};

using Mixer = std::variant<std::monostate, HeadAttention, LatentAttention, SharedKeyAttention,
                           RecurrentMixer>;

// Experts with their router, or a dense MLP.
struct ExpertBlock {
  Linear router;  // null: dense
  std::unique_ptr<ExpertsOp> experts;
  // A dense MLP beside the experts (Gemma-4): norm(MLP(a)) + norm(experts(norm(h))), and the router
  // reads rows of its own.
  struct Beside {
    std::unique_ptr<ExpertsOp> mlp;
    Program inputs;  // {h, router rows, experts' rows}; null: both read a
    Program join;    // {experts' result, the MLP's}; null: the experts' is for the next layer
  };
  std::unique_ptr<Beside> beside;
};

// Rows times a gate of their own: x * sigmoid(up(silu(down(x)))).
struct RowGate {
  Linear down, up;
  Program between;  // {what `down` gives}
  Program gate;     // {what `up` gives, x}
};

// Streams, each normalized, in one by gates of their own: mean of stream_i * sigmoid(up(silu(down(all)))_i);
// and the gates by which what the branch gives joins them.
struct StreamMixer {
  Program norms;    // {h, normalized}
  Linear down, up;  // of what is normalized; of some of what that gives
  Program between;  // {what `down` gives, gates of streams}
  Program mix;      // {what `up` gives, normalized, a}
};

// Rows of a table by n-grams of tokens join the streams: each has a key of its own for a common value, and
// behind that lies a convolution.
struct NGramInput {
  std::unique_ptr<NGramOp> table;
  size_t features = 0;
  Linear keys_value;
  Program gated;  // {h, keys and value, queries, gated values, those normalized}
  std::unique_ptr<RecurrentOp> convolution;
  Program join;  // {h, gated values, convolved}
};

struct GraphLayer {
  Device *device = nullptr, *experts_device = nullptr;
  // {h, a}: what attention reads; {h, what it gave}: how that joins the row. The same of the block.
  // Behind these: what experts of the layer before gave, where they did, and gates of streams.
  Program attention_in, attention_join, block_in, block_join;
  std::unique_ptr<RowGate> attention_gate, block_gate;  // of what the branches read; null: none
  std::unique_ptr<StreamMixer> attention_mixer,
      block_mixer;                     // in place of attention_in and block_in
  std::unique_ptr<NGramInput> ngrams;  // before all else
  std::unique_ptr<RecurrentOp> attention_convolution, block_convolution;  // of what they give
  Mixer mixer;
  std::optional<ExpertBlock> block;
  bool block_reads_attention_input = false;  // both branches read the same rows
  bool joins_later = false;                  // what experts of the layer before gave
  uint64_t dense_bytes = 0;  // packed weights that every step reads, without the experts
  KvPlace place;             // of what the mixer keeps
};

// What the layer of a predictor reads: a token's row and what the model made of the token before it,
// each normalized, side by side through a projection.
struct PredictorInput {
  std::unique_ptr<RowStoreOp> made;  // what the model made of tokens
  Program norms;                     // {token's row, that of the token before, both}
  Linear join;
};

struct LayerSet {
  explicit LayerSet(DeviceSet d) : devices(std::move(d)) {}

  DeviceSet devices;  // outlives the layers
  size_t hidden = 0, vocab = 0, output_width = 0;
  size_t streams = 1, gates = 0;  // a row is so many times `hidden` wide; numbers that weigh them
  XType type = XType::kBf16;
  Range own;                                        // layers that are here
  std::vector<std::unique_ptr<GraphLayer>> layers;  // of the whole model; null: another rank's
  bool logits_here = true;                          // else another rank gives them
  // The ends, where they are here.
  std::shared_ptr<EmbeddingOp> embedding;
  Program embedded;    // {h}: a norm of the token's row, that row into other streams; null: neither
  Program final_norm;  // {h, a, gates}
  std::unique_ptr<StreamMixer> final_mixer;  // or this
  std::shared_ptr<LinearOp> output;
  Program logit_tail;       // null: none
  uint64_t file_bytes = 0;  // read for this part
  // A predictor's; then embedding and output may be those of the model. Null: it is a model.
  std::unique_ptr<PredictorInput> predictor;

  uint64_t end_bytes() const;  // of what makes logits of the last rows
  uint64_t packed_bytes() const;
  uint64_t bytes_per_token() const;  // of packed weights that one token reads
  void cut(const KvPool& pool, size_t kind, BlockId id, size_t tokens) const;
};

}  // namespace moebius
