// SPDX-License-Identifier: Apache-2.0
// Implements `bench kernel --pack`: measures how fast a kernel packs the weights of a scheme on one
// thread, beside the copy speed of the same process. Both count bytes read plus bytes written.
// Sources and destinations are larger than the caches and taken in turn; the destinations have been
// written before, so that the system's work for fresh pages is no part of either figure.
#include "bench/bench_pack.h"

#include <fmt/format.h>
#include <fmt/ostream.h>

#include <algorithm>
#include <cstring>
#include <ostream>

#include "bench/bench_report.h"
#include "kernels/packed_matrix.h"
#include "quant/quant_access.h"

namespace moebius {
namespace {

struct PackResult {
  Timing time;
  double read = 0, written = 0;  // bytes read and written per matrix
  double roof_gbs = 0;           // rate of copying
  double gbs() const { return (read + written) / time.median * 1e-9; }
  double percent() const { return roof_gbs > 0 ? 100 * gbs() / roof_gbs : 0; }
};

Json to_json(const PackResult& r, const SyntheticScheme& scheme, const Problem& p,
             const Kernel& kernel) {
  Json j = Json::object({{"bench", "pack"}, {"scheme", scheme.name}, {"group", scheme.group}});
  j.set("n", p.N), j.set("k", p.K);
  j.set("threads", 1), j.set("kernel", title_of(kernel));
  j.set("act_order", p.act_order);
  add_timing(j, r.time);
  j.set("read_bytes", static_cast<uint64_t>(r.read));
  j.set("written_bytes", static_cast<uint64_t>(r.written));
  j.set("gbs", rounded(r.gbs(), 5)), j.set("roof_gbs", rounded(r.roof_gbs, 5)),
      j.set("roof", "dram_copy"), j.set("percent_gbs", rounded(r.percent(), 4));
  return j;
}

// Act-order: returns each column's group, shuffled; empty for weights without an order.
std::vector<int32_t> shuffled_groups(const QuantMatrix& w) {
  if (!is_integer_code(w.code) || w.groups < 2) return {};
  std::vector<int32_t> g(w.K);
  for (size_t c = 0; c < w.K; ++c) g[c] = static_cast<int32_t>(c / w.block_k);
  BenchRandom random(2);
  for (size_t c = w.K; c > 1; --c) std::swap(g[c - 1], g[random.below(c)]);
  return g;
}

}  // namespace

void measure_packing(const Kernel& kernel, const SyntheticScheme& scheme,
                     const BenchOptions& options, BenchMachine& machine, std::ostream& out) {
  std::vector<SyntheticMatrix> from;
  from.emplace_back(scheme, options.n, options.k);
  QuantMatrix w = from[0].view();
  std::vector<int32_t> groups;
  if (options.act_order) {
    groups = shuffled_groups(w);
    if (groups.empty()) return;
    w.g_idx = groups.data();
  }
  const ColumnOrder order = column_order(w);
  const Problem problem = make_problem(w, scheme.act, x_type_from(options.dtype));
  if (kernel.supports(problem) != nullptr) return;
  const size_t codes = problem.N * from[0].view().row_bytes, packed = kernel.packed_bytes(problem);
  const size_t copies = copies_for(std::min(codes, packed));
  BenchRandom random(1);
  while (from.size() < copies) from.emplace_back(scheme, options.n, options.k);
  for (SyntheticMatrix& m : from) m.refill(random);
  const size_t stride = (packed + 63) / 64 * 64;
  AlignedBuffer to(copies * stride);
  std::memset(to.data(), 1, to.size());
  size_t calls = 0;
  PackResult r;
  r.read = static_cast<double>(codes + scale_bytes_of(problem));
  r.written = static_cast<double>(packed);
  r.time = summarize(repeat(
      options.seconds, [] {},
      [&] {
        const size_t i = calls++ % copies;
        kernel.pack({&problem, &from[i].view(), 0, problem.N, to.data() + i * stride,
                     order.columns_or_null(), order.ends_or_null()});
      }));
  if (r.time.repetitions == 0) return;
  r.roof_gbs = 2 * machine.copy(1);
  if (options.json) return print_json(to_json(r, scheme, problem, kernel), out);
  fmt::print(out, "{:<10}{:>5} {:<22}{:>9.4g} ms ±{:>4.1f}%{:>7.3g} GB/s{:>4.0f} %\n", scheme.name,
             scheme.group, title_of(kernel), r.time.median * 1e3, r.time.spread * 100, r.gbs(),
             r.percent());
  out.flush();
}

}  // namespace moebius
