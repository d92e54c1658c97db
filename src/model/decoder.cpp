// SPDX-License-Identifier: Apache-2.0
// One step through the layers. Values between operations are f32 numbers that are exact in the
// activation type: every operation ends with one rounding to it.
#include "model/decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "kernels/row_functions.h"
#include "kernels/unpack.h"
#include "model/decoder_layer.h"
#include "model/ranks.h"
#include "nn/ops.h"
#include "quant/quant_access.h"

namespace moebius {
namespace {

constexpr size_t kInlineElements =
    16384;  // below this waking the other threads costs more than it brings

}  // namespace

std::string_view name_of(Phase phase) {
  static constexpr std::string_view kNames[] = {"embedding", "norm",   "linear",  "attention",
                                                "moe",       "output", "exchange"};
  return kNames[static_cast<size_t>(phase)];
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

void DecoderModel::embed_token(size_t token, float* to) const {
  if (tied_rows_)
    tied_rows_->read(output_->slot().view().data, token, to);
  else if (is_dense_code(embedding_.code))
    unpack_f32(embedding_, token, 0, hidden_, nullptr, to);
  else
    for (size_t c = 0; c < hidden_; ++c) to[c] = weight_at(embedding_, token, c);
  scale_row(to, spec_.embedding_multiplier, hidden_);
  round_to(options_.type, to, hidden_);
}

void DecoderModel::embed(std::span<const Work> work, size_t T) {
  Buffers& b = *buffers_;
  grow(b.h, T * hidden_), grow(b.a, T * hidden_), grow(b.branch, T * hidden_);
  b.positions.resize(T), b.lengths.resize(T), b.tokens.resize(T);
  b.first_row.clear();
  size_t row = 0, longest = 0;
  for (const auto& [item, memory, sequence] : work) {
    b.first_row.push_back(row);
    for (size_t i = 0; i < item.tokens.size(); ++i, ++row) {
      b.positions[row] = static_cast<int32_t>(item.position + i);
      b.lengths[row] = std::max(item.length, item.position + item.tokens.size());
      b.tokens[row] = item.tokens[i];
    }
    longest = std::max(longest, item.position + item.tokens.size());
  }
  if (own_.begin == 0 && (options_.ranks == nullptr || leads()))
    for_rows(T, [&](size_t t) {
      embed_token(static_cast<size_t>(b.tokens[t]), b.h.data() + t * hidden_);
    });
  for (const auto& rope : ropes_) rope->reserve((longest + 255) / 256 * 256);
}

void DecoderModel::mix(size_t index, size_t T) {
  Buffers& b = *buffers_;
  const Layer& layer = *layers_[index];
  const Timer timer(profile_, Phase::kMoe);
  if (layer.parallel_mlp != nullptr) {
    mix_parallel(index, T);
  } else if (layer.routed) {
    run_experts(index, b.a.data(), b.a.data(), T);
  } else {
    run_dense(index, *layer.moe.experts, b.a.data(), b.branch.data(), T);
    stats_->weight_bytes += layer.moe_bytes_per_token;
  }
}

void DecoderModel::run_experts(size_t index, const float* router_x, const float* x, size_t T) {
  Buffers& b = *buffers_;
  const Layer& layer = *layers_[index];
  const size_t E = layer.moe.router->out_features(), slots = layer.moe.experts->slots();
  grow(b.router, T * E), grow(b.weights, T * slots);
  run_linear(*layer.moe.router, router_x, b.router.data(), T, false);
  grow(b.ids, T * slots);
  MoeOptions options;
  options.ids_out = b.ids.data(), options.weights_out = b.weights.data();
  if (!columns_.empty()) options.exchange = &options_.ranks->for_experts();
  const size_t width = layer.moe.experts->outputs();
  if (!columns_.empty()) grow(b.part, T * width);
  float* y = columns_.empty() ? b.branch.data() : b.part.data();
  layer.moe.experts->forward_logits(f32_rows(x, T, hidden_), f32_rows(b.router.data(), T, E),
                                    f32_rows(y, T, width, options_.type), *options_.pool, options);
  if (!columns_.empty())
    gather_output(y, expert_columns_, b.branch.data(), T, "output of experts", index);
  count_experts(index, T);
}

void DecoderModel::run_dense(size_t index, const MoeLayer& layer, const float* x, float* y,
                             size_t T) {
  Buffers& b = *buffers_;
  if (b.ones.size() < T) b.ones.assign(T, 1.0f), b.ones_ids.assign(T, 0);
  MoeOptions options;
  if (!columns_.empty()) options.exchange = &options_.ranks->for_dense();
  const size_t width = layer.outputs();
  if (!columns_.empty()) grow(b.part, T * width);
  float* to = columns_.empty() ? y : b.part.data();
  layer.forward_ids(f32_rows(x, T, hidden_), {b.ones_ids.data(), T}, {b.ones.data(), T},
                    f32_rows(to, T, width, options_.type), *options_.pool, options);
  if (!columns_.empty()) gather_output(to, columns_, y, T, "output of the MLP", index);
}

// branch = norm(MLP(a)) + norm(experts(norm(h))); the router reads rows of its own.
void DecoderModel::mix_parallel(size_t index, size_t T) {
  Buffers& b = *buffers_;
  const Layer& layer = *layers_[index];
  const size_t n = hidden_;
  grow(b.dense, T * n), grow(b.experts_in, T * n);
  run_dense(index, *layer.parallel_mlp, b.a.data(), b.dense.data(), T);
  stats_->weight_bytes += layer.parallel_mlp->packed_bytes();
  for_rows(T, [&](size_t t) {
    const float* h = b.h.data() + t * n;
    normalize(layer.router_in, options_.type, h, n, b.a.data() + t * n, n, 1, n);
    normalize(layer.experts_in, options_.type, h, n, b.experts_in.data() + t * n, n, 1, n);
  });
  run_experts(index, b.a.data(), b.experts_in.data(), T);
  for_rows(T, [&](size_t t) {
    float *y = b.branch.data() + t * n, *dense = b.dense.data() + t * n;
    normalize(layer.experts_out, options_.type, y, n, y, n, 1, n);
    normalize(layer.parallel_out, options_.type, dense, n, dense, n, 1, n);
    add_row(y, dense, n);
    round_to(options_.type, y, n);
  });
}

void DecoderModel::count_experts(size_t index, size_t T) {
  const Layer& layer = *layers_[index];
  const size_t slots = layer.moe.experts->slots(), E = layer.moe.experts->spec().experts;
  std::vector<uint32_t>& rows = stats_->expert_rows;
  const size_t first = rows.size();
  rows.resize(first + E);
  uint64_t used = 0;
  for (size_t i = 0; i < T * slots; ++i) {
    const int32_t id = buffers_->ids[i];
    if (id >= 0 && static_cast<size_t>(id) < E)
      used += rows[first + static_cast<size_t>(id)]++ == 0;
  }
  count_rows(index, std::span(rows).subspan(first));
  const uint64_t shared = layer.moe_bytes_per_token - layer.expert_bytes * layer.top_k;
  stats_->weight_bytes += used * layer.expert_bytes + shared + layer.moe.experts->gate_bytes();
}

// h = (h * keep + norm(branch) * add) * scalar.
void DecoderModel::add_branch(const std::optional<Norm>& norm, const Residual& residual,
                              float scalar, size_t T) {
  Buffers& b = *buffers_;
  const Timer timer(profile_, Phase::kNorm);
  for_rows(T, [&](size_t t) {
    float *h = b.h.data() + t * hidden_, *y = b.branch.data() + t * hidden_;
    if (norm) normalize(*norm, options_.type, y, hidden_, y, hidden_, 1, hidden_);
    const auto scale = [&](float* row, float factor) {
      if (factor == 1.0f) return;
      scale_row(row, factor, hidden_);
      round_to(options_.type, row, hidden_);
    };
    scale(h, residual.keep);
    scale(y, residual.add);
    add_row(h, y, hidden_);
    round_to(options_.type, h, hidden_);
    scale(h, scalar);
  });
}

// a = norm(h); h too, where branches are added to what they read.
void DecoderModel::normalize_rows(const std::optional<Norm>& norm, size_t T) {
  Buffers& b = *buffers_;
  const Timer timer(profile_, Phase::kNorm);
  for_rows(T, [&](size_t t) {
    float *h = b.h.data() + t * hidden_, *a = b.a.data() + t * hidden_;
    if (norm)
      normalize(*norm, options_.type, h, hidden_, a, hidden_, 1, hidden_);
    else
      std::memcpy(a, h, hidden_ * sizeof(float));
    if (spec_.residual_behind_norm) std::memcpy(h, a, hidden_ * sizeof(float));
  });
}

void DecoderModel::project_output(std::span<const Work> work, std::vector<float>& logits) {
  Buffers& b = *buffers_;
  const Timer timer(profile_, Phase::kOutput);
  const auto asked = [](const BatchItem& item) {
    return item.logits == LogitsOf::kAll ? item.tokens.size() : item.logits == LogitsOf::kLast;
  };
  size_t outputs = 0, row = 0, out = 0;
  for (const auto& [item, memory, sequence] : work) outputs += asked(item);
  logits.resize(outputs * vocab_);
  if (outputs == 0) return;
  grow(b.gathered, outputs * hidden_);
  for (const auto& [item, memory, sequence] : work) {
    const size_t n = asked(item);
    row += item.tokens.size();
    std::memcpy(b.gathered.data() + out * hidden_, b.a.data() + (row - n) * hidden_,
                n * hidden_ * sizeof(float));
    out += n;
  }
  stats_->weight_bytes += output_->packed_bytes();
  const size_t width = output_width_;
  if (!columns_.empty()) {
    if (!gather_logits(outputs)) return;
    for (size_t i = 0; i < outputs; ++i)
      std::memcpy(logits.data() + i * vocab_, b.router.data() + i * width, vocab_ * sizeof(float));
  } else if (width == vocab_) {
    run_linear(*output_, b.gathered.data(), logits.data(), outputs, false);
  } else {  // a padded vocabulary
    grow(b.router, outputs * width);
    run_linear(*output_, b.gathered.data(), b.router.data(), outputs, false);
    for (size_t i = 0; i < outputs; ++i)
      std::memcpy(logits.data() + i * vocab_, b.router.data() + i * width, vocab_ * sizeof(float));
  }
  cap_logits(logits);
}

void DecoderModel::cap_logits(std::vector<float>& logits) const {
  const float divisor = spec_.logits_divisor, cap = spec_.logits_cap;
  if (divisor == 1.0f && cap == 0.0f) return;
  constexpr size_t kPiece = 8192;
  options_.pool->parallel_for((logits.size() + kPiece - 1) / kPiece, [&](size_t i) {
    float* x = logits.data() + i * kPiece;
    const size_t n = std::min(kPiece, logits.size() - i * kPiece);
    if (divisor != 1.0f) row_functions().divide(x, divisor, x, n);
    if (cap != 0.0f)
      row_functions().activate({.function = RowFunction::kCap, .limit = cap}, nullptr, x, x, n);
  });
}

// Embedding and the layers of this rank.
void DecoderModel::run_layers(std::span<const Work> work, size_t T) {
  {
    const Timer timer(profile_, Phase::kEmbedding);
    embed(work, T);
  }
  if (options_.ranks != nullptr) begin_stage(T);
  for (size_t i = own_.begin; i < own_.end; ++i) {
    const Layer& layer = *layers_[i];
    stats_->weight_bytes += layer.dense_bytes();
    if (spec_.layers[i].attends) {
      normalize_rows(layer.attention_in, T);
      attend(i, work, T);
      add_branch(layer.attention_out, spec_.layers[i].attention_residual, 1.0f, T);
    }
    if (spec_.layers[i].mixes) {
      if (!spec_.parallel) normalize_rows(layer.block_in, T);
      mix(i, T);
      add_branch(layer.block_out, spec_.layers[i].block_residual, layer.scalar, T);
    }
    if (options_.ranks != nullptr) options_.ranks->poll();
  }
}

void DecoderModel::step(std::span<const Work> work, std::vector<float>& logits, StepStats& stats) {
  stats = {};
  stats.items = work.size();
  for (const auto& [item, memory, sequence] : work) stats.rows += item.tokens.size();
  logits.clear();
  if (stats.rows == 0) return;
  if (options_.ranks == nullptr) return run_step(work, logits, stats);
  if (staged()) return land(*launch(work, stats), logits, stats);
  try {
    if (leads()) tell_step(work);
    run_step(work, logits, stats);
    options_.ranks->observe_step(static_cast<double>(stats.nanoseconds) * 1e-9);
    end_balance_step(stats);
  } catch (const std::exception& e) {  // the others wait in the middle of the step
    options_.ranks->abort(e.what());
    throw;
  }
}

void DecoderModel::run_step(std::span<const Work> work, std::vector<float>& logits,
                            StepStats& stats) {
  measured(stats, [&] {
    run_layers(work, stats.rows);
    normalize_rows(final_norm_, stats.rows);
    project_output(work, logits);
    commit_states(work);
  });
}

void DecoderModel::measured(StepStats& stats, FunctionRef<void()> fn) {
  const auto start = std::chrono::steady_clock::now();
  const Profile before = profile_;
  const ThreadPool::Stay stay(*options_.pool);  // a step is many short regions
  stats_ = &stats;
  const double waited = options_.ranks != nullptr ? options_.ranks->wait_seconds() : 0,
               exchanged = options_.ranks != nullptr ? options_.ranks->exchange_seconds() : 0;
  fn();
  if (options_.ranks != nullptr)
    note_step(static_cast<double>(
                  std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count()) *
                  1e-9,
              static_cast<double>(profile_[static_cast<size_t>(Phase::kExchange)] -
                                  before[static_cast<size_t>(Phase::kExchange)]) *
                      1e-9 +
                  options_.ranks->exchange_seconds() - exchanged,
              options_.ranks->wait_seconds() - waited);
  for (size_t i = 0; i < before.size(); ++i) stats.phases[i] += profile_[i] - before[i];
  stats.nanoseconds += static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start)
          .count());
}

}  // namespace moebius
