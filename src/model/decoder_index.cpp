// SPDX-License-Identifier: Apache-2.0
// Sparse attention of a step: the indexer's keys of the new rows go into the blocks behind the keys
// and values of their layer, and rows choose what they will see.
#include <algorithm>

#include "model/decoder_layer.h"
#include "model/layer_parts.h"

namespace moebius {
std::unique_ptr<Indexer> make_indexer(const Checkpoint& checkpoint, const DecoderSpec& spec,
                                      size_t layer, const ModelOptions& options, const Cpu& cpu) {
  if (!spec.layers[layer].indexes) return nullptr;
  return std::make_unique<Indexer>(spec.indexer, options.type,
                                   storage_of(checkpoint, spec, layer, options).type, cpu,
                                   options.policy);
}

void DecoderModel::load_indexer(const Checkpoint& checkpoint, size_t index, Layer& layer) {
  const LayerParts parts(checkpoint, index);
  const IndexerSpec& s = spec_.indexer;
  const Module &q = parts.require("self_attn.indexer.wq_b"),
               &k = parts.require("self_attn.indexer.wk"),
               &w = parts.require("self_attn.indexer.weights_proj");
  expect_width(q, s.heads * s.head_dim, "index_n_heads and index_head_dim");
  expect_width(k, s.head_dim, "index_head_dim");
  expect_width(w, s.heads, "index_n_heads");
  layer.index_q = load_linear(checkpoint, {&q}, layer_options_);
  layer.index_kw = load_linear(checkpoint, {&k, &w}, layer_options_);
  layer.index_norm = parts.norm("self_attn.indexer.k_norm", NormKind::kLayer, 1e-6f, s.head_dim);
  layer.indexer = make_indexer(checkpoint, spec_, index, options_, layer_options_.cpu);
}

void DecoderModel::put_index_keys(const Layer& layer, std::span<const Work> work) {
  Buffers& b = *buffers_;
  const size_t width = layer.index_kw->out_features();
  options_.pool->parallel_for(work.size(), [&](size_t i) {
    const BatchItem& item = work[i].item;
    for (size_t t = 0; t < item.tokens.size();) {
      const size_t at = item.position + t, first = at % kBlockTokens,
                   count = std::min(kBlockTokens - first, item.tokens.size() - t);
      layer.indexer->keys().put(b.blocks[b.blocks_at[i] + at / kBlockTokens] + layer.index_at, 0,
                                first, count, b.index_kw.data() + (b.first_row[i] + t) * width,
                                width, nullptr, 0);
      t += count;
    }
  });
}

void DecoderModel::select_keys(size_t index, std::span<const Work> work, size_t T) {
  Buffers& b = *buffers_;
  const Layer& layer = *layers_[index];
  const IndexerSpec& s = spec_.indexer;
  const Rope& rope = *ropes_[spec_.indexer_rope];
  const size_t width = layer.index_kw->out_features(), nq = s.heads * s.head_dim;
  grow(b.index_q, T * nq), grow(b.index_kw, T * width);
  {
    const Timer timer(profile_, Phase::kLinear);
    run_linear(*layer.index_kw, b.a.data(), b.index_kw.data(), T);
    run_linear(*layer.index_q, b.q_latent.data(), b.index_q.data(), T);
  }
  const Timer timer(profile_, Phase::kAttention);
  for_rows(T, [&](size_t t) {
    float *k = b.index_kw.data() + t * width, *q = b.index_q.data() + t * nq;
    const auto position = static_cast<size_t>(b.positions[t]);
    normalize(layer.index_norm, options_.type, k, s.head_dim, k, s.head_dim, 1, s.head_dim);
    rope.rotate(k, position, b.lengths[t], options_.type);
    for (size_t h = 0; h < s.heads; ++h)
      rope.rotate(q + h * s.head_dim, position, b.lengths[t], options_.type);
  });
  put_index_keys(layer, work);
  std::vector<size_t> item_of;
  std::vector<IndexRows> rows(work.size());
  b.selected_at.assign(work.size(), 0), b.selected_words.assign(work.size(), 0);
  size_t total = 0;
  for (size_t i = 0; i < work.size(); ++i) {
    const size_t n = work[i].item.tokens.size(), end = work[i].item.position + n;
    item_of.resize(item_of.size() + n, i);
    if (end <= s.top_k) continue;  // every row sees everything
    b.selected_at[i] = total, b.selected_words[i] = IndexRows::words_of(end);
    total += n * b.selected_words[i];
    stats_->kv_bytes +=
        (end + kBlockTokens - 1) / kBlockTokens * layer.indexer->keys().block_bytes();
  }
  if (total == 0) return;
  grow(b.selected, total);
  for (size_t i = 0; i < work.size(); ++i)
    rows[i] = {b.blocks.data() + b.blocks_at[i],
               layer.index_at,
               work[i].item.position,
               b.index_q.data() + b.first_row[i] * nq,
               b.index_kw.data() + b.first_row[i] * width + s.head_dim,
               width,
               b.selected.data() + b.selected_at[i],
               b.selected_words[i],
               work[i].item.tokens.size()};
  WorkCounter next;
  options_.pool->run([&](ThreadPool::Member& me) {
    for (size_t t = next.take(); t < T; t = next.take())
      if (const IndexRows& r = rows[item_of[t]]; r.words > 0)
        layer.indexer->select(r, t - b.first_row[item_of[t]], b.index_scratch[me.index()]);
  });
}

}  // namespace moebius
