// SPDX-License-Identifier: Apache-2.0
// Declares the command bench with its subjects and their options.
#include "apps/bench_command.h"

#include <iostream>
#include <memory>

#include "apps/commands.h"

namespace moebius {
namespace {

template <class Options>
Command subject(std::string name, std::string what, const std::shared_ptr<Options>& o,
                int (*run)(const Options&, std::ostream&)) {
  Command c("bench " + name, std::move(what));
  c.storage = o;
  if (run != nullptr) c.action = [o, run](const Command&) { return run(*o, std::cout); };
  return c;
}

void add_threads_list(Command& c, BenchOptions& o) {
  c.option(
      "--threads,-t", "LIST", &o.threads, "thread counts to measure",
      {.limits = {{1, 1024}}, .default_text = "1 and all cores", .environment = "MOEBIUS_THREADS"});
}

void add_report_options(Command& c, BenchOptions& o) {
  c.section("Report");
  c.flag("--json", o.json, "print one JSON object per line");
  c.option("--seconds", "X", &o.seconds, "time to spend on each case", {.limits = {{0, 3600}}});
}

void add_case_options(Command& c, BenchOptions& o) {
  c.option("--scheme", "LIST", &o.schemes, "schemes",
           {.choices = bench_scheme_names(), .commas = true});
  c.option("--group", "LIST", &o.groups, "group size; -1: one scale per output channel",
           {.limits = {{-1, 1 << 20}}, .default_text = "the scheme's own"});
  c.option("--tokens", "LIST", &o.tokens, "rows of activations (tokens)",
           {.limits = {{1, 1 << 20}}});
  c.option("--dtype", "TYPE", &o.dtype, "type of activations", {.choices = {"bf16", "f16", "f32"}});
}

void add_machine_options(Command& c, BenchOptions& o) {
  c.section("Machine");
  add_threads_list(c, o);
  add_device_option(c, o.run.device);
  add_arithmetic_options(c, o.run);
}

void add_sizes(Command& c, BenchOptions& o) {
  c.option("--n", "N", &o.n, "outputs", {.limits = {{1, 1 << 24}}});
  c.option("--k", "K", &o.k, "inputs", {.limits = {{1, 1 << 24}}});
}

Command roof_subject(BenchActions::Run run) {
  auto o = std::make_shared<BenchOptions>();
  Command c = subject("roof", "peak compute and memory bandwidth of this machine", o, run);
  add_threads_list(c, *o);
  add_device_option(c, o->run.device);
  c.flag("--json", o->json, "print one JSON object per line");
  c.examples = {"moebius bench roof", "moebius bench roof --threads 1,2,4 --json"};
  return c;
}

Command kernel_subject(BenchActions::Run run) {
  auto o = std::make_shared<BenchOptions>();
  o->schemes = bench_scheme_names();
  o->seconds = 0.1;
  Command c =
      subject("kernel",
              "every kernel of this CPU on every scheme, one thread, warm and cold caches", o, run);
  add_sizes(c, *o);
  c.option("--kernel", "NAME", &o->run.kernel, "this kernel only",
           {.default_text = "all", .environment = "MOEBIUS_KERNEL"});
  c.flag("--pack", o->pack, "measure packing instead of multiplication");
  c.flag("--act-order", o->act_order, "with --pack: integer weights with activation order");
  add_case_options(c, *o);
  c.find("--scheme")->default_text = "all";
  add_report_options(c, *o);
  c.at_most_one({"--pack", "--tokens"});
  c.examples = {"moebius bench kernel --scheme w4a8,fp8 --tokens 1,32",
                "moebius bench kernel --pack"};
  return c;
}

Command linear_subject(BenchActions::Run run) {
  auto o = std::make_shared<BenchOptions>();
  Command c = subject("linear", "a linear layer, random weights or a module of a folder", o, run);
  c.argument("DIR", o->folder, "checkpoint folder",
             {.default_text = "random weights", .kind = ValueKind::kFolder});
  c.option("--module", "NAME", &o->module, "linear layer of the folder", {.default_text = "none"});
  add_sizes(c, *o);
  add_case_options(c, *o);
  add_machine_options(c, *o);
  add_report_options(c, *o);
  c.examples = {"moebius bench linear --n 4096 --k 2048 --scheme w4a8 --tokens 1,32",
                "moebius bench linear DIR --module model.layers.0.self_attn.q_proj"};
  return c;
}

Command moe_subject(BenchActions::Run run) {
  auto o = std::make_shared<BenchOptions>();
  Command c =
      subject("moe", "a mixture-of-experts layer, random weights or a block of a folder", o, run);
  c.argument("DIR", o->folder, "checkpoint folder",
             {.default_text = "random weights", .kind = ValueKind::kFolder});
  c.option("--module", "NAME", &o->module, "MoE block of the folder",
           {.default_text = "the first"});
  c.option("--experts", "N", &o->experts, "number of experts", {.limits = {{1, 65536}}});
  c.option("--top-k", "N", &o->top_k, "experts per token", {.limits = {{1, 65536}}});
  c.option("--hidden", "N", &o->hidden, "hidden size", {.limits = {{1, 1 << 20}}});
  c.option("--intermediate", "N", &o->intermediate, "intermediate size of an expert",
           {.limits = {{1, 1 << 20}}});
  c.flag("--skew", o->skew, "one expert gets half of the tokens");
  add_case_options(c, *o);
  add_machine_options(c, *o);
  add_report_options(c, *o);
  c.examples = {"moebius bench moe --scheme w4a8 --group 128 --tokens 1,32,512 --json",
                "moebius bench moe --experts 64 --top-k 6 --threads 1,2"};
  return c;
}

Command attention_subject(BenchActions::Run run) {
  auto o = std::make_shared<BenchOptions>();
  o->tokens = {1, 512}, o->depths = {4096}, o->seconds = 0.5;
  Command c = subject("attention", "attention of one layer over a random KV cache", o, run);
  c.option("--heads", "N", &o->heads, "query heads", {.limits = {{1, 1024}}});
  c.option("--kv-heads", "N", &o->kv_heads, "KV heads", {.limits = {{1, 1024}}});
  c.option("--head-dim", "N", &o->head_dim, "head size", {.limits = {{1, 4096}}});
  c.option("--depths", "LIST", &o->depths, "tokens in the KV cache", {.limits = {{0, 1 << 20}}});
  c.option("--tokens", "LIST", &o->tokens, "new tokens", {.limits = {{1, 1 << 16}}});
  c.option("--dtype", "TYPE", &o->dtype, "type of activations",
           {.choices = {"bf16", "f16", "f32"}});
  add_kv_dtype_option(c, o->kv_dtype);
  add_machine_options(c, *o);
  add_report_options(c, *o);
  c.examples = {"moebius bench attention --depths 32768 --tokens 1",
                "moebius bench attention --kernel arm_neon --kv-dtype f16"};
  return c;
}

Command model_subject(const BenchActions& actions) {
  auto o = std::make_shared<BenchOptions>();
  Command c =
      subject("model", "prefill and decode of a whole model with random tokens", o, actions.model);
  c.folder(o->folder).bundled = false;  // not needed with --synthetic
  c.option("--synthetic", "NAME", &o->synthetic,
           "random weights in the sizes of a model, W4A8 in groups of 128, instead of a folder",
           {.choices = bench_model_names(), .default_text = "none"});
  c.option("--layers", "N", &o->layers, "layers of --synthetic", {.limits = {{1, 256}}});
  c.option("--prompts", "LIST", &o->prompts, "prompt lengths", {.limits = {{1, 1 << 20}}});
  c.option("--batches", "LIST", &o->batches, "sequences per decode step", {.limits = {{1, 4096}}});
  c.option("--depths", "LIST", &o->depths, "tokens in the KV cache before the decode steps",
           {.limits = {{1, 1 << 20}}});
  c.flag("--invented", o->invented, "random keys instead of computed ones before the decode steps");
  c.option("--steps", "N", &o->steps, "decode steps of each batch size",
           {.limits = {{1, 1 << 20}}, .default_text = "48 to 128"});
  c.option("--seconds", "X", &o->seconds, "time to spend on each prompt length",
           {.limits = {{0, 3600}}});
  c.flag("--json", o->json, "print one JSON object per number of threads");
  add_machine_options(c, *o);
  c.find("--threads")->default_text = "all cores";
  add_place_options(c, o->run);
  add_dtype_option(c, o->dtype);
  add_kv_dtype_option(c, o->kv_dtype);
  add_pack_option(c, o->pack_dir);
  add_rank_options(c, o->ranks);
  if (actions.follow_model != nullptr)
    c.follow = [o, follow = actions.follow_model] { return follow(*o); };
  c.examples = {"moebius bench model", "moebius bench model DIR --prompts 512 --batches 1,8",
                "moebius bench model DIR --batches 1 --depths 32,32768",
                "moebius bench model --synthetic qwen3-30b --layers 6"};
  return c;
}

Command sampler_subject(BenchActions::Run run) {
  auto o = std::make_shared<BenchOptions>();
  o->batches = {32};
  o->seconds = 0.5;
  Command c = subject("sampler", "sampling from random logits, one row per sequence", o, run);
  c.option("--vocab", "N", &o->vocab, "vocabulary size", {.limits = {{1, 1 << 24}}});
  c.option("--batches", "LIST", &o->batches, "rows per step", {.limits = {{1, 4096}}});
  add_threads_list(c, *o);
  c.option("--seconds", "X", &o->seconds, "time to spend on each case", {.limits = {{0, 3600}}});
  c.flag("--json", o->json, "print one JSON object per line");
  c.examples = {"moebius bench sampler", "moebius bench sampler --vocab 32000 --batches 1,8"};
  return c;
}

Command mask_subject(BenchActions::Run run) {
  auto o = std::make_shared<BenchOptions>();
  Command c = subject("mask", "structured output: schemas to grammars, places to tokens", o, run);
  c.folder(o->folder);
  c.option("--schemas", "FOLDER", &o->schemas,
           "JSON files: schemas, or schemas with instances as JSON-Schema-Test-Suite has them",
           {.default_text = "a few of our own", .kind = ValueKind::kFile});
  c.flag("--list", o->list, "name the instances that were judged wrongly");
  c.flag("--json", o->json, "print one JSON object per line");
  c.examples = {"moebius bench mask", "moebius bench mask DIR --schemas SCHEMAS --json"};
  return c;
}

Command experts_subject(BenchActions::Run run) {
  auto o = std::make_shared<BenchOptions>();
  Command c = subject("experts",
                      "a recorded routing with too little memory for all experts: how often an "
                      "expert is there, by the policy that decides which ones stay",
                      o, run);
  c.folder(o->folder);
  c.option("--trace", "FILE", &o->trace, "what `run --route-trace` recorded with this model",
           {.kind = ValueKind::kFile, .required = true});
  c.option("--gib", "LIST", &o->gib, "memory for experts in GiB",
           {.required = true, .commas = true});
  c.option("--sequences", "N", &o->sequences,
           "cut the trace into N texts that are decoded together", {.limits = {{1, 4096}}});
  c.flag("--json", o->json, "print one JSON object per line");
  c.examples = {"moebius bench experts DIR --trace routes --gib 4,8 --sequences 8"};
  return c;
}

Command disk_subject(BenchActions::Run run) {
  auto o = std::make_shared<BenchOptions>();
  o->depths = {1, 2, 4, 8, 16, 32, 64};
  Command c = subject(
      "disk", "reads of a file by pieces, past the page cache and through it; drops its pages", o,
      run);
  c.argument("FILE", o->file, "a large file on the disk, such as one of packed weights",
             {.kind = ValueKind::kFile, .required = true});
  c.option("--bytes", "N", &o->bytes, "bytes of a read, a multiple of 4096",
           {.limits = {{4096, 1 << 24}}});
  c.option("--depths", "LIST", &o->depths, "reads at the same time", {.limits = {{1, 64}}});
  add_report_options(c, *o);
  c.examples = {"moebius bench disk FILE", "moebius bench disk FILE --bytes 2097152 --depths 1,8"};
  return c;
}

Command engine_subject(int (*run)(const BenchEngineOptions&, std::ostream&)) {
  auto o = std::make_shared<BenchEngineOptions>();
  Command c = subject(
      "engine", "a trace of requests through the engine, compared with bare decode steps", o, run);
  c.folder(o->model.folder);
  c.section("Requests");
  c.option("--trace", "FILE", &o->trace, "lines of arrival seconds, prompt tokens, new tokens",
           {.default_text = "random requests", .kind = ValueKind::kFile});
  c.option("--requests", "N", &o->requests, "without --trace: number of requests",
           {.limits = {{1, 1 << 20}}});
  c.option("--rate", "X", &o->rate, "without --trace: arrivals per second",
           {.limits = {{1e-6, 1e9}}});
  c.option("--prompt-tokens", "N", &o->prompt, "without --trace: mean tokens of each",
           {.limits = {{1, 1 << 20}}});
  c.option("--new-tokens", "N", &o->new_tokens, "without --trace: mean tokens of each",
           {.limits = {{1, 1 << 20}}});
  c.option("--seed", "N", &o->seed, "seed of the random requests");
  c.option("--rounds", "N", &o->rounds, "runs of the trace; the median is reported",
           {.limits = {{1, 1000}}});
  c.flag("--constrained", o->constrained,
         "also run each round with answers held to a JSON schema, and compare the gaps");
  c.flag("--json", o->json, "print one JSON object");
  c.section("Engine");
  c.option("--parallel", "N", &o->parallel, "sequences that run at the same time",
           {.limits = {{1, 4096}}});
  c.option("--stretch", "X", &o->stretch,
           "longest step with prefill, as a multiple of a decode step alone",
           {.limits = {{1, 1000}}, .rare = true});
  o->engine.speculate = "off";
  add_engine_options(c, o->engine);
  c.option("--predictions", "WHAT", &o->predictions,
           "runs without and with drafts in turn; right: each request is given its own answer as "
           "prediction; wrong: an answer with every token wrong; own: drafts as --speculate says",
           {.choices = {"none", "right", "wrong", "own"}, .rare = true});
  add_model_options(c, o->model);
  c.examples = {"moebius bench engine", "moebius bench engine DIR --trace requests.csv --json",
                "moebius bench engine DIR --requests 1 --new-tokens 256 --predictions right"};
  return c;
}

}  // namespace

std::vector<std::string> bench_scheme_names() {
  return {"w4a8",      "w8a8",       "w4a16",      "w8a16", "w2a16",    "w3a16", "fp8",
          "fp8_block", "fp8_normal", "fp8_static", "nvfp4", "nvfp4a16", "mxfp4", "mxfp4a16",
          "mxfp8",     "w4afp8",     "q4_0",       "q8_0",  "q4_k",     "q5_k",  "q6_k",
          "iq4_xs",    "bf16",       "f16",        "f32"};
}

std::vector<std::string> bench_model_names() { return {"qwen3-30b", "deepseek-v3"}; }

Command bench_command(const BenchActions& actions) {
  Command c("bench", "measures the machine, kernels, layers and whole models");
  c.subjects = {roof_subject(actions.roof),           kernel_subject(actions.kernel),
                linear_subject(actions.linear),       moe_subject(actions.moe),
                attention_subject(actions.attention), model_subject(actions),
                sampler_subject(actions.sampler),     mask_subject(actions.mask),
                experts_subject(actions.experts),     disk_subject(actions.disk),
                engine_subject(actions.engine)};
  c.examples = {"moebius bench roof", "moebius bench model DIR"};
  return c;
}

}  // namespace moebius
