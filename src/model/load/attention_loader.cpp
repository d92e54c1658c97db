// SPDX-License-Identifier: Apache-2.0
#include "model/load/attention_loader.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "base/error.h"
#include "checkpoint/families.h"
#include "checkpoint/formats/format.h"
#include "model/graph/gathered_ops.h"
#include "model/ranks.h"
#include "nn/convolution_layer.h"
#include "quant/quant_access.h"

namespace moebius {
namespace {

// Returns whether a norm covers the whole result of a projection: ranks that share heads then each
// need all of them.
bool norms_all_heads(const LayerOp& op) { return op.kind == RowOpKind::kNorm && !op.per_head; }

}  // namespace

Mixer load_mixer(const LayerScope& scope) {
  if (const StateMixer* state = scope.spec.state()) return load_recurrent_mixer(scope, *state);
  const KeyMixer& keys = *scope.spec.keys();
  AttentionLoader loader(scope, keys);
  if (keys.shared_key) return loader.load_shared_keys();
  if (keys.latent) return loader.load_latents();
  return loader.load_heads();
}

Linear AttentionLoader::output() const {
  const Module* module = nullptr;
  std::string name;
  for_each_word(m_.names.output, [&](std::string_view word, bool) {
    if (module == nullptr) {
      name = m_.name(word);
      module = parts.find(name);
    }
  });
  if (module == nullptr) parts.require(name);
  const Range columns = c.part.cuts_heads ? c.part.columns[c.part.ranks->member()] : Range{};
  Linear output = linear({{module, columns}});
  if (!c.part.cuts_heads) return output;
  return gather_output(std::move(output), *c.part.ranks, c.part.values_of(index), c.part.columns,
                       c.to->type, index);
}

AttentionRequest AttentionLoader::request(bool absorbed) const {
  AttentionRequest r{attention_spec(c.spec, index, absorbed),
                     storage_of(c.checkpoint, c.spec, index, c.kv_options),
                     places().mixer,
                     m_.choice.has_value(),
                     c.part.kv_heads_of(index, 1).begin,
                     nullptr,
                     places().compressed.keys};
  if (m_.relative) {
    const size_t dims = m_.relative->dims, extent = m_.relative->extent;
    r.spec.relative_dims = dims;
    r.spec.relative_extent = extent;
    r.spec.relative = parts.values(m_.relative->table, dims * extent);
    for (size_t d = 0; d < dims; ++d) {  // the greatest distance comes first
      const auto row = r.spec.relative.begin() + static_cast<std::ptrdiff_t>(d * extent);
      std::reverse(row, row + static_cast<std::ptrdiff_t>(extent));
    }
  }
  if (m_.sinks == nullptr) return r;
  r.spec.sinks = parts.values(parts.first_of(m_.sinks), all_.heads);
  if (const Range own = c.part.heads_of(index, 1); own.size() > 0)
    r.spec.sinks = {r.spec.sinks.begin() + static_cast<std::ptrdiff_t>(own.begin),
                    r.spec.sinks.begin() + static_cast<std::ptrdiff_t>(own.end)};
  return r;
}

// Makes the operations {qkv, q, k, v, gate, relative, convolved}. all_heads: this rank has q and k
// of all ranks' heads, because a norm reads all of them.
std::vector<RowOp> AttentionLoader::head_input(bool all_heads, size_t qkv_width) const {
  using enum LayerRows;
  const bool keys = m_.kv_from == 0;
  const size_t d = n_.head_dim, nq = n_.heads * d, nk = n_.kv_heads * d,
               nv = n_.kv_heads * n_.value_dim;
  const size_t all_q = all_heads ? all_.heads * d : nq * (gate_in_query() ? 2 : 1),
               all_k = !keys       ? 0
                       : all_heads ? all_.kv_heads * d
                                   : nk,
               q_at = c.part.heads_of(index, d).begin, k_at = c.part.kv_heads_of(index, d).begin;
  enum : size_t { kQkvRows, kQ, kK, kV, kGates, kRelatives, kConvolvedRows };

  LayerOps list = m_.rows;
  std::vector<RowOp> ops;
  if (all_heads) {
    LayerOps first;
    std::copy_if(list.begin(), list.end(), std::back_inserter(first), norms_all_heads);
    std::erase_if(list, norms_all_heads);
    const std::array places = {RowColumns{kQuery, {kQkvRows, 0, all_q}},
                               RowColumns{kKey, {kQkvRows, all_q, all_k}}};
    ops = row_ops(first, places, parts, c.spec);
  }
  if (gate_in_query()) {  // [q | gate] per head
    ops.push_back(copy_op(heads_view(kQ, n_.heads, d), {kQkvRows, 0, d, n_.heads, 2 * d}));
    ops.push_back(copy_op(heads_view(kGates, n_.heads, d), {kQkvRows, d, d, n_.heads, 2 * d}));
  } else {
    ops.push_back(copy_op({kQ, 0, nq}, {kQkvRows, all_heads ? q_at : 0, nq}));
  }
  if (keys) {
    const size_t at = all_q + (all_heads ? k_at : 0);
    if (spec.convolutions) {
      ops.push_back(copy_op({kK, 0, nk}, {kConvolvedRows, 0, nk}));
      ops.push_back(copy_op({kV, 0, nv}, {kConvolvedRows, nk, nv}));
    } else {
      ops.push_back(copy_op({kK, 0, nk}, {kQkvRows, at, nk}));
      ops.push_back(copy_op({kV, 0, nv}, {kQkvRows, m_.values_are_keys ? at : all_q + all_k, nv}));
    }
  }
  if (m_.gates && !gate_in_query()) {
    const size_t gates = m_.gate_width();
    ops.push_back(copy_op({kGates, 0, gates}, {kQkvRows, qkv_width - gates, gates}));
  }
  const size_t relative = m_.relative ? m_.relative->dims : 0;
  if (relative > 0)
    ops.push_back(copy_op({kRelatives, 0, n_.heads * relative},
                          {kQkvRows, qkv_width - n_.heads * relative, n_.heads * relative}));
  const std::array places = {heads_at(kQuery, kQ, n_.heads, d), heads_at(kKey, kK, n_.kv_heads, d),
                             heads_at(kValue, kV, n_.kv_heads, n_.value_dim),
                             heads_at(kRelative, kRelatives, n_.heads, relative)};
  for (RowOp& op : row_ops(list, places, parts, c.spec)) ops.push_back(std::move(op));
  return ops;
}

// Makes the program {gate, attended}.
Program AttentionLoader::gate_program(size_t gates, size_t attended) const {
  RowColumns gate = heads_at(LayerRows::kGate, 0, n_.heads, gates / n_.heads);
  gate.first_head = c.part.heads_of(index, 1).begin;
  gate.all_heads = all_.heads;
  const std::array places = {gate,
                             heads_at(LayerRows::kAttended, 1, n_.heads, attended / n_.heads)};
  return program(m_.attended, places);
}

// Loads the convolution of [k | v], which begin at column `at` of rows with `in` columns.
std::unique_ptr<RecurrentOp> AttentionLoader::load_key_convolution(size_t at, size_t in) const {
  const size_t width = spec.convolutions->width;
  std::vector<float> weight;
  const auto add = [&](const char* tensor, size_t each) {
    const std::vector<float> taps = parts.values(tensor, all_.kv_heads * each * width);
    const Range own = c.part.kv_heads_of(index, each);
    const size_t begin = own.size() > 0 ? own.begin : 0,
                 end = own.size() > 0 ? own.end : all_.kv_heads * each;
    weight.insert(weight.end(), taps.begin() + static_cast<std::ptrdiff_t>(begin * width),
                  taps.begin() + static_cast<std::ptrdiff_t>(end * width));
  };
  add(spec.convolutions->keys, all_.head_dim);
  add(spec.convolutions->values, all_.value_dim);
  const size_t channels = weight.size() / width;
  return layer.device->recurrent(
      std::make_unique<ConvolutionLayer>(
          ConvolutionLayerSpec{ConvolutionUse::kAdded, in, at, channels, width}, weight,
          std::vector<float>(), c.to->type),
      convolution_place(c.kv, c.spec, index, 0, c.to->hidden));
}

// Adds a module that gives [q | k | v]; a rank takes its heads of all three.
void AttentionLoader::add_fused(std::vector<ModuleOutputs>& modules) const {
  const Module& module = require(m_.names.fused_qkv);
  const size_t q = all_.heads * all_.head_dim, k = all_.kv_heads * all_.head_dim;
  expect_width(module, q + k + all_.kv_heads * all_.value_dim, "heads and head_dim");
  if (!c.part.cuts_heads) return modules.push_back({&module});
  const auto add = [&](size_t at, Range own) {
    modules.push_back({&module, {at + own.begin, at + own.end}});
  };
  add(0, c.part.heads_of(index, all_.head_dim));
  add(q, c.part.kv_heads_of(index, all_.head_dim));
  add(q + k, c.part.kv_heads_of(index, all_.value_dim));
}

HeadAttention AttentionLoader::load_heads() {
  HeadAttention m;
  m.keys = m_.kv_from == 0;
  const bool values = !m_.values_are_keys,
             all_heads =
                 c.part.cuts_heads && std::any_of(m_.rows.begin(), m_.rows.end(), norms_all_heads);
  if (all_heads && (gate_in_query() || !values))
    fail("layer {}: q_norm and k_norm over all heads with {} cannot be cut for ranks; use --pp",
         index, gate_in_query() ? "gates inside q_proj" : "values that are keys");
  std::vector<ModuleOutputs> modules;
  const auto add = [&](const Module& module, size_t width, Range own, const char* what) {
    expect_width(module, width, what);
    modules.push_back({&module, own});
  };
  const auto add_heads = [&](const Module& module, size_t each, bool every) {
    add(module, all_.heads * each, every ? Range{} : c.part.heads_of(index, each),
        "heads and head_dim");
  };
  const auto add_kv_heads = [&](const Module& module, size_t each, bool every) {
    add(module, all_.kv_heads * each, every ? Range{} : c.part.kv_heads_of(index, each),
        "key-value heads and head_dim");
  };
  if (!m_.names.fused_qkv.empty()) {
    add_fused(modules);
  } else {
    add_heads(require("q_proj"), all_.head_dim * (gate_in_query() ? 2 : 1), all_heads);
    if (m.keys) add_kv_heads(require("k_proj"), all_.head_dim, all_heads);
    if (m.keys && values) add_kv_heads(require("v_proj"), all_.value_dim, false);
  }
  if (m_.gates && !gate_in_query())
    add_heads(parts.require(m_.gates->projection), m_.gates->per_head ? 1 : all_.value_dim, false);
  if (m_.relative) {
    add_heads(parts.require(m_.relative->projection), m_.relative->dims, false);
    m.relative_width = n_.heads * m_.relative->dims;
  }
  m.qkv = linear(modules);
  m.query_width = n_.heads * n_.head_dim;
  m.key_width = n_.kv_heads * n_.head_dim;
  m.value_width = n_.kv_heads * n_.value_dim;
  m.out_width = n_.heads * n_.value_dim;
  if (spec.convolutions) m.convolution = load_key_convolution(m.query_width, m.qkv->out_features());
  m.input = layer.device->rows(head_input(all_heads, m.qkv->out_features()));
  m.gate_width = m_.gate_width();
  if (m_.gates) m.gate = gate_program(m.gate_width, m.out_width);
  m.output = output();
  if (m_.makes_choice()) m.index = load_index();
  m.attention = layer.device->attention(request(true));
  return m;
}

// Absorbs the up-projection: scores of a head are q k = q (W_k c) = (W_k^T q) c, and its result is
// W_v (sum p c), with c the latent of a token. So the latents are the keys and values of all heads.
void AttentionLoader::absorb(const Module& kv_b, LatentAttention& m) const {
  LoadBuffer memory;
  const LatentSpec& s = *m_.latent;
  const size_t rope = s.rotated, nope = s.own, values = n_.value_dim, head = nope + values,
               dk = s.key_width(), heads = n_.heads, key = s.stored_width();
  const Range rows = c.part.heads_of(index, head);
  const bool cut = rows.size() > 0, read_rows = cut && can_cut_rows(kv_b.plan);
  QuantMatrix w;  // read on first use, because the weights may be packed already
  const auto weight = [&](size_t row, size_t column) {
    if (w.N == 0) {
      w = reader_for(kv_b.plan.scheme.format)
              .load(read_rows ? rows_of(kv_b.plan, rows.begin, rows.end) : kv_b.plan,
                    c.checkpoint.store(), memory);
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
      {heads, s.keys, nope, code, dk, key,
       [&](size_t h, size_t n, size_t k) { return weight(h * head + k, n); }, name("queries")});
  m.value_up = layer.device->head_linear(
      {heads, values, s.keys, code, s.keys, values,
       [&](size_t h, size_t n, size_t k) { return weight(h * head + nope + n, k); },
       name("values")});
  layer.dense_bytes += m.query_up->packed_bytes() + m.value_up->packed_bytes();
  m.absorbed_width = heads * key;
  if (rope > 0)
    m.rotated_part =
        layer.device->rows({copy_op({1, s.keys, rope, heads, key}, {0, nope, rope, heads, dk})});
  c.options.progress(cut ? kv_b.bytes / kv_b.plan.N * rows.size() : kv_b.bytes);
}

LatentAttention AttentionLoader::load_latents() {
  const LatentSpec& s = *m_.latent;
  const size_t dk = s.key_width(), rope = s.rotated, nope = s.own;
  LatentAttention m;
  m.keys = m_.kv_from == 0;
  const auto norm_of = [&](const char* name, size_t width) {
    return parts.norm(m_.name(name), c.spec.norm, s.norm_epsilon, width);
  };
  enum : size_t { kDown, kQueryLatent, kK, kV, kGates };
  std::vector<RowOp> ops;
  std::vector<ModuleOutputs> down;
  const Module* query = nullptr;
  if (s.query > 0) {
    const Module& q_a = require("q_a_proj");
    expect_width(q_a, s.query, "q_lora_rank");
    down.push_back({&q_a});
    query = parts.find(m_.name("q_gate_proj"));
    if (query == nullptr) query = &require("q_b_proj");
    ops.push_back(norm_op({kQueryLatent, 0, s.query}, {kDown, 0, s.query},
                          norm_of("q_a_layernorm", s.query)));
    if (s.raw_query) ops.push_back(copy_op({kQueryLatent, s.query, s.query}, {kDown, 0, s.query}));
  } else {
    query = &require("q_proj");
  }
  if (m.keys) {
    const Module& kv_a = require("kv_a_proj_with_mqa");
    expect_width(kv_a, s.stored_width(), "kv_lora_rank and qk_rope_head_dim");
    down.push_back({&kv_a});
  }
  m.gate_width = m_.gate_width();
  m.out_width = n_.heads * n_.value_dim;
  if (gate_in_query()) {  // [q | gate] per head
    const size_t both = dk + n_.value_dim;
    m.query_parts = layer.device->rows(
        {copy_op(heads_view(1, n_.heads, dk), {0, 0, dk, n_.heads, both}),
         copy_op(heads_view(2, n_.heads, n_.value_dim), {0, dk, n_.value_dim, n_.heads, both})});
  } else if (m_.gates) {
    const size_t each = m_.gates->per_head ? 1 : n_.value_dim,
                 at = s.query + (m.keys ? s.stored_width() : 0);
    const Module& gate = parts.require(m_.gates->projection);
    expect_width(gate, all_.heads * each, "heads");
    down.push_back({&gate, c.part.heads_of(index, each)});
    ops.push_back(copy_op({kGates, 0, m.gate_width}, {kDown, at, m.gate_width}));
  }
  if (m_.gates) m.gate = gate_program(m.gate_width, m.out_width);
  if (!down.empty()) m.down = linear(down);
  const size_t of_query = dk + (gate_in_query() ? n_.value_dim : 0);
  expect_width(*query, all_.heads * of_query, "heads, qk_nope_head_dim and qk_rope_head_dim");
  m.query = linear({{query, c.part.heads_of(index, of_query)}});
  // Keys are [kv latent | rotated part] and values the latent alone, for all heads.
  if (m.keys) {
    ops.push_back(
        norm_op({kV, 0, s.keys}, {kDown, s.query, s.keys}, norm_of("kv_a_layernorm", s.keys)));
    const std::array latent = {RowColumns{LayerRows::kLatent, {kV, 0, s.keys}}};
    for (RowOp& op : row_ops(s.rows, latent, parts, c.spec)) ops.push_back(std::move(op));
    ops.push_back(copy_op({kK, 0, s.keys}, {kV, 0, s.keys}));
    if (rope > 0) ops.push_back(copy_op({kK, s.keys, rope}, {kDown, s.query + s.keys, rope}));
  }
  m.latents = layer.device->rows(std::move(ops));
  m.query_latent = s.query * (s.raw_query ? 2 : 1);
  m.query_width = n_.heads * dk;
  m.key_width = s.stored_width();
  m.value_width = s.keys;

  const std::array places = {
      RowColumns{LayerRows::kQuery,
                 {0, 0, m.query_width},
                 {0, nope, rope, n_.heads, dk},
                 c.part.heads_of(index, 1).begin,
                 all_.heads},
      RowColumns{LayerRows::kKey, {1, 0, m.key_width}, {1, s.keys, rope, 1, rope}}};
  m.rotate = program(m_.rows, places);

  const Module& kv_b = require(kKvUp);
  expect_width(kv_b, all_.heads * (nope + n_.value_dim), "heads, qk_nope_head_dim and v_head_dim");
  const bool absorbed = absorbs(c.checkpoint, c.spec, index, c.kv_options);
  AttentionRequest asked = request(absorbed);
  m.attended_width = asked.spec.heads * asked.spec.value_dim;
  if (absorbed) {
    absorb(kv_b, m);
  } else {
    asked.latents = std::make_unique<AttentionRequest::Latents>();
    *asked.latents = {s.keys, nope, rope,
                      linear({{&kv_b, c.part.heads_of(index, nope + n_.value_dim)}})};
  }
  m.output = output();
  if (m_.makes_choice()) m.index = load_index();
  m.attention = layer.device->attention(std::move(asked));
  return m;
}

}  // namespace moebius
