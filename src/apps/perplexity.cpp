// SPDX-License-Identifier: Apache-2.0
// Consecutive windows of `ctx` inputs, the target of each is the next token, no overlap; the last
// window may be shorter. Several windows share a step. With a base, both models see the same steps
// and every position is compared.
#include "apps/perplexity.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <optional>

#include "apps/commands.h"
#include "apps/terminal.h"
#include "base/checked.h"
#include "base/error.h"
#include "text/tokenizer.h"

namespace moebius {
namespace {

double log_of_sum(std::span<const float> logits) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float v : logits) sum += std::exp(static_cast<double>(v) - top);
  return top + std::log(sum);
}

size_t best_token(std::span<const float> logits) {
  return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Both folders must mean the same by every id. Folders without tokenizer are taken at their word.
void check_same_tokens(const std::string& a, const std::string& b) {
  std::optional<Tokenizer> x, y;
  try {
    x = Tokenizer::from_folder(a);
    y = Tokenizer::from_folder(b);
  } catch (const Error&) {
    return;
  }
  for (size_t i = 0; i < std::max(x->vocab_size(), y->vocab_size()); ++i) {
    const auto id = static_cast<int32_t>(i);
    const std::optional<std::string> p = x->id_to_token(id), q = y->id_to_token(id);
    if (p != q)
      fail("token {} is '{}' in {} and '{}' in {}: --kl needs two models with the same tokenizer",
           i, printable(p.value_or("")), a, printable(q.value_or("")), b);
  }
}

// Per position, in the order of the text.
struct Scores {
  std::vector<double> loss, kl;
  size_t agreed = 0;  // positions with the same best token
};

class Windows {
 public:
  Windows(std::span<const int32_t> tokens, size_t context, size_t most)
      : tokens_(tokens), context_(context), inputs_(tokens.size() - 1) {
    if (most != 0) inputs_ = std::min(inputs_, most * context);
  }
  size_t inputs() const { return inputs_; }
  size_t count() const { return static_cast<size_t>(ceil_div(inputs_, context_)); }
  size_t length(size_t w) const { return std::min(context_, inputs_ - w * context_); }
  size_t position(size_t w, size_t t) const { return w * context_ + t; }
  std::span<const int32_t> tokens(size_t w, size_t t, size_t n) const {
    return tokens_.subspan(position(w, t), n);
  }
  int32_t target(size_t position) const { return tokens_[position + 1]; }

 private:
  std::span<const int32_t> tokens_;
  size_t context_, inputs_;
};

// One model on a group of windows, step by step.
class Reader {
 public:
  explicit Reader(DecoderModel& model) : model_(model) {}
  void begin(size_t windows) {
    states_.clear();
    for (size_t i = 0; i < windows; ++i) states_.push_back(model_.new_sequence());
  }
  void step(const Windows& windows, size_t first, size_t t) {
    std::vector<StepItem> items;
    for (size_t i = 0; i < states_.size(); ++i) {
      const size_t length = windows.length(first + i);
      if (t >= length) continue;
      const size_t n = std::min(kTokensPerStep, length - t);
      items.push_back({&states_[i], windows.tokens(first + i, t, n), true});
    }
    model_.forward(items, logits_);
  }
  std::span<const float> row(size_t r) const {
    return {logits_.data() + r * model_.vocab(), model_.vocab()};
  }

 private:
  DecoderModel& model_;
  std::vector<SequenceState> states_;
  std::vector<float> logits_;
};

// Positions of the rows of one step.
std::vector<size_t> positions_of(const Windows& windows, size_t first, size_t count, size_t t) {
  std::vector<size_t> out;
  for (size_t w = first; w < first + count; ++w)
    for (size_t i = t; i < std::min(t + kTokensPerStep, windows.length(w)); ++i)
      out.push_back(windows.position(w, i));
  return out;
}

Scores score(const Windows& windows, OpenModel& open, OpenModel* base) {
  const size_t vocab = open.model->vocab();
  const size_t longest = windows.length(0);
  const size_t at_once = std::clamp<size_t>(
      (size_t{64} << 20) / (std::min(longest, kTokensPerStep) * vocab + 1), 1, 8);
  Scores scores;
  scores.loss.resize(windows.inputs());
  if (base != nullptr) scores.kl.resize(windows.inputs());
  std::vector<uint8_t> agreed(base != nullptr ? windows.inputs() : 0);
  Reader reader(*open.model), other(base != nullptr ? *base->model : *open.model);
  Progress progress("perplexity", windows.inputs(), false);
  for (size_t w = 0; w < windows.count(); w += at_once) {
    const size_t count = std::min(at_once, windows.count() - w);
    reader.begin(count);
    if (base != nullptr) other.begin(count);
    for (size_t t = 0; t < windows.length(w); t += kTokensPerStep) {
      reader.step(windows, w, t);
      if (base != nullptr) other.step(windows, w, t);
      const std::vector<size_t> positions = positions_of(windows, w, count, t);
      open.pool.parallel_for(positions.size(), [&](size_t r) {
        const size_t at = positions[r];
        scores.loss[at] = loss_of(reader.row(r), windows.target(at));
        if (!std::isfinite(scores.loss[at])) check_finite(reader.row(r), vocab, at);
        if (base == nullptr) return;
        scores.kl[at] = kl_divergence(other.row(r), reader.row(r));
        if (!std::isfinite(scores.kl[at])) {
          check_finite(other.row(r), vocab, at);
          check_finite(reader.row(r), vocab, at);
        }
        agreed[at] = best_token(other.row(r)) == best_token(reader.row(r));
      });
      progress.advance(positions.size());
    }
  }
  scores.agreed = static_cast<size_t>(std::count(agreed.begin(), agreed.end(), uint8_t{1}));
  return scores;
}

void print(const PerplexityOptions& options, const Scores& scores, std::ostream& out) {
  const MeanAndError loss = mean_and_error(scores.loss), kl = mean_and_error(scores.kl);
  const auto n = static_cast<double>(scores.loss.size());
  const double agreement = static_cast<double>(scores.agreed) / n;
  if (options.json) {
    Json j = Json::object({{"loss", loss.mean},
                           {"stderr", loss.error},
                           {"perplexity", std::exp(loss.mean)},
                           {"tokens", static_cast<uint64_t>(scores.loss.size())}});
    if (!scores.kl.empty()) {
      j.set("kl", kl.mean);
      j.set("kl_stderr", kl.error);
      j.set("top1_agreement", agreement);
      j.set("top1_stderr", std::sqrt(agreement * (1 - agreement) / n));
    }
    out << j.dump() << '\n';
    return;
  }
  out << fmt::format("loss {:.5f} +- {:.5f}  perplexity {:.4f}  tokens {}\n", loss.mean, loss.error,
                     std::exp(loss.mean), scores.loss.size());
  if (!scores.kl.empty())
    out << fmt::format("kl {:.6f} +- {:.6f}  same best token {:.2f} % +- {:.2f} %\n", kl.mean,
                       kl.error, 100 * agreement, 100 * std::sqrt(agreement * (1 - agreement) / n));
}

}  // namespace

double loss_of(std::span<const float> logits, int32_t target) {
  return log_of_sum(logits) - logits[static_cast<size_t>(target)];
}

double kl_divergence(std::span<const float> base, std::span<const float> logits) {
  const double norm = log_of_sum(base), other_norm = log_of_sum(logits);
  double sum = 0;
  for (size_t i = 0; i < base.size(); ++i) {
    const double log_p = base[i] - norm, log_q = logits[i] - other_norm;
    sum += std::exp(log_p) * (log_p - log_q);
  }
  return std::max(sum, 0.0);  // rounding can leave it a little below
}

MeanAndError mean_and_error(std::span<const double> values) {
  MeanAndError out;
  if (values.empty()) return out;
  const auto n = static_cast<double>(values.size());
  for (const double v : values) out.mean += v;
  out.mean /= n;
  double squares = 0;
  for (const double v : values) squares += (v - out.mean) * (v - out.mean);
  if (values.size() > 1) out.error = std::sqrt(squares / (n - 1) / n);
  return out;
}

int run_perplexity(const PerplexityOptions& options, std::ostream& out) {
  const std::vector<int32_t> tokens = read_tokens(options.tokens, options.model.folder, false);
  if (options.context == 0) fail("--ctx is 0; expected at least 1");
  if (tokens.size() < 2)
    fail("the text has {} tokens; expected at least 2, an input and the token after it",
         tokens.size());
  const Windows windows(tokens, options.context, options.windows);
  if (!options.base.empty()) check_same_tokens(options.model.folder, options.base);
  const size_t longest = windows.length(0);
  OpenModel open(options.model, longest);
  std::optional<OpenModel> base;
  if (!options.base.empty()) {
    ModelRunOptions other = options.model;
    other.folder = options.base;
    base.emplace(other, longest);
    if (base->model->vocab() != open.model->vocab())
      fail("{} has {} tokens and {} has {}: --kl needs two models with the same tokenizer",
           options.model.folder, open.model->vocab(), options.base, base->model->vocab());
  }
  check_tokens(std::span(tokens).first(windows.inputs() + 1), open.model->vocab());
  print(options, score(windows, open, base ? &*base : nullptr), out);
  return 0;
}

Command perplexity_command() {
  auto o = std::make_shared<PerplexityOptions>();
  Command c("perplexity", "measures the mean loss over consecutive windows of a text");
  c.folder(o->model.folder);
  c.section("Input, one of");
  c.option("--file,-f", "FILE", &o->tokens.text_file, "text file").file();
  add_tokens_file(c, o->tokens);
  c.exactly_one({"--file", "--tokens-file"});
  c.section("Options");
  add_tokens_type(c, o->tokens);
  c.option("--ctx,-c", "N", &o->context, "inputs per window").range(1, 1 << 24);
  c.option("--windows", "N", &o->windows, "only the first N windows; 0: all").range(0, 1 << 30);
  c.option("--kl", "BASE", &o->base,
           "also the distance from this folder, which has the same tokens")
      .folder()
      .by_default("none");
  add_json_flag(c, o->json);
  add_model_options(c, o->model);
  c.examples = {"moebius perplexity -f book.txt",
                "moebius perplexity DIR --tokens-file models/eval/val.bin --ctx 512",
                "moebius perplexity DIR -f book.txt --kl BASE --windows 40"};
  c.action = [o](const Command&) { return run_perplexity(*o, std::cout); };
  return c;
}

}  // namespace moebius
