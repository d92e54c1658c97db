// SPDX-License-Identifier: Apache-2.0
// Describes K-EXAONE: windows with rotation in most layers, full attention without rotation in the
// others; q and k normalized per head.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec exaone_moe_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = common_spec(config);
  norm_heads(s);
  const Json* stated = config.text.find("sliding_window");
  if (stated != nullptr && stated->is_null()) return s;
  const int64_t window = f.integer_or({"sliding_window"}, 4096, 1, int64_t{1} << 40);
  const std::vector<std::string> types = f.strings({"layer_types"});
  const int64_t pattern = f.integer_or({"sliding_window_pattern"}, 4, 1, 1 << 20);
  for (size_t i = 0; i < s.layers.size(); ++i) {
    const bool slides = i < types.size() ? types[i] == "sliding_attention"
                                         : (static_cast<int64_t>(i) + 1) % pattern != 0;
    if (slides)
      s.layers[i].window = static_cast<size_t>(window);
    else
      stop_rotation(s.layers[i]);
  }
  return s;
}

}  // namespace moebius
