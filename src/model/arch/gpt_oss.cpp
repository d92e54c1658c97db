// SPDX-License-Identifier: Apache-2.0
// Describes GPT-OSS: attention sinks, sliding window in every other layer, biases everywhere, norms
// that multiply before rounding.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec gpt_oss_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = common_spec(config);
  s.norm = NormKind::kRmsFused;
  each_attention(s, [](KeyMixer& m) { m.sinks = "self_attn.sinks"; });
  if (!f.strings({"layer_types"}).empty())
    set_windows(config, s);
  else  // older configs do not state that windows alternate
    set_windows(s, layers_called(config, "", [](size_t i) { return i % 2 == 0; }),
                size_of(f, {"sliding_window"}, 128, int64_t{1} << 40));
  return s;
}

}  // namespace moebius
