// SPDX-License-Identifier: Apache-2.0
// What an architecture says of attention, as operations: the parts of its projections, their norms and
// rotation become one list of row operations per layer.
#include <algorithm>
#include <array>
#include <iterator>

#include "base/error.h"
#include "checkpoint/families.h"
#include "checkpoint/formats/format.h"
#include "model/graph/gathered_ops.h"
#include "model/load/layer_set_loader.h"
#include "model/load/recurrent_loader.h"
#include "model/load/row_lists.h"
#include "model/ranks.h"
#include "quant/quant_access.h"

namespace moebius {
namespace {

RowOp norm_op(RowView y, RowView x, Norm norm) {
  RowOp op{RowOpKind::kNorm, y, x};
  op.norm = std::move(norm);
  return op;
}

RowOp copy_op(RowView y, RowView x) { return {RowOpKind::kCopy, y, x}; }

// Norms over the whole of a projection: of ranks that share heads, each needs all of them.
bool norms_all_heads(const LayerOp& op) { return op.kind == RowOpKind::kNorm && !op.per_head; }

// Heads of `d` columns that lie side by side.
RowView heads_view(size_t operand, size_t heads, size_t d) { return {operand, 0, d, heads, d}; }

}  // namespace

Mixer LayerSetLoader::load_mixer(const LayerParts& parts, GraphLayer& layer) {
  if (spec_.layers[parts.index()].recurrent) return load_recurrent_mixer(parts, layer);
  if (spec_.shared_key) return load_shared_keys(parts, layer);
  if (spec_.latent()) return load_latents(parts, layer);
  return load_heads(parts, layer);
}

Linear LayerSetLoader::attention_output(const LayerParts& parts, GraphLayer& layer) {
  const Module* module = nullptr;
  std::string name;
  for_each_word(spec_.names.output, [&](std::string_view word, bool) {
    if (module == nullptr) name = attention_name(spec_, word), module = parts.find(name);
  });
  if (module == nullptr) parts.require(name);
  const Range columns = part_.cuts_heads ? part_.columns[part_.ranks->member()] : Range{};
  Linear output = linear(layer, {{module, columns}});
  if (!part_.cuts_heads) return output;
  return gather_output(std::move(output), *part_.ranks, part_.values_of(parts.index()),
                       part_.columns, to_->type, parts.index());
}

AttentionRequest LayerSetLoader::attention_request(const LayerParts& parts, bool absorbed) const {
  const size_t index = parts.index();
  AttentionRequest r{attention_spec(spec_, index, absorbed),
                     storage_of(checkpoint_, spec_, index, kv_options_),
                     kv_.layers[index],
                     is_sparse(spec_, index),
                     part_.kv_heads_of(index, 1).begin,
                     nullptr,
                     kv_.compressed[index].keys};
  if (!spec_.layers[index].sinks) return r;
  r.spec.sinks = parts.values(parts.first_of(spec_.sinks), part_.whole.sizes(index).heads);
  if (const Range own = part_.heads_of(index, 1); own.size() > 0)
    r.spec.sinks = {r.spec.sinks.begin() + static_cast<std::ptrdiff_t>(own.begin),
                    r.spec.sinks.begin() + static_cast<std::ptrdiff_t>(own.end)};
  return r;
}

// {qkv, q, k, v, gate}. all_heads: q and k of all ranks' heads are here, because their norm reads them
// before they are parted.
std::vector<RowOp> LayerSetLoader::head_input(const LayerParts& parts, bool all_heads,
                                              size_t qkv_width) const {
  using enum LayerRows;
  const size_t index = parts.index();
  const DecoderSpec& s = spec_;
  const LayerSpec& layer = s.layers[index];
  const HeadSizes n = s.sizes(index), all = part_.whole.sizes(index);
  const bool keys = layer.kv_from == 0, gate_in_query = s.gates && s.gates->projection == nullptr;
  const size_t d = n.head_dim, nq = n.heads * d, nk = n.kv_heads * d, nv = n.kv_heads * n.value_dim;
  const size_t all_q = all_heads ? all.heads * d : nq * (gate_in_query ? 2 : 1),
               all_k = !keys       ? 0
                       : all_heads ? all.kv_heads * d
                                   : nk,
               q_at = part_.heads_of(index, d).begin, k_at = part_.kv_heads_of(index, d).begin;
  enum : size_t { kQkvRows, kQ, kK, kV, kGates };

  LayerOps list = layer.attention_rows;
  std::vector<RowOp> ops;
  if (all_heads) {
    LayerOps first;
    std::copy_if(list.begin(), list.end(), std::back_inserter(first), norms_all_heads);
    std::erase_if(list, norms_all_heads);
    const std::array places = {RowPlace{kQuery, {kQkvRows, 0, all_q}},
                               RowPlace{kKey, {kQkvRows, all_q, all_k}}};
    ops = row_ops(first, places, parts, s);
  }
  if (gate_in_query) {  // [q | gate] per head
    ops.push_back(copy_op(heads_view(kQ, n.heads, d), {kQkvRows, 0, d, n.heads, 2 * d}));
    ops.push_back(copy_op(heads_view(kGates, n.heads, d), {kQkvRows, d, d, n.heads, 2 * d}));
  } else {
    ops.push_back(copy_op({kQ, 0, nq}, {kQkvRows, all_heads ? q_at : 0, nq}));
  }
  if (keys) {
    const size_t at = all_q + (all_heads ? k_at : 0);
    ops.push_back(copy_op({kK, 0, nk}, {kQkvRows, at, nk}));
    ops.push_back(copy_op({kV, 0, nv}, {kQkvRows, layer.values_are_keys ? at : all_q + all_k, nv}));
  }
  if (s.gates && !gate_in_query) {
    const size_t gates = gate_width(index);
    ops.push_back(copy_op({kGates, 0, gates}, {kQkvRows, qkv_width - gates, gates}));
  }
  const std::array places = {heads_at(kQuery, kQ, n.heads, d), heads_at(kKey, kK, n.kv_heads, d),
                             heads_at(kValue, kV, n.kv_heads, n.value_dim)};
  for (RowOp& op : row_ops(list, places, parts, s)) ops.push_back(std::move(op));
  return ops;
}

size_t LayerSetLoader::gate_width(size_t layer) const {
  const HeadSizes n = spec_.sizes(layer);
  return spec_.gates ? n.heads * (spec_.gates->per_head ? 1 : n.value_dim) : 0;
}

// {gate, attended}
Program LayerSetLoader::gate_program(const LayerParts& parts, GraphLayer& layer, size_t gates,
                                     size_t attended) const {
  const size_t index = parts.index(), heads = spec_.sizes(index).heads, each = gates / heads;
  RowPlace gate = heads_at(LayerRows::kGate, 0, heads, each);
  gate.first_head = part_.heads_of(index, 1).begin;
  gate.all_heads = part_.whole.sizes(index).heads;
  const std::array places = {gate, heads_at(LayerRows::kAttended, 1, heads, attended / heads)};
  return layer.device->rows(row_ops(spec_.layers[index].attended, places, parts, spec_));
}

HeadAttention LayerSetLoader::load_heads(const LayerParts& parts, GraphLayer& layer) {
  const size_t index = parts.index();
  const DecoderSpec& s = spec_;
  const LayerSpec& spec = s.layers[index];
  const HeadSizes all = part_.whole.sizes(index), n = s.sizes(index);
  HeadAttention m;
  m.keys = spec.kv_from == 0;
  const bool values = !spec.values_are_keys;
  const bool gate_in_query = s.gates && s.gates->projection == nullptr,
             all_heads =
                 part_.cuts_heads && std::any_of(spec.attention_rows.begin(),
                                                 spec.attention_rows.end(), norms_all_heads);
  if (all_heads && (gate_in_query || !values))
    fail("layer {}: q_norm and k_norm over all heads with {} cannot be cut for ranks; use --pp",
         index, gate_in_query ? "gates inside q_proj" : "values that are keys");
  const auto find = [&](const char* member) { return &parts.require(attention_name(s, member)); };
  std::vector<ModuleOutputs> modules;
  const auto add = [&](const Module* module, size_t width, Range own, const char* what) {
    expect_width(*module, width, what);
    modules.push_back({module, own});
  };
  const auto add_heads = [&](const Module* module, size_t each, bool every) {
    add(module, all.heads * each, every ? Range{} : part_.heads_of(index, each),
        "heads and head_dim");
  };
  const auto add_kv_heads = [&](const Module* module, size_t each, bool every) {
    add(module, all.kv_heads * each, every ? Range{} : part_.kv_heads_of(index, each),
        "key-value heads and head_dim");
  };
  add_heads(find("q_proj"), all.head_dim * (gate_in_query ? 2 : 1), all_heads);
  if (m.keys) add_kv_heads(find("k_proj"), all.head_dim, all_heads);
  if (m.keys && values) add_kv_heads(find("v_proj"), all.value_dim, false);
  if (s.gates && !gate_in_query)
    add_heads(&parts.require(s.gates->projection), s.gates->per_head ? 1 : all.value_dim, false);
  m.qkv = linear(layer, modules);
  m.query_width = n.heads * n.head_dim, m.key_width = n.kv_heads * n.head_dim;
  m.value_width = n.kv_heads * n.value_dim, m.out_width = n.heads * n.value_dim;
  m.input = layer.device->rows(head_input(parts, all_heads, m.qkv->out_features()));
  m.gate_width = gate_width(index);
  if (s.gates) m.gate = gate_program(parts, layer, m.gate_width, m.out_width);
  m.output = attention_output(parts, layer);
  if (spec.indexes) m.index = load_index(parts, layer);
  m.attention = layer.device->attention(attention_request(parts, true));
  return m;
}

// Absorbed: scores of a head are q k = q (W_k c) = (W_k^T q) c, and its result W_v (sum p c), with c
// the latent of a token. So keys and values of all heads are the latents.
void LayerSetLoader::absorb(const Module& kv_b, size_t index, GraphLayer& layer,
                            LatentAttention& m) {
  LoadBuffer memory;
  const DecoderSpec& s = spec_;
  const size_t head = s.nope_dim + s.value_dim, dk = s.key_dim(index), heads = s.sizes(index).heads,
               key = s.kv_lora + s.rope_dim;
  const Range rows = part_.heads_of(index, head);
  const bool cut = rows.size() > 0, read_rows = cut && can_cut_rows(kv_b.plan);
  QuantMatrix w = reader_for(kv_b.plan.scheme.format)
                      .load(read_rows ? rows_of(kv_b.plan, rows.begin, rows.end) : kv_b.plan,
                            checkpoint_.store(), memory);
  if (cut && !read_rows) w = slice_rows(w, rows.begin, rows.end);
  const bool as_stored = w.code == CodeType::kBf16 || w.code == CodeType::kF16;
  const CodeType code = as_stored ? w.code : CodeType::kF32;
  m.query_up = layer.device->head_linear(
      {heads, s.kv_lora, s.nope_dim, code, dk, key,
       [&](size_t h, size_t n, size_t k) { return weight_at(w, h * head + k, n); }});
  m.value_up = layer.device->head_linear(
      {heads, s.value_dim, s.kv_lora, code, s.kv_lora, s.value_dim,
       [&](size_t h, size_t n, size_t k) { return weight_at(w, h * head + s.nope_dim + n, k); }});
  layer.dense_bytes += m.query_up->packed_bytes() + m.value_up->packed_bytes();
  m.absorbed_width = heads * key;
  m.rotated_part = layer.device->rows(
      {copy_op({1, s.kv_lora, s.rope_dim, heads, key}, {0, s.nope_dim, s.rope_dim, heads, dk})});
  options_.progress(cut ? kv_b.bytes / kv_b.plan.N * rows.size() : kv_b.bytes);
}

LatentAttention LayerSetLoader::load_latents(const LayerParts& parts, GraphLayer& layer) {
  const size_t index = parts.index();
  const DecoderSpec& s = spec_;
  const LayerSpec& spec = s.layers[index];
  const HeadSizes n = s.sizes(index);
  const size_t dk = s.key_dim(index);
  LatentAttention m;
  const Module& kv_a = parts.require(attention_name(s, "kv_a_proj_with_mqa"));
  expect_width(kv_a, s.kv_lora + s.rope_dim, "kv_lora_rank and qk_rope_head_dim");
  const auto norm = [&](const char* name, size_t width) {
    return parts.norm(attention_name(s, name), s.norm, s.latent_norm_epsilon, width);
  };
  enum : size_t { kDown, kQueryLatent, kK, kV, kGates };
  std::vector<RowOp> ops;
  std::vector<ModuleOutputs> down;
  const Module* query = nullptr;
  if (s.q_lora > 0) {
    const Module& q_a = parts.require(attention_name(s, "q_a_proj"));
    expect_width(q_a, s.q_lora, "q_lora_rank");
    down.push_back({&q_a});
    query = &parts.require(attention_name(s, "q_b_proj"));
    ops.push_back(norm_op({kQueryLatent, 0, s.q_lora}, {kDown, 0, s.q_lora},
                          norm("q_a_layernorm", s.q_lora)));
  } else {
    query = &parts.require(attention_name(s, "q_proj"));
  }
  down.push_back({&kv_a});
  if (s.gates) {
    const size_t each = s.gates->per_head ? 1 : s.value_dim, at = s.q_lora + s.kv_lora + s.rope_dim;
    const Module& gate = parts.require(s.gates->projection);
    expect_width(gate, part_.whole.heads * each, "heads");
    down.push_back({&gate, part_.heads_of(index, each)});
    m.gate_width = gate_width(index);
    ops.push_back(copy_op({kGates, 0, m.gate_width}, {kDown, at, m.gate_width}));
    m.gate = gate_program(parts, layer, m.gate_width, n.heads * n.value_dim);
  }
  m.down = linear(layer, down);
  m.query = linear(layer, {{query, part_.heads_of(index, dk)}});
  // Keys are [kv latent | rotated part], values the latent alone, both for all heads.
  ops.push_back(
      norm_op({kV, 0, s.kv_lora}, {kDown, s.q_lora, s.kv_lora}, norm("kv_a_layernorm", s.kv_lora)));
  const std::array latent = {RowPlace{LayerRows::kLatent, {kV, 0, s.kv_lora}}};
  for (RowOp& op : row_ops(spec.latent_rows, latent, parts, s)) ops.push_back(std::move(op));
  ops.push_back(copy_op({kK, 0, s.kv_lora}, {kV, 0, s.kv_lora}));
  ops.push_back(copy_op({kK, s.kv_lora, s.rope_dim}, {kDown, s.q_lora + s.kv_lora, s.rope_dim}));
  m.latents = layer.device->rows(std::move(ops));
  m.query_latent = s.q_lora, m.query_width = n.heads * dk, m.key_width = s.kv_lora + s.rope_dim;
  m.value_width = s.kv_lora, m.out_width = n.heads * n.value_dim;

  const std::array places = {
      RowPlace{LayerRows::kQuery, {0, 0, m.query_width}, {0, s.nope_dim, s.rope_dim, n.heads, dk}},
      RowPlace{LayerRows::kKey, {1, 0, m.key_width}, {1, s.kv_lora, s.rope_dim, 1, s.rope_dim}}};
  m.rotate = layer.device->rows(row_ops(spec.attention_rows, places, parts, s));

  const Module& kv_b = parts.require(attention_name(s, kKvUp));
  expect_width(kv_b, part_.whole.heads * (s.nope_dim + s.value_dim),
               "heads, qk_nope_head_dim and v_head_dim");
  const bool absorbed = absorbs(checkpoint_, s, index, kv_options_);
  AttentionRequest request = attention_request(parts, absorbed);
  m.attended_width = request.spec.heads * request.spec.value_dim;
  if (absorbed) {
    absorb(kv_b, index, layer, m);
  } else {
    request.latents = std::make_unique<AttentionRequest::Latents>();
    *request.latents = {s.kv_lora, s.nope_dim, s.rope_dim,
                        linear(layer, {{&kv_b, part_.heads_of(index, s.nope_dim + s.value_dim)}})};
  }
  m.output = attention_output(parts, layer);
  if (spec.indexes) m.index = load_index(parts, layer);
  m.attention = layer.device->attention(std::move(request));
  return m;
}

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
  for (RowView y : {key, queries}) {
    if (spec_.indexer_rotates_last) y.at += s.head_dim - spec_.rope_dim;
    RowOp op{RowOpKind::kRotate, y};
    op.rope = spec_.indexer_rope;
    ops.push_back(std::move(op));
  }
  m->rows = layer.device->rows(std::move(ops));
  // Its keys lie behind what attention keeps.
  const KvStorage stored = storage_of(checkpoint_, spec_, index, kv_options_);
  KvPlace place = kv_.layers[index];
  place.offset += spec_.latent() && !absorbs(checkpoint_, spec_, index, kv_options_)
                      ? KvRowLayout{spec_.kv_lora + spec_.rope_dim, stored.type}.block_bytes()
                      : layer.device->kv_bytes(attention_spec(spec_, index, true), stored);
  m->indexer = layer.device->indexer(s, stored.type, place);
  return m;
}

RecurrentMixer LayerSetLoader::load_recurrent_mixer(const LayerParts& parts, GraphLayer& layer) {
  LoadedRecurrent loaded = load_recurrent(parts, spec_, to_->type);
  RecurrentMixer m;
  m.width = loaded.net->shape().in;
  m.output = linear(layer, {{loaded.out}});
  std::vector<ModuleOutputs> first;
  std::vector<RowOp> plain;
  size_t from = 0, to = 0;
  for (const RecurrentInput& in : loaded.in) {
    const size_t width = in.first->plan.N, to_width = in.last().plan.N;
    first.push_back({in.first});
    if (in.second != nullptr)
      m.second.push_back({from, width, to, to_width, linear(layer, {{in.second}})});
    else
      plain.push_back(copy_op({1, to, width}, {0, from, width}));
    from += width, to += to_width;
  }
  m.in = linear(layer, first);
  if (!m.second.empty()) m.plain = layer.device->rows(std::move(plain));
  m.recurrent = layer.device->recurrent(std::move(loaded.net), kv_.layers[parts.index()]);
  return m;
}

}  // namespace moebius
