// SPDX-License-Identifier: Apache-2.0
// Implements the command `eval`: measures on text what a folder lost against its base. Gates for
// CI: --max-kl, --min-top1.
#include <fmt/core.h>

#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>

#include "apps/chat/terminal.h"
#include "apps/cli/folder.h"
#include "apps/cli/layout.h"
#include "apps/cli/manners.h"
#include "apps/commands.h"
#include "apps/model_commands.h"
#include "base/error.h"
#include "base/file.h"
#include "base/human.h"
#include "quantize/quantize_json.h"
#include "quantize/token_files.h"

namespace moebius {
namespace {

struct EvalCommand {
  ModelRunOptions model;
  std::string base, chat, cache;
  TokenSource tokens;
  size_t context = 512, windows = 0, top = 10;
  std::optional<float> max_kl, min_top1;
  bool json = false, layers = false;
};

std::vector<int32_t> tokens_of(const EvalCommand& c) {
  if (c.chat.empty()) return read_tokens(c.tokens, c.model.folder, /*add_special=*/false);
  std::vector<int32_t> all;
  for (const std::vector<int32_t>& document : read_token_documents(c.chat, c.model.folder))
    all.insert(all.end(), document.begin(), document.end());
  return all;
}

// Tokens of the windows that pass through the layers one by one.
constexpr size_t kLayerTokens = 8192;

// Owns one of the compared models with its checkpoint.
struct EvalModel {
  EvalModel(const ModelRunOptions& options, size_t longest,
            const std::function<void(const ModelConfig&)>& check)
      : checkpoint(open_to_run(options.folder, check)),
        open(checkpoint, model_options_of(options, checkpoint, longest), options.ranks,
             thread_count(options.run)) {}
  const Checkpoint checkpoint;
  OpenModel open;
};

void print_errors(const LayerErrors& errors, std::ostream& out) {
  Table table("rrr", output_width());
  table.header({"layer", "hidden state behind it, error in %", "its modules, mean error in %"});
  for (const HiddenError& h : errors.layers)
    table.add({std::to_string(h.layer), fmt::format("{:.3f}", 100 * h.error),
               fmt::format("{:.3f}", 100 * h.modules)});
  out << '\n' << table.text();
  if (errors.modules.empty()) return;
  out << "\nworst modules, error in %\n";
  for (size_t i = 0; i < std::min(kWorstModules, errors.modules.size()); ++i)
    out << fmt::format("{:>7.3f}  {}\n", 100 * errors.modules[i].error, errors.modules[i].name);
}

void print_eval(const EvalCommand& c, const EvalFigures& f, std::ostream& out) {
  out << fmt::format("loss {:.5f} +- {:.5f}  perplexity {:.4f}  tokens {}\n", f.loss.mean,
                     f.loss.error, std::exp(f.loss.mean), f.positions);
  out << fmt::format("base {:.5f}  perplexity {:.4f}\n", f.base_loss.mean,
                     std::exp(f.base_loss.mean));
  out << fmt::format("kl {:.6f} +- {:.6f}  p50 {:.6f}  p90 {:.6f}\n", f.kl.mean, f.kl.error,
                     f.kl.p50, f.kl.p90);
  out << fmt::format("   p99 {:.5f}  p99.9 {:.5f}  max {:.5f}\n", f.kl.p99, f.kl.p999, f.kl.max);
  out << fmt::format("same best token {:.2f} %  best {} in common {:.2f} %\n", 100 * f.top1, c.top,
                     100 * f.top_overlap);
  out << fmt::format("probability of the right token: RMS of the change {:.4f}\n", f.rms_delta_p);
  if (f.layers.empty()) return;
  out << fmt::format("same experts {:.2f} %\n", 100 * f.routing);
  if (!c.layers) return;
  for (const RoutingFigures& l : f.layers) {
    const auto width = static_cast<size_t>(std::lround(40 * l.agreement));
    out << fmt::format("  {:<32} {:>6.2f} %  {}\n", l.block.substr(0, 32), 100 * l.agreement,
                       std::string(width, '#'));
  }
}

// Runs both models layer by layer on some of the windows.
LayerErrors errors_of(const EvalCommand& c, const Windows& windows) {
  TokenWindows some;
  size_t tokens = 0;
  for (size_t w = 0; w < windows.count() && tokens < kLayerTokens; ++w) {
    const std::span<const int32_t> t = windows.tokens(w, 0, windows.length(w));
    some.emplace_back(t.begin(), t.end());
    tokens += t.size();
  }
  const Checkpoint base = Checkpoint::open(usable_folder(c.base)),
                   folder = Checkpoint::open(c.model.folder);
  const std::shared_ptr<Runtime> runtime =
      Runtime::shared(static_cast<size_t>(c.model.run.threads));
  ModelOptions how = model_options_of(c.model, folder);
  how.pool = &runtime->pool();
  how.tap = nullptr;
  const auto layers = static_cast<uint64_t>(folder.config().layers);
  Progress progress("layers", layers, /*bytes=*/false);
  LayerErrors errors = layer_errors(
      base, folder, some, how, [&](size_t layer, size_t) { progress.advance(layer > 0 ? 1 : 0); });
  progress.finish();
  return errors;
}

// Returns 1 if a gate is missed, and says which on stderr.
int gates(const EvalCommand& c, const EvalFigures& f) {
  int code = kExitDone;
  if (c.max_kl && !(f.kl.mean <= static_cast<double>(*c.max_kl))) {
    put_on_stderr(fmt::format("moebius: kl is {:.6f}; --max-kl is {}\n", f.kl.mean, *c.max_kl));
    code = kExitFailed;
  }
  if (c.min_top1 && !(f.top1 >= static_cast<double>(*c.min_top1))) {
    put_on_stderr(fmt::format("moebius: top1 is {:.4f}; --min-top1 is {}\n", f.top1, *c.min_top1));
    code = kExitFailed;
  }
  return code;
}

int run_eval(const EvalCommand& c, std::ostream& out) {
  std::error_code error;
  const bool cached = std::filesystem::exists(c.cache, error);
  // Throws for a file that cannot be read twice, such as a device.
  if (cached) (void)ReadFile(c.cache);
  if (c.base.empty() && !cached)
    fail("no --base was given, and no --kl-cache that is there; expected one of them");
  const std::vector<int32_t> tokens = tokens_of(c);
  if (tokens.size() < 2)
    fail("the text has {}; expected at least 2", counted(tokens.size(), "token"));
  const Windows windows(tokens, c.context, c.windows);
  const size_t longest = windows.length(0);
  EvalSettings settings;
  settings.top = c.top;
  const auto opened = [&](const std::string& folder, RoutingTap& tap) {
    ModelRunOptions options = c.model;
    options.folder = folder;
    options.tap = &tap;
    return std::make_unique<EvalModel>(options, longest,
                                       known_tokens(std::span(tokens).first(windows.inputs() + 1)));
  };
  RoutingTap ours, theirs;
  EvalFigures figures;
  if (!c.cache.empty()) {
    if (!cached) {
      const auto base = opened(usable_folder(c.base), theirs);
      settings.pool = &base->open.pool;
      Progress progress("base", windows.inputs(), /*bytes=*/false);
      settings.advance = [&](size_t n) { progress.advance(n); };
      write_eval_cache(c.cache, windows, {base->open.model.get(), &theirs}, settings);
      progress.finish();
    } else {
      note("{}: read instead of the base", c.cache);
    }
    const auto model = opened(c.model.folder, ours);
    settings.pool = &model->open.pool;
    Progress progress("eval", windows.inputs(), /*bytes=*/false);
    settings.advance = [&](size_t n) { progress.advance(n); };
    figures = evaluate_cached(c.cache, windows, {model->open.model.get(), &ours}, settings);
    progress.finish();
  } else {
    const auto model = opened(c.model.folder, ours);
    const auto base = opened(usable_folder(c.base), theirs);
    settings.pool = &model->open.pool;
    Progress progress("eval", windows.inputs(), /*bytes=*/false);
    settings.advance = [&](size_t n) { progress.advance(n); };
    figures = evaluate(windows, {model->open.model.get(), &ours}, {base->open.model.get(), &theirs},
                       settings);
    progress.finish();
  }
  LayerErrors errors;
  if (c.layers && !c.base.empty()) errors = errors_of(c, windows);
  if (c.json)
    out << eval_answer(figures, errors, c.top).dump() << '\n';
  else
    print_eval(c, figures, out);
  if (!c.json && !errors.layers.empty()) print_errors(errors, out);
  return gates(c, figures);
}

}  // namespace

Command eval_command() {
  auto o = std::make_shared<EvalCommand>();
  Command c("eval", "measures what a quantized folder lost against its base");
  c.folder(o->model.folder);
  c.option("--base", "BASE", &o->base, "the folder it was made from",
           {.default_text = "none", .kind = ValueKind::kFolder});
  c.section("Input, one of");
  c.option("--file,-f", "FILE", &o->tokens.text_file, "text file; -: standard input",
           {.kind = ValueKind::kFile});
  add_tokens_file(c, o->tokens);
  c.option("--chat", "FILE", &o->chat,
           "JSON lines with messages (through the chat template), text or input_ids",
           {.kind = ValueKind::kFile});
  c.exactly_one({"--file", "--tokens-file", "--chat"});
  c.section("Options");
  add_tokens_type(c, o->tokens);
  c.option("--ctx,-c", "N", &o->context, "tokens per window", {.limits = {{1, 1 << 24}}});
  c.option("--windows", "N", &o->windows, "only the first N windows; 0: all",
           {.limits = {{0, 1 << 30}}});
  c.flag("--layers", o->layers,
         "also layer by layer: the same experts, errors of hidden states and of modules");
  c.option("--top", "N", &o->top, "how many of the best tokens are compared",
           {.limits = {{1, 256}}});
  c.option("--kl-cache", "FILE", &o->cache,
           "save the base's results: it runs first and alone; if the file exists, not at all",
           {.default_text = "none", .kind = ValueKind::kFile});
  c.option("--max-kl", "X", &o->max_kl, "exit with 1 where the mean KL divergence is above",
           {.default_text = "none"});
  c.option("--min-top1", "X", &o->min_top1,
           "exit with 1 where the share of equal best tokens is below", {.default_text = "none"});
  add_json_flag(c, o->json);
  add_model_options(c, o->model);
  c.examples = {"moebius eval DIR --base BASE -f book.txt",
                "moebius eval DIR --base BASE -f book.txt --max-kl 0.02 --min-top1 0.95",
                "moebius eval DIR --base BASE -f book.txt --kl-cache base.kl"};
  c.action = [o](const Command&) { return run_eval(*o, std::cout); };
  return c;
}

}  // namespace moebius
