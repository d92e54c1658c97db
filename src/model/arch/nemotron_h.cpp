// SPDX-License-Identifier: Apache-2.0
// Describes Nemotron-H: every layer is either Mamba-2, attention without rotation, experts or an
// MLP, as a pattern of letters or a list of words says.
#include "base/error.h"
#include "model/arch/arch.h"

namespace moebius {
namespace {

void set_nemotron_layer(LayerSpec& layer, const std::string& word, size_t index) {
  stop_rotation(layer);
  if (word == "mamba" || word == "linear_attention") {
    layer.recurrent = true;
    layer.mixes = false;
  } else if (word == "attention" || word == "full_attention")
    layer.mixes = false;
  else if (word == "moe" || word == "mlp")
    layer.attends = false;
  else
    fail(
        "config.json: layers_block_type or hybrid_override_pattern makes layer {} '{}'; expected "
        "mamba, attention, moe or mlp (M, *, E, -)",
        index, printable(word));
}

}  // namespace

DecoderSpec nemotron_h_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = common_spec(config);
  s.names = {"mixer", "o_proj", "mixer"};
  set_branch_norms(s, {.attention_in = "norm", .block_in = "norm"});
  s.norm = NormKind::kRmsFused;
  s.norm_epsilon = static_cast<float>(f.number({"layer_norm_epsilon"}).value_or(1e-5));
  if (f.has({"moe_latent_size"}))
    fail(
        "config.json: moe_latent_size is given; experts behind a latent projection "
        "(mixer.fc1_latent_proj) cannot be run yet");
  if (const std::string act = f.string({"mamba_hidden_act"}).value_or("silu"); act != "silu")
    fail("config.json: mamba_hidden_act is '{}'; only silu can be run", printable(act));
  Mamba2Spec m;
  const auto size = [&](ConfigFields::Names names, int64_t fallback, int64_t most) {
    return static_cast<size_t>(f.integer_or(names, fallback, 1, most));
  };
  m.heads = size({"mamba_num_heads"}, 128, 65536);
  m.head_dim = size({"mamba_head_dim"}, 64, Mamba2::kMostHead);
  m.groups = m.norm_groups = size({"n_groups", "mamba_n_groups"}, 8, 65536);
  m.state = size({"ssm_state_size"}, 128, 65536);
  m.width = size({"conv_kernel", "mamba_d_conv"}, 4, 64);
  m.least_step = static_cast<float>(f.number({"time_step_min", "mamba_dt_min"}).value_or(0.001));
  s.recurrent = m;
  const std::vector<std::string>& words = config.layer_types;
  if (words.size() != s.layers.size())
    fail(
        "config.json: layers_block_type or hybrid_override_pattern has {} layers; the model has {}",
        words.size(), s.layers.size());
  for (size_t i = 0; i < words.size(); ++i) set_nemotron_layer(s.layers[i], words[i], i);
  return s;
}

}  // namespace moebius
