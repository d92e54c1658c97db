// SPDX-License-Identifier: Apache-2.0
// What chooses the keys of sparse attention.
#include "base/error.h"
#include "model/load/layer_set_loader.h"
#include "model/load/row_lists.h"

namespace moebius {

// Keys and queries of an indexer of its own names: of the rows and of the q latent with a LayerNorm of
// the keys (DeepSeek-V3.2), or of the rows alone with norms as attention's (MiniMax-M3).
std::unique_ptr<AttentionIndex> LayerSetLoader::load_index(const LayerParts& parts,
                                                           GraphLayer& layer) {
  const size_t index = parts.index();
  const IndexerSpec& s = spec_.indexer;
  const auto stem = [&](const char* member) {  // as published, else as transformers names it
    const std::string published = attention_name(spec_, "index_") + member;
    return parts.find(published) != nullptr ? published
                                            : attention_name(spec_, "indexer.") + member;
  };
  const Module &q = parts.require(stem(s.by_head ? "q_proj" : "wq_b")),
               &k = parts.require(stem(s.by_head ? "k_proj" : "wk"));
  expect_width(q, s.heads * s.head_dim, "index_n_heads and index_head_dim");
  expect_width(k, s.head_dim, "index_head_dim");
  auto m = std::make_unique<AttentionIndex>();
  m->query = linear(layer, {{&q}});
  const RowView key{0, 0, s.head_dim, 1, s.head_dim}, queries = heads_view(1, s.heads, s.head_dim);
  const auto norm = [&](const RowView& y, const char* member, NormKind kind, float epsilon) {
    return norm_op(y, y, parts.norm(stem(member), kind, epsilon, s.head_dim));
  };
  std::vector<RowOp> ops;
  if (s.by_head) {
    m->key_weights = linear(layer, {{&k}});
    ops = {norm(key, "k_norm", spec_.norm, spec_.norm_epsilon),
           norm(queries, "q_norm", spec_.norm, spec_.norm_epsilon)};
  } else {
    const Module& w = parts.require(stem("weights_proj"));
    expect_width(w, s.heads, "index_n_heads");
    m->key_weights = linear(layer, {{&k}, {&w}});
    ops = {norm(key, "k_norm", NormKind::kLayer, spec_.indexer_epsilon)};
  }
  if (spec_.indexer_scales != nullptr) {
    RowOp op{RowOpKind::kHeadScale, queries};
    op.values = load_position_scales(parts, attention_name(spec_, spec_.indexer_scales), s.heads);
    ops.push_back(std::move(op));
  }
  if (spec_.indexer_input_norm != nullptr)
    m->query_input = layer.device->rows(
        {norm_op({1}, {0},
                 parts.norm(attention_name(spec_, spec_.indexer_input_norm), NormKind::kLayer,
                            spec_.indexer_epsilon, to_->hidden))});
  for (RowView y : {key, queries}) {
    if (spec_.layers[index].no_rotated_part) continue;
    if (spec_.indexer_rotates_last) y.at += s.head_dim - spec_.rope_dim;
    RowOp op{RowOpKind::kRotate, y};
    op.rope = spec_.indexer_rope;
    ops.push_back(std::move(op));
  }
  m->rows = layer.device->rows(std::move(ops));
  m->indexer = layer.device->indexer(s, storage_of(checkpoint_, spec_, index, kv_options_).type,
                                     kv_.indexers[index]);
  return m;
}

}  // namespace moebius
