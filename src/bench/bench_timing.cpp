// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_timing.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "apps/cli/interrupt.h"
#include "base/error.h"

namespace moebius {

Timing summarize(std::vector<double> seconds) {
  Timing t;
  t.repetitions = seconds.size();
  if (seconds.empty()) return t;
  std::sort(seconds.begin(), seconds.end());
  const auto quantile = [&](double q) {
    const double at = q * static_cast<double>(seconds.size() - 1);
    const auto i = static_cast<size_t>(at);
    const size_t j = std::min(i + 1, seconds.size() - 1);
    return seconds[i] + (at - static_cast<double>(i)) * (seconds[j] - seconds[i]);
  };
  t.best = seconds[0];
  t.median = quantile(0.5);
  t.spread = t.median > 0 ? (quantile(0.75) - quantile(0.25)) / 2 / t.median : 0;
  return t;
}

double at_share(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
}

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) /
         static_cast<double>(std::max<size_t>(1, values.size()));
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<double> repeat(double seconds, FunctionRef<void()> prepare, FunctionRef<void()> run,
                           FunctionRef<void()> beside) {
  constexpr size_t kLeast = 5, kMost = 400;
  constexpr double kPatience = 20;
  std::vector<double> times;
  prepare();
  const double begin = now_seconds();
  run();
  double spent = now_seconds() - begin;  // timed work only; making input is not counted
  if (spent > kPatience) times.push_back(spent);
  const size_t samples = seconds > 0 ? kRoofSamples : 1;
  size_t sampled = 0;
  const auto sample = [&](double share) {
    const size_t before = sampled;
    const double due = 1 + share * static_cast<double>(samples);
    for (; sampled < samples && static_cast<double>(sampled + 1) <= due; ++sampled) beside();
    return sampled > before;
  };
  while (!interrupt_seen() && times.size() < kMost) {
    if (times.size() >= kLeast ? spent >= seconds : !times.empty() && spent >= kPatience) break;
    prepare();
    const double start = now_seconds();
    run();
    times.push_back(now_seconds() - start);
    spent += times.back();
    if (interrupt_seen() || !sample(spent / std::max(seconds, spent))) continue;
    prepare();  // warms up again
    run();
  }
  if (!interrupt_seen()) sample(1);
  if (interrupt_seen()) times.clear();
  return times;
}

void each_case(const BenchOptions& options,
               FunctionRef<void(size_t tokens, size_t threads)> measure) {
  for (const size_t tokens : options.tokens)
    for (const size_t threads : thread_list(options))
      if (!interrupt_seen()) measure(tokens, threads);
}

RoofKind roof_kind(const Kernel& kernel, const Problem& p) {
  const bool halves = p.act.code == ActCode::kFp4 && kernel.numerics(p) == Numerics::kExact;
  return p.act.code == ActCode::kInt || halves ? RoofKind::kInt8 : RoofKind::kBf16;
}

size_t copies_for(size_t bytes) {
  const size_t wanted = std::max<size_t>(size_t{256} << 20, 4 * largest_cache_bytes());
  return std::clamp<size_t>(wanted / std::max<size_t>(bytes, 1) + 1, 2, 512);
}

ThreadPool& BenchMachine::pool(size_t threads) {
  std::unique_ptr<ThreadPool>& p = pools_[threads];
  if (p == nullptr) p = std::make_unique<ThreadPool>(threads);
  return *p;
}

Roof roof_of(const std::vector<double>& rates) {
  const Timing t = summarize(rates);
  return {t.median, rates.size() < kRoofSamples ? 1 : t.spread};
}

double BenchMachine::read(size_t threads) {
  double& gbs = read_[threads];
  if (gbs != 0) return gbs;
  memory_[threads] = std::make_unique<RoofMemory>(pool(threads), effort_);
  for (const size_t streams : {1u, 2u, 4u, 8u})
    if (const double rate = memory_[threads]->read(streams); rate > gbs)
      gbs = rate, streams_[threads] = streams;
  return gbs;
}

double BenchMachine::read_again(size_t threads) {
  read(threads);
  return memory_[threads]->read(streams_[threads], RoofEffort::kBrief);
}

void RoofsBeside::sample() {
  if (loop_ != nullptr)
    gops_.push_back(measure_compute(*loop_, machine_.pool(threads_), RoofEffort::kBrief));
  gbs_.push_back(machine_.read_again(threads_));
}

double BenchMachine::copy(size_t threads) {
  double& gbs = copy_[threads];
  if (gbs == 0) gbs = RoofMemory(pool(threads), effort_).copy();
  return gbs;
}

std::vector<size_t> thread_list(const BenchOptions& options) {
  std::vector<size_t> list = options.threads;
  if (list.empty()) list = {1};
  if (options.threads.empty() && default_thread_count() > 1) list.push_back(default_thread_count());
  for (const size_t n : list)
    if (n == 0 || n > 1024) fail("--threads is {}; expected numbers from 1 to 1024", n);
  return list;
}

XType x_type_from(const std::string& dtype) {
  return dtype == "f32" ? XType::kF32 : dtype == "f16" ? XType::kF16 : XType::kBf16;
}

}  // namespace moebius
