// SPDX-License-Identifier: Apache-2.0
// Runs the subjects of `moebius bench`, chosen by device and options.
#include "bench/bench.h"

#include <algorithm>

#include "apps/cli/folder.h"
#include "apps/model_commands.h"
#include "apps/rank_process.h"
#include "base/error.h"
#include "bench/bench_engine.h"

namespace moebius {
namespace {

int bench_roof(const BenchOptions& o, std::ostream& out) {
  return on_gpu(o.run.device) ? run_bench_roof_cuda(o, out) : run_bench_roof(o, out);
}

int bench_kernel(const BenchOptions& o, std::ostream& out) {
  if (o.act_order && !o.pack) throw UsageError("--act-order is about packing: add --pack");
  return run_bench_kernel(o, out);
}

int bench_linear(const BenchOptions& o, std::ostream& out) {
  if (o.folder.empty() != o.module.empty())
    throw UsageError("bench linear takes a folder and --module together, or neither");
  return on_gpu(o.run.device) ? run_bench_linear_cuda(o, out) : run_bench_linear(o, out);
}

int bench_moe(const BenchOptions& o, std::ostream& out) {
  if (o.top_k > o.experts)
    throw UsageError("--top-k is " + std::to_string(o.top_k) +
                     "; expected 1 to the number of experts, " + std::to_string(o.experts));
  return on_gpu(o.run.device) ? run_bench_moe_cuda(o, out) : run_bench_moe(o, out);
}

int bench_attention(const BenchOptions& o, std::ostream& out) {
  require_cpu(o.run.device);
  return run_bench_attention(o, out);
}

// Returns the options with what is measured: the folder, the bundled model where none is given, or
// --synthetic.
BenchOptions settled(BenchOptions o) {
  if (o.synthetic.empty()) {
    if (o.folder.empty()) o.folder = bundled_folder();
    return o;
  }
  if (!o.folder.empty()) throw UsageError("--synthetic makes a folder of its own; leave out DIR");
  const RankOptions& r = o.ranks;
  if (RankProcess::current() != nullptr || std::max({r.ranks, r.pp, r.tp, r.ep}) > 1)
    fail("--synthetic is for one process; ranks read a folder that all of them see");
  return o;
}

int bench_model(const BenchOptions& o, std::ostream& out) {
  return run_bench_model(settled(o), out);
}

int follow_model(const BenchOptions& asked) {
  const BenchOptions o = settled(asked);
  RunOptions run = o.run;
  if (!o.threads.empty()) run.threads = static_cast<int>(o.threads.front());
  return follow_rank_0({.folder = o.folder,
                        .dtype = o.dtype,
                        .kv_dtype = o.kv_dtype,
                        .run = run,
                        .ranks = o.ranks,
                        .pack_dir = o.pack_dir,
                        .chat_template = {}});
}

int bench_engine(const BenchEngineOptions& asked, std::ostream& out) {
  BenchEngineOptions o = asked;
  settle_speculation(o.engine, o.model);
  return run_bench_engine(o, out);
}

}  // namespace

const BenchActions kBenchActions{bench_roof,        bench_kernel,    bench_linear,
                                 bench_moe,         bench_attention, bench_model,
                                 run_bench_sampler, run_bench_mask,  run_bench_experts,
                                 run_bench_disk,    bench_engine,    follow_model};

}  // namespace moebius
