// SPDX-License-Identifier: Apache-2.0
// Describes a decoder-only transformer as parameters: an architecture file fills them in and
// decoder.cpp runs them. There are no model names here.
#pragma once
#include <vector>

#include "model/arch/mixer_spec.h"
#include "nn/ngram_hash.h"
#include "nn/norm.h"
#include "nn/rope.h"

namespace moebius {

// Describes one of a layer's two branches (mixer and block): what it reads of the layer's rows, and
// how its result is added to them, as row operations in the order in which they run.
struct BranchSpec {
  LayerOps enter;  // computes kInput from kHidden; empty in a block: it reads the mixer's input
  LayerOps join;   // adds kBranch to kHidden; reads kLater if an earlier layer has experts for this
  // Name of two projections with few features between them that gate the input by itself; null: no
  // gate.
  const char* row_gate = nullptr;
  // Name of the mixer that mixes normalized streams to the input; used if StreamSpec::rank is not 0.
  const char* stream_mixer = nullptr;
};

// Describes a dense MLP beside the experts. Experts and router then read rows of their own; or,
// without `inputs`, they read the MLP's rows, and the experts' result joins the next layer
// (kLater).
struct BesideSpec {
  LayerOps inputs;  // computes kRouterInput and kExpertsInput from kHidden
  LayerOps join;    // adds kDense to kBranch
};

// Names the tensors of short convolutions whose results are added to keys and values, and to the
// results of both branches. They keep a state.
struct ConvolutionSpec {
  const char *keys, *values, *mixing, *block;
  size_t width;
};

// Describes rows of a table, looked up by n-grams of tokens, that are added to the streams. Their
// convolution keeps a state, and so do the tokens.
struct NGramRows {
  NGramSpec spec;
  size_t table = 0;  // index of the layer's table
};

struct LayerSpec {
  MixerSpec mixer;
  BranchSpec mixing, block;
  bool has_block = true;  // false: the layer has no MLP or experts
  std::optional<ConvolutionSpec> convolutions;
  std::optional<NGramRows> ngrams;
  std::optional<BesideSpec> beside;

  // Returns the mixer if it is attention (keys) or recurrent (state), else null.
  KeyMixer* keys() { return std::get_if<KeyMixer>(&mixer); }
  const KeyMixer* keys() const { return std::get_if<KeyMixer>(&mixer); }
  const StateMixer* state() const { return std::get_if<StateMixer>(&mixer); }
};

// Describes rows of several streams (hyper-connections, nn/streams.h).
struct StreamSpec {
  static constexpr size_t kMost = 16;
  size_t count = 1;
  float epsilon = 1e-6f, out_epsilon = 0, magnitude = 2;
  // Iterations that normalize the mixing weights; 0: streams are not mixed with each other.
  size_t rounds = 0;
  // Alternative prefixes of the tensors ("fn", ...) that weigh the streams before the final norm;
  // null: the streams' mean is used.
  const char* head = nullptr;
  // Features between the two projections of a mixer, which normalizes streams and mixes them by
  // gates. If `head` names a mixer, it also replaces the final norm. 0: there are no mixers.
  size_t rank = 0;

  size_t gates() const { return StreamGates::outputs(count, /*joins=*/true, rounds); }
};

// Describes what stands before and after the layers.
struct EndsSpec {
  const char* embedding_norm = nullptr;  // end of the name of the norm of token rows; null: no norm
  float multiplier = 1;                  // of token rows
  bool round_multiplier = false;         // rounds it to the activation type
  float divisor = 1;                     // of logits
  float cap = 0;                         // limits logits to cap * tanh(logits / cap); 0: no limit
};

struct DecoderSpec {
  std::vector<LayerSpec> layers;
  EndsSpec ends;
  StreamSpec streams;
  RopeSpec rope;
  std::vector<RopeSpec> other_ropes;
  // End of the name of the tensor with logarithms of factors for all frequencies; null: none.
  const char* rope_factors = nullptr;
  NormKind norm = NormKind::kRms;
  float norm_epsilon = 1e-6f;
  // true: the operation lists cover everything around router and experts in the family's blocks
  bool whole_blocks = false;

  // Returns the attention of a layer, which has some.
  KeyMixer& keys(size_t layer) { return std::get<KeyMixer>(layers[layer].mixer); }
  const KeyMixer& keys(size_t layer) const { return std::get<KeyMixer>(layers[layer].mixer); }
};

// Returns the layer whose indexer chooses for this one: the last one up to it that has an indexer.
inline size_t choice_from(const DecoderSpec& s, size_t layer) {
  const auto makes = [&](const KeyMixer* keys) { return keys != nullptr && keys->makes_choice(); };
  while (layer > 0 && !makes(s.layers[layer].keys())) --layer;
  return layer;
}

// Returns whether attention has one key for all heads, which ranks cannot share.
inline bool shares_keys(const DecoderSpec& s) {
  return std::any_of(s.layers.begin(), s.layers.end(), [](const LayerSpec& layer) {
    return layer.keys() != nullptr && layer.keys()->shared_key;
  });
}

// Returns whether the layer adds what the experts of the layer before gave for it.
inline bool joins_later(const LayerSpec& layer) {
  return std::any_of(layer.block.join.begin(), layer.block.join.end(),
                     [](const LayerOp& op) { return op.x == LayerRows::kLater; });
}

}  // namespace moebius
