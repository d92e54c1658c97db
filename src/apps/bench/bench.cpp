// SPDX-License-Identifier: Apache-2.0
// The bench command: its subjects, their options.
#include "apps/bench/bench.h"

#include <algorithm>
#include <iostream>
#include <memory>

#include "apps/bench/bench_engine.h"
#include "apps/bench/bench_folder.h"
#include "apps/cli/folder.h"
#include "apps/commands.h"
#include "apps/rank_process.h"
#include "base/error.h"

namespace moebius {
namespace {

using Action = int (*)(const BenchOptions&, std::ostream&);

Command subject(std::string name, std::string what, const std::shared_ptr<BenchOptions>& o,
                Action action) {
  Command c("bench " + name, std::move(what));
  c.action = [o, action](const Command&) {
    require_cpu(o->run.device);
    return action(*o, std::cout);
  };
  return c;
}

void add_threads_list(Command& c, BenchOptions& o) {
  c.option("--threads,-t", "LIST", &o.threads, "thread counts to measure")
      .range(1, 1024)
      .by_default("1 and all cores")
      .from_environment("MOEBIUS_THREADS");
}

void add_report_options(Command& c, BenchOptions& o) {
  c.section("Report");
  c.flag("--json", o.json, "print one JSON object per line");
  c.option("--compare", "FILE", &o.compare, "earlier --json output to compare with")
      .file()
      .by_default("none");
  c.option("--seconds", "X", &o.seconds, "time to spend on each case").range(0, 3600);
}

void add_case_options(Command& c, BenchOptions& o) {
  c.option("--scheme", "LIST", &o.schemes, "schemes").by_commas().one_of(bench_scheme_names());
  c.option("--group", "LIST", &o.groups, "group size; -1: one scale per output channel")
      .range(-1, 1 << 20)
      .by_default("the scheme's own");
  c.option("--tokens", "LIST", &o.tokens, "rows of activations (tokens)").range(1, 1 << 20);
  c.option("--dtype", "TYPE", &o.dtype, "type of activations").one_of({"bf16", "f16", "f32"});
}

void add_machine_options(Command& c, BenchOptions& o) {
  c.section("Machine");
  add_threads_list(c, o);
  add_device_option(c, o.run.device);
  add_arithmetic_options(c, o.run);
}

void add_sizes(Command& c, BenchOptions& o) {
  c.option("--n", "N", &o.n, "outputs").range(1, 1 << 24);
  c.option("--k", "K", &o.k, "inputs").range(1, 1 << 24);
}

Command roof_subject() {
  auto o = std::make_shared<BenchOptions>();
  Command c =
      subject("roof", "peak compute and memory bandwidth of this machine", o, run_bench_roof);
  add_threads_list(c, *o);
  add_device_option(c, o->run.device);
  c.flag("--json", o->json, "print one JSON object per line");
  c.examples = {"moebius bench roof", "moebius bench roof --threads 1,2,4 --json"};
  c.action = [o](const Command&) {
    if (on_cuda(o->run.device)) return run_bench_roof_cuda(*o, std::cout);
    return run_bench_roof(*o, std::cout);
  };
  return c;
}

Command kernel_subject() {
  auto o = std::make_shared<BenchOptions>();
  o->schemes = bench_scheme_names();
  o->seconds = 0.1;
  Command c = subject("kernel",
                      "every kernel of this CPU on every scheme, one thread, warm and cold caches",
                      o, run_bench_kernel);
  add_sizes(c, *o);
  c.option("--kernel", "NAME", &o->run.kernel, "this kernel only")
      .by_default("all")
      .from_environment("MOEBIUS_KERNEL");
  c.flag("--pack", o->pack, "measure packing instead of multiplication");
  c.flag("--act-order", o->act_order, "with --pack: integer weights with activation order");
  add_case_options(c, *o);
  c.find("--scheme")->by_default("all");
  add_report_options(c, *o);
  for (const char* other : {"--tokens", "--compare"}) c.at_most_one({"--pack", other});
  c.examples = {"moebius bench kernel --scheme w4a8,fp8 --tokens 1,32",
                "moebius bench kernel --pack"};
  c.action = [o](const Command&) {
    if (o->act_order && !o->pack) throw UsageError("--act-order is about packing: add --pack");
    return run_bench_kernel(*o, std::cout);
  };
  return c;
}

Command linear_subject() {
  auto o = std::make_shared<BenchOptions>();
  Command c = subject("linear", "a linear layer, random weights or a module of a folder", o,
                      run_bench_linear);
  c.argument("DIR", o->folder, "checkpoint folder").folder().by_default("random weights");
  c.option("--module", "NAME", &o->module, "linear layer of the folder").by_default("none");
  add_sizes(c, *o);
  add_case_options(c, *o);
  add_machine_options(c, *o);
  add_report_options(c, *o);
  c.examples = {"moebius bench linear --n 4096 --k 2048 --scheme w4a8 --tokens 1,32",
                "moebius bench linear DIR --module model.layers.0.self_attn.q_proj"};
  c.action = [o](const Command&) {
    if (o->folder.empty() != o->module.empty())
      throw UsageError("bench linear takes a folder and --module together, or neither");
    if (on_cuda(o->run.device)) return run_bench_linear_cuda(*o, std::cout);
    return run_bench_linear(*o, std::cout);
  };
  return c;
}

Command moe_subject() {
  auto o = std::make_shared<BenchOptions>();
  Command c = subject("moe", "a mixture-of-experts layer, random weights or a block of a folder", o,
                      run_bench_moe);
  c.argument("DIR", o->folder, "checkpoint folder").folder().by_default("random weights");
  c.option("--module", "NAME", &o->module, "MoE block of the folder").by_default("the first");
  c.option("--experts", "N", &o->experts, "number of experts").range(1, 65536);
  c.option("--top-k", "N", &o->top_k, "experts per token").range(1, 65536);
  c.option("--hidden", "N", &o->hidden, "hidden size").range(1, 1 << 20);
  c.option("--intermediate", "N", &o->intermediate, "intermediate size of an expert")
      .range(1, 1 << 20);
  c.flag("--skew", o->skew, "one expert gets half of the tokens");
  c.option("--tp", "N", &o->ranks.tp, "tensor parallel: N ranks (threads), compared with one")
      .range(1, 64);
  c.option("--ep", "N", &o->ranks.ep, "expert parallel: N ranks (threads), compared with one")
      .range(1, 64);
  add_case_options(c, *o);
  add_machine_options(c, *o);
  add_report_options(c, *o);
  c.examples = {"moebius bench moe --scheme w4a8 --group 128 --tokens 1,32,512 --json",
                "moebius bench moe --experts 64 --top-k 6 --threads 1,2",
                "moebius bench moe --ep 2 --threads 2 --tokens 1,8,32,512"};
  c.action = [o](const Command&) {
    if (o->top_k > o->experts)
      throw UsageError("--top-k is " + std::to_string(o->top_k) +
                       "; expected 1 to the number of experts, " + std::to_string(o->experts));
    if (on_cuda(o->run.device)) {
      if (o->ranks.tp * o->ranks.ep > 1) throw UsageError("--tp and --ep are of the CPU");
      return run_bench_moe_cuda(*o, std::cout);
    }
    if (o->ranks.tp * o->ranks.ep > 1) return run_bench_moe_ranks(*o, std::cout);
    return run_bench_moe(*o, std::cout);
  };
  return c;
}

Command attention_subject() {
  auto o = std::make_shared<BenchOptions>();
  o->tokens = {1, 512}, o->depths = {4096}, o->seconds = 0.5;
  Command c =
      subject("attention", "attention of one layer over a random KV cache", o, run_bench_attention);
  c.option("--heads", "N", &o->heads, "query heads").range(1, 1024);
  c.option("--kv-heads", "N", &o->kv_heads, "KV heads").range(1, 1024);
  c.option("--head-dim", "N", &o->head_dim, "head size").range(1, 4096);
  c.option("--depths", "LIST", &o->depths, "tokens in the KV cache").range(0, 1 << 20);
  c.option("--tokens", "LIST", &o->tokens, "new tokens").range(1, 1 << 16);
  c.option("--dtype", "TYPE", &o->dtype, "type of activations").one_of({"bf16", "f16", "f32"});
  add_kv_dtype_option(c, o->kv_dtype);
  add_machine_options(c, *o);
  add_report_options(c, *o);
  c.examples = {"moebius bench attention --depths 32768 --tokens 1",
                "moebius bench attention --kernel arm_neon --kv-dtype f16"};
  return c;
}

// Settles what is measured: the folder, the bundled model where none is given, or --synthetic.
void settle_model(BenchOptions& o) {
  if (o.synthetic.empty()) {
    if (o.folder.empty()) o.folder = bundled_folder();
    return;
  }
  if (!o.folder.empty()) throw UsageError("--synthetic makes a folder of its own; leave out DIR");
  const RankOptions& r = o.ranks;
  if (RankProcess::current() != nullptr || std::max({r.ranks, r.pp, r.tp, r.ep}) > 1)
    fail("--synthetic is for one process; ranks read a folder that all of them see");
}

Command model_subject() {
  auto o = std::make_shared<BenchOptions>();
  Command c("bench model", "prefill and decode of a whole model with random tokens");
  c.folder(o->folder).bundled = false;  // not needed with --synthetic
  c.option("--synthetic", "NAME", &o->synthetic,
           "random weights in the sizes of a model, W4A8 in groups of 128, instead of a folder")
      .one_of(synthetic_folder_names())
      .by_default("none");
  c.option("--layers", "N", &o->layers, "layers of --synthetic").range(1, 256);
  c.option("--prompts", "LIST", &o->prompts, "prompt lengths").range(1, 1 << 20);
  c.option("--batches", "LIST", &o->batches, "sequences per decode step").range(1, 4096);
  c.option("--depths", "LIST", &o->depths, "tokens in the KV cache before the decode steps")
      .range(1, 1 << 20);
  c.flag("--invented", o->invented, "random keys instead of computed ones before the decode steps");
  c.option("--steps", "N", &o->steps, "decode steps of each batch size")
      .range(1, 1 << 20)
      .by_default("48 to 128");
  c.option("--seconds", "X", &o->seconds, "time to spend on each prompt length").range(0, 3600);
  c.flag("--json", o->json, "print one JSON object per number of threads");
  add_machine_options(c, *o);
  c.find("--threads")->by_default("all cores");
  add_place_options(c, o->run);
  add_dtype_option(c, o->dtype);
  add_kv_dtype_option(c, o->kv_dtype);
  add_pack_option(c, o->pack_dir);
  add_rank_options(c, o->ranks);
  c.action = [o](const Command&) {
    settle_model(*o);
    return run_bench_model(*o, std::cout);
  };
  c.follow = [o] {
    settle_model(*o);
    RunOptions run = o->run;
    if (!o->threads.empty()) run.threads = static_cast<int>(o->threads.front());
    return follow_rank_0({o->folder, o->dtype, o->kv_dtype, run, o->ranks, o->pack_dir});
  };
  c.examples = {"moebius bench model", "moebius bench model DIR --prompts 512 --batches 1,8",
                "moebius bench model DIR --batches 1 --depths 32,32768",
                "moebius bench model --synthetic qwen3-30b --layers 6"};
  return c;
}

Command sampler_subject() {
  auto o = std::make_shared<BenchOptions>();
  o->batches = {32};
  o->seconds = 0.5;
  Command c =
      subject("sampler", "sampling from random logits, one row per sequence", o, run_bench_sampler);
  c.option("--vocab", "N", &o->vocab, "vocabulary size").range(1, 1 << 24);
  c.option("--batches", "LIST", &o->batches, "rows per step").range(1, 4096);
  add_threads_list(c, *o);
  c.option("--seconds", "X", &o->seconds, "time to spend on each case").range(0, 3600);
  c.flag("--json", o->json, "print one JSON object per line");
  c.examples = {"moebius bench sampler", "moebius bench sampler --vocab 32000 --batches 1,8"};
  return c;
}

Command mask_subject() {
  auto o = std::make_shared<BenchOptions>();
  Command c = subject("mask", "structured output: schemas to grammars, places to tokens", o,
                      run_bench_mask);
  c.folder(o->folder);
  c.option("--schemas", "FOLDER", &o->schemas,
           "JSON files: schemas, or schemas with instances as JSON-Schema-Test-Suite has them")
      .file()
      .by_default("a few of our own");
  c.flag("--list", o->list, "name the instances that were judged wrongly");
  c.flag("--json", o->json, "print one JSON object per line");
  c.examples = {"moebius bench mask", "moebius bench mask DIR --schemas SCHEMAS --json"};
  return c;
}

}  // namespace

Command bench_command() {
  Command c("bench", "measures the machine, kernels, layers and whole models");
  c.subjects = {roof_subject(),    kernel_subject(),    linear_subject(),
                moe_subject(),     attention_subject(), model_subject(),
                sampler_subject(), mask_subject(),      bench_engine_subject()};
  c.examples = {"moebius bench roof", "moebius bench model DIR"};
  return c;
}

}  // namespace moebius
