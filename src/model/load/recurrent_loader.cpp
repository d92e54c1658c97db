// SPDX-License-Identifier: Apache-2.0
// Loads recurrent layers: their nets, and what these read beside their projections.
#include <cmath>

#include "base/error.h"
#include "model/load/layer_loader.h"

namespace moebius {
namespace {

// Names a projection of the layer's input, or two in a row with few features between them.
struct RecurrentInput {
  const Module *first, *second = nullptr;
  const Module& last() const { return second != nullptr ? *second : *first; }
};

// Describes a convolution of the input, and projections of its result that the layer also reads
// (Mamba-1).
struct InnerProjections {
  std::unique_ptr<Recurrent> convolution;
  // First float of the convolution's state, after the layer's own.
  size_t state_at = 0;
  // Map convolved rows to [dt, B, C], and dt to a number for each feature.
  const Module *parameters, *steps;
  Norm dt_norm, b_norm, c_norm;
};

struct LoadedRecurrent {
  std::unique_ptr<Recurrent> net;
  std::vector<RecurrentInput> in;  // projections whose results form a row, side by side
  const Module* out = nullptr;
  // null: the layer reads only the results of `in`.
  std::unique_ptr<InnerProjections> inner = nullptr;
};
// Loads a net. Throws Error that names a module or tensor that is missing or has other sizes.
struct NetLoader {
  const LayerScope& scope;
  std::string_view stem;
  const LayerParts& parts = scope.parts;
  const DecoderSpec& spec = scope.c.spec;
  XType type = scope.c.to->type;

  std::string name(std::string_view member) const { return fmt::format("{}.{}", stem, member); }
  // Combines a net with projections by name; "a>b" means two in a row.
  LoadedRecurrent with(std::unique_ptr<Recurrent> net, const std::vector<std::string>& in,
                       std::string_view out_name = "out_proj") const {
    LoadedRecurrent out{std::move(net), {}, &parts.require(name(out_name))};
    size_t width = 0;
    for (const std::string& n : in) {
      const size_t two = n.find('>');
      RecurrentInput input{&parts.require(name(n.substr(0, two)))};
      if (two != std::string::npos) input.second = &parts.require(name(n.substr(two + 1)));
      if (input.second != nullptr && input.second->plan.K != input.first->plan.N)
        fail("{} has {} inputs; expected the {} outputs of {}", input.second->name,
             input.second->plan.K, input.first->plan.N, input.first->name);
      width += input.last().plan.N;
      out.in.push_back(input);
    }
    if (width != out.net->shape().in)
      fail("{}{} has {} outputs; the config's sizes of recurrent layers ask for {}",
           out.in[0].first->name, in.size() > 1 ? " with its neighbours" : "", width,
           out.net->shape().in);
    if (out.out->plan.K != out.net->shape().out)
      fail("{} has {} inputs; the config's sizes of recurrent layers ask for {}", out.out->name,
           out.out->plan.K, out.net->shape().out);
    return out;
  }

  LoadedRecurrent operator()(const DeltaSpec& d) const {
    const bool kimi = d.decay_per_key;  // names like attention's, with one convolution each
    DeltaWeights w;
    for (const char* n : {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"}) {
      if (!kimi) break;
      const std::vector<float> part = parts.values(name(n), d.values() * d.width);
      w.convolution.insert(w.convolution.end(), part.begin(), part.end());
    }
    if (!kimi) w.convolution = parts.values(name("conv1d.weight"), d.channels() * d.width);
    w.a_log = parts.values(name("A_log"), d.value_heads);
    w.dt = parts.values(name("dt_bias"), d.decays());
    w.norm = {kimi ? NormKind::kRmsFused : NormKind::kRms,
              spec.norm_epsilon,
              parts.values(name(kimi ? "o_norm.weight" : "norm.weight"), d.value_dim),
              {}};
    auto net = std::make_unique<DeltaNet>(d, std::move(w), type);
    // Gates are either one projection or two of low rank.
    const auto one_or_two = [&](const char* whole, const char* two) {
      return parts.find(name(whole)) != nullptr ? whole : two;
    };
    if (kimi)
      return with(std::move(net),
                  {"q_proj", "k_proj", "v_proj", one_or_two("g_proj", "g_a_proj>g_b_proj"),
                   "b_proj", one_or_two("f_proj", "f_a_proj>f_b_proj")},
                  one_or_two("dense", "o_proj"));
    if (d.by_key_head) return with(std::move(net), {"in_proj_qkvz", "in_proj_ba"});
    return with(std::move(net), {"in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"});
  }

  LoadedRecurrent operator()(const Mamba2Spec& m) const {
    Mamba2Weights w;
    w.convolution = parts.values(name("conv1d.weight"), m.channels() * m.width);
    w.convolution_bias = parts.values_if_any(name("conv1d.bias"), m.channels());
    w.a_log = parts.values(name("A_log"), m.heads);
    w.d = parts.values(name("D"), m.heads);
    w.dt_bias = parts.values(name("dt_bias"), m.heads);
    w.norm = parts.values(name("norm.weight"), m.features());
    w.norm_epsilon = spec.norm_epsilon;
    return with(std::make_unique<Mamba2>(m, std::move(w), type), {"in_proj"});
  }

  LoadedRecurrent operator()(const Mamba1Spec& m) const {
    const size_t I = m.features, N = m.state;
    auto inner = std::make_unique<InnerProjections>();
    inner->convolution = std::make_unique<ConvolutionLayer>(
        ConvolutionLayerSpec{ConvolutionUse::kSilu, 2 * I, 0, I, m.width},
        parts.values(name("conv1d.weight"), I * m.width),
        parts.values_if_any(name("conv1d.bias"), I), type);
    inner->state_at = m.scan_floats();
    inner->parameters = &parts.require(name("x_proj"));
    inner->steps = &parts.require(name("dt_proj"));
    expect_width(*inner->parameters, m.rank + 2 * N, "mamba_dt_rank and mamba_d_state");
    expect_width(*inner->steps, I, "mamba_expand and hidden_size");
    if (inner->parameters->plan.K != I || inner->steps->plan.K != m.rank)
      fail("{} has {} inputs, {} has {}; expected {} and mamba_dt_rank = {}",
           inner->parameters->name, inner->parameters->plan.K, inner->steps->name,
           inner->steps->plan.K, I, m.rank);
    inner->dt_norm = scope.norm(name("dt_layernorm"), m.rank);
    inner->b_norm = scope.norm(name("b_layernorm"), N);
    inner->c_norm = scope.norm(name("c_layernorm"), N);
    LoadedRecurrent out{std::make_unique<SelectiveScan>(m, parts.values(name("A_log"), I * N),
                                                        parts.values(name("D"), I), type),
                        {{&parts.require(name("in_proj"))}},
                        &parts.require(name("out_proj")),
                        std::move(inner)};
    expect_width(*out.in[0].first, 2 * I, "mamba_expand and hidden_size");
    if (out.out->plan.K != I)
      fail("{} has {} inputs; the config's sizes of recurrent layers ask for {}", out.out->name,
           out.out->plan.K, I);
    return out;
  }

  LoadedRecurrent operator()(const LightningSpec& l) const {
    // 2^(-8 (h + 1) / heads), decreasing from layer to layer; computed here, because files store
    // rounded numbers.
    const double layers = static_cast<double>(spec.layers.size()) - 1 + 1e-5,
                 factor = 1 - static_cast<double>(parts.index()) / layers + 1e-5;
    std::vector<float> rates;
    for (size_t h = 0; h < l.heads; ++h)
      rates.push_back(static_cast<float>(
          std::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(l.heads)) * factor));
    return with(std::make_unique<LightningAttention>(
                    l, rates, parts.norm(name("norm"), spec.norm, 1e-6f, l.features()), type),
                {"qkv_proj", "output_gate"});
  }

  LoadedRecurrent operator()(const GatedConvolutionSpec& c) const {
    return with(std::make_unique<ConvolutionLayer>(
                    c.layer(), parts.values(name("conv.weight"), c.channels * c.width),
                    parts.values_if_any(name("conv.bias"), c.channels), type),
                {"in_proj"});
  }
};

// Loads projections whose results form the scan's rows [x | z | dt | B | C].
std::unique_ptr<RecurrentMixer::Inner> load_inner(const LayerScope& scope, InnerProjections& from) {
  enum : size_t { kIn, kConvolved, kParameters, kSteps, kWhole };
  const size_t I = from.convolution->shape().out, rank = from.steps->plan.K,
               N = (from.parameters->plan.N - rank) / 2;
  auto m = std::make_unique<RecurrentMixer::Inner>();
  m->parameters = scope.linear({{from.parameters}});
  m->steps = scope.linear({{from.steps}});
  m->steps_at = 2 * I;
  m->parts = scope.layer.device->rows(
      {copy_op({kWhole, 0, I}, {kConvolved, 0, I}), copy_op({kWhole, I, I}, {kIn, I, I}),
       norm_op({kSteps, 0, rank}, {kParameters, 0, rank}, std::move(from.dt_norm)),
       norm_op({kWhole, 3 * I, N}, {kParameters, rank, N}, std::move(from.b_norm)),
       norm_op({kWhole, 3 * I + N, N}, {kParameters, rank + N, N}, std::move(from.c_norm))});
  KvOffset place = scope.places().mixer;
  place.offset += from.state_at * sizeof(float);
  m->convolution = scope.layer.device->recurrent(std::move(from.convolution), place);
  return m;
}

}  // namespace

RecurrentMixer load_recurrent_mixer(const LayerScope& scope, const StateMixer& mixer) {
  LoadedRecurrent loaded = std::visit(NetLoader{scope, mixer.name}, mixer.net);
  RecurrentMixer m;
  m.width = loaded.net->shape().in;
  m.output = scope.linear({{loaded.out}});
  std::vector<ModuleOutputs> first;
  std::vector<RowOp> plain;
  size_t from = 0, to = 0;
  for (const RecurrentInput& in : loaded.in) {
    const size_t width = in.first->plan.N, to_width = in.last().plan.N;
    first.push_back({in.first});
    if (in.second != nullptr)
      m.second.push_back({from, width, to, to_width, scope.linear({{in.second}})});
    else
      plain.push_back(copy_op({1, to, width}, {0, from, width}));
    from += width;
    to += to_width;
  }
  m.in = scope.linear(first);
  if (!m.second.empty()) m.plain = scope.layer.device->rows(std::move(plain));
  if (loaded.inner != nullptr) m.inner = load_inner(scope, *loaded.inner);
  m.recurrent = scope.layer.device->recurrent(std::move(loaded.net), scope.places().mixer);
  return m;
}

}  // namespace moebius
