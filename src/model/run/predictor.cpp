// SPDX-License-Identifier: Apache-2.0
#include "model/run/predictor.h"

#include <algorithm>
#include <numeric>

namespace moebius {
namespace {

// Returns the token with the greatest logit, the lowest of equals; NaN never wins.
int32_t most_likely(std::span<const float> logits) {
  size_t best = 0;
  for (size_t i = 1; i < logits.size(); ++i)
    if (logits[i] > logits[best] || !(logits[best] == logits[best])) best = i;
  return static_cast<int32_t>(best);
}

// Keeps the sequences that want more than `drafts` drafts, with their rows.
void keep_drafted(std::vector<Predictor::Sequence*>& drafted, size_t drafts, size_t width,
                  std::vector<float>& rows) {
  size_t kept = 0;
  for (size_t i = 0; i < drafted.size(); ++i) {
    if (drafted[i]->drafts <= drafts) continue;
    std::copy_n(rows.begin() + static_cast<std::ptrdiff_t>(i * width), width,
                rows.begin() + static_cast<std::ptrdiff_t>(kept * width));
    drafted[kept++] = drafted[i];
  }
  drafted.resize(kept);
  rows.resize(kept * width);
}

}  // namespace

Predictor::Predictor(PredictorPlan plan, const LayerSet& model, const KvChoice& kv,
                     LayerLoadOptions options)
    : plan_(std::move(plan)), layers_(model.devices), graph_(layers_) {
  LayerSetLoader(plan_.checkpoint, plan_.part, plan_.kv, kv, std::move(options), nullptr)
      .load_predictor(layers_, model, plan_.rows);
  own_output_ = layers_.output != model.output;
}

uint64_t Predictor::packed_bytes() const {
  return layers_.packed_bytes() - layers_.embedding->table_bytes() -
         (own_output_ ? 0 : layers_.output->packed_bytes());
}

void Predictor::keep(Step& step, const RowSet& normalized) const {
  layers_.predictor->made->write(step, normalized);
  layers_.predictor->made->read_before(step, graph_.before(step));
  graph_.embed(step);
  graph_.keep_keys(step);
}

uint64_t Predictor::draft(std::span<Sequence> sequences, size_t queue,
                          std::vector<float>* logits) const {
  size_t most = 0;
  for (const Sequence& s : sequences) most = std::max(most, s.drafts);
  std::vector<float> made, rows;  // the model's results for the tokens before; logits
  std::vector<Sequence*> drafted;
  uint64_t bytes = 0;
  for (size_t p = 0; p < most; ++p) {
    keep_drafted(drafted, p, layers_.hidden, made);
    if (p == 0)
      for (Sequence& s : sequences)
        if (s.drafts > 0) drafted.push_back(&s);
    Step step;
    step.queue = queue;
    for (const Sequence* s : drafted) {
      const size_t at = s->position + p;
      step.sequences.push_back({s->tables, s->pool, at, 1, step.rows, {}});
      step.tokens.push_back(s->tokens.back());
      step.positions.push_back(at);
      step.lengths.push_back(std::max(s->length, at + 1));
      step.longest = std::max(step.longest, at + 1);
      ++step.rows;
    }
    try {
      bytes += pass(step, rows, made, p == 0);
    } catch (...) {
      layers_.abandon(step);
      throw;
    }
    const size_t vocab = layers_.vocab;
    for (size_t i = 0; i < drafted.size(); ++i)
      drafted[i]->tokens.push_back(most_likely(std::span(rows).subspan(i * vocab, vocab)));
    if (logits != nullptr) logits->insert(logits->end(), rows.begin(), rows.end());
  }
  return bytes;
}

// Runs the predictor's layer once. made: results for the tokens before the step's; becomes the
// results for the step's.
uint64_t Predictor::pass(Step& step, std::vector<float>& logits, std::vector<float>& made,
                         bool first) const {
  Device& ends = layers_.devices.ends();
  for (Device* d : layers_.devices.all()) d->begin(step);
  if (first)
    layers_.predictor->made->read_before(step, graph_.before(step));
  else
    ends.on_host(step, {}, graph_.before(step), [&](HostRows, HostRows to) {
      std::copy(made.begin(), made.end(), to.data.begin());
    });
  std::vector<uint32_t> counts(graph_.counted_experts(), 0), all(step.rows);
  std::iota(all.begin(), all.end(), 0u);
  graph_.embed(step);
  graph_.run(step, counts, nullptr);
  graph_.logits(step, graph_.hidden(step, graph_.last_device()), std::move(all), logits);
  ends.on_host(step, graph_.normalized(step), {},
               [&](HostRows from, HostRows) { made.assign(from.data.begin(), from.data.end()); });
  layers_.wait(step);
  const auto used = static_cast<size_t>(
      std::count_if(counts.begin(), counts.end(), [](uint32_t rows) { return rows > 0; }));
  return layers_.predictor->join->packed_bytes() + layers_.layers[0]->read_bytes(used) +
         layers_.output->packed_bytes();
}

}  // namespace moebius
