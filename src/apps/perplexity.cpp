// SPDX-License-Identifier: Apache-2.0
#include "apps/perplexity.h"

#include <fmt/core.h>

#include <cmath>
#include <iostream>
#include <memory>
#include <optional>

#include "apps/chat/terminal.h"
#include "apps/commands.h"
#include "base/error.h"
#include "base/human.h"
#include "text/tokenizer.h"

namespace moebius {
namespace {

// Checks that every id means the same token in both folders. Folders without a tokenizer are not
// checked.
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

int run_perplexity(const PerplexityOptions& options, std::ostream& out) {
  const std::vector<int32_t> tokens = read_tokens(options.tokens, options.model.folder, false);
  if (options.context == 0) fail("--ctx is 0; expected at least 1");
  if (tokens.size() < 2)
    fail("the text has {}; expected at least 2", counted(tokens.size(), "token"));
  const Windows windows(tokens, options.context, options.windows);
  if (!options.base.empty()) check_same_tokens(options.model.folder, options.base);
  const size_t longest = windows.length(0);
  const auto known = known_tokens(std::span(tokens).first(windows.inputs() + 1));
  const auto load = [&](const Checkpoint& c) {
    return std::make_unique<OpenModel>(c, model_options_of(options.model, c, longest),
                                       options.model.ranks, thread_count(options.model.run));
  };
  const Checkpoint checkpoint = open_to_run(options.model.folder, known);
  const auto open = load(checkpoint);
  std::optional<Checkpoint> base_checkpoint;
  std::unique_ptr<OpenModel> base;
  if (!options.base.empty()) {
    base_checkpoint = open_to_run(options.base, known);
    base = load(*base_checkpoint);
    if (base->model->vocab() != open->model->vocab())
      fail("{} has {} tokens and {} has {}: --kl needs two models with the same tokenizer",
           options.model.folder, open->model->vocab(), options.base, base->model->vocab());
  }
  Progress progress("perplexity", windows.inputs(), /*bytes=*/false);
  const Scores scores = score(windows, *open->model, base ? base->model.get() : nullptr, open->pool,
                              [&](size_t n) { progress.advance(n); });
  progress.finish();
  print(options, scores, out);
  return 0;
}

Command perplexity_command() {
  auto o = std::make_shared<PerplexityOptions>();
  Command c("perplexity", "measures the perplexity of a text");
  c.folder(o->model.folder);
  c.section("Input, one of");
  c.option("--file,-f", "FILE", &o->tokens.text_file, "text file; -: standard input",
           {.kind = ValueKind::kFile});
  add_tokens_file(c, o->tokens);
  c.exactly_one({"--file", "--tokens-file"});
  c.section("Options");
  add_tokens_type(c, o->tokens);
  c.option("--ctx,-c", "N", &o->context, "tokens per window", {.limits = {{1, 1 << 24}}});
  c.option("--windows", "N", &o->windows, "only the first N windows; 0: all",
           {.limits = {{0, 1 << 30}}});
  c.option("--kl", "BASE", &o->base,
           "also the KL divergence from this folder, which has the same tokenizer",
           {.default_text = "none", .kind = ValueKind::kFolder});
  add_json_flag(c, o->json);
  add_model_options(c, o->model);
  c.examples = {"moebius perplexity -f book.txt",
                "moebius perplexity DIR --tokens-file models/eval/val.bin --ctx 512",
                "moebius perplexity DIR -f book.txt --kl BASE --windows 40"};
  c.action = [o](const Command&) { return run_perplexity(*o, std::cout); };
  return c;
}

}  // namespace moebius
