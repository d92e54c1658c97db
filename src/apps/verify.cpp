// SPDX-License-Identifier: Apache-2.0
// Implements verify. Exact kernels must give equal bytes; reordered ones must stay within the bound
// that quant/reference derives for each output. The payload of every module that matches is read
// and checked. Of a group of alike modules (same name but for layer and expert, same scheme and
// shape) each layer's first and last are run; with --all, or a pattern given with --module, all
// are.
#include "apps/verify.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <memory>
#include <mutex>
#include <ostream>
#include <set>

#include "apps/cli/folder.h"
#include "apps/cli/layout.h"
#include "apps/commands.h"
#include "apps/verify_report.h"
#include "base/error.h"
#include "base/numeric.h"
#include "base/random.h"
#include "checkpoint/methods/skip_list.h"
#include "checkpoint/summary.h"
#include "device/cpu/layer_loader.h"
#include "device/cuda/cuda_layers.h"
#include "kernels/packed_matrix.h"
#include "nn/ops.h"
#include "quant/reference.h"
#include "report/modules.h"
#include "runtime/runtime.h"

namespace moebius {
namespace {

constexpr size_t kRows = 17;  // covers every row tile: pairs, eights and a remainder

// Returns rows as layers see them: normal values, a few outlier channels, a row of zeros, a tiny
// and a large one, all finite in the type.
std::vector<float> realistic_rows(size_t M, size_t K, XType type, uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<float> outlier(K, 1.0f);
  for (size_t i = 0; i < 1 + K / 256; ++i)
    outlier[static_cast<size_t>(random.uniform() * static_cast<double>(K))] = 30.0f;
  std::vector<float> x(M * K);
  for (size_t m = 0; m < M; ++m) {
    const double size = m % 8 == 3 ? 0.0 : m % 8 == 5 ? 1e-6 : m % 8 == 7 ? 1e4 : 1.0;
    for (size_t k = 0; k < K; ++k) {
      const double normal = std::sqrt(-2 * std::log(1 - random.uniform())) *
                            std::cos(6.283185307179586 * random.uniform());
      x[m * K + k] = static_cast<float>(normal * size) * outlier[k];
      if (type == XType::kF16) x[m * K + k] = std::clamp(x[m * K + k], -65504.0f, 65504.0f);
    }
  }
  round_to(type, x.data(), x.size());
  return x;
}

struct Rows32 {
  std::vector<float> x;
  size_t M = 0;
};

// Reads x from the file given with --in; every module that will run must take rows of its width.
Rows32 given_rows(const std::string& path, const std::vector<const Module*>& modules, XType type) {
  const TensorStore store = TensorStore::open_file(path);
  const TensorInfo& info = store.require("x");
  if (info.shape.size() != 2 || !is_activation_type(info.dtype))
    fail("{} is {}; expected x [T, features] of F32, BF16 or F16", store.where(info),
         describe(info));
  for (const Module* m : modules)
    if (info.shape[1] != m->plan.K)
      fail("{} is {}; {} takes {} features (--module chooses the modules to run)",
           store.where(info), describe(info), m->name, m->plan.K);
  Rows32 rows{read_floats(store, info), info.shape[0]};
  round_to(type, rows.x.data(), rows.x.size());
  return rows;
}

bool same_bytes(float a, float b) {
  return std::memcmp(&a, &b, 4) == 0 || (std::isnan(a) && std::isnan(b));
}

void compare(Finding& f, const QuantMatrix& w, const QuantRows& rows, const float* y) {
  const size_t M = rows.M, N = w.N;
  std::vector<float> expected(M * N);
  reference_gemm(w, rows, 0, N, expected.data(), N);
  std::vector<double> bound(M * N, 0.0);
  if (f.numerics != Numerics::kExact) reordered_bound(w, rows, 0, N, bound.data(), N);
  double worst = -1;
  for (size_t i = 0; i < M * N; ++i) {
    const double difference = std::fabs(static_cast<double>(y[i]) - expected[i]);
    // A bound of NaN means that operands are not finite; then the result must not be, either.
    const bool fits = f.numerics == Numerics::kExact ? same_bytes(y[i], expected[i])
                      : std::isnan(bound[i])         ? !std::isfinite(y[i])
                      : std::isnan(expected[i])      ? std::isnan(y[i])
                                                     : difference <= bound[i];
    if (std::isfinite(difference)) {
      f.max_abs = std::max(f.max_abs, difference);
      if (expected[i] != 0)
        f.max_rel = std::max(f.max_rel, difference / std::fabs(static_cast<double>(expected[i])));
    }
    const double excess = fits ? (bound[i] > 0 ? difference / bound[i] : 0) : HUGE_VAL;
    if (excess > worst) {
      worst = excess;
      f.bound = bound[i];
      f.share = excess;
      f.where = fmt::format("row {} output {}: {} expected {}", i / N, i % N, y[i], expected[i]);
    }
    f.ok = f.ok && fits;
  }
}

// Holds the settings with which modules run.
struct RunPlan {
  const Checkpoint& checkpoint;
  LayerOptions options;
  const Rows32* given = nullptr;     // rows of --in
  const CudaModule* cuda = nullptr;  // null: on the CPU
  Policy cuda_policy;
};

// Multiplies a module on a CUDA device; one call at a time.
void multiply_on_cuda(const RunPlan& plan, const Module& m, const QuantMatrix& w,
                      const Problem& problem, const Rows32& rows, Finding& f, float* y) {
  static std::mutex device;
  const std::lock_guard lock(device);
  const Choice choice = choose_cuda(problem, cuda_target(plan.cuda->facts), plan.cuda_policy);
  const CudaMatrix matrix = cuda_matrix(w, problem.act, m.plan.input, problem.x_type);
  const CudaLinear layer(*plan.cuda, matrix, *choice.chosen);
  // false: the matrix' numbers need the plain kernel
  const bool kept = layer.path() == path_of(*choice.chosen);
  f.kernel = kept ? title_of(*choice.chosen) : "cuda_plain/stored";
  f.numerics = kept ? choice.numerics : Numerics::kExact;
  layer.forward(f32_rows(rows.x.data(), rows.M, w.K), f32_rows(y, rows.M, w.N));
}

void run_module(const RunPlan& plan, const Module& m, const QuantMatrix& w, Finding& f) {
  const XType type = plan.options.x_type;
  const ActSpec act = act_spec_of(m, plan.options.act);
  const Problem problem = make_problem(w, act, type);
  Rows32 seeded;
  if (plan.given == nullptr) seeded = {realistic_rows(kRows, w.K, type, 1 + w.N * 31 + w.K), kRows};
  const Rows32& rows = plan.given != nullptr ? *plan.given : seeded;
  const QuantRowsBuffer quantized =
      quantize_rows(rows.x.data(), w.K, rows.M, w.K, act, m.plan.input, type);
  std::vector<float> y(rows.M * w.N);
  if (plan.cuda != nullptr) {
    multiply_on_cuda(plan, m, w, problem, rows, f, y.data());
  } else {
    const Kernel& kernel = kernel_for(problem, plan.options, m.name);
    f.kernel = title_of(kernel);
    f.numerics = kernel.numerics(problem);
    const OwnedPackedMatrix packed(kernel, w, act, type, m.plan.input);
    packed.multiply(rows.x.data(), w.K, rows.M, y.data(), w.N);
  }
  compare(f, w, quantized.rows, y.data());
  f.run = true;
}

// Checks the payload and, if `run` is set, the product.
Finding look_at(const RunPlan& plan, const Module& m, bool run) {
  Finding f;
  f.name = m.name;
  LoadBuffer buffer;
  QuantMatrix w;
  f.problem = payload_problem(plan.checkpoint, m, buffer, &w);
  if (!f.problem.empty())
    f.ok = false;
  else if (run)
    run_module(plan, m, w, f);
  return f;
}

// Returns the first and the last module of every layer among alike ones.
std::set<const Module*> first_and_last(const std::vector<const Module*>& alike) {
  std::set<const Module*> chosen;
  for (size_t i = 0; i < alike.size(); ++i)
    if (i == 0 || i + 1 == alike.size() || alike[i]->layer != alike[i - 1]->layer ||
        alike[i]->layer != alike[i + 1]->layer)
      chosen.insert(alike[i]);
  return chosen;
}

struct ModuleChoice {
  // all: modules that match; run: those of them to multiply with.
  std::vector<const Module*> all, run;
  std::vector<bool> runs;  // [module of all]
  size_t products = 0;
};

ModuleChoice choose_modules(const Checkpoint& checkpoint, const VerifyOptions& options) {
  ModuleChoice c;
  const bool every = options.all || options.module != "*";
  for (const ModuleGroup& group : group_modules(checkpoint)) {
    std::vector<const Module*> matching;
    for (const Module* m : group.members)
      if (wildcard_matches(options.module, m->name)) matching.push_back(m);
    if (matching.empty()) continue;
    const bool product = has_product(checkpoint, *group.sample);
    const std::set<const Module*> few = first_and_last(matching);
    for (const Module* m : matching) {
      const bool run = product && (every || few.count(m) != 0);
      c.all.push_back(m), c.runs.push_back(run);
      if (run) c.run.push_back(m);
      c.products += product ? 1 : 0;
    }
  }
  if (c.run.empty()) fail("{}: no module matches '{}'", options.folder, printable(options.module));
  return c;
}

}  // namespace

int run_verify(const VerifyOptions& options, std::ostream& out) {
  const Checkpoint checkpoint = open_checkpoint(options.folder);
  checkpoint.require_supported();
  const std::shared_ptr<Runtime> runtime = Runtime::shared(thread_count(options.run));
  ThreadPool& pool = runtime->pool();
  RunPlan plan{checkpoint, {}, nullptr, nullptr, {}};
  plan.options.pool = &pool;
  if (on_gpu(options.run.device)) {
    plan.cuda = &gpu_of_tool();
    plan.cuda_policy = gpu_policy_of(options.run);
  } else
    plan.options.policy = folder_policy_of(options.run);
  plan.options.act = act_request_of(options.run);
  note_request(checkpoint, plan.options.act);
  plan.options.x_type = activation_type(options.dtype, checkpoint.config().dtype);
  note_kernel(checkpoint, plan.options.policy, plan.options.act, plan.options.x_type);
  const ModuleChoice modules = choose_modules(checkpoint, options);
  Rows32 given;
  if (!options.in.empty()) {
    given = given_rows(options.in, modules.run, plan.options.x_type);
    plan.given = &given;
  }
  std::vector<Finding> findings(modules.all.size());
  {
    Progress progress("verify", modules.all.size(), /*bytes=*/false);
    pool.parallel_for(modules.all.size(), [&](size_t i) {
      findings[i] = look_at(plan, *modules.all[i], modules.runs[i]);
      progress.advance(1, modules.all[i]->name);
    });
  }
  VerifyReport report;
  report.products = modules.products;
  report.payloads = modules.all.size();
  for (Finding& f : findings)
    if (f.run || !f.ok) report.findings.push_back(std::move(f));
  if (options.json)
    out << verify_json(report).dump(1) << '\n';
  else
    out << verify_text(report, output_width(), options.colour);
  return report.failed() == 0 ? 0 : 1;
}

Command verify_command() {
  auto o = std::make_shared<VerifyOptions>();
  Command c("verify",
            "checks all weights of a folder, and the chosen kernels against the reference");
  c.folder(o->folder);
  c.option("--module", "GLOB", &o->module,
           "only modules whose name matches this pattern ('*', '?')");
  c.option("--in", "FILE", &o->in, "input rows: a safetensors file with x [T, features]",
           {.default_text = "random rows", .kind = ValueKind::kFile, .rare = true});
  c.flag("--all", o->all, "run every expert; without it each layer's first and last");
  add_dtype_option(c, o->dtype);
  add_json_flag(c, o->json);
  add_run_options(c, o->run);
  c.examples = {"moebius verify", "moebius verify DIR --all",
                "moebius verify DIR --module '*.mlp.experts.7.*'"};
  c.action = [o](const Command&) {
    o->colour = colour_wanted(STDOUT_FILENO);
    return run_verify(*o, std::cout);
  };
  return c;
}

}  // namespace moebius
