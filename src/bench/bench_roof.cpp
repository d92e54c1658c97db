// SPDX-License-Identifier: Apache-2.0
// Measures only the roofs: every instruction for which this CPU has a loop, memory read with 1 to 8
// streams per thread, and memory copied; and the speed of all threads over one.
#include <fmt/format.h>
#include <fmt/ostream.h>

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
             double value) {
    if (json_) {
      Json line = Json::object({{"bench", "roof"}, {"roof", roof}, {"threads", threads}});
      if (streams != 0) line.set("streams", streams);
      line.set(unit, rounded(value, 5));
      return print_json(line, out_);
    }
    const std::string name =
        streams == 0 ? roof
                     : fmt::format("{}, {} stream{}", roof, streams, streams == 1 ? "" : "s");
    const std::string_view shown = std::string_view(unit) == "gops"  ? "GOP/s"
                                   : std::string_view(unit) == "gbs" ? "GB/s"
                                                                     : "times one thread";
    fmt::print(out_, "{:<24}{:>3} thread{} {:>10.{}f} {}\n", name, threads,
               threads == 1 ? " " : "s", value, std::string_view(unit) == "ratio" ? 2 : 1, shown);
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
  for (const size_t threads : thread_list(options)) {
    for (const ComputeLoop& loop : compute_loops()) {
      if (!runs_on(loop, machine.cpu())) continue;
      if (interrupt_seen()) return 130;
      writer.write(loop.name, threads, 0, "gops", machine.compute(loop, threads));
    }
    if (threads > 1)
      writer.write("threads", threads, 0, "ratio", measure_scaling(machine.pool(threads)));
    RoofMemory memory(machine.pool(threads));
    for (const size_t streams : {1u, 2u, 4u, 8u}) {
      if (interrupt_seen()) return 130;
      writer.write("dram_read", threads, streams, "gbs", memory.read(streams));
    }
    writer.write("dram_copy", threads, 0, "gbs", memory.copy());
  }
  return interrupt_seen() ? 130 : 0;
}

}  // namespace moebius
