// SPDX-License-Identifier: Apache-2.0
#include "model/run/expert_balance.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"
#include "checkpoint/eplb.h"
#include "checkpoint/parallel.h"

namespace moebius {
namespace {

constexpr uint64_t kLeastRowsPerExpert = 4;  // fewer rows say nothing
constexpr double kWorthMoving = 0.05;        // gain of imbalance that is worth a move

}  // namespace

void ExpertBalance::add_layer(size_t layer, size_t experts, const ExpertLoads& earlier) {
  Layer& l = layers_[layer];
  l.load.assign(experts, 0);
  const auto known = earlier.find(layer);
  if (known != earlier.end() && known->second.size() == experts) l.load = known->second;
  const size_t ranks = settings_.ranks;
  if (settings_.spare == 0 || ranks < 2) {
    l.rank_of.resize(experts);
    for (size_t r = 0; r < ranks; ++r) {
      const std::vector<int32_t> map = expert_map(experts, ranks, r, Placement::kLinear);
      for (size_t e = 0; e < experts; ++e)
        if (map[e] >= 0) l.rank_of[e] = static_cast<uint32_t>(r);
    }
    return;
  }
  const size_t each = ceil_div(experts + settings_.spare, ranks);
  for (size_t p = 0; p < each * ranks; ++p) l.rank_of.push_back(static_cast<uint32_t>(p / each));
  l.expert_of = initial_physical_map(experts, each * ranks - experts);
  l.expert_of = balanced(l);
}

const std::vector<uint32_t>& ExpertBalance::expert_of(size_t layer) const {
  return layers_.at(layer).expert_of;
}

void ExpertBalance::place(size_t layer, std::vector<uint32_t> expert_of) {
  Layer& l = layers_.at(layer);
  if (expert_of.size() != l.expert_of.size())
    fail("layer {}: {} places for experts; expected {}", layer, expert_of.size(),
         l.expert_of.size());
  (void)logical_to_physical(expert_of, l.load.size());  // throws Error for an invalid expert
  l.expert_of = std::move(expert_of);
}

void ExpertBalance::count(size_t layer, std::span<const uint32_t> rows) {
  std::vector<uint64_t>& load = layers_.at(layer).load;
  for (size_t e = 0; e < std::min(load.size(), rows.size()); ++e) load[e] += rows[e];
}

void ExpertBalance::set_loads(size_t layer, std::vector<uint64_t> rows) {
  std::vector<uint64_t>& load = layers_.at(layer).load;
  if (rows.size() != load.size())
    fail("layer {}: rows of {} experts; expected {}", layer, rows.size(), load.size());
  load = std::move(rows);
}

void ExpertBalance::end_step() {
  if (++steps_ % settings_.half_life != 0) return;
  for (auto& [layer, l] : layers_)
    for (uint64_t& n : l.load) n /= 2;
}

ExpertLoads ExpertBalance::loads() const {
  ExpertLoads out;
  for (const auto& [layer, l] : layers_) out[layer] = l.load;
  return out;
}

std::span<const uint64_t> ExpertBalance::load(size_t layer) const { return layers_.at(layer).load; }

double ExpertBalance::imbalance_of(const Layer& l, std::span<const uint32_t> expert_of) const {
  std::vector<double> copies(l.load.size(), 0.0), rank(settings_.ranks, 0.0);
  const auto expert = [&](size_t p) { return expert_of.empty() ? p : size_t{expert_of[p]}; };
  for (size_t p = 0; p < l.rank_of.size(); ++p) copies[expert(p)] += 1;
  double sum = 0, most = 0;
  for (size_t p = 0; p < l.rank_of.size(); ++p) {
    const double rows = static_cast<double>(l.load[expert(p)]) / copies[expert(p)];
    sum += rows;
    most = std::max(most, rank[l.rank_of[p]] += rows);
  }
  return sum > 0 ? most * static_cast<double>(settings_.ranks) / sum : 1;
}

double ExpertBalance::imbalance(size_t layer) const {
  const Layer& l = layers_.at(layer);
  return imbalance_of(l, l.expert_of);
}

double ExpertBalance::imbalance() const {
  double sum = 0;
  for (const auto& [layer, l] : layers_) sum += imbalance_of(l, l.expert_of);
  return layers_.empty() ? 1 : sum / static_cast<double>(layers_.size());
}

std::vector<uint32_t> ExpertBalance::balanced(const Layer& l) const {
  if (std::all_of(l.load.begin(), l.load.end(), [](uint64_t n) { return n == 0; }))
    return l.expert_of;
  const std::vector<double> load(l.load.begin(), l.load.end());
  EplbSettings s;
  s.logical = l.load.size();
  s.redundant = l.expert_of.size() - l.load.size();
  s.ranks = settings_.ranks;
  return keep_slots(l.expert_of, rebalance(load, s), settings_.ranks);
}

std::optional<ExpertBalance::Move> ExpertBalance::next_move() const {
  std::optional<Move> best;
  double worst = settings_.threshold;
  for (const auto& [layer, l] : layers_) {
    uint64_t rows = 0;
    for (const uint64_t n : l.load) rows += n;
    if (l.left || l.expert_of.empty() || rows < kLeastRowsPerExpert * l.load.size()) continue;
    const double now = imbalance_of(l, l.expert_of);
    if (now <= worst) continue;
    std::vector<uint32_t> then = balanced(l);
    if (imbalance_of(l, then) > now - kWorthMoving) continue;
    worst = now;
    best = Move{layer, std::move(then)};
  }
  return best;
}

void ExpertBalance::leave(size_t layer) { layers_.at(layer).left = true; }

}  // namespace moebius
