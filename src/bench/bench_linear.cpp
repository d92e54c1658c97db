// SPDX-License-Identifier: Apache-2.0
// Implements `bench linear`: y[T,N] = x[T,K] * w^T as a layer, over so many different matrices in
// turn that none stays in a cache. `bench kernel`: every entry of the kernel list that this CPU
// runs, on every scheme it supports: the bare product on one thread, with weights from a cache and
// from memory.
#include <fmt/core.h>

#include <algorithm>

#include "apps/chat/terminal.h"
#include "apps/cli/folder.h"
#include "apps/cli/interrupt.h"
#include "base/error.h"
#include "bench/bench_pack.h"
#include "bench/bench_report.h"
#include "bench/bench_synthetic.h"
#include "device/cpu/layer_loader.h"
#include "kernels/list.h"
#include "kernels/packed_matrix.h"

namespace moebius {
namespace {

// Writes the facts of a product. departs: it differs from what the scheme declares.
void describe_product(BenchResult& r, const Problem& p, const Kernel& kernel, bool departs,
                      const RoofsBeside& roofs) {
  r.shape = {{"n", p.N}, {"k", p.K}};
  r.kernel = title_of(kernel);
  r.numerics = name_of(departs ? Numerics::kApproximate : kernel.numerics(p));
  r.operations =
      2.0 * static_cast<double>(r.tokens) * static_cast<double>(p.N) * static_cast<double>(p.K);
  r.code_bytes = static_cast<double>(code_bytes(p));
  r.read_bytes = static_cast<double>(code_bytes(p) + scale_bytes_of(p));
  r.packed_bytes = static_cast<double>(kernel.packed_bytes(p));
  set_roofs(r, roofs);
}

// --- linear ---

struct Subject {
  std::string scheme;
  int64_t group = -1;
  Problem problem;
  bool departs = false;  // differs from what the scheme declares
  std::vector<std::unique_ptr<LinearLayer>> layers;
};

Subject synthetic_subject(const BenchOptions& options, const SyntheticScheme& scheme,
                          const LayerOptions& lo) {
  Subject s;
  s.scheme = scheme.name;
  s.group = scheme.group;
  s.departs = scheme.departs;
  SyntheticMatrix matrix(scheme, options.n, options.k);
  s.problem = make_problem(matrix.view(), scheme.act, lo.x_type);
  const Kernel& kernel = kernel_for(s.problem, lo, "linear");
  const size_t copies = copies_for(kernel.packed_bytes(s.problem));
  Progress progress("making " + scheme.name + " matrices", copies, /*bytes=*/false);
  for (size_t c = 0; c < copies && !interrupt_seen(); ++c) {
    BenchRandom random(c + 1);
    matrix.refill(random);
    LinearPart part;
    part.plan.problem = s.problem;
    part.plan.kernel = &kernel;
    part.w = &matrix.view();
    part.act = matrix.act_params();
    part.name = "linear";
    std::vector<LinearPart> parts;
    parts.push_back(std::move(part));
    s.layers.push_back(std::make_unique<LinearLayer>(std::move(parts), lo.pool));
    progress.advance(1);
  }
  return s;
}

// Loads a linear layer of a folder as often as is needed to exceed the caches.
Subject folder_subject(const BenchOptions& options, const LayerOptions& lo) {
  const Checkpoint checkpoint = open_checkpoint(options.folder);
  const Module* module = checkpoint.find_module(options.module);
  if (module == nullptr || module->plan.N == 0)
    fail("{}: has no linear named '{}'; `moebius inspect` lists the modules", options.folder,
         printable(options.module));
  Subject s;
  s.scheme = family_of(module->plan.scheme);
  if (module->plan.scheme.weights && module->plan.scheme.weights->group_size > 0)
    s.group = module->plan.scheme.weights->group_size;
  s.problem = problem_of(*module, lo.act, lo.x_type);
  s.departs = departs(module->plan.scheme, s.problem.act);
  note_request(checkpoint, lo.act);
  s.layers.push_back(load_linear(checkpoint, {module}, lo));
  const size_t copies = copies_for(s.layers[0]->packed_bytes());
  Progress progress("loading", copies - 1, /*bytes=*/false);
  while (s.layers.size() < copies && !interrupt_seen())
    s.layers.push_back(load_linear(checkpoint, {module}, lo)), progress.advance(1);
  return s;
}

BenchResult measure_linear(const Subject& s, const BenchOptions& options, size_t tokens,
                           size_t threads, BenchMachine& machine) {
  ThreadPool& pool = machine.pool(threads);
  const XType type = x_type_from(options.dtype);
  SyntheticRows x(type, tokens, s.problem.K), y(type, tokens, s.layers[0]->out_features());
  BenchRandom random(tokens * 1000 + threads);
  size_t calls = 0;
  BenchResult r{"linear", s.scheme, s.group, tokens, threads};
  const Kernel& kernel = s.layers[0]->kernel();
  RoofsBeside roofs(machine, kernel.needs, roof_kind(kernel, s.problem), threads);
  r.time = summarize(repeat(
      options.seconds, [&] { x.refill(random); },
      [&] { s.layers[calls++ % s.layers.size()]->forward(x.view(), y.output(), pool); },
      [&] { roofs.sample(); }));
  describe_product(r, s.problem, kernel, s.departs, roofs);
  return r;
}

void measure_all(const Subject& s, const BenchOptions& options, BenchMachine& machine,
                 BenchReport& report) {
  each_case(options, [&](size_t tokens, size_t threads) {
    report.add(measure_linear(s, options, tokens, threads, machine));
  });
}

// --- kernel ---

// Owns the buffers of a product and runs it as a layer would on one thread.
class BareProduct {
 public:
  BareProduct(const Kernel& kernel, const Problem& problem, const ActParams& act, size_t M)
      : kernel_(kernel),
        problem_(problem),
        M_(M),
        x_(M * problem.K),
        y_(M * problem.N),
        rows_(aligned_bytes(M * kernel.row_bytes(problem))),
        panel_(aligned_bytes(kernel.row_panel_bytes(problem, M))),
        scratch_(aligned_bytes(std::max<size_t>(64, kernel.scratch_bytes(problem, M)))) {
    BenchRandom random(M);
    SyntheticRows x(XType::kF32, M, problem.K);
    x.refill(random);
    for (size_t m = 0; m < M; ++m) load_row(x.view(), m, 0, problem.K, x_.data() + m * problem.K);
    round_to(problem.x_type, x_.data(), x_.size());
    kernel_.prepare_rows({&problem_, &act, x_.data(), problem_.K, M_, rows_.get()});
  }
  void make_row_panel(const PackedMatrix& w) {
    kernel_.make_row_panel({&problem_, &w, rows_.get(), nullptr, M_, panel_.get()});
  }
  void multiply(const PackedMatrix& w) {
    kernel_.gemm({&w, panel_.get(), M_, 0, problem_.N, y_.data(), problem_.N, scratch_.get()});
  }

 private:
  const Kernel& kernel_;
  Problem problem_;
  size_t M_;
  std::vector<float> x_, y_;
  AlignedBytes rows_, panel_, scratch_;
};

void measure_kernel(const Kernel& kernel, const SyntheticScheme& scheme,
                    const BenchOptions& options, BenchMachine& machine, BenchReport& report) {
  const XType type = x_type_from(options.dtype);
  SyntheticMatrix matrix(scheme, options.n, options.k);
  const Problem problem = make_problem(matrix.view(), scheme.act, type);
  if (kernel.supports(problem) != nullptr) return;
  std::vector<OwnedPackedMatrix> packed;
  for (const bool cold : {false, true}) {
    const size_t copies = cold ? copies_for(kernel.packed_bytes(problem)) : 1;
    for (BenchRandom random(packed.size() + 1); packed.size() < copies; matrix.refill(random))
      packed.emplace_back(kernel, matrix.view(), scheme.act, type, matrix.act_params());
    for (const size_t tokens : options.tokens) {
      if (interrupt_seen()) return;
      BareProduct product(kernel, problem, matrix.act_params(), tokens);
      product.make_row_panel(packed[0].view());
      size_t calls = 0;
      BenchResult r{"kernel", scheme.name, scheme.group, tokens, 1, cold ? "cold" : "cached"};
      RoofsBeside roofs(machine, kernel.needs, roof_kind(kernel, problem), 1);
      r.time = summarize(repeat(
          options.seconds, [] {}, [&] { product.multiply(packed[calls++ % packed.size()].view()); },
          [&] { roofs.sample(); }));
      describe_product(r, problem, kernel, scheme.departs, roofs);
      report.add(r);
    }
  }
}

}  // namespace

int run_bench_linear(const BenchOptions& options, std::ostream& out) {
  interrupt_is_noted();
  BenchMachine machine(options.seconds);
  BenchReport report(options, out);
  const std::vector<size_t> threads = thread_list(options);
  const LayerOptions lo =
      layer_options_of(options, machine.pool(*std::max_element(threads.begin(), threads.end())));
  if (!options.folder.empty())
    measure_all(folder_subject(options, lo), options, machine, report);
  else
    for (const SyntheticScheme& scheme : synthetic_schemes(options))
      if (!interrupt_seen())
        measure_all(synthetic_subject(options, scheme, lo), options, machine, report);
  return interrupt_seen() ? 130 : 0;
}

int run_bench_kernel(const BenchOptions& options, std::ostream& out) {
  interrupt_is_noted();
  BenchMachine machine(options.seconds);
  BenchReport report(options, out);
  const std::string wanted = normalize_kernel_name(options.run.kernel);
  for (const Kernel* kernel : kernel_list()) {
    if (!wanted.empty() && wanted != kernel->name && wanted != title_of(*kernel)) continue;
    if (kernel->gemm == nullptr ||
        !missing_features(machine.cpu(), kernel->arch, kernel->needs).empty())
      continue;
    for (const SyntheticScheme& scheme : synthetic_schemes(options))
      if (!interrupt_seen() && options.pack)
        measure_packing(*kernel, scheme, options, machine, out);
      else if (!interrupt_seen())
        measure_kernel(*kernel, scheme, options, machine, report);
  }
  return interrupt_seen() ? 130 : 0;
}

}  // namespace moebius
