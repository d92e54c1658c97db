// SPDX-License-Identifier: Apache-2.0
// Describes Qwen4-Exp (text): Qwen3.5's layers with streams of rows that are mixed by gates before
// every branch, attention whose indexer chooses among averages of keys, and layers that rows of a
// table by n-grams of tokens join.
#include <algorithm>

#include "base/error.h"
#include "model/arch/arch.h"

namespace moebius {
namespace {

size_t qwen4_size(const ConfigFields& f, const char* name, int64_t fallback) {
  return size_of(f, {name}, fallback, int64_t{1} << 40);
}

void set_qwen4_indexer(const ConfigFields& f, DecoderSpec& s) {
  const auto size = [&](const char* name) {
    if (!f.has({name})) fail("{}: is missing; attention has an indexer", f.label(name));
    return qwen4_size(f, name, 1);
  };
  ChoiceSpec choice;
  IndexerSpec& x = choice.indexer;
  x.heads = size("indexer_n_heads");
  x.head_dim = size("indexer_head_dim");
  x.ratio = size("indexer_compress_ratio");
  x.pooled = true;
  x.weighted = false;
  const size_t tokens = size("indexer_budget");
  if (size("indexer_kv_heads") != 1)
    fail("{}: is {}; expected 1", f.label("indexer_kv_heads"), size("indexer_kv_heads"));
  if (kKeyBlock % x.ratio != 0)
    fail("{}: is {}; expected a divisor of {}", f.label("indexer_compress_ratio"), x.ratio,
         kKeyBlock);
  if (tokens % x.ratio != 0)
    fail("{}: is {}; expected a multiple of indexer_compress_ratio = {}", f.label("indexer_budget"),
         tokens, x.ratio);
  x.top_k = tokens / x.ratio;
  if (s.rope.dims > x.head_dim)
    fail("{}: is {}; expected at least the {} rotated features of a head",
         f.label("indexer_head_dim"), x.head_dim, s.rope.dims);
  if (s.rope.scaling != RopeScaling::kNone && s.rope.scaling != RopeScaling::kYarn)
    fail("{}: averaged keys turn by fixed angles; expected rope_type default or yarn",
         f.label("rope_parameters"));
  set_choices(s, choice);
}

// Returns the token after which n-grams begin; the first one if there are several.
int64_t qwen4_eos(const ConfigFields& f, int64_t vocab) {
  const int64_t last = vocab - 1;
  const Json* eos = f.find("eos_token_id");
  if (eos == nullptr || !eos->is_array()) return f.require({"eos_token_id"}, 0, last);
  const std::vector<int64_t> all = f.integers({"eos_token_id"}, 0, last);
  if (all.empty()) f.wrong("eos_token_id", *eos, "a token: n-grams begin behind it");
  return all.front();
}

void set_qwen4_ngrams(const ModelConfig& config, const ConfigFields& f, DecoderSpec& s) {
  std::vector<int64_t> layers =
      f.integers({"ple_layer_ids"}, 1, static_cast<int64_t>(s.layers.size()));
  if (layers.empty()) return;
  std::sort(layers.begin(), layers.end());
  layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
  NGramSpec n;
  n.size = qwen4_size(f, "ngram_size", 3);
  n.heads = qwen4_size(f, "heads_per_ngram", 8);
  n.vocab = config.vocab;
  n.eos = qwen4_eos(f, config.vocab);
  n.base = f.integer_or({"ngram_vocab_size_base"}, 20'000'000, 2, int64_t{1} << 40);
  n.seed = f.integer_or({"seed"}, 1234, 0, int64_t{1} << 53);
  n.divisor = qwen4_size(f, "make_ngram_vocab_size_divisible_by", 128);
  n.features = qwen4_size(f, "ple_embed_dim", config.hidden);
  n.convolution = qwen4_size(f, "ple_conv_kernel_size", 4);
  if (n.size < 2 || n.size > 16) fail("{}: is {}; expected 2 to 16", f.label("ngram_size"), n.size);
  if (n.heads > 4096 || n.features % n.all_heads() != 0)
    fail("{}: is {}; expected a multiple of the {} heads of n-grams", f.label("ple_embed_dim"),
         n.features, n.all_heads());
  if (n.convolution > 16 || n.taps() > ShortConvolution::kMostTaps)
    fail("{}: is {}, {} tokens apart; expected to reach back at most {}",
         f.label("ple_conv_kernel_size"), n.convolution, n.dilation(), ShortConvolution::kMostTaps);
  for (size_t i = 0; i < layers.size(); ++i) {
    // Numbers start at 1.
    LayerSpec& layer = s.layers[static_cast<size_t>(layers[i] - 1)];
    if (layer.state() == nullptr)
      fail("{}: has layer {}, which is not one of linear attention", f.label("ple_layer_ids"),
           layers[i]);
    layer.ngrams = {n, i};
  }
}

}  // namespace

DecoderSpec qwen4_exp_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = qwen3_next_spec(config);
  const std::string gate =
      f.string({"output_gate_type"}).value_or(f.string({"hidden_act"}).value_or("silu"));
  if (gate != "silu" && gate != "sigmoid")
    fail("{}: is '{}'; expected silu or sigmoid", f.label("output_gate_type"), printable(gate));
  set_stream_count(f, s, "hc_count");
  s.streams.rank = qwen4_size(f, "hc_lowrank", 320);
  s.streams.head = "hyper_connection_mixer";
  for (LayerSpec& layer : s.layers) {
    if (auto* state = std::get_if<StateMixer>(&layer.mixer))
      std::get<DeltaSpec>(state->net).gate =
          gate == "silu" ? RowFunction::kSilu : RowFunction::kSigmoid;
    const LayerOps join = {row_op::streams_out(LayerRows::kBranch)};
    layer.mixing = {{}, join, nullptr, "attn_hyper_connection"};
    layer.block = {{}, join, nullptr, "mlp_hyper_connection"};
  }
  set_qwen4_indexer(f, s);
  set_qwen4_ngrams(config, f, s);
  return s;
}

}  // namespace moebius
