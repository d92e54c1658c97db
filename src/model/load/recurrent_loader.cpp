// SPDX-License-Identifier: Apache-2.0
#include "model/load/recurrent_loader.h"

#include <cmath>

#include "base/error.h"

namespace moebius {
namespace {

struct RecurrentLoader {
  const LayerParts& parts;
  const DecoderSpec& spec;
  XType type;

  std::string name(std::string_view member) const {
    return fmt::format("{}.{}", spec.names.recurrent, member);
  }
  // Projections by name; "a>b" are two in a row.
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

  LoadedRecurrent operator()(const std::monostate&) const {
    fail("{}: this architecture has no recurrent layers", parts.checkpoint().folder());
  }

  LoadedRecurrent operator()(const DeltaSpec& d) const {
    const bool kimi = d.decay_per_key;  // names are those of attention, one convolution each
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
    // Gates are projections of low rank or whole.
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

  LoadedRecurrent operator()(const LightningSpec& l) const {
    // 2^(-8 (h + 1) / heads), falling from layer to layer; what files store of it is rounded.
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
    return with(std::make_unique<GatedConvolution>(
                    c, parts.values(name("conv.weight"), c.channels * c.width),
                    parts.values_if_any(name("conv.bias"), c.channels), type),
                {"in_proj"});
  }
};

}  // namespace

LoadedRecurrent load_recurrent(const LayerParts& parts, const DecoderSpec& spec, XType type) {
  return std::visit(RecurrentLoader{parts, spec, type}, spec.recurrent);
}

}  // namespace moebius
