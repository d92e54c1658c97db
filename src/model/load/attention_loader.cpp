// SPDX-License-Identifier: Apache-2.0
// What an architecture says of attention, as operations: the parts of its projections, their norms and
// rotation become one list of row operations per layer.
#include <algorithm>

#include "base/error.h"
#include "checkpoint/formats/format.h"
#include "model/graph/gathered_ops.h"
#include "model/load/layer_set_loader.h"
#include "model/load/recurrent_loader.h"
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

// Heads of `d` columns that lie side by side.
RowView heads_view(size_t operand, size_t heads, size_t d) { return {operand, 0, d, heads, d}; }

}  // namespace

Mixer LayerSetLoader::load_mixer(const LayerParts& parts, GraphLayer& layer) {
  if (spec_.layers[parts.index()].recurrent) return load_recurrent_mixer(parts, layer);
  if (spec_.latent()) return load_latents(parts, layer);
  return load_heads(parts, layer);
}

Linear LayerSetLoader::attention_output(const LayerParts& parts, GraphLayer& layer) {
  const std::string name = fmt::format("{}.{}", spec_.names.attention, spec_.names.output);
  const Range columns = part_.cuts_heads ? part_.columns[part_.ranks->member()] : Range{};
  Linear output = linear(layer, {{&parts.require(name), columns}});
  if (!part_.cuts_heads) return output;
  return gather_output(std::move(output), *part_.ranks, part_.values_of(parts.index()),
                       part_.columns, to_->type, parts.index());
}

AttentionRequest LayerSetLoader::attention_request(const LayerParts& parts, bool absorbed) const {
  const size_t index = parts.index();
  AttentionRequest r{attention_spec(spec_, index, absorbed),
                     storage_of(checkpoint_, spec_, index, kv_options_), kv_.layers[index],
                     spec_.indexer.top_k > 0};
  if (!spec_.layers[index].sinks) return r;
  r.spec.sinks = parts.values(spec_.sinks, part_.whole.sizes(index).heads);
  if (const Range own = part_.heads_of(index, 1); own.size() > 0)
    r.spec.sinks = {r.spec.sinks.begin() + static_cast<std::ptrdiff_t>(own.begin),
                    r.spec.sinks.begin() + static_cast<std::ptrdiff_t>(own.end)};
  return r;
}

// {qkv, q, k, v, gate}. all_heads: q and k of all ranks' heads are here, because their norm reads them.
std::vector<RowOp> LayerSetLoader::head_input(const LayerParts& parts, bool all_heads,
                                              size_t qkv_width) const {
  const size_t index = parts.index();
  const DecoderSpec& s = spec_;
  const LayerSpec& layer = s.layers[index];
  const HeadSizes n = s.sizes(index), all = part_.whole.sizes(index);
  const bool keys = layer.kv_from == 0;
  const size_t d = n.head_dim, nq = n.heads * d, nk = n.kv_heads * d, nv = n.kv_heads * n.value_dim;
  const size_t all_q = all_heads ? all.heads * d : nq * (s.output_gate ? 2 : 1),
               all_k = !keys       ? 0
                       : all_heads ? all.kv_heads * d
                                   : nk,
               q_at = part_.heads_of(index, d).begin, k_at = part_.kv_heads_of(index, d).begin;
  enum : size_t { kQkvRows, kQ, kK, kV, kGate };
  const bool whole = s.qk_norm == QkNorm::kWhole,
             per_head = s.qk_norm == QkNorm::kHead || s.qk_norm == QkNorm::kHeadAfter;
  Norm q_norm, k_norm;
  if (whole || per_head) {
    q_norm = parts.norm(s.q_norm, s.norm, s.norm_epsilon, whole ? all.heads * d : d);
    if (keys) k_norm = parts.norm(s.k_norm, s.norm, s.norm_epsilon, whole ? all.kv_heads * d : d);
  }
  const Norm plain{NormKind::kRmsPlain, s.norm_epsilon, {}, {}};
  const RowView q = heads_view(kQ, n.heads, d), k = heads_view(kK, n.kv_heads, d);

  std::vector<RowOp> ops;
  if (all_heads) {
    const RowView every_q{kQkvRows, 0, all_q}, every_k{kQkvRows, all_q, all_k};
    ops.push_back(norm_op(every_q, every_q, q_norm));
    if (keys) ops.push_back(norm_op(every_k, every_k, k_norm));
  }
  if (s.output_gate) {  // [q | gate] per head
    ops.push_back(copy_op(q, {kQkvRows, 0, d, n.heads, 2 * d}));
    ops.push_back(copy_op(heads_view(kGate, n.heads, d), {kQkvRows, d, d, n.heads, 2 * d}));
  } else {
    ops.push_back(copy_op({kQ, 0, nq}, {kQkvRows, all_heads ? q_at : 0, nq}));
  }
  if (keys) {
    const size_t at = all_q + (all_heads ? k_at : 0);
    ops.push_back(copy_op({kK, 0, nk}, {kQkvRows, at, nk}));
    ops.push_back(copy_op({kV, 0, nv}, {kQkvRows, layer.values_are_keys ? at : all_q + all_k, nv}));
  }
  if (s.gate_proj != nullptr) {
    const size_t gates = n.heads * (s.gate_per_head ? 1 : n.value_dim);
    ops.push_back(copy_op({kGate, 0, gates}, {kQkvRows, qkv_width - gates, gates}));
  }
  if (s.value_scale != 1.0f && keys)
    ops.push_back({RowOpKind::kScale, {kV, 0, nv}, {}, s.value_scale});
  if (whole && !all_heads) {
    ops.push_back(norm_op({kQ, 0, nq}, {kQ, 0, nq}, q_norm));
    if (keys) ops.push_back(norm_op({kK, 0, nk}, {kK, 0, nk}, k_norm));
  } else if (s.qk_norm == QkNorm::kHead) {
    ops.push_back(norm_op(q, q, q_norm));
    if (keys) ops.push_back(norm_op(k, k, k_norm));
  }
  if (s.value_norm && keys) {
    const RowView v = heads_view(kV, n.kv_heads, n.value_dim);
    ops.push_back(norm_op(v, v, plain));
  }
  if (s.clip_qkv > 0)
    for (const auto& [operand, width] : {std::pair{kQ, nq}, std::pair{kK, nk}, std::pair{kV, nv}})
      if (keys || operand == kQ)
        ops.push_back({RowOpKind::kClip, {operand, 0, width}, {}, s.clip_qkv});
  if (layer.rotary) {
    const auto rotate = [&](const RowView& y) {
      RowOp op{RowOpKind::kRotate, y};
      op.rope = layer.rope;
      ops.push_back(std::move(op));
    };
    rotate(q);
    if (keys) rotate(k);
    const bool after = s.qk_norm == QkNorm::kHeadAfter;
    if (after || s.qk_norm == QkNorm::kAfterPlain) {
      ops.push_back(norm_op(q, q, after ? q_norm : plain));
      if (keys) ops.push_back(norm_op(k, k, after ? k_norm : plain));
    }
  }
  if (layer.temperature_scale != 0) {
    RowOp op{RowOpKind::kTemperature, {kQ, 0, nq}};
    op.temperature = {layer.temperature_scale, layer.temperature_floor, layer.temperature_first};
    ops.push_back(std::move(op));
  }
  return ops;
}

HeadAttention LayerSetLoader::load_heads(const LayerParts& parts, GraphLayer& layer) {
  const size_t index = parts.index();
  const DecoderSpec& s = spec_;
  const LayerSpec& spec = s.layers[index];
  const HeadSizes all = part_.whole.sizes(index), n = s.sizes(index);
  HeadAttention m;
  m.keys = spec.kv_from == 0;
  const bool values = !spec.values_are_keys;
  const bool all_heads = part_.cuts_heads && s.qk_norm == QkNorm::kWhole;
  if (all_heads && (s.output_gate || !values))
    fail("layer {}: q_norm and k_norm over all heads with {} cannot be cut for ranks; use --pp",
         index, s.output_gate ? "gates inside q_proj" : "values that are keys");
  const auto find = [&](const char* member) {
    return &parts.require(fmt::format("{}.{}", s.names.attention, member));
  };
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
  add_heads(find("q_proj"), all.head_dim * (s.output_gate ? 2 : 1), all_heads);
  if (m.keys) add_kv_heads(find("k_proj"), all.head_dim, all_heads);
  if (m.keys && values) add_kv_heads(find("v_proj"), all.value_dim, false);
  if (s.gate_proj != nullptr)
    add_heads(&parts.require(s.gate_proj), s.gate_per_head ? 1 : all.value_dim, false);
  m.qkv = linear(layer, modules);
  m.query_width = n.heads * n.head_dim, m.key_width = n.kv_heads * n.head_dim;
  m.value_width = n.kv_heads * n.value_dim, m.out_width = n.heads * n.value_dim;
  m.input = layer.device->rows(head_input(parts, all_heads, m.qkv->out_features()));
  if (s.output_gate || s.gate_proj != nullptr) {
    m.gate_width = n.heads * (s.gate_per_head ? 1 : n.value_dim);
    m.gate = layer.device->rows(
        {{s.gate_softplus ? RowOpKind::kGateSoftplus : RowOpKind::kGateSigmoid, {1}, {0}}});
  }
  m.output = attention_output(parts, layer);
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
  const Module& kv_a = parts.require("self_attn.kv_a_proj_with_mqa");
  expect_width(kv_a, s.kv_lora + s.rope_dim, "kv_lora_rank and qk_rope_head_dim");
  const auto norm = [&](const char* name, size_t width) {
    return parts.norm(name, s.norm, s.latent_norm_epsilon, width);
  };
  enum : size_t { kDown, kQueryLatent, kK, kV };
  std::vector<RowOp> ops;
  std::vector<ModuleOutputs> down;
  const Module* query = nullptr;
  if (s.q_lora > 0) {
    const Module& q_a = parts.require("self_attn.q_a_proj");
    expect_width(q_a, s.q_lora, "q_lora_rank");
    down.push_back({&q_a});
    query = &parts.require("self_attn.q_b_proj");
    ops.push_back(norm_op({kQueryLatent, 0, s.q_lora}, {kDown, 0, s.q_lora},
                          norm("self_attn.q_a_layernorm", s.q_lora)));
  } else {
    query = &parts.require("self_attn.q_proj");
  }
  down.push_back({&kv_a});
  m.down = linear(layer, down);
  m.query = linear(layer, {{query, part_.heads_of(index, dk)}});
  // Keys are [kv latent | rotated part], values the latent alone, both for all heads.
  ops.push_back(norm_op({kV, 0, s.kv_lora}, {kDown, s.q_lora, s.kv_lora},
                        norm("self_attn.kv_a_layernorm", s.kv_lora)));
  ops.push_back(copy_op({kK, 0, s.kv_lora}, {kV, 0, s.kv_lora}));
  ops.push_back(copy_op({kK, s.kv_lora, s.rope_dim}, {kDown, s.q_lora + s.kv_lora, s.rope_dim}));
  m.latents = layer.device->rows(std::move(ops));
  m.query_latent = s.q_lora, m.query_width = n.heads * dk, m.key_width = s.kv_lora + s.rope_dim;
  m.value_width = s.kv_lora, m.out_width = n.heads * n.value_dim;

  std::vector<RowOp> rotate;
  for (const RowView& y : {RowView{0, s.nope_dim, s.rope_dim, n.heads, dk},
                           RowView{1, s.kv_lora, s.rope_dim, 1, s.rope_dim}}) {
    if (!spec.rotary) break;
    RowOp op{RowOpKind::kRotate, y};
    op.rope = spec.rope;
    rotate.push_back(std::move(op));
  }
  if (spec.temperature_scale != 0) {
    RowOp op{RowOpKind::kTemperature, {0, 0, m.query_width}};
    op.temperature = {spec.temperature_scale, spec.temperature_floor, spec.temperature_first};
    rotate.push_back(std::move(op));
  }
  m.rotate = layer.device->rows(std::move(rotate));

  const Module& kv_b = parts.require(kKvUp);
  expect_width(kv_b, part_.whole.heads * (s.nope_dim + s.value_dim),
               "heads, qk_nope_head_dim and v_head_dim");
  const bool absorbed = absorbs(checkpoint_, index, kv_options_);
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

std::unique_ptr<LatentAttention::Index> LayerSetLoader::load_index(const LayerParts& parts,
                                                                   GraphLayer& layer) {
  const size_t index = parts.index();
  const IndexerSpec& s = spec_.indexer;
  const Module &q = parts.require("self_attn.indexer.wq_b"),
               &k = parts.require("self_attn.indexer.wk"),
               &w = parts.require("self_attn.indexer.weights_proj");
  expect_width(q, s.heads * s.head_dim, "index_n_heads and index_head_dim");
  expect_width(k, s.head_dim, "index_head_dim");
  expect_width(w, s.heads, "index_n_heads");
  auto m = std::make_unique<LatentAttention::Index>();
  m->query = linear(layer, {{&q}});
  m->key_weights = linear(layer, {{&k}, {&w}});
  const RowView key{0, 0, s.head_dim, 1, s.head_dim};
  std::vector<RowOp> ops = {norm_op(
      key, key, parts.norm("self_attn.indexer.k_norm", NormKind::kLayer, 1e-6f, s.head_dim))};
  for (const RowView& y : {key, heads_view(1, s.heads, s.head_dim)}) {
    RowOp op{RowOpKind::kRotate, y};
    op.rope = spec_.indexer_rope;
    ops.push_back(std::move(op));
  }
  m->rows = layer.device->rows(std::move(ops));
  // Its keys lie behind what attention keeps.
  const KvStorage stored = storage_of(checkpoint_, spec_, index, kv_options_);
  KvPlace place = kv_.layers[index];
  place.offset += absorbs(checkpoint_, index, kv_options_)
                      ? layer.device->kv_bytes(attention_spec(spec_, index, true), stored)
                      : KvRowLayout{spec_.kv_lora + spec_.rope_dim, stored.type}.block_bytes();
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
