// SPDX-License-Identifier: Apache-2.0
// Turns an architecture's description of attention into operations: the parts of its projections,
// their norms and rotation become one list of row operations per layer.
#include <algorithm>
#include <array>
#include <iterator>

#include "base/error.h"
#include "checkpoint/families.h"
#include "checkpoint/formats/format.h"
#include "model/graph/gathered_ops.h"
#include "model/load/layer_set_loader.h"
#include "model/load/row_lists.h"
#include "model/ranks.h"
#include "nn/residual_convolution.h"
#include "quant/quant_access.h"

namespace moebius {
namespace {

// Returns whether a norm covers the whole result of a projection: ranks that share heads then each
// need all of them.
bool norms_all_heads(const LayerOp& op) { return op.kind == RowOpKind::kNorm && !op.per_head; }

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
    if (module == nullptr) {
      name = attention_name(spec_, word);
      module = parts.find(name);
    }
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
  if (spec_.relative) {
    const size_t dims = spec_.relative->dims, extent = spec_.layers[index].relative_extent;
    r.spec.relative_dims = dims;
    r.spec.relative_extent = extent;
    r.spec.relative = parts.values(spec_.relative->table, dims * extent);
    for (size_t d = 0; d < dims; ++d) {  // the greatest distance comes first
      const auto row = r.spec.relative.begin() + static_cast<std::ptrdiff_t>(d * extent);
      std::reverse(row, row + static_cast<std::ptrdiff_t>(extent));
    }
  }
  if (!spec_.layers[index].sinks) return r;
  r.spec.sinks = parts.values(parts.first_of(spec_.sinks), part_.whole.sizes(index).heads);
  if (const Range own = part_.heads_of(index, 1); own.size() > 0)
    r.spec.sinks = {r.spec.sinks.begin() + static_cast<std::ptrdiff_t>(own.begin),
                    r.spec.sinks.begin() + static_cast<std::ptrdiff_t>(own.end)};
  return r;
}

// Makes the operations {qkv, q, k, v, gate, relative, convolved}. all_heads: this rank has q and k
// of all ranks' heads, because a norm reads all of them.
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
  enum : size_t { kQkvRows, kQ, kK, kV, kGates, kRelatives, kConvolvedRows };

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
    if (s.convolutions) {
      ops.push_back(copy_op({kK, 0, nk}, {kConvolvedRows, 0, nk}));
      ops.push_back(copy_op({kV, 0, nv}, {kConvolvedRows, nk, nv}));
    } else {
      ops.push_back(copy_op({kK, 0, nk}, {kQkvRows, at, nk}));
      ops.push_back(
          copy_op({kV, 0, nv}, {kQkvRows, layer.values_are_keys ? at : all_q + all_k, nv}));
    }
  }
  if (s.gates && !gate_in_query) {
    const size_t gates = gate_width(index);
    ops.push_back(copy_op({kGates, 0, gates}, {kQkvRows, qkv_width - gates, gates}));
  }
  const size_t relative = s.relative ? s.relative->dims : 0;
  if (relative > 0)
    ops.push_back(copy_op({kRelatives, 0, n.heads * relative},
                          {kQkvRows, qkv_width - n.heads * relative, n.heads * relative}));
  const std::array places = {heads_at(kQuery, kQ, n.heads, d), heads_at(kKey, kK, n.kv_heads, d),
                             heads_at(kValue, kV, n.kv_heads, n.value_dim),
                             heads_at(kRelative, kRelatives, n.heads, relative)};
  for (RowOp& op : row_ops(list, places, parts, s)) ops.push_back(std::move(op));
  return ops;
}

size_t LayerSetLoader::gate_width(size_t layer) const {
  const HeadSizes n = spec_.sizes(layer);
  return spec_.gates ? n.heads * (spec_.gates->per_head ? 1 : n.value_dim) : 0;
}

// Makes the program {gate, attended}.
Program LayerSetLoader::gate_program(const LayerParts& parts, GraphLayer& layer, size_t gates,
                                     size_t attended) const {
  const size_t index = parts.index(), heads = spec_.sizes(index).heads, each = gates / heads;
  RowPlace gate = heads_at(LayerRows::kGate, 0, heads, each);
  gate.first_head = part_.heads_of(index, 1).begin;
  gate.all_heads = part_.whole.sizes(index).heads;
  const std::array places = {gate, heads_at(LayerRows::kAttended, 1, heads, attended / heads)};
  return layer.device->rows(row_ops(spec_.layers[index].attended, places, parts, spec_));
}

// Loads the convolution of [k | v], which begin at column `at` of rows with `in` columns.
std::unique_ptr<RecurrentOp> LayerSetLoader::load_key_convolution(const LayerParts& parts,
                                                                  size_t at, size_t in,
                                                                  GraphLayer& layer) const {
  const size_t index = parts.index(), width = spec_.convolutions->width;
  const HeadSizes all = part_.whole.sizes(index);
  std::vector<float> weight;
  const auto add = [&](const char* tensor, size_t each) {
    const std::vector<float> taps = parts.values(tensor, all.kv_heads * each * width);
    const Range own = part_.kv_heads_of(index, each);
    const size_t begin = own.size() > 0 ? own.begin : 0,
                 end = own.size() > 0 ? own.end : all.kv_heads * each;
    weight.insert(weight.end(), taps.begin() + static_cast<std::ptrdiff_t>(begin * width),
                  taps.begin() + static_cast<std::ptrdiff_t>(end * width));
  };
  add(spec_.convolutions->keys, all.head_dim), add(spec_.convolutions->values, all.value_dim);
  const size_t channels = weight.size() / width;
  return layer.device->recurrent(
      std::make_unique<ResidualConvolution>(in, at, channels, width, weight, to_->type),
      convolution_place(kv_, spec_, index, 0, to_->hidden));
}

// Adds a module that gives [q | k | v]; a rank takes its heads of all three.
void LayerSetLoader::add_fused(const LayerParts& parts, std::vector<ModuleOutputs>& modules) const {
  const size_t index = parts.index();
  const HeadSizes all = part_.whole.sizes(index);
  const Module& module = parts.require(attention_name(spec_, spec_.names.fused_qkv));
  const size_t q = all.heads * all.head_dim, k = all.kv_heads * all.head_dim;
  expect_width(module, q + k + all.kv_heads * all.value_dim, "heads and head_dim");
  if (!part_.cuts_heads) return modules.push_back({&module});
  const auto add = [&](size_t at, Range own) {
    modules.push_back({&module, {at + own.begin, at + own.end}});
  };
  add(0, part_.heads_of(index, all.head_dim));
  add(q, part_.kv_heads_of(index, all.head_dim));
  add(q + k, part_.kv_heads_of(index, all.value_dim));
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
  if (!s.names.fused_qkv.empty()) {
    add_fused(parts, modules);
  } else {
    add_heads(find("q_proj"), all.head_dim * (gate_in_query ? 2 : 1), all_heads);
    if (m.keys) add_kv_heads(find("k_proj"), all.head_dim, all_heads);
    if (m.keys && values) add_kv_heads(find("v_proj"), all.value_dim, false);
  }
  if (s.gates && !gate_in_query)
    add_heads(&parts.require(s.gates->projection), s.gates->per_head ? 1 : all.value_dim, false);
  if (s.relative) {
    add_heads(&parts.require(s.relative->projection), s.relative->dims, false);
    m.relative_width = n.heads * s.relative->dims;
  }
  m.qkv = linear(layer, modules);
  if (s.convolutions)
    m.convolution = load_key_convolution(parts, n.heads * n.head_dim, m.qkv->out_features(), layer);
  m.query_width = n.heads * n.head_dim;
  m.key_width = n.kv_heads * n.head_dim;
  m.value_width = n.kv_heads * n.value_dim;
  m.out_width = n.heads * n.value_dim;
  m.input = layer.device->rows(head_input(parts, all_heads, m.qkv->out_features()));
  m.gate_width = gate_width(index);
  if (s.gates) m.gate = gate_program(parts, layer, m.gate_width, m.out_width);
  m.output = attention_output(parts, layer);
  if (spec.indexes) m.index = load_index(parts, layer);
  m.attention = layer.device->attention(attention_request(parts, true));
  return m;
}

// Absorbs the up-projection: scores of a head are q k = q (W_k c) = (W_k^T q) c, and its result is
// W_v (sum p c), with c the latent of a token. So the latents are the keys and values of all heads.
void LayerSetLoader::absorb(const Module& kv_b, size_t index, GraphLayer& layer,
                            LatentAttention& m) {
  LoadBuffer memory;
  const DecoderSpec& s = spec_;
  const size_t rope = s.rotated_dim(index), nope = s.latent_key_dim(index),
               head = nope + s.value_dim, dk = s.key_dim(index), heads = s.sizes(index).heads,
               key = s.kv_lora + rope;
  const Range rows = part_.heads_of(index, head);
  const bool cut = rows.size() > 0, read_rows = cut && can_cut_rows(kv_b.plan);
  QuantMatrix w;  // read on first use, because the weights may be packed already
  const auto weight = [&](size_t row, size_t column) {
    if (w.N == 0) {
      w = reader_for(kv_b.plan.scheme.format)
              .load(read_rows ? rows_of(kv_b.plan, rows.begin, rows.end) : kv_b.plan,
                    checkpoint_.store(), memory);
      if (cut && !read_rows) w = slice_rows(w, rows.begin, rows.end);
    }
    return weight_at(w, row, column);
  };
  const CodeType stored = kv_b.plan.code;
  const bool as_stored = stored == CodeType::kBf16 || stored == CodeType::kF16;
  const CodeType code = as_stored ? stored : CodeType::kF32;
  const auto name = [&](const char* part) {
    return fmt::format("{} {} of {} from {}", kv_b.name, part, rows.size(), rows.begin);
  };
  m.query_up = layer.device->head_linear(
      {heads, s.kv_lora, nope, code, dk, key,
       [&](size_t h, size_t n, size_t k) { return weight(h * head + k, n); }, name("queries")});
  m.value_up = layer.device->head_linear(
      {heads, s.value_dim, s.kv_lora, code, s.kv_lora, s.value_dim,
       [&](size_t h, size_t n, size_t k) { return weight(h * head + nope + n, k); },
       name("values")});
  layer.dense_bytes += m.query_up->packed_bytes() + m.value_up->packed_bytes();
  m.absorbed_width = heads * key;
  if (rope > 0)
    m.rotated_part =
        layer.device->rows({copy_op({1, s.kv_lora, rope, heads, key}, {0, nope, rope, heads, dk})});
  options_.progress(cut ? kv_b.bytes / kv_b.plan.N * rows.size() : kv_b.bytes);
}

LatentAttention LayerSetLoader::load_latents(const LayerParts& parts, GraphLayer& layer) {
  const size_t index = parts.index();
  const DecoderSpec& s = spec_;
  const LayerSpec& spec = s.layers[index];
  const HeadSizes n = s.sizes(index);
  const size_t dk = s.key_dim(index), rope = s.rotated_dim(index), nope = s.latent_key_dim(index);
  LatentAttention m;
  m.keys = spec.kv_from == 0;
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
    query = parts.find(attention_name(s, "q_gate_proj"));
    if (query == nullptr) query = &parts.require(attention_name(s, "q_b_proj"));
    ops.push_back(norm_op({kQueryLatent, 0, s.q_lora}, {kDown, 0, s.q_lora},
                          norm("q_a_layernorm", s.q_lora)));
    if (s.raw_query_latent)
      ops.push_back(copy_op({kQueryLatent, s.q_lora, s.q_lora}, {kDown, 0, s.q_lora}));
  } else {
    query = &parts.require(attention_name(s, "q_proj"));
  }
  if (m.keys) {
    const Module& kv_a = parts.require(attention_name(s, "kv_a_proj_with_mqa"));
    expect_width(kv_a, s.kv_lora + rope, "kv_lora_rank and qk_rope_head_dim");
    down.push_back({&kv_a});
  }
  const bool gate_in_query = s.gates && s.gates->projection == nullptr;
  if (gate_in_query) {  // [q | gate] per head
    const size_t both = dk + n.value_dim;
    m.gate_width = gate_width(index);
    m.query_parts = layer.device->rows(
        {copy_op(heads_view(1, n.heads, dk), {0, 0, dk, n.heads, both}),
         copy_op(heads_view(2, n.heads, n.value_dim), {0, dk, n.value_dim, n.heads, both})});
    m.gate = gate_program(parts, layer, m.gate_width, n.heads * n.value_dim);
  } else if (s.gates) {
    const size_t each = s.gates->per_head ? 1 : s.value_dim,
                 at = s.q_lora + (m.keys ? s.kv_lora + rope : 0);
    const Module& gate = parts.require(s.gates->projection);
    expect_width(gate, part_.whole.heads * each, "heads");
    down.push_back({&gate, part_.heads_of(index, each)});
    m.gate_width = gate_width(index);
    ops.push_back(copy_op({kGates, 0, m.gate_width}, {kDown, at, m.gate_width}));
    m.gate = gate_program(parts, layer, m.gate_width, n.heads * n.value_dim);
  }
  if (!down.empty()) m.down = linear(layer, down);
  const size_t of_query = dk + (gate_in_query ? n.value_dim : 0);
  expect_width(*query, part_.whole.sizes(index).heads * of_query,
               "heads, qk_nope_head_dim and qk_rope_head_dim");
  m.query = linear(layer, {{query, part_.heads_of(index, of_query)}});
  // Keys are [kv latent | rotated part] and values the latent alone, for all heads.
  if (m.keys) {
    ops.push_back(norm_op({kV, 0, s.kv_lora}, {kDown, s.q_lora, s.kv_lora},
                          norm("kv_a_layernorm", s.kv_lora)));
    const std::array latent = {RowPlace{LayerRows::kLatent, {kV, 0, s.kv_lora}}};
    for (RowOp& op : row_ops(spec.latent_rows, latent, parts, s)) ops.push_back(std::move(op));
    ops.push_back(copy_op({kK, 0, s.kv_lora}, {kV, 0, s.kv_lora}));
    if (rope > 0)
      ops.push_back(copy_op({kK, s.kv_lora, rope}, {kDown, s.q_lora + s.kv_lora, rope}));
  }
  m.latents = layer.device->rows(std::move(ops));
  m.query_latent = s.q_lora * (s.raw_query_latent ? 2 : 1);
  m.query_width = n.heads * dk;
  m.key_width = s.kv_lora + rope;
  m.value_width = s.kv_lora;
  m.out_width = n.heads * n.value_dim;

  const std::array places = {
      RowPlace{LayerRows::kQuery,
               {0, 0, m.query_width},
               {0, nope, rope, n.heads, dk},
               part_.heads_of(index, 1).begin,
               part_.whole.sizes(index).heads},
      RowPlace{LayerRows::kKey, {1, 0, m.key_width}, {1, s.kv_lora, rope, 1, rope}}};
  m.rotate = layer.device->rows(row_ops(spec.attention_rows, places, parts, s));

  const Module& kv_b = parts.require(attention_name(s, kKvUp));
  expect_width(kv_b, part_.whole.heads * (nope + s.value_dim),
               "heads, qk_nope_head_dim and v_head_dim");
  const bool absorbed = absorbs(checkpoint_, s, index, kv_options_);
  AttentionRequest request = attention_request(parts, absorbed);
  m.attended_width = request.spec.heads * request.spec.value_dim;
  if (absorbed) {
    absorb(kv_b, index, layer, m);
  } else {
    request.latents = std::make_unique<AttentionRequest::Latents>();
    *request.latents = {s.kv_lora, nope, rope,
                        linear(layer, {{&kv_b, part_.heads_of(index, nope + s.value_dim)}})};
  }
  m.output = attention_output(parts, layer);
  if (spec.indexes) m.index = load_index(parts, layer);
  m.attention = layer.device->attention(std::move(request));
  return m;
}

}  // namespace moebius
