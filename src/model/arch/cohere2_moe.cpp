// SPDX-License-Identifier: Apache-2.0
// Cohere-2 with experts: attention and experts read the same rows; windows with rotation of
// neighbouring pairs in most layers, full attention without rotation in the others.
#include "base/error.h"
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec cohere2_moe_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = common_spec(config);
  if (f.integer_or({"num_shared_experts"}, 0, 0, 1024) > 0 &&
      f.string({"shared_expert_combination_strategy"}).value_or("average") != "sum")
    fail("{}: is not 'sum'; averages of experts and shared experts cannot be run yet",
         f.label("shared_expert_combination_strategy"));
  s.rope.interleaved = true;
  if (!f.has({"rms_norm_eps"})) {
    s.norm = NormKind::kLayer;
    s.norm_epsilon = static_cast<float>(f.number({"layer_norm_eps"}).value_or(1e-5));
  }
  const double scale = f.number({"logit_scale"}).value_or(0.0625);
  if (!(scale > 0)) fail("{}: is {}; expected a positive number", f.label("logit_scale"), scale);
  s.logits_divisor = static_cast<float>(1 / scale);
  const std::vector<std::string> types = f.strings({"layer_types"});
  if (types.size() != s.layers.size())
    fail("{}: has {} words; expected one for each of {} layers", f.label("layer_types"),
         types.size(), s.layers.size());
  const auto window = static_cast<size_t>(f.integer_or({"sliding_window"}, 4096, 1, 1 << 30));
  const bool rotate_dense =
      f.integer_or({"prefix_dense_sliding_window_pattern"}, 1, 1, 1 << 20) == 1;
  const std::vector<std::string> blocks = f.strings({"mlp_layer_types"});
  for (size_t i = 0; i < s.layers.size(); ++i) {
    const bool slides = types[i] == "sliding_attention";
    if (slides) s.layers[i].window = window;
    if (!slides && !(rotate_dense && i < blocks.size() && blocks[i] == "dense"))
      stop_rotation(s.layers[i]);
    s.layers[i].enter_block.clear();  // attention and experts read the same rows
  }
  return s;
}

}  // namespace moebius
