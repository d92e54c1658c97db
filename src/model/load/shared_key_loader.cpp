// SPDX-License-Identifier: Apache-2.0
// Loads attention with one key for all heads that is also its value, and compressed keys behind a
// window. Names are those of the published files, or transformers'.
#include <array>

#include "checkpoint/families.h"
#include "model/load/attention_loader.h"

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

std::unique_ptr<CompressorOp> AttentionLoader::load_compressor(const char* stems,
                                                               const CompressorSpec& spec_of_keys,
                                                               bool packed, const KvOffset& keys,
                                                               const KvOffset& sources) const {
  const size_t width = spec_of_keys.width;
  CompressorRequest r;
  r.spec = spec_of_keys;
  r.storage = stored();
  r.packed = packed;
  r.keys = keys;
  r.sources = sources;
  r.bias = parts.values(parts.first_of(joined(stems, "ape position_bias")),
                        r.spec.ratio * r.spec.parts() * width);
  r.norm = norm(parts.first_of(joined(stems, "norm kv_norm")), width);
  r.rope = m_.shared_key->rope;
  r.rotated = m_.shared_key->rotated;
  r.rotated_at = width - r.rotated;
  return layer.device->compressor(std::move(r));
}

SharedKeyAttention AttentionLoader::load_shared_keys() {
  using enum LayerRows;
  const SharedKeySpec& shared = *m_.shared_key;
  const size_t heads = n_.heads, d = n_.head_dim, rotated = shared.rotated;
  const CompressedKv& at_places = places().compressed;
  SharedKeyAttention m;
  m.query_latent = shared.query;
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
  add("attn.wq_a self_attn.q_a_proj", shared.query, "q_lora_rank");
  const size_t key_at = add("attn.wkv self_attn.kv_proj", d, "head_dim");
  const auto compressor = [&](const char* stems, const CompressorSpec& s, bool packed,
                              const KvOffset& keys, const KvOffset& sources) {
    SharedKeyAttention::Compressed made;
    made.at = add(joined(stems, "wkv kv_proj"), s.parts() * s.width, "head_dim");
    add(joined(stems, "wgate gate_proj"), s.parts() * s.width, "head_dim");
    made.width = s.source_width();
    made.keys = load_compressor(stems, s, packed, keys, sources);
    return made;
  };
  if (shared.ratio != 0)
    m.compressed =
        compressor(kCompressorNames, m_.compressor(), false, at_places.keys, at_places.sources);
  if (m_.makes_choice()) {
    const IndexerSpec& s = m_.choice->indexer;
    m.index = SharedKeyAttention::Index{};  // clang 14 has no emplace() for a member's own struct
    SharedKeyAttention::Index& to = *m.index;
    to.compressed = compressor(kIndexNames, m_.choice->compressor(), true, at_places.index_keys,
                               at_places.index_sources);
    to.heads = s.heads;
    to.weights_at =
        add("attn.indexer.weights_proj self_attn.compressor.indexer.scorer.weights_proj", s.heads,
            "index_n_heads");
    const Module& query =
        module_of(parts, "attn.indexer.wq_b self_attn.compressor.indexer.q_b_proj");
    expect_width(query, s.heads * s.head_dim, "index_n_heads and index_head_dim");
    to.query = linear({{&query, {}}});
    RowOp rotate{RowOpKind::kRotate, last_features(0, s.heads, s.head_dim, rotated)};
    rotate.rope = m_.choice->rope;
    to.rows = layer.device->rows({std::move(rotate)});
    to.indexer = layer.device->indexer(s, stored(), at_places.index_keys);
  }
  m.down = linear(down);

  const auto norm_of = [&](RowView y, RowView x, const char* words) {
    return norm_op(y, x, norm(parts.first_of(words), y.width));
  };
  const std::array key_rows = {RowColumns{kKey, {2, 0, d}, last_features(2, 1, d, rotated)}};
  const std::array query_rows = {RowColumns{kQuery, {0, 0, heads * d}, {0, 0, d, heads, d}}};
  const std::array turned = {
      RowColumns{kQuery, {0, 0, heads * d}, last_features(0, heads, d, rotated)},
      RowColumns{kAttended, {0, 0, heads * d}, last_features(0, heads, d, rotated)}};
  LayerOps on_key, norms, turns;
  for (const LayerOp& op : m_.rows)
    (op.y == kKey ? on_key : op.kind == RowOpKind::kNorm ? norms : turns).push_back(op);
  std::vector<RowOp> latents = {
      norm_of({1, 0, shared.query}, {0, 0, shared.query},
              "attn.q_norm self_attn.q_a_norm self_attn.q_norm attn.q_a_norm"),
      norm_of({2, 0, d}, {0, key_at, d},
              "attn.kv_norm self_attn.kv_norm attn.norm self_attn.norm")};
  for (RowOp& op : row_ops(on_key, key_rows, parts, c.spec)) latents.push_back(std::move(op));
  m.latents = layer.device->rows(std::move(latents));
  std::vector<RowOp> queries = row_ops(norms, query_rows, parts, c.spec);
  for (RowOp& op : row_ops(turns, turned, parts, c.spec)) queries.push_back(std::move(op));
  m.queries = layer.device->rows(std::move(queries));
  m.attended = program(m_.attended, turned);

  const Module& query = module_of(parts, "attn.wq_b self_attn.q_b_proj");
  expect_width(query, heads * d, "heads and head_dim");
  m.query = linear({{&query, {}}});
  const Module& low = module_of(parts, "attn.wo_a self_attn.o_a_proj");
  expect_width(low, shared.groups * shared.rank, "o_groups and o_lora_rank");
  for (size_t g = 0; g < shared.groups; ++g)
    m.low.push_back(linear({{&low, {g * shared.rank, (g + 1) * shared.rank}}}));
  m.low_width = shared.groups * shared.rank;
  m.output = linear({{&module_of(parts, "attn.wo_b self_attn.o_b_proj"), {}}});
  m.attention = layer.device->attention(request(false));
  return m;
}

}  // namespace moebius
