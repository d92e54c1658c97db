// SPDX-License-Identifier: Apache-2.0
// Measures a whole mixture-of-experts layer, with random weights or a block of a folder: new tokens
// and a new routing in every repetition. If one layer would fit into a cache, several are run in
// turn.
#include <fmt/core.h>

#include <algorithm>

#include "apps/chat/terminal.h"
#include "apps/cli/folder.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/manners.h"
#include "base/error.h"
#include "bench/bench_report.h"
#include "bench/bench_synthetic.h"
#include "device/cpu/layer_loader.h"
#include "kernels/packed_matrix.h"

namespace moebius {
namespace {

// Holds layers of one shape and their facts.
struct MoeSubject {
  std::string scheme;
  int64_t group = -1;
  MoeSpec spec;
  std::vector<std::unique_ptr<MoeLayer>> layers;
  ExpertPlan plan;       // plan of the first expert
  bool departs = false;  // differs from what the scheme declares
};

struct ExpertBytes {
  double codes = 0, read = 0, packed = 0;
};

ExpertBytes bytes_of(const ExpertPlan& plan) {
  ExpertBytes b;
  for (const ProjectionPlan* p : {&plan.gate, &plan.up, &plan.down}) {
    if (p->kernel == nullptr) continue;
    b.codes += static_cast<double>(code_bytes(p->problem));
    b.read += static_cast<double>(code_bytes(p->problem) + scale_bytes_of(p->problem));
    b.packed += static_cast<double>(p->kernel->packed_bytes(p->problem));
  }
  return b;
}

size_t copies_of_layer(size_t bytes) {
  const size_t wanted = std::max<size_t>(size_t{256} << 20, 4 * largest_cache_bytes());
  return std::clamp<size_t>(wanted / std::max<size_t>(bytes, 1) + (bytes < wanted ? 1 : 0), 1, 64);
}

MoeSubject synthetic_moe(const BenchOptions& options, const SyntheticScheme& scheme,
                         ThreadPool& pool) {
  if (options.top_k == 0 || options.top_k > options.experts)
    fail("--top-k is {}; expected 1 to the number of experts, {}", options.top_k, options.experts);
  const LayerOptions lo = layer_options_of(options, pool);
  MoeSubject s;
  s.scheme = scheme.name;
  s.group = scheme.group;
  s.departs = scheme.departs;
  s.spec.hidden = options.hidden;
  s.spec.intermediate = options.intermediate;
  s.spec.experts = options.experts;
  s.spec.router.experts = options.experts;
  s.spec.router.top_k = options.top_k;
  const SyntheticExpert shape(scheme, options.hidden, options.intermediate);
  const auto plan = [&](const SyntheticMatrix& m, const char* what) {
    ProjectionPlan p;
    p.problem = make_problem(m.view(), scheme.act, lo.x_type);
    p.kernel = &kernel_for(p.problem, lo, what);
    return p;
  };
  s.plan = {plan(shape.gate, "gate"), plan(shape.up, "up"), plan(shape.down, "down")};
  const auto layer_bytes = static_cast<size_t>(bytes_of(s.plan).packed) * options.experts;
  const size_t copies = copies_of_layer(layer_bytes);
  const uint64_t available = available_memory_bytes();
  if (available != 0 && layer_bytes > available)
    fail("{} experts of scheme {} take {} packed; {} are free", options.experts, scheme.name,
         human_bytes(layer_bytes), human_bytes(available));
  Progress progress("making " + scheme.name + " experts", copies * options.experts, false);
  for (size_t c = 0; c < copies && !interrupt_seen(); ++c) {
    MoePlan moe;
    moe.spec = s.spec, moe.plans = {s.plan};
    s.layers.push_back(std::make_unique<MoeLayer>(std::move(moe)));
    pool.run([&](ThreadPool::Member& m) {
      SyntheticExpert expert(scheme, options.hidden, options.intermediate);
      for (size_t e = m.index(); e < options.experts; e += m.count()) {
        BenchRandom random(1 + c * options.experts + e);
        expert.refill(random);
        s.layers.back()->set_expert(e, expert.weights());
        progress.advance(1);
      }
    });
    s.layers.back()->finish();
  }
  return s;
}

MoeSubject folder_moe(const BenchOptions& options, ThreadPool& pool) {
  const Checkpoint checkpoint = open_checkpoint(options.folder);
  const auto& blocks = checkpoint.moe_blocks();
  if (blocks.empty()) fail("{}: has no mixture-of-experts layer", options.folder);
  const MoeBlock* block = options.module.empty() ? &blocks[0] : checkpoint.find_moe(options.module);
  if (block == nullptr)
    fail("{}: has no MoE block named '{}'; `moebius inspect` lists the modules", options.folder,
         printable(options.module));
  LayerOptions lo = layer_options_of(options, pool);
  Progress progress("loading", file_bytes(*block), /*bytes=*/true);
  lo.progress = [&](uint64_t bytes) { progress.advance(bytes); };
  MoeSubject s;
  s.spec = block->spec;
  const Scheme& scheme = block->experts[0][1]->plan.scheme;
  s.scheme = family_of(scheme);
  if (scheme.weights && scheme.weights->group_size > 0) s.group = scheme.weights->group_size;
  const auto plan = [&](const Module* m) {
    ProjectionPlan p;
    if (m == nullptr) return p;
    p.problem = problem_of(*m, lo.act, lo.x_type);
    p.kernel = &kernel_for(p.problem, lo, m->name);
    return p;
  };
  const auto& expert = block->experts[0];
  s.plan = {plan(expert[0]), plan(expert[1]), plan(expert[2])};
  s.departs = departs(scheme, s.plan.up.problem.act);
  note_request(checkpoint, lo.act);
  s.layers.push_back(load_moe(checkpoint, *block, lo, MoePart::kExperts).experts);
  return s;
}

BenchResult measure_moe(const MoeSubject& s, const BenchOptions& options, size_t tokens,
                        size_t threads, BenchMachine& machine) {
  const size_t H = s.spec.hidden, top_k = s.spec.router.top_k;
  SyntheticRows x(x_type_from(options.dtype), tokens, H);
  SyntheticRouting routing(tokens, s.spec.experts, top_k, options.skew);
  BenchRandom random(tokens * 1000 + threads);
  ThreadPool& pool = machine.pool(threads);
  double used = 0;
  size_t calls = 0;
  const auto prepare = [&] {
    x.refill(random);
    routing.refill(random);
    used += static_cast<double>(routing.used());
  };
  const auto run = [&] {
    s.layers[calls++ % s.layers.size()]->forward_ids(x.view(), routing.ids(), routing.weights(),
                                                     x.output(), pool);
  };
  BenchResult r{"moe", s.scheme, s.group, tokens, threads};
  const ProjectionPlan& up = s.plan.up;
  RoofsBeside roofs(machine, up.kernel->needs, roof_kind(*up.kernel, up.problem), threads);
  r.time = summarize(repeat(options.seconds, prepare, run, [&] { roofs.sample(); }));
  used /= static_cast<double>(std::max<size_t>(calls, 1));
  r.shape = {{"experts", s.spec.experts},
             {"top_k", top_k},
             {"hidden", H},
             {"intermediate", s.spec.intermediate}};
  if (options.skew) r.note = "skew";
  const ExpertBytes bytes = bytes_of(s.plan);
  const double matrices = s.plan.gate.kernel != nullptr ? 3 : 2;
  r.operations = 2.0 * matrices * static_cast<double>(tokens * top_k) *
                 static_cast<double>(H * s.spec.intermediate);
  r.code_bytes = bytes.codes * used;
  r.read_bytes = bytes.read * used;
  r.packed_bytes = bytes.packed * used;
  r.kernel = title_of(*up.kernel);
  if (s.plan.down.kernel != up.kernel) r.kernel += "+" + title_of(*s.plan.down.kernel);
  r.numerics = name_of(s.departs ? Numerics::kApproximate
                                 : std::max(up.kernel->numerics(up.problem),
                                            s.plan.down.kernel->numerics(s.plan.down.problem)));
  set_roofs(r, roofs);
  return r;
}

void measure_all_moes(const MoeSubject& s, const BenchOptions& options, BenchMachine& machine,
                      BenchReport& report) {
  each_case(options, [&](size_t tokens, size_t threads) {
    report.add(measure_moe(s, options, tokens, threads, machine));
  });
}

}  // namespace

int run_bench_moe(const BenchOptions& options, std::ostream& out) {
  interrupt_is_noted();
  BenchMachine machine(options.seconds);
  BenchReport report(options, out);
  const std::vector<size_t> threads = thread_list(options);
  ThreadPool& pool = machine.pool(*std::max_element(threads.begin(), threads.end()));
  if (!options.folder.empty()) {
    measure_all_moes(folder_moe(options, pool), options, machine, report);
  } else {
    for (const SyntheticScheme& scheme : synthetic_schemes(options)) {
      if (interrupt_seen()) break;
      const std::vector<int64_t>& asked = options.groups;
      if (!asked.empty() && std::find(asked.begin(), asked.end(), scheme.group) == asked.end())
        warning("scheme {} has groups of its own; --group does not apply", scheme.name);
      measure_all_moes(synthetic_moe(options, scheme, pool), options, machine, report);
    }
  }
  return interrupt_seen() ? 130 : 0;
}

}  // namespace moebius
