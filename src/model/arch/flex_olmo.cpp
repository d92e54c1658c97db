// SPDX-License-Identifier: Apache-2.0
// Describes FlexOlmo: norms behind attention and experts, none before them; q and k normalized over
// their whole width.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec flex_olmo_spec(const ModelConfig& config) {
  DecoderSpec s = common_spec(config);
  s.norm = NormKind::kRmsFused;
  norm_projections(s);
  set_branch_norms(s, {nullptr, "post_attention_layernorm", nullptr, "post_feedforward_layernorm"});
  return s;
}

}  // namespace moebius
