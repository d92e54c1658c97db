// SPDX-License-Identifier: Apache-2.0
// Loads the operations that mix streams by gates, and those that add n-grams of tokens to streams.
#include "base/error.h"
#include "model/load/layer_loader.h"
#include "nn/convolution_layer.h"

namespace moebius {

namespace {

// Adds operations y_i = norm(x_i); every stream has weights of its own.
void add_stream_norms(std::vector<RowOp>& ops, size_t y, size_t x,
                      const std::vector<float>& weights, const DecoderSpec& spec) {
  const size_t n = weights.size() / spec.streams.count;
  for (size_t at = 0; at < weights.size(); at += n) {
    const auto first = weights.begin() + static_cast<std::ptrdiff_t>(at);
    ops.push_back(norm_op(
        {y, at, n}, {x, at, n},
        {spec.norm, spec.norm_epsilon, {first, first + static_cast<std::ptrdiff_t>(n)}, {}}));
  }
}

std::shared_ptr<const StreamGates> equal_parts(size_t streams) {
  auto mean = std::make_shared<StreamGates>();
  mean->streams = streams;
  return mean;
}

// Reads whole numbers from a file's tensor; empty: it has no such tensor.
std::vector<int64_t> stated_numbers(const LayerParts& parts, const char* tensor, size_t count) {
  const TensorStore& store = parts.checkpoint().store();
  const TensorInfo* t = store.find(parts.full(tensor));
  if (t == nullptr) return {};
  if (t->dtype != DType::kI64 || t->bytes != count * sizeof(int64_t))
    fail("{} is {}; expected I64[{}]", store.where(*t), describe(*t), count);
  std::vector<int64_t> v(count);
  store.read(*t, 0, {reinterpret_cast<uint8_t*>(v.data()), t->bytes});
  return v;
}

NGramHash hash_of(const LayerParts& parts, const NGramSpec& spec, size_t table, uint64_t rows) {
  NGramHash h = NGramHash::of(spec, table);
  const auto take = [&](std::vector<int64_t>& to, const char* tensor) {
    if (std::vector<int64_t> stated = stated_numbers(parts, tensor, to.size()); !stated.empty())
      to = std::move(stated);
  };
  take(h.multipliers, "ple.ple_embedding.layer_multipliers");
  take(h.sizes, "ple.ple_embedding.ngram_heads_vocab_sizes");
  take(h.offsets, "ple.ple_embedding.ngram_heads_offsets");
  for (size_t i = 0; i < h.sizes.size(); ++i)
    if (h.sizes[i] < 1 || h.offsets[i] < 0 || static_cast<uint64_t>(h.offsets[i]) > rows ||
        static_cast<uint64_t>(h.sizes[i]) > rows - static_cast<uint64_t>(h.offsets[i]))
      fail("{}: head {} takes {} rows from {} on; the table has {}",
           parts.full("ple.ple_embedding"), i, h.sizes[i], h.offsets[i], rows);
  return h;
}

}  // namespace

std::unique_ptr<StreamMixer> load_stream_mixer(const LoadContext& context,
                                               const StreamMixerParts& parts, bool joins,
                                               Device& device) {
  const StreamSpec& streams = context.spec.streams;
  const size_t hidden = context.to->hidden, n = streams.count, rank = streams.rank,
               all = n * hidden;
  const Module &down = parts.module("input_mix_weight_down"),
               &up = parts.module("input_mix_weight_up");
  expect_width(down, rank, "hc_lowrank"), expect_width(up, all, "hc_count and hidden_size");
  if (up.plan.K != rank)
    fail("{} has {} inputs; expected hc_lowrank = {}", up.name, up.plan.K, rank);
  std::vector<ModuleOutputs> first = {{&down}};
  const float share = 1 / static_cast<float>(n);
  std::vector<RowOp> norms,
      between = {{RowOpKind::kScale, {0, 0, rank}, {}, share}, {RowOpKind::kSilu, {0, 0, rank}}};
  if (joins) {
    const Module& inject = parts.module("block_inject_weight");
    expect_width(inject, n, "hc_count");
    first.push_back({&inject});
    const RowView out{1, n, n};  // after the weights of the input, of which there are none here
    between.push_back(copy_op(out, {0, rank, n}));
    between.push_back({RowOpKind::kScale, out, {}, share});
    between.push_back({RowOpKind::kSigmoid, out, {}, 2});
  }
  add_stream_norms(norms, 1, 0, parts.values("hc_norm.weight", all), context.spec);
  RowOp in{RowOpKind::kStreamsIn, {2, 0, hidden}, {1, 0, all}};
  in.streams = equal_parts(n);
  auto mixer = std::make_unique<StreamMixer>();
  mixer->norms = device.rows(std::move(norms));
  mixer->down = parts.linear(first), mixer->up = parts.linear({{&up}});
  mixer->between = device.rows(std::move(between));
  mixer->mix = device.rows({{RowOpKind::kGateSigmoid, {1, 0, all}, {0, 0, all}}, std::move(in)});
  return mixer;
}

std::unique_ptr<StreamMixer> LayerLoader::load_stream_mixer(const char* stem) const {
  if (stem == nullptr) return nullptr;
  const auto name = [&](const char* member) { return fmt::format("{}.{}", stem, member); };
  return moebius::load_stream_mixer(
      c,
      {[&](const char* member) -> const Module& { return parts.require(name(member)); },
       [&](const char* member, size_t count) { return parts.values(name(member), count); },
       [&](const std::vector<ModuleOutputs>& modules) { return linear(modules); }},
      true, *layer.device);
}

std::unique_ptr<NGramInput> LayerLoader::load_ngrams() const {
  const NGramSpec& s = spec.ngrams->spec;
  const size_t hidden = c.to->hidden, n = c.spec.streams.count, all = n * hidden;
  auto m = std::make_unique<NGramInput>();
  m->features = s.features;
  const Module &key = parts.require("ple.key_proj"), &value = parts.require("ple.value_proj");
  expect_width(key, all, "hc_count and hidden_size"), expect_width(value, hidden, "hidden_size");
  for (const Module* p : {&key, &value})
    if (p->plan.K != s.features)
      fail("{} has {} inputs; expected ple_embed_dim = {}", p->name, p->plan.K, s.features);
  m->keys_value = linear({{&key}, {&value}});

  enum : size_t { kHiddenRows, kKeys, kQueries, kValues, kOut };
  std::vector<RowOp> ops;
  add_stream_norms(ops, kKeys, kKeys, parts.values("ple.norm_key.weight", all), c.spec);
  add_stream_norms(ops, kQueries, kHiddenRows, parts.values("ple.norm_query.weight", all), c.spec);
  RowOp keyed{RowOpKind::kStreamsKeyed, {kValues, 0, all}, {kKeys, 0, all + hidden}};
  keyed.w = {kQueries, 0, all}, keyed.streams = equal_parts(n);
  ops.push_back(std::move(keyed));
  add_stream_norms(ops, kOut, kValues, parts.values("ple.norm_conv.weight", all), c.spec);
  m->gated = layer.device->rows(std::move(ops));
  m->join = layer.device->rows(
      {{RowOpKind::kAdd, {1, 0, all}, {2, 0, all}}, {RowOpKind::kAdd, {0, 0, all}, {1, 0, all}}});

  // Taps are `dilation` tokens apart, with zeros between them.
  const std::vector<float> stored = parts.values("ple.conv1d.weight", all * s.convolution);
  std::vector<float> taps(all * s.taps(), 0.0f);
  for (size_t i = 0; i < all; ++i)
    for (size_t j = 0; j < s.convolution; ++j)
      taps[i * s.taps() + j * s.dilation()] = stored[i * s.convolution + j];
  KvOffset place = places().convolutions;
  m->convolution = layer.device->recurrent(
      std::make_unique<ConvolutionLayer>(
          ConvolutionLayerSpec{ConvolutionUse::kSilu, all, 0, all, s.taps()}, taps,
          std::vector<float>(), c.to->type),
      place);
  place.offset += ShortConvolution::state_floats(all, s.taps()) * sizeof(float);
  auto table = std::make_unique<RowTable>(
      c.checkpoint.store(), parts.full("ple.ple_embedding.ngram_embedding"), s.head_features());
  NGramRequest request;
  request.hash = hash_of(parts, s, spec.ngrams->table, table->rows());
  request.eos = s.eos;
  request.table = std::move(table);
  request.place = place;
  m->table = layer.device->ngrams(std::move(request));
  return m;
}

}  // namespace moebius
