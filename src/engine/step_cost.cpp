// SPDX-License-Identifier: Apache-2.0
#include "engine/step_cost.h"

#include <algorithm>
#include <ranges>

namespace moebius {
namespace {

constexpr double kMemory = 1.0 / 16;  // weight of a new value in the running means
constexpr size_t kFirstPiece = 32;    // rows of a step whose cost is unknown
// A ratio out of this range comes from a machine that slept.
constexpr double kLeastRatio = 0.1, kMostRatio = 10;

double phase_of(const Profile& phases, Phase p) {
  return static_cast<double>(phases[static_cast<size_t>(p)]);
}

}  // namespace

double StepCost::Curve::at(size_t rows) const {
  if (points.empty() || rows == 0) return 0;
  if (rows <= points.front().first) return points.front().second;
  const double x = static_cast<double>(rows);
  for (size_t i = 1; i < points.size(); ++i) {
    if (rows > points[i].first && i + 1 < points.size()) continue;
    const auto [x0, y0] = points[i - 1];
    const auto [x1, y1] = points[i];
    const double slope = std::max(0.0, (y1 - y0) / static_cast<double>(x1 - x0));
    return y0 + slope * (x - static_cast<double>(x0));
  }
  return points[0].second * x / static_cast<double>(points[0].first);
}

bool StepCost::Curve::has_near(size_t rows) const {
  return std::any_of(points.begin(), points.end(),
                     [&](const auto& p) { return rows <= 2 * p.first && p.first <= 2 * rows; });
}

void StepCost::Curve::set(size_t rows, double ns) {
  const auto at = std::lower_bound(points.begin(), points.end(), std::pair(rows, 0.0));
  if (at != points.end() && at->first == rows)
    at->second = ns;
  else
    points.insert(at, {rows, ns});
}

double StepCost::predict(const StepShape& s) const {
  return correction_ * (s.mixed() ? mixed_ : 1.0) *
         (rows_.at(s.rows) + outputs_.at(s.outputs) + per_key_ * static_cast<double>(s.keys));
}

void StepCost::learn(const StepShape& s, uint64_t nanoseconds, const Profile& phases,
                     bool replace) {
  const double attention = phase_of(phases, Phase::kAttention),
               output = phase_of(phases, Phase::kOutput);
  const double body = std::max(1.0, static_cast<double>(nanoseconds) - attention - output);
  if (s.rows > 0 && (replace || !rows_.has_near(s.rows))) rows_.set(s.rows, body);
  if (s.outputs > 0 && output > 0 && (replace || !outputs_.has_near(s.outputs)))
    outputs_.set(s.outputs, output);
  if (s.keys > 0 && attention > 0) {
    const double each = attention / static_cast<double>(s.keys);
    per_key_ = per_key_ == 0 ? each : per_key_ + kMemory * (each - per_key_);
  }
}

void StepCost::measure(const StepShape& s, uint64_t nanoseconds, const Profile& phases) {
  learn(s, nanoseconds, phases, /*replace=*/true);
}

void StepCost::observe(const StepShape& s, uint64_t nanoseconds, const Profile& phases) {
  const bool foreseen = rows_.has_near(s.rows);
  const double expected = predict(s) / (s.mixed() ? mixed_ : correction_);
  learn(s, nanoseconds, phases, /*replace=*/false);
  if (!foreseen || expected <= 0) return;
  const double ratio =
      std::clamp(static_cast<double>(nanoseconds) / expected, kLeastRatio, kMostRatio);
  double& mean = s.mixed() ? mixed_ : correction_;
  mean += kMemory * (ratio - mean);
}

std::vector<size_t> share_out(std::span<const PromptInLine> prompts, size_t total) {
  std::vector<size_t> out(prompts.size(), 0);
  if (prompts.empty()) return out;
  const auto give = [&](size_t i, size_t n) {
    const size_t left = std::min(prompts[i].left, prompts[i].most) - out[i];
    n = std::min({n, left, total});
    out[i] += n;
    total -= n;
  };
  const auto least = std::min_element(
      prompts.begin(), prompts.end(),
      [](const PromptInLine& a, const PromptInLine& b) { return a.left < b.left; });
  const size_t half = (total + 1) / 2;
  give(static_cast<size_t>(least - prompts.begin()), total - half);
  give(0, half);
  for (size_t i = 0; i < prompts.size(); ++i) give(i, total);
  return out;
}

std::vector<size_t> plan_prompts(const StepCost& cost, const StepShape& decode,
                                 std::span<const PromptInLine> prompts, const PlanLimits& limits) {
  size_t left = 0;
  for (const PromptInLine& p : prompts) left += std::min(p.left, p.most);
  const size_t most = std::min(left, limits.most);
  if (!cost.known()) return share_out(prompts, std::min(most, std::max(limits.least, kFirstPiece)));
  double bound = limits.max_step;
  if (decode.rows > 0) bound = std::min(bound, limits.stretch * cost.predict(decode));
  const auto fits = [&](size_t total) {
    StepShape shape = decode;
    const std::vector<size_t> pieces = share_out(prompts, total);
    for (size_t i = 0; i < pieces.size(); ++i)
      if (pieces[i] > 0)
        shape.add(prompts[i].position, pieces[i], pieces[i] == prompts[i].left ? 1 : 0);
    return cost.predict(shape) <= bound;
  };
  const size_t least = std::min(limits.least, most);  // always taken, whatever it costs
  const auto more = std::views::iota(least + 1, most + 1);
  const auto best = std::ranges::partition_point(more, fits) - more.begin();
  return share_out(prompts, least + static_cast<size_t>(best));
}

}  // namespace moebius
