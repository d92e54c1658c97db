// SPDX-License-Identifier: Apache-2.0
// One step through the layers. Values between operations are f32 numbers that are exact in the
// activation type: every operation ends with one rounding to it.
#include "model/decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "model/decoder_layer.h"
#include "nn/ops.h"
#include "quant/quant_access.h"

namespace moebius {
namespace {

constexpr size_t kInlineElements =
    16384;  // below this waking the other threads costs more than it brings

void grow(std::vector<float>& v, size_t n) {
  if (v.size() < n) v.resize(n);
}

}  // namespace

std::string_view name_of(Phase phase) {
  static constexpr std::string_view kNames[] = {"embedding", "norm", "linear",
                                                "attention", "moe",  "output"};
  return kNames[static_cast<size_t>(phase)];
}

size_t SequenceState::kv_bytes() const {
  size_t bytes = 0;
  for (const KvCache& c : layers_) bytes += c.bytes();
  return bytes;
}

SequenceState DecoderModel::new_sequence() const {
  SequenceState s;
  for (const auto& l : layers_) s.layers_.emplace_back(*l->attention);
  return s;
}

void DecoderModel::for_rows(size_t T, FunctionRef<void(size_t)> fn) {
  if (T * hidden_ <= kInlineElements) {
    for (size_t t = 0; t < T; ++t) fn(t);
  } else {
    options_.pool->parallel_for(T, fn, 4);
  }
}

void DecoderModel::run_linear(const LinearLayer& layer, const float* x, float* y, size_t T,
                              bool round) {
  const XType numbers = round ? options_.type : XType::kF32;
  layer.forward(f32_rows(x, T, layer.in_features()), f32_rows(y, T, layer.out_features(), numbers),
                *options_.pool);
}

void DecoderModel::embed_token(size_t token, float* to) {
  QuantMatrix table = embedding_;
  if (embedding_store_ != nullptr) {
    embedding_memory_.reset();
    table =
        reader_for(embedding_plan_.scheme.format)
            .load(rows_of(embedding_plan_, token, token + 1), *embedding_store_, embedding_memory_);
    token = 0;
  }
  for (size_t c = 0; c < hidden_; ++c)
    to[c] = weight_at(table, token, c) * spec_.embedding_multiplier;
  round_to(options_.type, to, hidden_);
}

void DecoderModel::embed(std::span<const StepItem> items, size_t T) {
  Buffers& b = *buffers_;
  grow(b.h, T * hidden_), grow(b.a, T * hidden_), grow(b.branch, T * hidden_);
  b.positions.resize(T);
  size_t row = 0, longest = 0;
  for (const StepItem& item : items) {
    for (size_t i = 0; i < item.tokens.size(); ++i, ++row) {
      b.positions[row] = static_cast<int32_t>(item.state->length() + i);
      embed_token(static_cast<size_t>(item.tokens[i]), b.h.data() + row * hidden_);
    }
    longest = std::max(longest, item.state->length() + item.tokens.size());
  }
  rope_->reserve((longest + 255) / 256 * 256);
}

void DecoderModel::project_qkv(const Layer& layer, size_t T) {
  Buffers& b = *buffers_;
  const size_t nq = spec_.heads * spec_.head_dim, nk = spec_.kv_heads * spec_.head_dim,
               nv = spec_.kv_heads * spec_.value_dim, width = nq + nk + nv;
  grow(b.qkv, T * width);
  {
    const Timer timer(profile_, Phase::kLinear);
    run_linear(*layer.qkv, b.a.data(), b.qkv.data(), T);
  }
  for_rows(T, [&](size_t t) {
    float* row = b.qkv.data() + t * width;
    if (spec_.qk_norm == QkNorm::kWhole) {
      normalize(layer.q_norm, options_.type, row, nq, row, nq, 1, nq);
      normalize(layer.k_norm, options_.type, row + nq, nk, row + nq, nk, 1, nk);
    } else if (spec_.qk_norm == QkNorm::kHead) {
      normalize(layer.q_norm, options_.type, row, spec_.head_dim, row, spec_.head_dim, spec_.heads,
                spec_.head_dim);
      normalize(layer.k_norm, options_.type, row + nq, spec_.head_dim, row + nq, spec_.head_dim,
                spec_.kv_heads, spec_.head_dim);
    }
    if (spec_.clip_qkv > 0)
      for (size_t i = 0; i < width; ++i)
        row[i] = std::clamp(row[i], -spec_.clip_qkv, spec_.clip_qkv);
    std::memcpy(b.q.data() + t * nq, row, nq * sizeof(float));
    std::memcpy(b.k.data() + t * nk, row + nq, nk * sizeof(float));
    std::memcpy(b.v.data() + t * nv, row + nq + nk, nv * sizeof(float));
  });
}

// q and k of a head are [nope | rope]; the rope part of k is one vector for all heads.
void DecoderModel::project_latent(const Layer& layer, size_t T) {
  Buffers& b = *buffers_;
  const Timer timer(profile_, Phase::kLinear);
  const size_t width = layer.latent->out_features(), kv_at = spec_.q_lora, dk = spec_.key_dim();
  const size_t kv_head = spec_.nope_dim + spec_.value_dim, kv_width = spec_.heads * kv_head;
  grow(b.latent, T * width), grow(b.q_latent, T * std::max<size_t>(spec_.q_lora, 1)),
      grow(b.kv_latent, T * spec_.kv_lora), grow(b.kv, T * kv_width);
  run_linear(*layer.latent, b.a.data(), b.latent.data(), T);
  for_rows(T, [&](size_t t) {
    const float* row = b.latent.data() + t * width;
    if (spec_.q_lora > 0)
      normalize(layer.q_latent_norm, options_.type, row, width,
                b.q_latent.data() + t * spec_.q_lora, spec_.q_lora, 1, spec_.q_lora);
    normalize(layer.kv_latent_norm, options_.type, row + kv_at, width,
              b.kv_latent.data() + t * spec_.kv_lora, spec_.kv_lora, 1, spec_.kv_lora);
  });
  run_linear(*layer.q_up, spec_.q_lora > 0 ? b.q_latent.data() : b.a.data(), b.q.data(), T);
  run_linear(*layer.kv_up, b.kv_latent.data(), b.kv.data(), T);
  for_rows(T, [&](size_t t) {
    const float *shared = b.latent.data() + t * width + kv_at + spec_.kv_lora,
                *kv = b.kv.data() + t * kv_width;
    for (size_t h = 0; h < spec_.heads; ++h) {
      float* k = b.k.data() + (t * spec_.heads + h) * dk;
      std::memcpy(k, kv + h * kv_head, spec_.nope_dim * sizeof(float));
      std::memcpy(k + spec_.nope_dim, shared, spec_.rope_dim * sizeof(float));
      std::memcpy(b.v.data() + (t * spec_.heads + h) * spec_.value_dim,
                  kv + h * kv_head + spec_.nope_dim, spec_.value_dim * sizeof(float));
    }
  });
}

void DecoderModel::rotate_row(const Layer&, const LayerSpec& spec, size_t row,
                              size_t position) const {
  Buffers& b = *buffers_;
  const size_t dk = spec_.key_dim(), at = spec_.latent() ? spec_.nope_dim : 0;
  const auto each_head = [&](float* x, size_t heads, auto&& fn) {
    for (size_t h = 0; h < heads; ++h) fn(x + h * dk);
  };
  float *q = b.q.data() + row * spec_.heads * dk, *k = b.k.data() + row * spec_.kv_heads * dk;
  if (spec.rotary) {
    const auto rotate = [&](float* x) { rope_->rotate(x + at, position, options_.type); };
    each_head(q, spec_.heads, rotate);
    each_head(k, spec_.kv_heads, rotate);
    if (spec_.qk_norm == QkNorm::kAfterPlain) {
      const Norm plain{NormKind::kRmsPlain, spec_.norm_epsilon, {}, {}};
      const auto norm = [&](float* x) { normalize(plain, options_.type, x, dk, x, dk, 1, dk); };
      each_head(q, spec_.heads, norm);
      each_head(k, spec_.kv_heads, norm);
    }
  } else if (spec.temperature_scale != 0) {
    const float factor =
        1 + spec.temperature_scale *
                std::log1p(std::floor((static_cast<float>(position) + 1) / spec.temperature_floor));
    scale_row(q, factor, spec_.heads * dk);
    round_to(options_.type, q, spec_.heads * dk);
  }
}

void DecoderModel::attend(size_t index, std::span<const StepItem> items, size_t T) {
  Buffers& b = *buffers_;
  const Layer& layer = *layers_[index];
  const size_t dk = spec_.key_dim(), dv = spec_.value_dim, nq = spec_.heads * dk,
               nk = spec_.kv_heads * dk, nv = spec_.kv_heads * dv, no = spec_.heads * dv;
  grow(b.q, T * nq), grow(b.k, T * nk), grow(b.v, T * nv), grow(b.attended, T * no);
  if (spec_.latent())
    project_latent(layer, T);
  else
    project_qkv(layer, T);
  {
    const Timer timer(profile_, Phase::kAttention);
    std::vector<AttentionRows> rows;
    std::vector<size_t> first;
    size_t row = 0;
    for (const StepItem& item : items) {
      KvCache& cache = item.state->layers_[index];
      cache.reserve(item.tokens.size());
      rows.push_back(
          {&cache, b.q.data() + row * nq, b.attended.data() + row * no, item.tokens.size()});
      first.push_back(row);
      row += item.tokens.size();
    }
    WorkCounter next_row, next_head;
    const size_t heads = spec_.kv_heads * items.size();
    options_.pool->run([&](ThreadPool::Member& me) {
      for (size_t t = next_row.take(4); t < T; t = next_row.take(4))
        for (size_t i = t; i < std::min(t + 4, T); ++i)
          rotate_row(layer, spec_.layers[index], i, static_cast<size_t>(b.positions[i]));
      me.barrier();
      for (size_t i = next_head.take(); i < heads; i = next_head.take()) {
        const size_t s = i / spec_.kv_heads, h = i % spec_.kv_heads;
        items[s].state->layers_[index].append_head(h, b.k.data() + first[s] * nk + h * dk, nk,
                                                   b.v.data() + first[s] * nv + h * dv, nv,
                                                   items[s].tokens.size());
      }
    });
    for (const StepItem& item : items) item.state->layers_[index].commit(item.tokens.size());
    const Attention attention(*layer.attention, rows);
    WorkCounter next;
    options_.pool->run([&](ThreadPool::Member& me) {
      for (size_t i = next.take(); i < attention.tasks(); i = next.take())
        attention.run(i, b.scratch[me.index()]);
    });
  }
  const Timer timer(profile_, Phase::kLinear);
  run_linear(*layer.output, b.attended.data(), b.branch.data(), T);
}

void DecoderModel::mix(const Layer& layer, size_t T) {
  Buffers& b = *buffers_;
  const Timer timer(profile_, Phase::kMoe);
  const ConstRows x = f32_rows(b.a.data(), T, hidden_);
  const Rows y = f32_rows(b.branch.data(), T, hidden_, options_.type);
  if (layer.routed) {
    const size_t E = layer.moe.router->out_features();
    grow(b.router, T * E);
    run_linear(*layer.moe.router, b.a.data(), b.router.data(), T, false);
    layer.moe.experts->forward_logits(x, f32_rows(b.router.data(), T, E), y, *options_.pool);
  } else {
    if (b.ones.size() < T) b.ones.assign(T, 1.0f), b.ones_ids.assign(T, 0);
    layer.moe.experts->forward_ids(x, {b.ones_ids.data(), T}, {b.ones.data(), T}, y,
                                   *options_.pool);
  }
}

// h += multiplier * branch (when there is one), a = norm(h).
void DecoderModel::add_and_normalize(const Norm& norm, const std::vector<float>* branch, size_t T) {
  Buffers& b = *buffers_;
  const Timer timer(profile_, Phase::kNorm);
  for_rows(T, [&](size_t t) {
    float* h = b.h.data() + t * hidden_;
    if (branch != nullptr) {
      const float* y = branch->data() + t * hidden_;
      if (spec_.residual_multiplier == 1.0f) {
        add_row(h, y, hidden_);
      } else {
        std::vector<float> scaled(y, y + hidden_);
        scale_row(scaled.data(), spec_.residual_multiplier, hidden_);
        round_to(options_.type, scaled.data(), hidden_);
        add_row(h, scaled.data(), hidden_);
      }
      round_to(options_.type, h, hidden_);
    }
    normalize(norm, options_.type, h, hidden_, b.a.data() + t * hidden_, hidden_, 1, hidden_);
  });
}

void DecoderModel::forward(std::span<const StepItem> items, std::vector<float>& logits) {
  const std::lock_guard lock(mutex_);
  size_t T = 0, outputs = 0;
  for (const StepItem& item : items) {
    if (item.tokens.empty()) fail("a step needs at least one token of every sequence");
    for (const int32_t t : item.tokens)
      if (t < 0 || static_cast<size_t>(t) >= vocab_)
        fail("token {} is not in the vocabulary of {} tokens", t, vocab_);
    T += item.tokens.size();
    outputs += item.all_logits ? item.tokens.size() : 1;
  }
  if (T == 0) {
    logits.clear();
    return;
  }
  const ThreadPool::Stay stay(*options_.pool);  // a step is many short regions
  Buffers& b = *buffers_;
  {
    const Timer timer(profile_, Phase::kEmbedding);
    embed(items, T);
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    add_and_normalize(layers_[i]->input_norm, i == 0 ? nullptr : &b.branch, T);
    attend(i, items, T);
    add_and_normalize(layers_[i]->post_norm, &b.branch, T);
    mix(*layers_[i], T);
  }
  add_and_normalize(final_norm_, &b.branch, T);
  const Timer timer(profile_, Phase::kOutput);
  grow(b.gathered, outputs * hidden_);
  size_t row = 0, out = 0;
  for (const StepItem& item : items) {
    const size_t n = item.tokens.size(), from = item.all_logits ? 0 : n - 1;
    std::memcpy(b.gathered.data() + out * hidden_, b.a.data() + (row + from) * hidden_,
                (n - from) * hidden_ * sizeof(float));
    row += n, out += n - from;
  }
  const size_t width = output_->out_features();
  logits.resize(outputs * vocab_);
  if (width == vocab_) {
    run_linear(*output_, b.gathered.data(), logits.data(), outputs, false);
  } else {  // a padded vocabulary
    grow(b.router, outputs * width);
    run_linear(*output_, b.gathered.data(), b.router.data(), outputs, false);
    for (size_t i = 0; i < outputs; ++i)
      std::memcpy(logits.data() + i * vocab_, b.router.data() + i * width, vocab_ * sizeof(float));
  }
  if (spec_.logits_divisor != 1.0f)
    for (float& v : logits) v /= spec_.logits_divisor;
}

}  // namespace moebius
