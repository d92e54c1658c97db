// SPDX-License-Identifier: Apache-2.0
// Replays a trace of routing with so many GiB of memory for experts: how often an expert was in
// memory, for the policy of this program, for two usual ones, and for the best that is possible.
#include <fmt/format.h>
#include <fmt/ostream.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <ostream>

#include "apps/cli/interrupt.h"
#include "apps/cli/layout.h"
#include "apps/model_commands.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/human.h"
#include "bench/bench_report.h"
#include "bench/expert_replay.h"

namespace moebius {
namespace {

constexpr uint64_t kPlaceAlignment = 4096;

// Returns the bytes of a place that has room for any routed expert of the model.
uint64_t place_bytes(const Checkpoint& checkpoint) {
  std::map<std::pair<int, int>, uint64_t> bytes;  // of an expert, by layer and number
  const ModelOptions options = model_options_of(ModelRunOptions(), checkpoint);
  for (const PlannedModule& m : plan_modules_on_cpu(checkpoint, options))
    if (m.module->expert >= 0) bytes[{m.module->layer, m.module->expert}] += m.bytes;
  uint64_t most = 0;
  for (const auto& [expert, sum] : bytes) most = std::max(most, sum);
  if (most == 0) fail("{}: its experts cannot be run", printable(checkpoint.folder()));
  return round_up(most, kPlaceAlignment);
}

double gib_of(const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end || !(value > 0 && value <= 1e6))
    throw UsageError(fmt::format("--gib is '{}'; expected numbers above 0", printable(text)));
  return value;
}

}  // namespace

int run_bench_experts(const BenchOptions& options, std::ostream& out) {
  std::vector<double> sizes;
  for (const std::string& text : options.gib) sizes.push_back(gib_of(text));
  interrupt_is_noted();
  const Checkpoint checkpoint = open_to_run(options.folder);
  const RouteTrace trace = read_route_trace(options.trace, route_sizes(checkpoint));
  if (trace.tokens() < options.sequences)
    fail("{}: has {}; expected one for each of --sequences {}", printable(options.trace),
         counted(trace.tokens(), "token"), options.sequences);
  const WantedExperts wanted = wanted_experts(trace, options.sequences);
  const uint64_t each = place_bytes(checkpoint);
  if (!options.json) {
    out << labelled(
        "",
        fmt::format("{} layers of {} experts, {} a token, {} each; {} tokens, {} at a time",
                    trace.layers, trace.experts, trace.top_k, human_bytes(each), trace.tokens(),
                    options.sequences),
        0, output_width());
    fmt::print(out, "{:>8} {:>8} {:>9}", "GiB", "places", "of all");
    for (const std::string_view policy : kReplayPolicies) fmt::print(out, " {:>8}", policy);
    out << std::endl;
  }
  for (const double gib : sizes) {
    const double room = std::floor(gib * 0x1p30 / static_cast<double>(each));
    const auto places = static_cast<size_t>(std::min(room, static_cast<double>(wanted.experts)));
    if (places < 2 * trace.top_k)
      fail("--gib {} has room for {} of {}; expected at least {}", gib, counted(places, "expert"),
           human_bytes(each), 2 * trace.top_k);
    const double share = static_cast<double>(places) / static_cast<double>(wanted.experts);
    if (!options.json) fmt::print(out, "{:>8.4g} {:>8} {:>7.1f} %", gib, places, 100 * share);
    for (const std::string_view policy : kReplayPolicies) {
      if (interrupt_seen()) return kExitInterrupted;
      const double hits = replay_hits(policy, wanted, places);
      if (!options.json) {
        fmt::print(out, " {:>6.1f} %", 100 * hits);
        continue;
      }
      Json line = Json::object({{"bench", "experts"}, {"policy", policy}, {"gib", gib}});
      line.set("places", places);
      line.set("share", rounded(share, 5));
      line.set("hits", rounded(hits, 5));
      line.set("tokens", trace.tokens());
      line.set("sequences", options.sequences);
      print_json(line, out);
    }
    if (!options.json) out << std::endl;
  }
  return kExitDone;
}

}  // namespace moebius
