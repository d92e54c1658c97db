// SPDX-License-Identifier: Apache-2.0
// Exact kernels must give equal bytes; reordered ones must stay within the bound that
// quant/reference derives for each output. Of a group of alike modules (same name but for layer and
// expert, same scheme and shape) each layer's first and last are run; a pattern given with --module
// runs all that match.
#include "apps/verify.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <iostream>
#include <memory>
#include <optional>
#include <ostream>
#include <set>

#include "apps/commands.h"
#include "apps/explain.h"
#include "apps/folder.h"
#include "apps/glob.h"
#include "apps/terminal.h"
#include "base/error.h"
#include "base/numeric.h"
#include "checkpoint/summary.h"
#include "kernels/packed_matrix.h"
#include "model/layer_loader.h"
#include "nn/ops.h"
#include "quant/reference.h"

namespace moebius {
namespace {

constexpr size_t kRows = 17;  // crosses every row tile: pairs, eights and a tail

struct Finding {
  std::string name, kernel, where;
  Numerics numerics = Numerics::kExact;
  double max_abs = 0, max_rel = 0, bound = 0;
  bool ok = true;
};

// Rows as layers see them: normal values, a few outlier channels, a row of zeros, a tiny and a
// large one.
std::vector<float> realistic_rows(size_t M, size_t K, XType type, uint64_t seed) {
  uint64_t state = seed;
  const auto uniform = [&] {
    state += 0x9e3779b97f4a7c15ull;
    uint64_t z = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
  };
  std::vector<float> outlier(K, 1.0f);
  for (size_t i = 0; i < 1 + K / 256; ++i)
    outlier[static_cast<size_t>(uniform() * static_cast<double>(K))] = 30.0f;
  std::vector<float> x(M * K);
  for (size_t m = 0; m < M; ++m) {
    const double size = m % 8 == 3 ? 0.0 : m % 8 == 5 ? 1e-6 : m % 8 == 7 ? 1e4 : 1.0;
    for (size_t k = 0; k < K; ++k) {
      const double normal =
          std::sqrt(-2 * std::log(1 - uniform())) * std::cos(6.283185307179586 * uniform());
      x[m * K + k] = static_cast<float>(normal * size) * outlier[k];
    }
  }
  round_to(type, x.data(), x.size());
  return x;
}

struct Rows32 {
  std::vector<float> x;
  size_t M = 0;
};

// Rows of `x` from a file, for modules with as many inputs.
std::optional<Rows32> given_rows(const std::string& path, size_t K, XType type) {
  const TensorStore store = TensorStore::open_file(path);
  const TensorInfo& info = store.require("x");
  if (info.shape.size() != 2 || !is_activation_type(info.dtype))
    fail("{} is {}; expected x [T, features] of F32, BF16 or F16", store.where(info),
         describe(info));
  if (info.shape[1] != K) return std::nullopt;
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
    const bool fits = f.numerics == Numerics::kExact
                          ? same_bytes(y[i], expected[i])
                          : (std::isnan(expected[i]) ? std::isnan(y[i]) : difference <= bound[i]);
    if (std::isfinite(difference)) {
      f.max_abs = std::max(f.max_abs, difference);
      if (expected[i] != 0)
        f.max_rel = std::max(f.max_rel, difference / std::fabs(static_cast<double>(expected[i])));
    }
    const double excess = fits ? (bound[i] > 0 ? difference / bound[i] : 0) : HUGE_VAL;
    if (excess > worst) {
      worst = excess;
      f.bound = bound[i];
      f.where = fmt::format("row {} output {}: {} expected {}", i / N, i % N, y[i], expected[i]);
    }
    f.ok = f.ok && fits;
  }
}

Finding verify_module(const Checkpoint& checkpoint, const Module& m, const LayerOptions& options,
                      const std::string& in) {
  LoadBuffer buffer;
  const QuantMatrix w = reader_for(m.plan.scheme.format).load(m.plan, checkpoint.store(), buffer);
  const ActSpec act = act_spec_of(m, options.int8);
  const Problem problem = make_problem(w, act, options.x_type);
  const Kernel& kernel = kernel_for(problem, options, m.name);
  Finding f;
  f.name = m.name, f.kernel = title_of(kernel), f.numerics = kernel.numerics(problem);
  const OwnedPackedMatrix packed(kernel, w, act, options.x_type, m.plan.input);
  Rows32 rows{realistic_rows(kRows, w.K, options.x_type, 1 + w.N * 31 + w.K), kRows};
  if (!in.empty())
    if (auto given = given_rows(in, w.K, options.x_type)) rows = std::move(*given);
  const QuantRowsBuffer quantized =
      quantize_rows(rows.x.data(), w.K, rows.M, w.K, act, m.plan.input, options.x_type);
  std::vector<float> y(rows.M * w.N);
  packed.multiply(rows.x.data(), w.K, rows.M, y.data(), w.N);
  compare(f, w, quantized.rows, y.data());
  return f;
}

std::vector<const Module*> modules_to_run(const Checkpoint& checkpoint,
                                          const std::string& pattern) {
  std::vector<const Module*> out;
  for (const ModuleGroup& group : group_modules(checkpoint)) {
    std::vector<const Module*> matching;
    for (const Module* m : group.members)
      if (has_product(*m) && glob_match(pattern, m->name)) matching.push_back(m);
    if (pattern != "*") {
      out.insert(out.end(), matching.begin(), matching.end());
      continue;
    }
    std::set<const Module*> chosen;
    for (size_t i = 0; i < matching.size(); ++i) {
      const bool first = i == 0 || matching[i]->layer != matching[i - 1]->layer;
      const bool last = i + 1 == matching.size() || matching[i]->layer != matching[i + 1]->layer;
      if ((first || last) && chosen.insert(matching[i]).second) out.push_back(matching[i]);
    }
  }
  return out;
}

Json to_json(const Finding& f) {
  return Json::object({{"name", f.name},
                       {"kernel", f.kernel},
                       {"numerics", name_of(f.numerics)},
                       {"max_abs", f.max_abs},
                       {"max_rel", f.max_rel},
                       {"bound", f.bound},
                       {"ok", f.ok},
                       {"worst", f.where}});
}

}  // namespace

int run_verify(const VerifyOptions& options, std::ostream& out) {
  const Checkpoint checkpoint = open_checkpoint(options.folder);
  checkpoint.require_supported();
  ThreadPool pool(thread_count(options.run));
  LayerOptions layer_options;
  layer_options.pool = &pool;
  layer_options.policy = policy_of(options.run);
  layer_options.int8 = int8_mode_of(options.run);
  layer_options.x_type = activation_type(options.dtype, checkpoint.config().dtype);
  const std::vector<const Module*> modules = modules_to_run(checkpoint, options.module);
  if (modules.empty())
    fail("{}: no module matches '{}'", options.folder, printable(options.module));
  std::vector<Finding> findings(modules.size());
  {
    Progress progress("verify", modules.size(), false);
    pool.parallel_for(modules.size(), [&](size_t i) {
      findings[i] = verify_module(checkpoint, *modules[i], layer_options, options.in);
      progress.advance(1, modules[i]->name);
    });
  }
  size_t bad = 0;
  Json list = Json::array();
  for (const Finding& f : findings) {
    bad += f.ok ? 0 : 1;
    if (options.json)
      list.push(to_json(f));
    else
      out << fmt::format(
          "{} {:<52} {:<18} {:<10} max abs {:.2e} rel {:.2e}{}\n",
          paint(f.ok ? "ok  " : "FAIL", f.ok ? Ink::kGreen : Ink::kRed, options.colour), f.name,
          f.kernel, name_of(f.numerics), f.max_abs, f.max_rel, f.ok ? "" : "  " + f.where);
  }
  if (options.json)
    out << Json::object({{"ok", bad == 0}, {"modules", std::move(list)}}).dump(1) << '\n';
  else
    out << fmt::format("{} modules, {} failed\n", findings.size(), bad);
  return bad == 0 ? 0 : 1;
}

Command verify_command() {
  auto o = std::make_shared<VerifyOptions>();
  Command c("verify", "compares the chosen kernels with the reference; exit code 1 on any failure");
  c.folder(o->folder);
  c.option("--module", "GLOB", &o->module, "only modules whose name matches ('*', '?')");
  c.option("--in", "FILE", &o->in, "safetensors file with x [T, features]")
      .file()
      .by_default("seeded rows");
  add_dtype_option(c, o->dtype);
  add_json_flag(c, o->json);
  add_run_options(c, o->run);
  c.examples = {"moebius verify", "moebius verify DIR --module '*.mlp.experts.7.*'"};
  c.action = [o](const Command&) {
    o->colour = colour_wanted(STDOUT_FILENO);
    return run_verify(*o, std::cout);
  };
  return c;
}

}  // namespace moebius
