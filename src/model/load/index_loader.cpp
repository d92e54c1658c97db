// SPDX-License-Identifier: Apache-2.0
// Loads the operations that choose the keys of sparse attention.
#include "base/error.h"
#include "model/load/layer_set_loader.h"
#include "model/load/row_lists.h"

namespace moebius {

// Loads keys and queries of an indexer: from the rows and the latent of q, with a LayerNorm of the
// keys (DeepSeek-V3.2), or from the rows alone, with norms like attention's (MiniMax-M3).
std::unique_ptr<AttentionIndex> LayerSetLoader::load_index(const LayerParts& parts,
                                                           GraphLayer& layer) {
  const size_t index = parts.index();
  const IndexerSpec& s = spec_.indexer;
  if (s.pooled) return load_pooled_index(parts, layer);
  const auto stem = [&](const char* member) {  // the published name, else transformers'
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

// Loads an indexer whose keys stand for several tokens: weighed by gates of the rows (GLM-5.3), or
// averaged, with queries and keys from one projection (Qwen4).
std::unique_ptr<AttentionIndex> LayerSetLoader::load_pooled_index(const LayerParts& parts,
                                                                  GraphLayer& layer) {
  const size_t index = parts.index(), hidden = to_->hidden;
  const IndexerSpec& s = spec_.indexer;
  const size_t d = s.head_dim, wide = s.heads * d;
  const auto name = [&](const char* member) { return attention_name(spec_, "indexer.") + member; };
  const KvType stored = storage_of(checkpoint_, spec_, index, kv_options_).type;
  auto m = std::make_unique<AttentionIndex>();
  m->pools = AttentionIndex::Pools{};  // clang 14 has no emplace() for a member's own struct
  AttentionIndex::Pools& pools = *m->pools;
  CompressorRequest keys;
  keys.spec = index_compressor_of(spec_);
  keys.storage = stored;
  keys.packed = true;
  keys.keys = kv_.compressed[index].index_keys;
  keys.sources = kv_.compressed[index].index_sources;
  std::vector<RowOp> ops;
  if (spec_.pool_gates != nullptr) {
    const Module &q = parts.require(name("wq_b")), &k = parts.require(name("wk")),
                 &w = parts.require(name("weights_proj"));
    expect_width(q, wide, "index_n_heads and index_head_dim");
    expect_width(k, d, "index_head_dim"), expect_width(w, s.heads, "index_n_heads");
    pools.weights = s.heads;
    m->query = linear(layer, {{&q}}), m->key_weights = linear(layer, {{&w}, {&k}});
    const RowView key{0, s.heads, d};
    ops.push_back(
        norm_op(key, key, parts.norm(name("k_norm"), NormKind::kLayer, spec_.indexer_epsilon, d)));
    keys.bias = parts.values(attention_name(spec_, spec_.pool_bias), s.ratio * d);
    const std::string tensor = attention_name(spec_, spec_.pool_gates);
    const std::vector<float> weights = parts.values(tensor, d * hidden);
    pools.gates = layer.device->head_linear(
        {1, d, hidden, CodeType::kF32, hidden, d,
         [&](size_t, size_t n, size_t i) { return weights[n * hidden + i]; },
         fmt::format("{} of layer {}", tensor, index)});
    layer.dense_bytes += pools.gates->packed_bytes();
  } else {
    const Module& both = parts.require(name("index_qk_proj"));
    expect_width(both, wide + d, "indexer_n_heads and indexer_head_dim");
    m->query = linear(layer, {{&both, {0, wide}}});
    m->key_weights = linear(layer, {{&both, {wide, wide + d}}});
    const auto norm = [&](const char* member) {
      return parts.norm(name(member), spec_.norm, spec_.norm_epsilon, d);
    };
    const RowView queries = heads_view(1, s.heads, d);
    ops = {norm_op(queries, queries, norm("q_layernorm")), {RowOpKind::kRotate, queries}};
    ops.back().rope = keys.rope = spec_.indexer_rope;
    keys.norm = norm("k_layernorm");
    keys.rotated = spec_.rope.dims;
  }
  m->rows = layer.device->rows(std::move(ops));
  pools.keys = layer.device->compressor(std::move(keys));
  m->indexer = layer.device->indexer(s, stored, kv_.indexers[index]);
  return m;
}

}  // namespace moebius
