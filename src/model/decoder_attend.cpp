// SPDX-License-Identifier: Apache-2.0
// Attention of a step: q, k and v of the new rows, their keys and values into the blocks, and what
// the rows make of all of them.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/math_functions.h"
#include "kernels/row_functions.h"
#include "model/decoder_layer.h"
#include "model/ranks.h"
#include "nn/ops.h"

namespace moebius {
void DecoderModel::project_qkv(const Layer& layer, size_t T) {
  Buffers& b = *buffers_;
  const HeadSizes& s = layer.sizes;
  const size_t d = s.head_dim, nq = s.heads * d, nk = s.kv_heads * d, nv = s.kv_heads * s.value_dim,
               width = layer.qkv->out_features();
  const size_t no = s.heads * (spec_.gate_per_head ? 1 : s.value_dim);  // gates
  if (spec_.output_gate || spec_.gate_proj != nullptr) grow(b.gate, T * no);
  grow(b.qkv, T * width);
  {
    const Timer timer(profile_, Phase::kLinear);
    run_linear(*layer.qkv, b.a.data(), b.qkv.data(), T);
  }
  for_rows(T, [&](size_t t) {
    float* row = b.qkv.data() + t * width;
    if (spec_.output_gate) {  // [q | gate] per head: q to where it is without gates
      for (size_t h = 0; h < s.heads; ++h)
        std::memcpy(b.gate.data() + t * nq + h * d, row + (2 * h + 1) * d, d * sizeof(float));
      for (size_t h = s.heads; h-- > 0;)  // downwards: no head overwrites one still to move
        std::memmove(row + nq + h * d, row + 2 * h * d, d * sizeof(float));
      row += nq;
    }
    float *q = b.q.data() + t * nq, *k = b.k.data() + t * nk, *v = b.v.data() + t * nv;
    std::memcpy(q, row, nq * sizeof(float));
    if (layer.keys) {
      std::memcpy(k, row + nq, nk * sizeof(float));
      std::memcpy(v, row + nq + (layer.values ? nk : 0), nv * sizeof(float));
    }
    if (layer.norm_before_cut) {
      const size_t all_q = layer.all.heads * d, all_k = layer.all.kv_heads * d;
      normalize_whole(layer, row);
      std::memcpy(q, row + layer.cut.heads.begin * d, nq * sizeof(float));
      if (layer.keys) {
        std::memcpy(k, row + all_q + layer.cut.kv_heads.begin * d, nk * sizeof(float));
        std::memcpy(v, row + all_q + all_k, nv * sizeof(float));
      }
    }
    if (spec_.gate_proj != nullptr)
      std::memcpy(b.gate.data() + t * no, row + width - no, no * sizeof(float));
    if (spec_.value_scale != 1.0f) {
      scale_row(v, spec_.value_scale, nv);
      round_to(options_.type, v, nv);
    }
    normalize_heads(layer, q, k, v);
    if (spec_.clip_qkv <= 0) return;
    for (const auto& [x, n] : {std::pair{q, nq}, std::pair{k, nk}, std::pair{v, nv}})
      for (size_t i = 0; i < n; ++i) x[i] = std::clamp(x[i], -spec_.clip_qkv, spec_.clip_qkv);
  });
}

// Queries and keys of all heads, of which this rank goes on with its own.
void DecoderModel::normalize_whole(const Layer& layer, float* row) const {
  const size_t nq = layer.all.heads * layer.all.head_dim,
               nk = layer.all.kv_heads * layer.all.head_dim;
  normalize(layer.q_norm, options_.type, row, nq, row, nq, 1, nq);
  if (layer.keys) normalize(layer.k_norm, options_.type, row + nq, nk, row + nq, nk, 1, nk);
}

// One row of queries, keys and values, before the rotation.
void DecoderModel::normalize_heads(const Layer& layer, float* q, float* k, float* v) const {
  const HeadSizes& s = layer.sizes;
  const auto each = [&](const Norm& norm, float* x, size_t heads, size_t n) {
    normalize(norm, options_.type, x, n, x, n, heads, n);
  };
  if (spec_.qk_norm == QkNorm::kWhole && !layer.norm_before_cut) {
    each(layer.q_norm, q, 1, s.heads * s.head_dim);
    if (layer.keys) each(layer.k_norm, k, 1, s.kv_heads * s.head_dim);
  } else if (spec_.qk_norm == QkNorm::kHead) {
    each(layer.q_norm, q, s.heads, s.head_dim);
    if (layer.keys) each(layer.k_norm, k, s.kv_heads, s.head_dim);
  }
  if (spec_.value_norm && layer.keys)
    each({NormKind::kRmsPlain, spec_.norm_epsilon, {}, {}}, v, s.kv_heads, s.value_dim);
}

// Keys are [kv latent | rope], values the latent alone, both for all heads. Queries stay [nope |
// rope] per head until they are rotated.
void DecoderModel::project_latent(const Layer& layer, size_t T) {
  Buffers& b = *buffers_;
  const Timer timer(profile_, Phase::kLinear);
  const size_t width = layer.latent->out_features(), kv_at = spec_.q_lora,
               key = spec_.kv_lora + spec_.rope_dim;
  grow(b.latent, T * width), grow(b.q_latent, T * std::max<size_t>(spec_.q_lora, 1));
  run_linear(*layer.latent, b.a.data(), b.latent.data(), T);
  for_rows(T, [&](size_t t) {
    const float* row = b.latent.data() + t * width;
    if (spec_.q_lora > 0)
      normalize(layer.q_latent_norm, options_.type, row, width,
                b.q_latent.data() + t * spec_.q_lora, spec_.q_lora, 1, spec_.q_lora);
    float *k = b.k.data() + t * key, *v = b.v.data() + t * spec_.kv_lora;
    normalize(layer.kv_latent_norm, options_.type, row + kv_at, width, v, spec_.kv_lora, 1,
              spec_.kv_lora);
    std::memcpy(k, v, spec_.kv_lora * sizeof(float));
    std::memcpy(k + spec_.kv_lora, row + kv_at + spec_.kv_lora, spec_.rope_dim * sizeof(float));
  });
  run_linear(*layer.q_up, spec_.q_lora > 0 ? b.q_latent.data() : b.a.data(), b.q.data(), T);
}

void DecoderModel::rotate_row(size_t index, size_t row, size_t position) const {
  Buffers& b = *buffers_;
  const Layer& layer = *layers_[index];
  const LayerSpec& spec = spec_.layers[index];
  const Rope& rope = *ropes_[spec.rope];
  const size_t length = b.lengths[row];
  // Latent keys: one row for all heads, its rope part behind the latent.
  const bool latent = spec_.latent();
  const size_t dk = layer.key_dim, heads = layer.sizes.heads, q_at = latent ? spec_.nope_dim : 0,
               kv_heads = latent        ? 1
                          : !layer.keys ? 0
                                        : layer.sizes.kv_heads,
               k_width = latent ? spec_.kv_lora + spec_.rope_dim : dk,
               k_at = latent ? spec_.kv_lora : 0;
  float *q = b.q.data() + row * heads * dk, *k = b.k.data() + row * kv_heads * k_width;
  if (spec.rotary) {
    for (size_t h = 0; h < heads; ++h)
      rope.rotate(q + h * dk + q_at, position, length, options_.type);
    for (size_t h = 0; h < kv_heads; ++h)
      rope.rotate(k + h * k_width + k_at, position, length, options_.type);
    if (spec_.qk_norm == QkNorm::kAfterPlain) {
      const Norm plain{NormKind::kRmsPlain, spec_.norm_epsilon, {}, {}};
      normalize(plain, options_.type, q, dk, q, dk, heads, dk);
      normalize(plain, options_.type, k, dk, k, dk, kv_heads, dk);
    } else if (spec_.qk_norm == QkNorm::kHeadAfter) {
      normalize(layer.q_norm, options_.type, q, dk, q, dk, heads, dk);
      normalize(layer.k_norm, options_.type, k, dk, k, dk, kv_heads, dk);
    }
  }
  if (spec.temperature_scale != 0) {
    const float factor =
        1 + spec.temperature_scale *
                std::log1p(std::floor((static_cast<float>(position) + spec.temperature_first) /
                                      spec.temperature_floor));
    scale_row(q, factor, heads * dk);
    round_to(options_.type, q, heads * dk);
  }
}

// Addresses of the layer's part of every block that an item reads or writes; null where it does
// neither.
void DecoderModel::gather_blocks(size_t index, std::span<const Work> work) {
  Buffers& b = *buffers_;
  const KvPlan::Place& place = kv_plan_.layers[index];
  b.blocks.clear(), b.blocks_at.clear();
  for (const auto& [item, memory, sequence] : work) {
    b.blocks_at.push_back(b.blocks.size());
    const size_t count = (item.position + item.tokens.size() - 1) / kBlockTokens + 1;
    const std::vector<BlockId>& table = (*item.tables)[place.kind];
    for (size_t i = 0; i < count; ++i)
      b.blocks.push_back(table[i] == kNoBlock ? nullptr
                                              : memory->block(place.kind, table[i]) + place.offset);
  }
}

// Keys and values of an item's new rows, one kv head, into its blocks.
void DecoderModel::append(size_t index, std::span<const Work> work, size_t i, size_t head) {
  Buffers& b = *buffers_;
  const Layer& layer = *layers_[index];
  const AttentionSpec a = layer.attention->spec;
  const BatchItem& item = work[i].item;
  const size_t nk = a.kv_heads * a.key_dim, nv = a.kv_heads * a.value_dim;
  for (size_t t = 0; t < item.tokens.size();) {
    const size_t at = item.position + t, first = at % kBlockTokens,
                 count = std::min(kBlockTokens - first, item.tokens.size() - t),
                 row = b.first_row[i] + t;
    uint8_t* block = b.blocks[b.blocks_at[i] + at / kBlockTokens];
    if (layer.kv_up != nullptr) {
      for (size_t j = 0; j < count; ++j)
        layer.latents.put(block, first + j, b.k.data() + (row + j) * layer.latents.width);
    } else {
      layer.attention->kv.put(block, head, first, count, b.k.data() + row * nk + head * a.key_dim,
                              nk, b.v.data() + row * nv + head * a.value_dim, nv);
    }
    t += count;
  }
}

AttentionRows DecoderModel::attention_rows(const Layer& layer, const Work& work, size_t i) const {
  Buffers& b = *buffers_;
  const AttentionSpec& a = layer.attention->spec;
  AttentionRows rows{b.blocks.data() + b.blocks_at[i], work.item.position,
                     b.q.data() + b.first_row[i] * a.heads * a.key_dim,
                     b.attended.data() + b.first_row[i] * a.heads * a.value_dim,
                     work.item.tokens.size()};
  if (spec_.indexer.top_k > 0 && b.selected_words[i] > 0)
    rows.selected = b.selected.data() + b.selected_at[i], rows.words = b.selected_words[i];
  return rows;
}

void DecoderModel::run_attention(const Layer& layer, std::span<const Work> work) {
  Buffers& b = *buffers_;
  std::vector<AttentionRows> rows;
  for (size_t i = 0; i < work.size(); ++i) rows.push_back(attention_rows(layer, work[i], i));
  Attention attention(*layer.attention, rows, Segments::kParallel, options_.pool->size());
  stats_->kv_bytes += attention.bytes_read();
  moebius::run_attention(attention, *options_.pool, b.scratch);
}

// Keys and values of the first `tokens` tokens of a block, as kv_b declares, out of latents.
void DecoderModel::expand(const Layer& layer, size_t item, size_t block, size_t tokens) {
  Buffers& b = *buffers_;
  const size_t heads = spec_.heads, dk = layer.key_dim, dv = spec_.value_dim,
               kv_head = spec_.nope_dim + dv, width = layer.latents.width;
  grow(b.latent_rows, kBlockTokens * width), grow(b.kv_latent, kBlockTokens * spec_.kv_lora);
  grow(b.kv_rows, kBlockTokens * heads * kv_head);
  grow(b.k_rows, kBlockTokens * heads * dk), grow(b.v_rows, kBlockTokens * heads * dv);
  const uint8_t* from = b.blocks[b.blocks_at[item] + block];
  for (size_t t = 0; t < tokens; ++t) {
    float* row = b.latent_rows.data() + t * width;
    layer.latents.get(from, t, row);
    std::memcpy(b.kv_latent.data() + t * spec_.kv_lora, row, spec_.kv_lora * sizeof(float));
  }
  run_linear(*layer.kv_up, b.kv_latent.data(), b.kv_rows.data(), tokens);
  options_.pool->parallel_for(heads, [&](size_t h) {
    for (size_t t = 0; t < tokens; ++t) {
      const float* kv = b.kv_rows.data() + (t * heads + h) * kv_head;
      float* k = b.k_rows.data() + (t * heads + h) * dk;
      std::memcpy(k, kv, spec_.nope_dim * sizeof(float));
      std::memcpy(k + spec_.nope_dim, b.latent_rows.data() + t * width + spec_.kv_lora,
                  spec_.rope_dim * sizeof(float));
      std::memcpy(b.v_rows.data() + (t * heads + h) * dv, kv + spec_.nope_dim, dv * sizeof(float));
    }
    layer.attention->kv.put(b.expanded[block % kSegmentBlocks].data(), h, 0, tokens,
                            b.k_rows.data() + h * dk, heads * dk, b.v_rows.data() + h * dv,
                            heads * dv);
  });
}

// Segment by segment, so that one segment of expanded keys and values is in memory at a time.
void DecoderModel::run_expanded(const Layer& layer, const Work& work, size_t item) {
  Buffers& b = *buffers_;
  const size_t total = work.item.position + work.item.tokens.size(),
               blocks = (total + kBlockTokens - 1) / kBlockTokens;
  const size_t bytes = layer.attention->kv.block_bytes();
  if (b.expanded.empty() || b.expanded[0].size() < bytes) {
    b.expanded.clear();
    for (size_t i = 0; i < kSegmentBlocks; ++i) b.expanded.emplace_back(bytes);
  }
  b.expanded_at.resize(blocks);
  for (size_t i = 0; i < blocks; ++i) b.expanded_at[i] = b.expanded[i % kSegmentBlocks].data();
  AttentionRows rows = attention_rows(layer, work, item);
  rows.blocks = b.expanded_at.data();
  Attention attention(*layer.attention, {&rows, 1}, Segments::kSequential);
  for (size_t begin = 0; begin < attention.tasks();) {
    const size_t segment = attention.segment_of(begin);
    size_t end = begin;
    while (end < attention.tasks() && attention.segment_of(end) == segment) ++end;
    for (size_t block = segment * kSegmentBlocks;
         block < std::min((segment + 1) * kSegmentBlocks, blocks); ++block) {
      expand(layer, item, block, std::min(kBlockTokens, total - block * kBlockTokens));
      stats_->kv_bytes += layer.latents.block_bytes();
    }
    WorkCounter next;
    options_.pool->run([&](ThreadPool::Member& me) {
      for (size_t i = begin + next.take(); i < end; i = begin + next.take())
        attention.run(i, b.scratch[me.index()]);
    });
    begin = end;
  }
  options_.pool->parallel_for(attention.merges(), [&](size_t i) { attention.merge(i); });
}

void DecoderModel::gate_attended(const Layer& layer, size_t T) {
  Buffers& b = *buffers_;
  const size_t dv = layer.sizes.value_dim, n = layer.sizes.heads * dv,
               each = spec_.gate_per_head ? dv : 1, gates = n / each;
  constexpr RowActivation kSigmoid{RowFunction::kSigmoid};
  for_rows(T, [&](size_t t) {
    float *gate = b.gate.data() + t * gates, *y = b.attended.data() + t * n;
    if (spec_.gate_softplus)
      for (size_t i = 0; i < gates; ++i) gate[i] = softplus_f32(gate[i]);
    else
      row_functions().activate(kSigmoid, nullptr, gate, gate, gates);
    round_to(options_.type, gate, gates);
    for (size_t i = 0; i < n; ++i) y[i] = y[i] * gate[i / each];
    round_to(options_.type, y, n);
  });
}

void DecoderModel::attend(size_t index, std::span<const Work> work, size_t T) {
  if (layers_[index]->recurrent != nullptr) return attend_recurrent(index, work, T);
  Buffers& b = *buffers_;
  const Layer& layer = *layers_[index];
  const AttentionSpec& a = layer.attention->spec;
  const bool latent = spec_.latent(), absorbed = layer.query_up != nullptr;
  const size_t dk = layer.key_dim, dv = layer.sizes.value_dim, nq = layer.sizes.heads * dk,
               no = layer.sizes.heads * dv;
  const size_t k_width = latent ? spec_.kv_lora + spec_.rope_dim : layer.sizes.kv_heads * dk,
               v_width = latent ? spec_.kv_lora : layer.sizes.kv_heads * dv;
  grow(b.q, T * nq), grow(b.k, T * k_width), grow(b.v, T * v_width);
  grow(b.attended, T * std::max(no, a.heads * a.value_dim));
  if (latent)
    project_latent(layer, T);
  else
    project_qkv(layer, T);
  gather_blocks(index, work);
  if (layer.indexer != nullptr) select_keys(index, work, T);
  {
    const Timer timer(profile_, Phase::kAttention);
    WorkCounter next_row, next_head;
    const size_t heads = layer.kv_up != nullptr ? 1 : layer.keys ? a.kv_heads : 0;
    options_.pool->run([&](ThreadPool::Member& me) {
      for (size_t t = next_row.take(4); t < T; t = next_row.take(4))
        for (size_t i = t; i < std::min(t + 4, T); ++i)
          rotate_row(index, i, static_cast<size_t>(b.positions[i]));
      me.barrier();
      for (size_t i = next_head.take(); i < heads * work.size(); i = next_head.take())
        append(index, work, i / heads, i % heads);
    });
    if (absorbed) absorb_queries(layer, T);
    if (layer.kv_up != nullptr)
      for (size_t i = 0; i < work.size(); ++i) run_expanded(layer, work[i], i);
    else
      run_attention(layer, work);
    if (absorbed)
      layer.value_up->forward(b.attended.data(), {a.heads * a.value_dim, a.value_dim}, b.q.data(),
                              {no, dv}, T, *options_.pool);
  }
  if (spec_.output_gate || spec_.gate_proj != nullptr) gate_attended(layer, T);
  project_attended(index, absorbed ? b.q.data() : b.attended.data(), T);
}

void DecoderModel::project_attended(size_t index, const float* values, size_t T) {
  Buffers& b = *buffers_;
  const Layer& layer = *layers_[index];
  if (!cuts_heads_) {
    const Timer timer(profile_, Phase::kLinear);
    return run_linear(*layer.output, values, b.branch.data(), T);
  }
  const size_t width = layer.all.heads * layer.all.value_dim;
  grow(b.all_values, T * width), grow(b.part, T * layer.output->out_features());
  {
    const Timer timer(profile_, Phase::kExchange);
    options_.ranks->gather(options_.type, values, layer.values_of, b.all_values.data(), width, T,
                           "attended values", static_cast<int>(index));
  }
  {
    const Timer timer(profile_, Phase::kLinear);
    run_linear(*layer.output, b.all_values.data(), b.part.data(), T);
  }
  gather_output(b.part.data(), columns_, b.branch.data(), T, "output of attention", index);
}

// A query's nope part becomes what meets latents; its rope part stays as it is.
void DecoderModel::absorb_queries(const Layer& layer, size_t T) {
  Buffers& b = *buffers_;
  const size_t heads = spec_.heads, dk = layer.key_dim, key = spec_.kv_lora + spec_.rope_dim;
  grow(b.absorbed, T * heads * key);
  layer.query_up->forward(b.q.data(), {heads * dk, dk}, b.absorbed.data(), {heads * key, key}, T,
                          *options_.pool);
  for_rows(T, [&](size_t t) {
    for (size_t h = 0; h < heads; ++h)
      std::memcpy(b.absorbed.data() + (t * heads + h) * key + spec_.kv_lora,
                  b.q.data() + (t * heads + h) * dk + spec_.nope_dim,
                  spec_.rope_dim * sizeof(float));
  });
  std::swap(b.q, b.absorbed);
}

}  // namespace moebius
