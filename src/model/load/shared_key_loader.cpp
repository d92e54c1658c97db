// SPDX-License-Identifier: Apache-2.0
// Loads attention with one key for all heads that is also its value, and compressed keys behind a
// window. Names are those of the published files, or transformers'.
#include <array>

#include "checkpoint/families.h"
#include "model/load/layer_set_loader.h"
#include "model/load/row_lists.h"

namespace moebius {
namespace {

constexpr const char* kCompressorNames = "attn.compressor. self_attn.compressor.";
constexpr const char* kIndexNames = "attn.indexer.compressor. self_attn.compressor.indexer.";

// Returns a module of the layer by alternative names.
const Module& module_of(const LayerParts& parts, std::string_view words) {
  return parts.require(parts.first_of(words));
}

// Combines words such as "a. b." and "wkv kv_proj": every prefix with every name.
std::string joined(std::string_view stems, std::string_view names) {
  std::string words;
  for_each_word(stems, [&](std::string_view stem, bool) {
    for_each_word(names, [&](std::string_view name, bool) {
      words.append(words.empty() ? "" : " ").append(stem).append(name);
    });
  });
  return words;
}

RowView last_features(size_t operand, size_t heads, size_t d, size_t n) {
  return {operand, d - n, n, heads, d};
}

}  // namespace

SharedKeyAttention LayerSetLoader::load_shared_keys(const LayerParts& parts, GraphLayer& layer) {
  using enum LayerRows;
  const size_t index = parts.index(), heads = spec_.heads, d = spec_.head_dim,
               rotated = spec_.rope_dim;
  const LayerSpec& spec = spec_.layers[index];
  const SharedKeySpec& out = *spec_.shared_key;
  const CompressedPlaces& places = kv_.compressed[index];
  const KvType stored = storage_of(checkpoint_, spec_, index, kv_options_).type;
  SharedKeyAttention m;
  m.query_latent = spec_.q_lora;
  m.query_width = heads * d;
  m.key_width = d;
  std::vector<ModuleOutputs> down;
  size_t at = 0;
  const auto add = [&](std::string_view words, size_t width, const char* what) {
    const Module& module = module_of(parts, words);
    expect_width(module, width, what);
    down.push_back({&module, {}});
    at += width;
    return at - width;
  };
  add("attn.wq_a self_attn.q_a_proj", spec_.q_lora, "q_lora_rank");
  const size_t key_at = add("attn.wkv self_attn.kv_proj", d, "head_dim");
  const auto compressor = [&](const char* stems, const CompressorSpec& c, bool packed,
                              const KvPlace& keys, const KvPlace& sources) {
    SharedKeyAttention::Compressed made;
    made.at = add(joined(stems, "wkv kv_proj"), c.parts() * c.width, "head_dim");
    add(joined(stems, "wgate gate_proj"), c.parts() * c.width, "head_dim");
    made.width = c.source_width();
    CompressorRequest r;
    r.spec = c;
    r.storage = stored;
    r.packed = packed;
    r.keys = keys;
    r.sources = sources;
    r.bias = parts.values(parts.first_of(joined(stems, "ape position_bias")),
                          c.ratio * c.parts() * c.width);
    r.norm = parts.norm(parts.first_of(joined(stems, "norm kv_norm")), spec_.norm,
                        spec_.norm_epsilon, c.width);
    r.rope = spec_.indexer_rope;
    r.rotated = rotated;
    r.rotated_at = c.width - rotated;
    made.keys = layer.device->compressor(std::move(r));
    return made;
  };
  if (spec.ratio != 0)
    m.compressed = compressor(kCompressorNames, compressor_of(spec_, index), false, places.keys,
                              places.sources);
  if (spec.indexes) {
    const IndexerSpec& s = spec_.indexer;
    m.index = SharedKeyAttention::Index{};  // clang 14 has no emplace() for a member's own struct
    SharedKeyAttention::Index& to = *m.index;
    to.compressed = compressor(kIndexNames, index_compressor_of(spec_), true, places.index_keys,
                               places.index_sources);
    to.heads = s.heads;
    to.weights_at =
        add("attn.indexer.weights_proj self_attn.compressor.indexer.scorer.weights_proj", s.heads,
            "index_n_heads");
    const Module& query =
        module_of(parts, "attn.indexer.wq_b self_attn.compressor.indexer.q_b_proj");
    expect_width(query, s.heads * s.head_dim, "index_n_heads and index_head_dim");
    to.query = linear(layer, {{&query, {}}});
    RowOp rotate{RowOpKind::kRotate, last_features(0, s.heads, s.head_dim, rotated)};
    rotate.rope = spec_.indexer_rope;
    to.rows = layer.device->rows({std::move(rotate)});
    to.indexer = layer.device->indexer(s, stored, places.index_keys);
  }
  m.down = linear(layer, down);

  const auto norm = [&](RowView y, RowView x, const char* words) {
    RowOp op{RowOpKind::kNorm, y, x};
    op.norm = parts.norm(parts.first_of(words), spec_.norm, spec_.norm_epsilon, y.width);
    return op;
  };
  const std::array key_rows = {RowPlace{kKey, {2, 0, d}, last_features(2, 1, d, rotated)}};
  const std::array query_rows = {RowPlace{kQuery, {0, 0, heads * d}, {0, 0, d, heads, d}}};
  const std::array turned = {
      RowPlace{kQuery, {0, 0, heads * d}, last_features(0, heads, d, rotated)},
      RowPlace{kAttended, {0, 0, heads * d}, last_features(0, heads, d, rotated)}};
  LayerOps on_key, norms, turns;
  for (const LayerOp& op : spec.attention_rows)
    (op.y == kKey ? on_key : op.kind == RowOpKind::kNorm ? norms : turns).push_back(op);
  std::vector<RowOp> latents = {
      norm({1, 0, spec_.q_lora}, {0, 0, spec_.q_lora},
           "attn.q_norm self_attn.q_a_norm self_attn.q_norm attn.q_a_norm"),
      norm({2, 0, d}, {0, key_at, d}, "attn.kv_norm self_attn.kv_norm attn.norm self_attn.norm")};
  for (RowOp& op : row_ops(on_key, key_rows, parts, spec_)) latents.push_back(std::move(op));
  m.latents = layer.device->rows(std::move(latents));
  std::vector<RowOp> queries = row_ops(norms, query_rows, parts, spec_);
  for (RowOp& op : row_ops(turns, turned, parts, spec_)) queries.push_back(std::move(op));
  m.queries = layer.device->rows(std::move(queries));
  m.attended = layer.device->rows(row_ops(spec.attended, turned, parts, spec_));

  const Module& query = module_of(parts, "attn.wq_b self_attn.q_b_proj");
  expect_width(query, heads * d, "heads and head_dim");
  m.query = linear(layer, {{&query, {}}});
  const Module& low = module_of(parts, "attn.wo_a self_attn.o_a_proj");
  expect_width(low, out.groups * out.rank, "o_groups and o_lora_rank");
  for (size_t g = 0; g < out.groups; ++g)
    m.low.push_back(linear(layer, {{&low, {g * out.rank, (g + 1) * out.rank}}}));
  m.low_width = out.groups * out.rank;
  m.output = linear(layer, {{&module_of(parts, "attn.wo_b self_attn.o_b_proj"), {}}});
  m.attention = layer.device->attention(attention_request(parts, false));
  return m;
}

}  // namespace moebius
