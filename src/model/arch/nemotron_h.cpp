// SPDX-License-Identifier: Apache-2.0
// Describes Nemotron-H: every layer is either Mamba-2, attention without rotation, experts or an
// MLP, as a pattern of letters or a list of words says.
#include "base/error.h"
#include "model/arch/arch.h"

namespace moebius {
namespace {

void set_nemotron_layer(LayerSpec& layer, const StateMixer& mamba, const std::string& word,
                        size_t index) {
  layer.has_block = word == "moe" || word == "mlp";
  if (layer.has_block)
    layer.mixer = {};
  else if (word == "mamba" || word == "linear_attention")
    layer.mixer = mamba;
  else if (word != "attention" && word != "full_attention")
    fail(
        "config.json: layers_block_type or hybrid_override_pattern makes layer {} '{}'; expected "
        "mamba, attention, moe or mlp (M, *, E, -)",
        index, printable(word));
}

}  // namespace

DecoderSpec nemotron_h_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = common_spec(config);
  each_attention(s, [](KeyMixer& m) { m.names.attention = "mixer"; });
  stop_rotation(s);
  set_branch_norms(s, {.attention_in = "norm", .block_in = "norm"});
  s.norm = NormKind::kRmsFused;
  s.norm_epsilon = real_of(f, {"layer_norm_epsilon"}, 1e-5);
  if (f.has({"moe_latent_size"}))
    fail(
        "config.json: moe_latent_size is given; experts behind a latent projection "
        "(mixer.fc1_latent_proj) cannot be run yet");
  if (const std::string act = f.string({"mamba_hidden_act"}).value_or("silu"); act != "silu")
    fail("config.json: mamba_hidden_act is '{}'; only silu can be run", printable(act));
  Mamba2Spec m;
  m.heads = size_of(f, {"mamba_num_heads"}, 128, 65536);
  m.head_dim = size_of(f, {"mamba_head_dim"}, 64, Mamba2::kMostHead);
  m.groups = m.norm_groups = size_of(f, {"n_groups", "mamba_n_groups"}, 8, 65536);
  m.state = size_of(f, {"ssm_state_size"}, 128, 65536);
  m.width = size_of(f, {"conv_kernel", "mamba_d_conv"}, 4, 64);
  m.least_step = real_of(f, {"time_step_min", "mamba_dt_min"}, 0.001);
  const std::vector<std::string>& words = config.layer_types;
  if (words.size() != s.layers.size())
    fail(
        "config.json: layers_block_type or hybrid_override_pattern has {} layers; the model has {}",
        words.size(), s.layers.size());
  for (size_t i = 0; i < words.size(); ++i)
    set_nemotron_layer(s.layers[i], {m, "mixer"}, words[i], i);
  return s;
}

}  // namespace moebius
