// SPDX-License-Identifier: Apache-2.0
// Measures only the roofs: every instruction for which this CPU has a loop, memory read with 1 to 8
// streams per thread, and memory copied, each the median of nine samples that alternate with the
// others; and the speed of all threads over one.
#include <fmt/format.h>
#include <fmt/ostream.h>

#include <functional>
#include <ostream>

#include "apps/cli/interrupt.h"
#include "apps/cli/layout.h"
#include "bench/bench_report.h"
#include "runtime/topology.h"

namespace moebius {
namespace {

class RoofWriter {
 public:
  RoofWriter(const BenchOptions& options, std::ostream& out) : json_(options.json), out_(out) {}

  void write(const std::string& roof, size_t threads, size_t streams, const char* unit,
             const Timing& rates) {
    const double value = rates.median;
    if (json_) {
      Json line = Json::object({{"bench", "roof"}, {"roof", roof}, {"threads", threads}});
      if (streams != 0) line.set("streams", streams);
      line.set(unit, rounded(value, 5));
      line.set("spread_percent", rounded(rates.spread * 100, 3));
      return print_json(line, out_);
    }
    const std::string name =
        streams == 0 ? roof
                     : fmt::format("{}, {} stream{}", roof, streams, streams == 1 ? "" : "s");
    const std::string_view shown = std::string_view(unit) == "gops"  ? "GOP/s"
                                   : std::string_view(unit) == "gbs" ? "GB/s"
                                                                     : "times one thread";
    fmt::print(out_, "{:<24}{:>3} thread{} {:>10.{}f} {}, ± {:.1f} %\n", name, threads,
               threads == 1 ? " " : "s", value, std::string_view(unit) == "ratio" ? 2 : 1, shown,
               rates.spread * 100);
    out_.flush();
  }

 private:
  bool json_;
  std::ostream& out_;
};

}  // namespace

int run_bench_roof(const BenchOptions& options, std::ostream& out) {
  interrupt_is_noted();
  BenchMachine machine(options.seconds);
  RoofWriter writer(options, out);
  if (!options.json)
    out << labelled("",
                    fmt::format("{}, {}; {}", cpu_model_name(), describe(machine.cpu()),
                                describe(usable_topology())),
                    0, output_width());
  struct Limit {
    std::string name;
    size_t streams;
    const char* unit;
    std::function<double()> measure;
    std::vector<double> rates = {};
  };
  for (const size_t threads : thread_list(options)) {
    ThreadPool& pool = machine.pool(threads);
    RoofMemory memory(pool);
    std::vector<Limit> limits;
    for (const ComputeLoop& loop : compute_loops())
      if (runs_on(loop, machine.cpu()))
        limits.push_back({loop.name, 0, "gops",
                          [&] { return measure_compute(loop, pool, RoofEffort::kBrief); }});
    if (threads > 1)
      limits.push_back({"threads", 0, "ratio", [&] { return measure_scaling(pool); }});
    for (const size_t streams : {1u, 2u, 4u, 8u})
      limits.push_back({"dram_read", streams, "gbs",
                        [&memory, streams] { return memory.read(streams, RoofEffort::kBrief); }});
    limits.push_back({"dram_copy", 0, "gbs", [&] { return memory.copy(); }});
    for (size_t i = 0; i < kRoofSamples; ++i)
      for (Limit& limit : limits)
        if (!interrupt_seen() && (i == 0 || limit.name != "threads"))
          limit.rates.push_back(limit.measure());
    for (const Limit& limit : limits)
      if (!interrupt_seen())
        writer.write(limit.name, threads, limit.streams, limit.unit, summarize(limit.rates));
  }
  return interrupt_seen() ? 130 : 0;
}

}  // namespace moebius
