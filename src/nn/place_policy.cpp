// SPDX-License-Identifier: Apache-2.0
#include "nn/place_policy.h"

#include <algorithm>
#include <cmath>

namespace moebius {
namespace {

// Share of a use that an expected expert counts for until a step uses it.
constexpr double kExpectedUse = 0.5;

// Returns the logarithm of a number of uses that is halved every kHalfLife steps, as it would be at
// step 0. Two experts compare by these at every later step alike, so no pass over all of them is
// ever needed.
double value_of(double uses, uint64_t step) {
  return std::log2(uses) + static_cast<double>(step) / PlacePolicy::kHalfLife;
}

}  // namespace

PlacePolicy::PlacePolicy(size_t experts, size_t places) : experts_(experts), places_(places) {
  for (size_t i = places; i-- > 0;) closed_.push_back(static_cast<uint32_t>(i));
  std::vector<uint32_t> emptied;
  resize(places, emptied);
}

double PlacePolicy::uses_now(const Expert& e) const {
  return e.uses * std::exp2(-static_cast<double>(step_ - e.used) / kHalfLife);
}

void PlacePolicy::count_use(uint32_t expert) {
  Expert& e = experts_[expert];
  Place& p = places_[e.place];
  e.uses = static_cast<float>(1 + uses_now(e));
  e.used = step_;
  p.touched = step_;
  p.value = value_of(e.uses, step_);
}

void PlacePolicy::use(uint32_t expert) {
  const Expert& e = experts_[expert];
  if (e.place == kNone || e.used == step_) return;
  ++counts_.hits;
  count_use(expert);
  Place& p = places_[e.place];
  if (p.expected) {
    p.expected = false;
    ++counts_.expected_used;
  } else if (p.segment == kProbation) {
    p.segment = kProtected;
    ++protected_;
    list(e.place);
    demote();
  }
}

PlacePolicy::Given PlacePolicy::give(uint32_t expert) {
  if (place_of(expert) != kNone) return {.place = place_of(expert)};
  const uint32_t place = take_any();
  if (place == kNone) return {};
  ++counts_.misses;
  return settle(expert, place, false);
}

PlacePolicy::Given PlacePolicy::give_expected(uint32_t expert) {
  if (place_of(expert) != kNone) return {.place = place_of(expert)};
  uint32_t place = take_empty();
  if (place == kNone) {
    place = take(kProbation);
    if (place == kNone) return {};
    if (step_ - places_[place].touched < kColdSteps) {
      list(place);
      return {};
    }
  }
  ++counts_.expected;
  return settle(expert, place, true);
}

void PlacePolicy::release(uint32_t place) {
  Place& p = places_[place];
  if (--p.holds == 0 && !p.listed) list(place);
}

void PlacePolicy::drop(uint32_t expert) {
  const uint32_t place = place_of(expert);
  if (place == kNone) return;
  vacate(place);
  if (places_[place].holds == 0) list(place);
}

void PlacePolicy::resize(size_t places, std::vector<uint32_t>& emptied) {
  while (open_ > places) {
    const uint32_t place = take_any();
    if (place == kNone) break;
    if (expert_in(place) != kNone) vacate(place);
    closed_.push_back(place);
    emptied.push_back(place);
    --open_;
  }
  for (; open_ < places && !closed_.empty(); ++open_) {
    empty_.push_back(closed_.back());
    places_[closed_.back()].listed = true;
    closed_.pop_back();
  }
  demote();
}

// Makes the place eligible for being given away: adds it to its queue or to the empty places.
void PlacePolicy::list(uint32_t place) {
  Place& p = places_[place];
  p.listed = true;
  if (p.expert == kNone) return empty_.push_back(place);
  std::vector<Entry>& queue = queues_[p.segment];
  queue.push_back({p.value, place, ++p.entry});
  std::push_heap(queue.begin(), queue.end());
  if (queue.size() <= 2 * places_.size()) return;
  std::erase_if(queue, [&](const Entry& e) { return e.number != places_[e.place].entry; });
  std::make_heap(queue.begin(), queue.end());
}

// Takes the least valuable place of a segment that nobody holds out of its queue. A held place
// leaves the queue as well; release() lists it again.
uint32_t PlacePolicy::take(Segment segment) {
  std::vector<Entry>& queue = queues_[segment];
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end());
    const Entry e = queue.back();
    queue.pop_back();
    Place& p = places_[e.place];
    if (e.number != p.entry) continue;  // outdated: the place was listed again since
    p.listed = false;
    if (p.holds > 0) continue;
    if (e.value == p.value) return e.place;
    list(e.place);
  }
  return kNone;
}

uint32_t PlacePolicy::take_empty() {
  while (!empty_.empty()) {
    const uint32_t place = empty_.back();
    empty_.pop_back();
    places_[place].listed = false;
    if (places_[place].holds == 0) return place;
  }
  return kNone;
}

uint32_t PlacePolicy::take_any() {
  uint32_t place = take_empty();
  if (place == kNone) place = take(kProbation);
  if (place == kNone) place = take(kProtected);
  return place;
}

// Takes a place from its expert. No queue leads to the place any more.
void PlacePolicy::vacate(uint32_t place) {
  Place& p = places_[place];
  experts_[p.expert].place = kNone;
  if (p.segment == kProtected) --protected_;
  p.expert = kNone;
  p.segment = kProbation;
  p.expected = p.listed = false;
  ++p.entry;
}

PlacePolicy::Given PlacePolicy::settle(uint32_t expert, uint32_t place, bool expected) {
  Place& p = places_[place];
  const Given given{.place = place, .evicted = p.expert};
  if (p.expert != kNone) vacate(place);
  p.expert = expert;
  p.expected = expected;
  experts_[expert].place = place;
  if (expected) {
    p.touched = step_;
    p.value = value_of(kExpectedUse + uses_now(experts_[expert]), step_);
  } else {
    count_use(expert);
  }
  list(place);
  return given;
}

// Returns protected places to probation while there are too many.
void PlacePolicy::demote() {
  while (protected_ > open_ / 5 * 4 + open_ % 5 * 4 / 5) {
    const uint32_t place = take(kProtected);
    if (place == kNone) return;
    places_[place].segment = kProbation;
    --protected_;
    list(place);
  }
}

}  // namespace moebius
