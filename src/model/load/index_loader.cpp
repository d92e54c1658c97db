// SPDX-License-Identifier: Apache-2.0
// Loads the operations that choose the keys of sparse attention.
#include "base/error.h"
#include "model/load/attention_loader.h"

namespace moebius {

// Loads keys and queries of an indexer: from the rows and the latent of q, with a LayerNorm of the
// keys (DeepSeek-V3.2), or from the rows alone, with norms like attention's (MiniMax-M3).
std::unique_ptr<AttentionIndex> AttentionLoader::load_index() const {
  const ChoiceSpec& choice = *m_.choice;
  const IndexerSpec& s = choice.indexer;
  if (s.pooled) return load_pooled_index();
  const auto stem = [&](const char* member) {  // the published name, else transformers'
    const std::string published = m_.name("index_") + member;
    return parts.find(published) != nullptr ? published : m_.name("indexer.") + member;
  };
  const Module &q = parts.require(stem(s.by_head ? "q_proj" : "wq_b")),
               &k = parts.require(stem(s.by_head ? "k_proj" : "wk"));
  expect_width(q, s.heads * s.head_dim, "index_n_heads and index_head_dim");
  expect_width(k, s.head_dim, "index_head_dim");
  auto m = std::make_unique<AttentionIndex>();
  m->query = linear({{&q}});
  const RowView key{0, 0, s.head_dim, 1, s.head_dim}, queries = heads_view(1, s.heads, s.head_dim);
  std::vector<RowOp> ops;
  if (s.by_head) {
    m->key_weights = linear({{&k}});
    ops = {norm_op(key, key, norm(stem("k_norm"), s.head_dim)),
           norm_op(queries, queries, norm(stem("q_norm"), s.head_dim))};
  } else {
    const Module& w = parts.require(stem("weights_proj"));
    expect_width(w, s.heads, "index_n_heads");
    m->key_weights = linear({{&k}, {&w}});
    ops = {norm_op(key, key,
                   parts.norm(stem("k_norm"), NormKind::kLayer, choice.epsilon, s.head_dim))};
  }
  if (choice.scales != nullptr) {
    RowOp op{RowOpKind::kHeadScale, queries};
    op.values = load_position_scales(parts, m_.name(choice.scales), s.heads);
    ops.push_back(std::move(op));
  }
  if (choice.input_norm != nullptr)
    m->query_input = layer.device->rows({norm_op(
        {1}, {0},
        parts.norm(m_.name(choice.input_norm), NormKind::kLayer, choice.epsilon, c.to->hidden))});
  for (RowView y : {key, queries}) {
    if (m_.latent && m_.latent->rotated == 0) continue;
    if (choice.rotates_last) y.at += s.head_dim - m_.latent->rotated;
    RowOp op{RowOpKind::kRotate, y};
    op.rope = choice.rope;
    ops.push_back(std::move(op));
  }
  m->rows = layer.device->rows(std::move(ops));
  m->indexer = layer.device->indexer(s, stored(), places().indexer);
  return m;
}

// Loads an indexer whose keys stand for several tokens: weighed by gates of the rows (GLM-5.3), or
// averaged, with queries and keys from one projection (Qwen4).
std::unique_ptr<AttentionIndex> AttentionLoader::load_pooled_index() const {
  const ChoiceSpec& choice = *m_.choice;
  const IndexerSpec& s = choice.indexer;
  const size_t hidden = c.to->hidden, d = s.head_dim, wide = s.heads * d;
  const auto name = [&](const char* member) { return m_.name("indexer.") + member; };
  auto m = std::make_unique<AttentionIndex>();
  m->pools = AttentionIndex::Pools{};  // clang 14 has no emplace() for a member's own struct
  AttentionIndex::Pools& pools = *m->pools;
  CompressorRequest keys;
  keys.spec = choice.compressor();
  keys.storage = stored();
  keys.packed = true;
  keys.keys = places().compressed.index_keys;
  keys.sources = places().compressed.index_sources;
  std::vector<RowOp> ops;
  if (choice.pool_gates != nullptr) {
    const Module &q = parts.require(name("wq_b")), &k = parts.require(name("wk")),
                 &w = parts.require(name("weights_proj"));
    expect_width(q, wide, "index_n_heads and index_head_dim");
    expect_width(k, d, "index_head_dim");
    expect_width(w, s.heads, "index_n_heads");
    pools.weights = s.heads;
    m->query = linear({{&q}});
    m->key_weights = linear({{&w}, {&k}});
    const RowView key{0, s.heads, d};
    ops.push_back(
        norm_op(key, key, parts.norm(name("k_norm"), NormKind::kLayer, choice.epsilon, d)));
    keys.bias = parts.values(m_.name(choice.pool_bias), s.ratio * d);
    const std::string tensor = m_.name(choice.pool_gates);
    const std::vector<float> weights = parts.values(tensor, d * hidden);
    pools.gates = layer.device->head_linear(
        {1, d, hidden, CodeType::kF32, hidden, d,
         [&](size_t, size_t n, size_t i) { return weights[n * hidden + i]; },
         fmt::format("{} of layer {}", tensor, index)});
    layer.dense_bytes += pools.gates->packed_bytes();
  } else {
    const Module& both = parts.require(name("index_qk_proj"));
    expect_width(both, wide + d, "indexer_n_heads and indexer_head_dim");
    m->query = linear({{&both, {0, wide}}});
    m->key_weights = linear({{&both, {wide, wide + d}}});
    const RowView queries = heads_view(1, s.heads, d);
    ops = {norm_op(queries, queries, norm(name("q_layernorm"), d)), {RowOpKind::kRotate, queries}};
    ops.back().rope = keys.rope = choice.rope;
    keys.norm = norm(name("k_layernorm"), d);
    keys.rotated = c.spec.rope.dims;
  }
  m->rows = layer.device->rows(std::move(ops));
  pools.keys = layer.device->compressor(std::move(keys));
  m->indexer = layer.device->indexer(s, stored(), places().indexer);
  return m;
}

}  // namespace moebius
