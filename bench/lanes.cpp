// SPDX-License-Identifier: Apache-2.0
// How much of one device's time is hidden behind the other's when a model lies on both and two batches
// are in flight. Both devices are slow on purpose, so that it does not depend on the machine:
//   build/release/moebius_microbench --benchmark_filter=lanes        (from the root of the source tree)
// hidden: share of the shorter side.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>

#include "device/placement.h"
#include "model/run/decoder.h"
#include "runtime/thread_pool.h"
#include "unit/device/guarded_util.h"

namespace moebius {
namespace {

constexpr const char* kFolder = "models/moebius-tiny-w4a8";
constexpr size_t kSteps = 20, kSequences = 2;

// Seconds of a decode step when `flight` batches are under way.
double seconds_per_step(const char* placement, size_t flight) {
  ThreadPool pool(1);
  const Checkpoint checkpoint = Checkpoint::open(kFolder);
  ModelOptions options;
  options.pool = &pool;
  options.placement = parse_placement(placement);
  const auto model = DecoderModel::load(checkpoint, options);
  const std::vector<int32_t> token = {1};
  std::vector<BlockTables> tables;
  for (BlockId i = 0; i < kSequences; ++i)
    tables.emplace_back(model->kv_kinds().size(), std::vector<BlockId>{i});
  std::vector<Backend::Ticket> tickets;
  StepOutput out;
  const auto start = std::chrono::steady_clock::now();
  for (size_t step = 0; step < kSteps; ++step)
    for (size_t s = 0; s < kSequences; ++s) {
      const BatchItem item{&tables[s], step, token, LogitsOf::kLast};
      tickets.push_back(model->submit({&item, 1}));
      if (tickets.size() < flight) continue;
      model->collect(tickets.front(), out);
      tickets.erase(tickets.begin());
    }
  for (const Backend::Ticket t : tickets) model->collect(t, out);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() /
         static_cast<double>(kSteps * kSequences);
}

void run(benchmark::State& state) {
  const char* both = "ends=cpu,attention=slow,experts=slow2";
  double hidden = 0;
  for (auto _ : state) {
    const double attention = seconds_per_step("ends=cpu,attention=slow,experts=cpu", 1),
                 experts = seconds_per_step("ends=cpu,attention=cpu,experts=slow2", 1),
                 one = seconds_per_step(both, 1), two = seconds_per_step(both, 2);
    hidden = (one - two) / std::min(attention, experts);
    state.counters["attention_ms"] = attention * 1e3, state.counters["experts_ms"] = experts * 1e3;
    state.counters["one_lane_ms"] = one * 1e3, state.counters["two_lanes_ms"] = two * 1e3;
  }
  state.counters["hidden"] = hidden;
}

const bool kAdded = [] {
  benchmark::RegisterBenchmark("lanes", run)->Iterations(1)->UseRealTime();
  return true;
}();

}  // namespace
}  // namespace moebius
