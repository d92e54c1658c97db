// SPDX-License-Identifier: Apache-2.0
// The command line. Results on stdout, everything else on stderr. Exit codes: 0 done, 1 a check
// failed or the input is unusable, 2 wrong usage, 130 interrupted. This is the only unit that knows
// the option parser.
#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <iostream>
#include <new>

#include "apps/apply.h"
#include "apps/bench.h"
#include "apps/docs.h"
#include "apps/explain.h"
#include "apps/inspect.h"
#include "apps/model_commands.h"
#include "apps/run.h"
#include "apps/terminal.h"
#include "apps/tokenize.h"
#include "apps/verify.h"
#include "moebius/error.h"

namespace moebius {
namespace {

void add_run_options(CLI::App& app, RunOptions& run) {
  app.add_option("--threads,-t", run.threads, "threads (0: all cores)")->check(CLI::Range(0, 1024));
  app.add_option("--kernel", run.kernel, "run this kernel instead of the oracle's choice");
  app.add_option("--policy", run.policy, "which arithmetic is acceptable")
      ->check(CLI::IsMember({"declared", "exact", "approximate"}));
  app.add_option("--int8-activations", run.int8_activations, "how dynamic int8 rows are scaled")
      ->check(CLI::IsMember({"declared", "ct", "vllm"}));
}

CLI::App* add_inspect(CLI::App& app, InspectOptions& o) {
  CLI::App* c = app.add_subcommand(
      "inspect", "what a folder is: modules, schemes, sizes, what is unsupported and why");
  c->add_option("folder", o.folder, "checkpoint folder (default: the bundled model)");
  c->add_flag("--json", o.json, "one JSON object");
  c->add_flag("--tensors", o.tensors, "every tensor and what uses it");
  c->add_option("--layer", o.layer, "one layer only")->check(CLI::NonNegativeNumber);
  c->add_flag("--deep", o.deep, "read all payloads: check scales, zero points, code ranges");
  c->add_option("--tp", o.tp, "sizes per tensor-parallel rank")->check(CLI::Range(1, 65536));
  c->add_option("--ep", o.ep, "sizes per expert-parallel rank")->check(CLI::Range(1, 65536));
  c->footer(
      "Examples:\n  moebius inspect\n  moebius inspect DIR --tp 4 --ep 2\n  moebius inspect DIR "
      "--json | jq '.modules[] | .scheme'");
  return c;
}

CLI::App* add_explain(CLI::App& app, ExplainOptions& o) {
  CLI::App* c =
      app.add_subcommand("explain", "which kernel will run each module, and why not the others");
  c->add_option("folder", o.folder, "checkpoint folder (default: the bundled model)");
  c->add_option("--cpu", o.cpu,
                "answer for a CPU with these features, e.g. neon,dotprod or avx2,fma,f16c");
  c->add_option("--dtype", o.dtype, "type of activations")
      ->check(CLI::IsMember({"auto", "bf16", "f16", "f32"}));
  c->add_flag("--json", o.json, "one JSON object");
  add_run_options(*c, o.run);
  c->footer("Examples:\n  moebius explain DIR\n  moebius explain DIR --cpu neon,dotprod --json");
  return c;
}

CLI::App* add_verify(CLI::App& app, VerifyOptions& o) {
  CLI::App* c = app.add_subcommand(
      "verify", "the chosen kernels against the reference; exit code 1 on any failure");
  c->add_option("folder", o.folder, "checkpoint folder (default: the bundled model)");
  c->add_option("--module", o.module, "only modules whose name matches this pattern ('*', '?')");
  c->add_option("--in", o.in,
                "safetensors file with x [T, features] to use instead of seeded rows");
  c->add_option("--dtype", o.dtype, "type of activations")
      ->check(CLI::IsMember({"auto", "bf16", "f16", "f32"}));
  c->add_flag("--json", o.json, "one JSON object");
  add_run_options(*c, o.run);
  c->footer("Examples:\n  moebius verify\n  moebius verify DIR --module '*.mlp.experts.7.*'");
  return c;
}

CLI::App* add_apply(CLI::App& app, ApplyOptions& o) {
  CLI::App* c = app.add_subcommand("apply", "runs one module on given inputs");
  c->add_option("folder", o.folder, "checkpoint folder")->required();
  c->add_option("module", o.module,
                "a linear, a MoE block (...mlp) or its experts (...mlp.experts)")
      ->required();
  c->add_option(
       "--in", o.in,
       "safetensors: x [T,H]; for experts also router_logits, or topk_ids and topk_weights")
      ->required();
  c->add_option("--out", o.out, "safetensors: y; for MoE also topk_ids, topk_weights")->required();
  c->add_option("--out-dtype", o.out_dtype, "type of y (default: that of x)")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}));
  add_run_options(*c, o.run);
  c->footer(
      "Examples:\n  moebius apply DIR model.layers.0.self_attn.q_proj --in x.safetensors --out "
      "y.safetensors\n"
      "  moebius apply DIR model.layers.0.mlp --in x.safetensors --out y.safetensors --out-dtype "
      "f32");
  return c;
}

void add_model_options(CLI::App& app, ModelRunOptions& o) {
  app.add_option("--dtype", o.dtype, "type of activations between layers")
      ->check(CLI::IsMember({"auto", "bf16", "f16", "f32"}));
  add_run_options(app, o.run);
}

CLI::App* add_logits(CLI::App& app, LogitsOptions& o) {
  CLI::App* c = app.add_subcommand(
      "logits", "logits of every position of a token sequence, to a safetensors file");
  c->add_option("folder", o.model.folder, "checkpoint folder")->required();
  auto* source = c->add_option_group("input");
  source->add_option("--tokens", o.tokens.list, "token ids, separated by commas");
  source->add_option("--tokens-file", o.tokens.file, "little-endian token ids");
  source->add_option("--text", o.tokens.text, "text for the folder's tokenizer");
  source->require_option(1);
  c->add_option("--tokens-type", o.tokens.type, "of the tokens file")
      ->check(CLI::IsMember({"u16", "u32"}));
  c->add_option("--out", o.out, "safetensors file: logits f32 [T, vocabulary]")->required();
  add_model_options(*c, o.model);
  c->footer("Example:\n  moebius logits DIR --tokens 1,2,3 --out logits.safetensors --dtype f32");
  return c;
}

CLI::App* add_perplexity(CLI::App& app, PerplexityOptions& o) {
  CLI::App* c = app.add_subcommand("perplexity", "mean loss over consecutive windows of a text");
  c->add_option("folder", o.model.folder, "checkpoint folder (default: the bundled model)");
  auto* source = c->add_option_group("input");
  source->add_option("--file,-f", o.tokens.text_file, "text file");
  source->add_option("--tokens-file", o.tokens.file, "little-endian token ids");
  source->require_option(1);
  c->add_option("--tokens-type", o.tokens.type, "of the tokens file")
      ->check(CLI::IsMember({"u16", "u32"}));
  c->add_option("--ctx,-c", o.context, "inputs per window")->check(CLI::Range(1, 1 << 24));
  c->add_option("--windows", o.windows, "only the first windows (0: all)")
      ->check(CLI::Range(0, 1 << 30));
  c->add_flag("--json", o.json, "one JSON object");
  add_model_options(*c, o.model);
  c->footer("Example:\n  moebius perplexity --tokens-file models/eval/val.bin");
  return c;
}

// --- bench: one command with five subjects ---

void add_report_options(CLI::App& c, BenchOptions& o) {
  c.add_flag("--json", o.json, "one JSON object per line");
  c.add_option("--compare", o.compare, "earlier --json output: print earlier time / this time");
  c.add_option("--svg", o.svg, "write a roofline picture");
  c.add_flag("--plot", o.plot, "draw a roofline in the terminal");
  c.add_option("--seconds", o.seconds, "time to spend on each case")
      ->check(CLI::Range(0.0, 3600.0));
}

void add_case_options(CLI::App& c, BenchOptions& o) {
  c.add_option("--scheme", o.schemes,
               "w4a8 w8a8 w4a16 w8a16 w2a16 w3a16 fp8 fp8_block fp8_static nvfp4 nvfp4a16 mxfp4 "
               "mxfp4a16 mxfp8 w4afp8 bf16 (a list)")
      ->delimiter(',')
      ->check(CLI::IsMember(bench_scheme_names()));
  c.add_option("--group", o.groups, "columns per scale, -1: one scale per output (a list)")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20) | CLI::IsMember({"-1"}));
  c.add_option("--tokens", o.tokens, "rows of x (a list)")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20));
  c.add_option("--dtype", o.dtype, "type of activations")
      ->check(CLI::IsMember({"bf16", "f16", "f32"}));
  add_report_options(c, o);
}

void add_bench_run_options(CLI::App& c, BenchOptions& o) {
  c.add_option("--threads,-t", o.threads, "numbers of threads (a list; default: 1 and all cores)")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  c.add_option("--kernel", o.run.kernel, "run this kernel instead of the oracle's choice");
  c.add_option("--policy", o.run.policy, "which arithmetic is acceptable")
      ->check(CLI::IsMember({"declared", "exact", "approximate"}));
  c.add_option("--int8-activations", o.run.int8_activations, "how dynamic int8 rows are scaled")
      ->check(CLI::IsMember({"declared", "ct", "vllm"}));
}

struct BenchCommand {
  const CLI::App* app;
  int (*run)(const BenchOptions&, std::ostream&);
};

std::vector<BenchCommand> add_bench(CLI::App& app, BenchOptions& o) {
  CLI::App* c = app.add_subcommand("bench", "measures the machine, kernels, layers, whole models");
  c->require_subcommand(1);
  CLI::App* roof =
      c->add_subcommand("roof", "what the machine can do: products per second, memory bandwidth");
  roof->add_option("--threads,-t", o.threads,
                   "numbers of threads (a list; default: 1 and all cores)")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  roof->add_flag("--json", o.json, "one JSON object per line");
  CLI::App* kernel = c->add_subcommand(
      "kernel", "every kernel of this CPU on every scheme, one thread, weights cached and cold");
  kernel->add_option("--n", o.n, "outputs")->check(CLI::Range(1, 1 << 24));
  kernel->add_option("--k", o.k, "inputs")->check(CLI::Range(1, 1 << 24));
  kernel->add_option("--kernel", o.run.kernel, "this kernel only");
  CLI::Option* pack =
      kernel->add_flag("--pack", o.pack, "packing of cold weights instead of products");
  add_case_options(*kernel, o);
  for (const char* other : {"--tokens", "--compare", "--svg", "--plot"})
    pack->excludes(kernel->get_option(other));
  CLI::App* linear =
      c->add_subcommand("linear", "a linear layer, random weights or a module of a folder");
  linear->add_option("folder", o.folder, "checkpoint folder (default: random weights)");
  linear->add_option("--module", o.module, "which linear of the folder");
  linear->add_option("--n", o.n, "outputs")->check(CLI::Range(1, 1 << 24));
  linear->add_option("--k", o.k, "inputs")->check(CLI::Range(1, 1 << 24));
  CLI::App* moe =
      c->add_subcommand("moe", "a mixture-of-experts layer, random weights or a block of a folder");
  moe->add_option("folder", o.folder, "checkpoint folder (default: random weights)");
  moe->add_option("--module", o.module, "which MoE block of the folder (default: the first)");
  moe->add_option("--experts", o.experts, "number of experts")->check(CLI::Range(1, 65536));
  moe->add_option("--top-k", o.top_k, "experts per token")->check(CLI::Range(1, 65536));
  moe->add_option("--hidden", o.hidden, "features of a token")->check(CLI::Range(1, 1 << 20));
  moe->add_option("--intermediate", o.intermediate, "features inside an expert")
      ->check(CLI::Range(1, 1 << 20));
  moe->add_flag("--skew", o.skew, "one expert gets half of the tokens");
  moe->footer(
      "Example:\n  moebius bench moe --experts 128 --top-k 8 --hidden 2048 --intermediate 768 "
      "--scheme w4a8 --group 128 --tokens 1,32,512 --threads 1,2 --json");
  for (CLI::App* layer : {linear, moe})
    add_case_options(*layer, o), add_bench_run_options(*layer, o);
  CLI::App* model =
      c->add_subcommand("model", "prefill and decode of a whole model with random tokens");
  model->add_option("folder", o.folder, "checkpoint folder (default: the bundled model)");
  model->add_option("--prompts", o.prompts, "prompt lengths (a list)")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20));
  model->add_option("--batches", o.batches, "sequences per decode step (a list)")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096));
  model->add_option("--dtype", o.dtype, "type of activations")
      ->check(CLI::IsMember({"auto", "bf16", "f16", "f32"}));
  model->add_option("--seconds", o.seconds, "time to spend on each prompt length")
      ->check(CLI::Range(0.0, 3600.0));
  model->add_flag("--json", o.json, "one JSON object");
  add_bench_run_options(*model, o);
  return {{roof, run_bench_roof},
          {kernel, run_bench_kernel},
          {linear, run_bench_linear},
          {moe, run_bench_moe},
          {model, run_bench_model}};
}

int run_bench(const std::vector<BenchCommand>& commands, BenchOptions& o) {
  for (const BenchCommand& c : commands) {
    if (!c.app->parsed()) continue;
    if (c.run == run_bench_model) o.folder = folder_or_bundled(o.folder);
    if (c.run == run_bench_kernel && c.app->count("--scheme") == 0)
      o.schemes = bench_scheme_names();
    if (c.run == run_bench_kernel && c.app->count("--seconds") == 0) o.seconds = 0.1;
    if (c.run == run_bench_moe && o.top_k > o.experts) {
      fmt::print(stderr, "moebius: --top-k is {}; expected 1 to the number of experts, {}\n",
                 o.top_k, o.experts);
      return 2;
    }
    if (c.run == run_bench_linear && o.folder.empty() != o.module.empty()) {
      fmt::print(stderr,
                 "moebius: bench linear takes a folder and --module together, or neither\n");
      return 2;
    }
    return c.run(o, std::cout);
  }
  return 2;
}

CLI::App* add_tokenize(CLI::App& app, TokenizeOptions& o) {
  CLI::App* c = app.add_subcommand("tokenize", "text to token ids, on one line");
  c->add_option("folder", o.folder, "checkpoint folder (default: the bundled model)");
  c->add_option("--text,-p", o.text, "the text (default: standard input)");
  c->add_option("--file,-f", o.file, "read it from a file")->excludes("--text");
  c->add_flag("!--no-special", o.add_special, "leave out what the post-processor adds");
  c->add_flag("--json", o.json, "one JSON object");
  c->add_option("--repeat", o.repeat, "measure: encode this often, print times instead of ids")
      ->check(CLI::Range(1, 1000000));
  c->add_flag("--lines", o.lines, "with --repeat: every line by itself");
  return c;
}

CLI::App* add_detokenize(CLI::App& app, DetokenizeOptions& o) {
  CLI::App* c = app.add_subcommand("detokenize", "token ids to text");
  c->add_option("folder", o.folder, "checkpoint folder (default: the bundled model)");
  c->add_option("--ids,--tokens", o.ids, "separated by commas or spaces (default: standard input)");
  c->add_flag("--special", o.special, "write special tokens too");
  c->add_flag("--json", o.json, "one JSON object");
  return c;
}

CLI::App* add_run(CLI::App& app, RunCommandOptions& o) {
  CLI::App* c = app.add_subcommand("run", "continues a text, or chats");
  c->add_option("folder", o.model.folder, "checkpoint folder (default: the bundled model)");
  c->add_option("--prompt,-p", o.prompt, "the text to continue (default: standard input)");
  c->add_option("--file,-f", o.prompt_file, "read it from a file")->excludes("--prompt");
  c->add_option("--tokens-max,-n", o.max_new, "most new tokens")->check(CLI::Range(0, 1 << 30));
  c->add_flag("--chat", o.chat, "the prompt is a user's message: use the folder's chat template");
  c->add_flag("--interactive,-i", o.interactive, "a conversation, line by line");
  c->add_option("--system", o.system, "system message");
  c->add_option("--temp,--temperature", o.temperature,
                "0: greedy (default: the folder's generation config)");
  c->add_option("--top-k", o.top_k, "keep the k best tokens (0: all)");
  c->add_option("--top-p", o.top_p, "keep the best tokens that reach this probability");
  c->add_option("--min-p", o.min_p, "drop tokens below this share of the best one's probability");
  c->add_option("--repetition-penalty", o.repetition_penalty,
                "divide the logits of tokens already there");
  c->add_option("--presence-penalty", o.presence_penalty, "subtract from tokens of the answer");
  c->add_option("--frequency-penalty", o.frequency_penalty,
                "subtract per occurrence in the answer");
  c->add_option("--seed", o.seed, "of the draws");
  c->add_option("--stop", o.stop, "end before this text (may be given several times)");
  c->add_flag("--ignore-eos", o.ignore_eos, "go on after end-of-text tokens");
  c->add_option("--ctx,-c", o.context, "most tokens of a sequence (default: what the model allows)")
      ->check(CLI::Range(0, 1 << 30));
  c->add_flag("--json", o.json, "one JSON object");
  add_model_options(*c, o.model);
  c->footer(
      "Examples:\n  moebius run -p 'It was a dark night' -n 64 --temp 0.8 --seed 1\n  moebius run "
      "DIR --chat -p 'Who are you?'\n  moebius run DIR -i");
  return c;
}

void on_interrupt(int) { _exit(130); }

int run(int argc, char** argv) {
  CLI::App app{
      "Moebius runs quantized mixture-of-experts models straight from their compressed-tensors "
      "folder.",
      "moebius"};
  app.set_version_flag("--version", "moebius " MOEBIUS_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Examples:\n  moebius inspect DIR\n  moebius explain DIR --cpu avx2,fma,f16c\n  moebius "
      "verify DIR");
  InspectOptions inspect;
  ExplainOptions explain;
  VerifyOptions verify;
  ApplyOptions apply;
  BenchOptions bench;
  LogitsOptions logits;
  RunCommandOptions run_options;
  PerplexityOptions perplexity;
  TokenizeOptions tokenize;
  DetokenizeOptions detokenize;
  const CLI::App* const c_run = add_run(app, run_options);
  const CLI::App* const c_logits = add_logits(app, logits);
  const CLI::App* const c_perplexity = add_perplexity(app, perplexity);
  const CLI::App* const c_inspect = add_inspect(app, inspect);
  const CLI::App* const c_explain = add_explain(app, explain);
  const CLI::App* const c_verify = add_verify(app, verify);
  const CLI::App* const c_apply = add_apply(app, apply);
  const std::vector<BenchCommand> c_bench = add_bench(app, bench);
  const CLI::App* const c_tokenize = add_tokenize(app, tokenize);
  const CLI::App* const c_detokenize = add_detokenize(app, detokenize);
  std::string table;
  CLI::App* const c_docs = app.add_subcommand("docs", "tables for the documents")->group("");
  c_docs->add_option("table", table)->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    const int code = app.exit(e, std::cout, std::cerr);
    return code == 0 ? 0 : 2;
  }
  const bool colour = colour_wanted(STDOUT_FILENO);
  if (c_inspect->parsed()) {
    inspect.folder = folder_or_bundled(inspect.folder), inspect.colour = colour;
    return run_inspect(inspect, std::cout);
  }
  if (c_explain->parsed()) {
    explain.folder = folder_or_bundled(explain.folder), explain.colour = colour;
    return run_explain(explain, std::cout);
  }
  if (c_verify->parsed()) {
    verify.folder = folder_or_bundled(verify.folder), verify.colour = colour;
    return run_verify(verify, std::cout);
  }
  if (c_docs->parsed()) return run_docs(table, std::cout);
  if (c_apply->parsed()) return run_apply(apply);
  if (app.got_subcommand("bench")) return run_bench(c_bench, bench);
  if (c_run->parsed()) {
    run_options.model.folder = folder_or_bundled(run_options.model.folder);
    run_options.has_prompt = c_run->count("--prompt") > 0;
    return run_run(run_options);
  }
  if (c_logits->parsed()) return run_logits(logits);
  if (c_perplexity->parsed()) {
    perplexity.model.folder = folder_or_bundled(perplexity.model.folder);
    return run_perplexity(perplexity, std::cout);
  }
  if (c_tokenize->parsed()) {
    tokenize.folder = folder_or_bundled(tokenize.folder);
    return run_tokenize(tokenize, std::cin, std::cout);
  }
  if (c_detokenize->parsed()) {
    detokenize.folder = folder_or_bundled(detokenize.folder);
    return run_detokenize(detokenize, std::cin, std::cout);
  }
  return 2;
}

}  // namespace
}  // namespace moebius

int main(int argc, char** argv) {
  std::signal(SIGINT, moebius::on_interrupt);
  std::signal(SIGPIPE, SIG_DFL);
  try {
    const int code = moebius::run(argc, argv);
    std::cout.flush();
    if (!std::cout) {
      fmt::print(stderr, "moebius: cannot write to standard output\n");
      return 1;
    }
    return code;
  } catch (const moebius::Error& e) {
    fmt::print(stderr, "moebius: {}\n", e.what());
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "moebius: out of memory\n");
  } catch (const std::exception& e) {
    fmt::print(stderr, "moebius: unexpected error: {}\n", e.what());
  }
  return 1;
}
