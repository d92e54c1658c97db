// SPDX-License-Identifier: Apache-2.0
#include "bench/expert_replay.h"

#include <algorithm>
#include <set>
#include <utility>

#include "nn/place_policy.h"

namespace moebius {
namespace {

// Keeps experts by PlacePolicy. Its indices of uses are of no interest.
class KeptByPolicy {
 public:
  KeptByPolicy(const WantedExperts& w, size_t places, PlacePolicy::Settings settings)
      : policy_(w.experts, places, settings) {}
  bool has(uint32_t expert) const { return policy_.place_of(expert) != PlacePolicy::kNone; }
  void use(uint32_t expert, size_t) {
    policy_.use(expert);
    hold(policy_.place_of(expert));
  }
  void load(uint32_t expert, size_t) {
    uint32_t place = policy_.give(expert).place;
    if (place == PlacePolicy::kNone) {  // more experts than places: the layer runs in waves
      end_layer();
      place = policy_.give(expert).place;
    }
    hold(place);
  }
  void end_layer() {
    for (const uint32_t place : held_) policy_.release(place);
    held_.clear();
  }
  void end_step() { policy_.next_step(); }

 private:
  void hold(uint32_t place) {
    policy_.hold(place);
    held_.push_back(place);
  }
  PlacePolicy policy_;
  std::vector<uint32_t> held_;
};

// Keeps experts by Belady's policy.
class KeptByFuture {
 public:
  KeptByFuture(const WantedExperts& w, size_t places)
      : places_(places), next_of_(w.wanted.size()), next_(w.experts, kAway), layer_(w.experts) {
    std::vector<size_t> seen(w.experts, kNever);
    for (size_t i = w.wanted.size(); i-- > 0;) next_of_[i] = std::exchange(seen[w.wanted[i]], i);
  }
  bool has(uint32_t expert) const { return next_[expert] != kAway; }
  void use(uint32_t expert, size_t at) {
    by_next_.erase({next_[expert], expert});
    layer_[expert] = now_;
    next_[expert] = next_of_[at];
    by_next_.insert({next_[expert], expert});
  }
  void load(uint32_t expert, size_t at) {
    if (by_next_.size() == places_) {
      const auto is_old = [&](const auto& kept) { return layer_[kept.second] != now_; };
      const auto found = std::find_if(by_next_.rbegin(), by_next_.rend(), is_old);
      const auto victim = found == by_next_.rend() ? *by_next_.rbegin() : *found;
      next_[victim.second] = kAway;
      by_next_.erase(victim);
    }
    use(expert, at);
  }
  void end_layer() { ++now_; }
  void end_step() {}

 private:
  static constexpr size_t kAway = SIZE_MAX, kNever = SIZE_MAX - 1;
  size_t places_, now_ = 1;
  std::vector<size_t> next_of_;  // [wanted] index of the next use of the same expert
  std::vector<size_t> next_;     // [experts] next use of an expert that is there, else kAway
  std::vector<size_t> layer_;    // [experts] layer and step that used it last, counted through
  std::set<std::pair<size_t, uint32_t>> by_next_;
};

template <class Kept>
double hits_of(Kept kept, const WantedExperts& w) {
  size_t missed = 0, first = 0;
  std::vector<size_t> missing;
  for (size_t g = 0; g < w.group_end.size(); first = w.group_end[g++]) {
    missing.clear();
    for (size_t i = first; i < w.group_end[g]; ++i)  // a layer runs first what is there
      if (kept.has(w.wanted[i]))
        kept.use(w.wanted[i], i);
      else
        missing.push_back(i);
    missed += missing.size();
    for (const size_t i : missing) kept.load(w.wanted[i], i);
    kept.end_layer();
    if ((g + 1) % w.layers == 0) kept.end_step();
  }
  return 1 - static_cast<double>(missed) / static_cast<double>(w.wanted.size());
}

}  // namespace

WantedExperts wanted_experts(const RouteTrace& trace, size_t sequences) {
  WantedExperts w;
  w.experts = trace.layers * trace.experts;
  w.layers = trace.layers;
  const size_t steps = trace.tokens() / sequences;
  for (size_t group = 0; group < steps * trace.layers; ++group) {
    std::set<uint32_t> wanted;
    const size_t step = group / trace.layers, layer = group % trace.layers;
    for (size_t s = 0; s < sequences; ++s)
      for (size_t k = 0; k < trace.top_k; ++k) {
        const size_t token = s * steps + step;
        const uint16_t id = trace.choices[(token * trace.layers + layer) * trace.top_k + k];
        if (id != RouteTrace::kNoExpert)
          wanted.insert(static_cast<uint32_t>(layer * trace.experts + id));
      }
    w.wanted.insert(w.wanted.end(), wanted.begin(), wanted.end());
    w.group_end.push_back(w.wanted.size());
  }
  return w;
}

double replay_hits(std::string_view policy, const WantedExperts& w, size_t places) {
  if (w.wanted.empty() || places == 0) return 0;
  if (policy == "optimum") return hits_of(KeptByFuture(w, places), w);
  PlacePolicy::Settings settings;
  settings.last_use = policy != "moebius";
  if (policy == "lru") settings.protected_share = 0;
  return hits_of(KeptByPolicy(w, places, settings), w);
}

}  // namespace moebius
