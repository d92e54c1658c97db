// SPDX-License-Identifier: Apache-2.0
#include "nn/place_policy.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace moebius {
namespace {

constexpr double kRecentHalf = 1, kUsualHalf = 128;  // steps
constexpr double kRecentWeight = 0.3;                // in the estimate of uses per step
constexpr double kSeldom = 1e-6;                     // least uses per step that are assumed
// Share of a use that an expected expert counts for until a step uses it.
constexpr double kExpectedUse = 0.5;

double halved(double uses, uint64_t steps, double half) {
  return uses * std::exp2(-static_cast<double>(steps) / half);
}

}  // namespace

PlacePolicy::PlacePolicy(size_t experts, size_t places, Settings settings)
    : settings_(settings), experts_(experts), places_(places) {
  for (size_t i = places; i-- > 0;) closed_.push_back(static_cast<uint32_t>(i));
  std::vector<uint32_t> emptied;
  resize(places, emptied);
}

void PlacePolicy::count_use(Expert& e) {
  Place& p = places_[e.place];
  // Replacement by the last use alone forgets what an expert did before it left memory.
  const bool again = e.used != 0 && !(settings_.last_use && p.touched == step_);
  e.recent = static_cast<float>(1 + halved(e.recent, step_ - e.used, kRecentHalf));
  e.usual = static_cast<float>(1 + halved(e.usual, step_ - e.used, kUsualHalf));
  e.used = step_;
  p.touched = step_;
  last_ = p.expert;
  if (p.kept || !again) return;
  p.kept = true;
  ++protected_;
  demote();
}

// Returns the number of steps until the next use as far as it can be expected: the mean distance of
// uses, and the part of a step until the expert's layer runs again.
double PlacePolicy::wait(const Place& p) const {
  if (settings_.last_use) return static_cast<double>(step_ - p.touched);
  static const double recent = kRecentWeight * (1 - std::exp2(-1 / kRecentHalf)),
                      usual = (1 - kRecentWeight) * (1 - std::exp2(-1 / kUsualHalf));
  const Expert& e = experts_[p.expert];
  uint64_t age = step_ - e.used;
  if (age > 0 && p.expert > last_) --age;  // its layer has not run in this step
  double uses =
      recent * halved(e.recent, age, kRecentHalf) + usual * halved(e.usual, age, kUsualHalf);
  if (p.expected) uses += recent * halved(kExpectedUse, step_ - p.touched, kRecentHalf);
  const size_t all = experts_.size(), away = (p.expert + all - last_ - 1) % all;
  return 1 / (uses + kSeldom) + static_cast<double>(away) / static_cast<double>(all);
}

void PlacePolicy::use(uint32_t expert) {
  Expert& e = experts_[expert];
  if (e.place == kNone || e.used == step_) return;
  ++counts_.hits;
  counts_.expected_used += places_[e.place].expected;
  places_[e.place].expected = false;
  count_use(e);
}

PlacePolicy::Given PlacePolicy::give(uint32_t expert) {
  if (place_of(expert) != kNone) return {.place = place_of(expert)};
  const uint32_t place = worst(Among::kAll);
  if (place == kNone) return {};
  ++counts_.misses;
  return settle(expert, place, false);
}

PlacePolicy::Given PlacePolicy::give_expected(uint32_t expert) {
  if (place_of(expert) != kNone) return {.place = place_of(expert)};
  const uint32_t place = worst(Among::kCold);
  if (place == kNone) return {};
  ++counts_.expected;
  return settle(expert, place, true);
}

void PlacePolicy::release(uint32_t place) {
  Place& p = places_[place];
  if (--p.holds == 0 && p.expert == kNone) empty_.push_back(place);
}

void PlacePolicy::drop(uint32_t expert) {
  const uint32_t place = place_of(expert);
  if (place == kNone) return;
  vacate(place);
  if (places_[place].holds == 0) empty_.push_back(place);
}

void PlacePolicy::resize(size_t places, std::vector<uint32_t>& emptied) {
  std::vector<std::tuple<bool, double, uint32_t>> order;  // the first ones go first
  for (uint32_t i = 0; open_ > places && i < places_.size(); ++i)
    if (const Place& p = places_[i]; p.expert != kNone && p.holds == 0)
      order.emplace_back(p.kept, -wait(p), i);
  std::sort(order.begin(), order.end());
  for (auto next = order.begin(); open_ > places; --open_) {
    if (empty_.empty()) {
      if (next == order.end()) break;
      const uint32_t place = std::get<uint32_t>(*next++);
      vacate(place);
      empty_.push_back(place);
    }
    closed_.push_back(empty_.back());
    emptied.push_back(empty_.back());
    empty_.pop_back();
  }
  for (; open_ < places && !closed_.empty(); ++open_) {
    empty_.push_back(closed_.back());
    closed_.pop_back();
  }
  demote();
}

// Returns an empty place, except among protected ones, else the place that is worth least among the
// next ones that nobody holds, probation first; kNone: there is none.
uint32_t PlacePolicy::worst(Among among) {
  if (among != Among::kProtected && !empty_.empty()) {
    const uint32_t place = empty_.back();
    empty_.pop_back();
    return place;
  }
  uint32_t found = kNone;
  std::pair<bool, double> most;  // in probation; steps until the next use
  size_t looked = 0;
  for (size_t i = 0; i < places_.size() && (looked < kLooked || settings_.last_use); ++i) {
    hand_ = hand_ + 1 < places_.size() ? hand_ + 1 : 0;
    const Place& p = places_[hand_];
    if (p.expert == kNone || p.holds > 0 || (among == Among::kProtected && !p.kept)) continue;
    ++looked;
    if (among == Among::kCold && (p.kept || step_ - p.touched < kColdSteps)) continue;
    const std::pair<bool, double> here{!p.kept, wait(p)};
    if (found != kNone && here <= most) continue;
    found = static_cast<uint32_t>(hand_);
    most = here;
  }
  return found;
}

// Takes a place from its expert.
void PlacePolicy::vacate(uint32_t place) {
  Place& p = places_[place];
  experts_[p.expert].place = kNone;
  protected_ -= p.kept;
  p.expert = kNone;
  p.kept = p.expected = false;
}

PlacePolicy::Given PlacePolicy::settle(uint32_t expert, uint32_t place, bool expected) {
  Place& p = places_[place];
  const Given given{.place = place, .evicted = p.expert};
  if (p.expert != kNone) vacate(place);
  p.expert = expert;
  p.expected = expected;
  p.touched = step_;
  experts_[expert].place = place;
  if (!expected) count_use(experts_[expert]);
  return given;
}

// Returns protected places to probation while there are too many.
void PlacePolicy::demote() {
  while (static_cast<double>(protected_) > settings_.protected_share * static_cast<double>(open_)) {
    const uint32_t place = worst(Among::kProtected);
    if (place == kNone) return;
    places_[place].kept = false;
    --protected_;
  }
}

}  // namespace moebius
