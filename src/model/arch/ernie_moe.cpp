// SPDX-License-Identifier: Apache-2.0
// Describes ERNIE-4.5, and the text part of ERNIE-4.5-VL: plain attention, rotation of neighbouring
// pairs.
#include "base/error.h"
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec ernie_moe_spec(const ModelConfig& config) {
  DecoderSpec s = common_spec(config);
  s.rope.interleaved = true;
  return s;
}

// Describes ERNIE-4.5-VL. Frequencies are stored in the order of three axes; text has the same
// position on all axes, so they return to their own order.
DecoderSpec ernie_vl_spec(const ModelConfig& config) {
  DecoderSpec s = ernie_moe_spec(config);
  const ConfigFields f(rope_object(config), "config.json", "rope_parameters.");
  const std::vector<int64_t> axes = f.integers({"mrope_section"}, 0, 1 << 20);
  if (!axes.empty() && (axes.size() != 3 || axes[0] != axes[1] ||
                        static_cast<size_t>(axes[0] + axes[1] + axes[2]) != s.rope.dims / 2))
    fail("{}: expected three numbers, the first two alike, with a sum of {}",
         f.label("mrope_section"), s.rope.dims / 2);
  return s;
}

}  // namespace moebius
