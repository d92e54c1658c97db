// SPDX-License-Identifier: Apache-2.0
#include "model/ranks/rank_costs.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/ranks.h"
#include "model/run/decoder.h"
#include "runtime/comm.h"

namespace moebius {
namespace {

using Clock = std::chrono::steady_clock;

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

RankCosts mean_costs(Comm& comm, const RankCosts& mine) {
  static_assert(std::is_trivially_copyable_v<RankCosts>);
  const auto ranks = static_cast<size_t>(comm.size());
  std::vector<RankCosts> all(ranks);
  const std::vector<size_t> each(ranks, sizeof mine);
  comm.wait(comm.start_all_gather(&mine, all.data(), each), "costs of rows");
  const auto mean = [&](CostCurve RankCosts::*curve) {
    CostCurve sum = all[0].*curve;
    for (size_t r = 1; r < ranks; ++r) {
      const CostCurve& c = all[r].*curve;
      sum.count = std::min(sum.count, c.count);
      for (size_t i = 0; i < sum.count; ++i) sum.points[i].seconds += c.points[i].seconds;
    }
    for (CostCurve::Point& p : sum.points) p.seconds /= static_cast<double>(ranks);
    return sum;
  };
  return {mean(&RankCosts::experts), mean(&RankCosts::dense), mean(&RankCosts::output),
          mean(&RankCosts::layer)};
}

}  // namespace

// Measures exchanges as steps make them: columns of rows are gathered.
LinkFacts measure_link(Comm& comm) {
  constexpr size_t kSmall = 64, kLarge = 1024, kLargeRows = 32;  // columns of a rank
  constexpr int kSmallRounds = 200, kLargeRounds = 20;
  constexpr XType kType = XType::kBf16;
  const auto ranks = static_cast<size_t>(comm.size());
  if (ranks == 1) return {1e-7, 1e11};
  Ranks all(comm, {1, ranks, 1});
  const std::vector<float> mine(kLarge * kLargeRows);
  std::vector<float> whole(mine.size() * ranks);
  const auto seconds = [&](size_t columns, size_t rows, int rounds) {
    std::vector<double> times;
    std::vector<Range> cuts;
    for (size_t r = 0; r < ranks; ++r) cuts.push_back({r * columns, (r + 1) * columns});
    for (int i = 0; i < rounds; ++i) {
      const auto start = Clock::now();
      all.gather(kType, mine, cuts, whole, ranks * columns, rows, "timing exchanges", -1);
      times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
    return median(std::move(times));
  };
  double link[2] = {seconds(kSmall, 1, kSmallRounds), seconds(kLarge, kLargeRows, kLargeRounds)};
  const std::vector<size_t> each(ranks, sizeof link);
  std::vector<double> links(2 * ranks);
  comm.wait(comm.start_all_gather(link, links.data(), each), "times of exchanges");
  for (size_t r = 0; r < ranks; ++r)
    for (size_t i = 0; i < 2; ++i) link[i] = std::max(link[i], links[2 * r + i]);
  const double bytes = 2.0 * static_cast<double>((ranks - 1) * (kLarge * kLargeRows - kSmall));
  return {link[0], bytes / std::max(link[1] - link[0], 1e-9)};
}

RankFacts measure_ranks(Comm& comm, const Checkpoint* checkpoint, const ModelOptions& options) {
  const Patience patience(comm, kLoadingSeconds);
  comm.barrier("timing rows");
  RankCosts mine;
  if (checkpoint != nullptr) {
    LayerLoadOptions how;
    how.policy = options.policy;
    how.act = options.act;
    how.x_type = options.type;
    mine = measure_layer_costs(*checkpoint, how, *options.pool);
  }
  const RankCosts costs = mean_costs(comm, mine);
  return {costs, measure_link(comm)};
}

}  // namespace moebius
