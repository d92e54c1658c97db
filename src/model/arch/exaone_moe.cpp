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
  const size_t pattern = size_of(f, {"sliding_window_pattern"}, 4, 1 << 20);
  set_windows(
      s,
      layers_called(config, "sliding_attention", [&](size_t i) { return (i + 1) % pattern != 0; }),
      size_of(f, {"sliding_window"}, 4096, int64_t{1} << 40));
  rotate_in_windows(s);
  return s;
}

}  // namespace moebius
