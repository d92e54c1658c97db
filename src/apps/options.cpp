// SPDX-License-Identifier: Apache-2.0
#include "apps/options.h"

#include "apps/manners.h"
#include "base/error.h"
#include "model/layer_plan.h"
#include "runtime/thread_pool.h"

namespace moebius {
namespace {

Int8Mode int8_mode_of(const std::string& name) {
  if (name == "declared") return Int8Mode::kDeclared;
  if (name == "ct") return Int8Mode::kCompressedTensors;
  if (name == "vllm") return Int8Mode::kVllm;
  fail("--int8-activations is '{}'; expected declared, ct or vllm", printable(name));
}

}  // namespace

void add_arithmetic_options(Command& c, RunOptions& run) {
  c.option("--kernel", "NAME", &run.kernel, "run this kernel wherever it can")
      .by_default("the best one for this CPU")
      .from_environment("MOEBIUS_KERNEL")
      .seldom();
  c.option("--policy", "NAME", &run.policy, "which arithmetic is acceptable")
      .one_of({"declared", "exact", "approximate"})
      .seldom();
  c.option("--activations", "NAME", &run.activations,
           "int8: weights that are integers alone meet dynamic int8 rows; faster, approximate")
      .one_of({"declared", "int8"});
  c.option("--int8-activations", "NAME", &run.int8_activations, "how dynamic int8 rows are scaled")
      .one_of({"declared", "ct", "vllm"})
      .seldom();
}

void add_run_options(Command& c, RunOptions& run) {
  c.section("Machine");
  c.option("--threads,-t", "N", &run.threads, "threads; 0: all cores")
      .range(0, 1024)
      .from_environment("MOEBIUS_THREADS");
  add_arithmetic_options(c, run);
}

void add_dtype_option(Command& c, std::string& dtype) {
  c.option("--dtype", "TYPE", &dtype, "type of activations; auto: what config.json declares")
      .one_of({"auto", "bf16", "f16", "f32"})
      .seldom();
}

void add_kv_dtype_option(Command& c, std::string& kv_dtype) {
  c.option("--kv-dtype", "TYPE", &kv_dtype,
           "type of keys and values; auto: what the checkpoint declares, else --dtype")
      .one_of({"auto", "bf16", "f16", "f32", "int8", "fp8"});
}

void add_rank_options(Command& c, RankOptions& ranks) {
  c.section("Ranks", true);
  c.option("--ranks", "N", &ranks.ranks, "threads of this process that are ranks; split as is best")
      .range(1, 1024)
      .by_default("what --pp, --tp and --ep make");
  c.option("--pp", "N", &ranks.pp, "ranks that have some of the layers each").range(1, 1024);
  c.option("--tp", "N", &ranks.tp, "ranks that have some outputs of every matrix").range(1, 1024);
  c.option("--ep", "N", &ranks.ep, "ranks that have some of the experts each").range(1, 1024);
  c.option("--attention", "HOW", &ranks.attention,
           "with --ep: heads are cut like --tp, or every rank runs all")
      .one_of({"cut", "repeat"});
  c.option("--spare", "N", &ranks.spare, "with --ep: places per layer for copies of busy experts")
      .range(0, 65536);
  c.option("--expert-loads", "FILE", &ranks.loads,
           "rows per expert, for the next start; with --spare")
      .file()
      .by_default("none");
  c.option("--rank-timeout", "S", &ranks.timeout, "seconds of silence that end the job")
      .range(1, 86400);
  c.option("--check", "WHAT", &ranks.check, "how much of the ranks' folders is compared")
      .one_of({"headers", "sample", "deep"});
  c.option("--folder-map", "HOST=DIR", &ranks.folder_map,
           "where ranks 1 and up on a host have the folder")
      .by_default("the same path everywhere");
  c.flag("--keep-binding", ranks.keep_binding, "leave ranks on the CPUs that the launcher gave");
  c.flag("--common-cpu", ranks.common_cpu, "use only CPU features that all ranks have");
}

void add_json_flag(Command& c, bool& json) { c.flag("--json", json, "print one JSON object"); }

size_t thread_count(const RunOptions& options) {
  return options.threads == 0 ? default_thread_count() : static_cast<size_t>(options.threads);
}

Policy policy_of(const RunOptions& options) {
  Policy policy;
  policy.accept = accept_from_name(options.policy);
  policy.kernel = normalize_kernel_name(options.kernel);
  return policy;
}

ActRequest act_request_of(const RunOptions& options) {
  ActRequest request;
  request.mode = int8_mode_of(options.int8_activations);
  request.int8_rows = options.activations == "int8";
  if (!request.int8_rows && options.activations != "declared")
    fail("--activations is '{}'; expected declared or int8", printable(options.activations));
  check_request(policy_of(options), request);
  return request;
}

void note_request(const Checkpoint& checkpoint, const ActRequest& request) {
  if (!request.int8_rows) return;
  size_t granted = 0, kept = 0;
  for (const Module& m : checkpoint.modules()) {
    if (m.tower || !m.supported || !is_weight_only_integer(m.plan.scheme)) continue;
    ++(departs(m.plan.scheme, act_spec_of(m, request)) ? granted : kept);
  }
  if (granted + kept == 0)
    note("--activations int8 changes nothing: no module has integer weights alone");
  else
    note(
        "int8 activations on request: {} modules run with dynamic int8 rows (class approximate, "
        "not "
        "what the checkpoint declares), {} with integer weights stay as declared",
        granted, kept);
}

std::optional<KvType> kv_type_from(const std::string& kv_dtype) {
  if (kv_dtype == "bf16") return KvType::kBf16;
  if (kv_dtype == "f16") return KvType::kF16;
  if (kv_dtype == "f32") return KvType::kF32;
  if (kv_dtype == "int8") return KvType::kInt8;
  if (kv_dtype == "fp8") return KvType::kFp8;
  if (kv_dtype.empty() || kv_dtype == "auto") return std::nullopt;
  fail("--kv-dtype is '{}'; expected auto, bf16, f16, f32, int8 or fp8", printable(kv_dtype));
}

}  // namespace moebius
