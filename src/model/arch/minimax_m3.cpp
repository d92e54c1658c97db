// SPDX-License-Identifier: Apache-2.0
// Describes the text part of MiniMax-M3: q and k normalized per head with 1 + w, part of each head
// rotated; layers whose kv heads see blocks of keys that an indexer's heads choose.
#include <algorithm>

#include "base/error.h"
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec minimax_m3_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  const bool self_contained =
      config.text.find("rope_parameters") != nullptr || f.has({"partial_rotary_factor"});
  const int64_t rotated =
      self_contained ? 0 : f.integer_or({"rotary_dim"}, config.head_dim, 1, config.head_dim);
  DecoderSpec s = common_spec(config, static_cast<size_t>(rotated));
  s.norm = NormKind::kRmsOnePlus;
  norm_heads(s);
  // Published configs have a nested object for sparse attention.
  const ConfigFields own = nested_fields(config, "sparse_attention_config");
  const auto size = [&](const char* name, const char* inside, int64_t fallback, int64_t least) {
    return static_cast<size_t>(
        own.integer_or({inside}, f.integer_or({name}, fallback, least, 1 << 20), least, 1 << 20));
  };
  ChoiceSpec choice;
  IndexerSpec& index = choice.indexer;
  index.by_head = true;
  index.heads = size("index_n_heads", "sparse_num_index_heads", 4, 1);
  index.head_dim = size("index_head_dim", "sparse_index_dim", 128, 1);
  index.block = size("index_block_size", "sparse_block_size", 128, 1);
  index.top_k = size("index_topk_blocks", "sparse_topk_blocks", 16, 1) * index.block;
  index.local = size("index_local_blocks", "sparse_local_block", 1, 0);
  const std::vector<int64_t> flags = own.integers({"sparse_attention_freq"}, 0, 1);
  const std::vector<bool> sparse = layers_called(
      config, "minimax_m3_sparse", [&](size_t i) { return i < flags.size() && flags[i] != 0; });
  if (std::find(sparse.begin(), sparse.end(), true) == sparse.end()) return s;
  if (index.heads != static_cast<size_t>(config.kv_heads))
    fail("{}: is {}; expected one for each of {} key-value heads", f.label("index_n_heads"),
         index.heads, config.kv_heads);
  if (index.head_dim < s.rope.dims)
    fail("{}: is {}; expected at least the {} rotated features of a head",
         f.label("index_head_dim"), index.head_dim, s.rope.dims);
  if (const int64_t value = own.integer_or({"sparse_disable_index_value"}, 1, 0, 1); value == 0)
    fail("{}: is 0; indexers with values cannot be run yet",
         own.label("sparse_disable_index_value"));
  for (size_t i = 0; i < sparse.size(); ++i)
    if (sparse[i]) s.keys(i).choice = choice;
  return s;
}

}  // namespace moebius
