// SPDX-License-Identifier: Apache-2.0
// Describes the text part of Llama-4: chunked attention with rotation in most layers, full
// attention without rotation (and a growing temperature) in the others; layer_types may say it of
// chunks alone.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec llama4_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = common_spec(config);
  s.rope.interleaved = true;
  using enum LayerRows;
  const bool normed = f.boolean({"use_qk_norm"}).value_or(true);
  const std::vector<int64_t> rotary = f.integers({"no_rope_layers"}, 0, 1);
  const std::vector<std::string> types = f.strings({"layer_types"});
  const int64_t chunk = f.integer_or({"attention_chunk_size"}, 8192, 1, int64_t{1} << 40);
  const RowOp::Temperature temperature{real_of(f, {"attn_scale"}, 0.1),
                                       real_of(f, {"floor_scale"}, 8192)};
  const bool tuned = f.boolean({"attn_temperature_tuning"}).value_or(true);
  for (size_t i = 0; i < s.layers.size(); ++i) {
    KeyMixer& m = s.keys(i);
    const bool rotates = i < rotary.size() ? rotary[i] != 0 : (i + 1) % 4 != 0;
    if (i < types.size() ? types[i] == "chunked_attention" : rotates)
      m.chunk = static_cast<size_t>(chunk);
    if (rotates) {
      if (!normed) continue;
      for (const LayerRows rows : {kQuery, kKey})
        m.rows.push_back(row_op::head_norm(rows, nullptr));
    } else {
      m.rows.clear();
      if (tuned) m.rows.push_back(row_op::temperature(kQuery, temperature));
    }
  }
  return s;
}

}  // namespace moebius
