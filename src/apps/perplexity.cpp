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
#include "quantize/evaluate.h"
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

struct Measured {
  MeanAndError loss;
  size_t tokens = 0;
  std::optional<EvalFigures> compared;  // with --kl
};

void print(const PerplexityOptions& options, const Measured& m, std::ostream& out) {
  const double perplexity = std::exp(m.loss.mean), top1 = m.compared ? m.compared->top1 : 0,
               top1_error = std::sqrt(top1 * (1 - top1) / static_cast<double>(m.tokens));
  if (options.json) {
    Json j = Json::object({{"loss", m.loss.mean},
                           {"stderr", m.loss.error},
                           {"perplexity", perplexity},
                           {"tokens", static_cast<uint64_t>(m.tokens)}});
    if (m.compared) {
      j.set("kl", m.compared->kl.mean);
      j.set("kl_stderr", m.compared->kl.error);
      j.set("top1_agreement", top1);
      j.set("top1_stderr", top1_error);
    }
    out << j.dump() << '\n';
    return;
  }
  out << fmt::format("loss {:.5f} +- {:.5f}  perplexity {:.4f}  tokens {}\n", m.loss.mean,
                     m.loss.error, perplexity, m.tokens);
  if (m.compared)
    out << fmt::format("kl {:.6f} +- {:.6f}  same best token {:.2f} % +- {:.2f} %\n",
                       m.compared->kl.mean, m.compared->kl.error, 100 * top1, 100 * top1_error);
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
  }
  Progress progress("perplexity", windows.inputs(), /*bytes=*/false);
  const auto advance = [&](size_t n) { progress.advance(n); };
  Measured measured{{}, windows.inputs(), {}};
  if (base != nullptr) {
    measured.compared =
        evaluate(windows, {open->model.get(), nullptr}, {base->model.get(), nullptr},
                 {.top = 1, .pool = &open->pool, .advance = advance});
    measured.loss = measured.compared->loss;
  } else {
    measured.loss = mean_and_error(losses_of(windows, *open->model, open->pool, advance));
  }
  progress.finish();
  print(options, measured, out);
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
