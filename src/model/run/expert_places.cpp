// SPDX-License-Identifier: Apache-2.0
#include "model/run/expert_places.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/out_of_memory.h"
#include "runtime/affinity.h"

namespace moebius {
namespace {

constexpr size_t kPairs = 8;                // most pairs of experts that change places at a time
constexpr double kWorthReading = 0.02;      // share of a layer's rows
constexpr uint64_t kSaveLoadsEvery = 1000;  // steps between two writes of the loads

// Returns whether an expert has enough more rows than another to take its place: a quarter, so that
// experts do not move back and forth.
bool is_busier(uint64_t load, uint64_t than) { return load > than + than / 4 + 4; }

uint64_t rows_of(std::span<const uint64_t> load) {
  return std::accumulate(load.begin(), load.end(), uint64_t{0});
}

}  // namespace

std::vector<uint32_t> busier_places(std::span<const uint32_t> expert_of, size_t here,
                                    std::span<const uint64_t> load, size_t pairs) {
  std::vector<size_t> idle(here), busy(expert_of.size() - here);
  std::iota(idle.begin(), idle.end(), size_t{0});
  std::iota(busy.begin(), busy.end(), here);
  const auto load_at = [&](size_t place) { return load[expert_of[place]]; };
  std::stable_sort(idle.begin(), idle.end(),
                   [&](size_t a, size_t b) { return load_at(a) < load_at(b); });
  std::stable_sort(busy.begin(), busy.end(),
                   [&](size_t a, size_t b) { return load_at(a) > load_at(b); });
  std::vector<uint32_t> out(expert_of.begin(), expert_of.end());
  uint64_t gained = 0;
  for (size_t i = 0; i < std::min({idle.size(), busy.size(), pairs}); ++i) {
    if (!is_busier(load_at(busy[i]), load_at(idle[i]))) break;
    gained += load_at(busy[i]) - load_at(idle[i]);
    std::swap(out[idle[i]], out[busy[i]]);
  }
  if (static_cast<double>(gained) < kWorthReading * static_cast<double>(rows_of(load)))
    out.assign(expert_of.begin(), expert_of.end());
  return out;
}

double share_of_load(std::span<const uint32_t> expert_of, size_t here,
                     std::span<const uint64_t> load) {
  uint64_t rows = 0;
  for (const uint32_t e : expert_of.first(here)) rows += load[e];
  const uint64_t all = rows_of(load);
  return all > 0 ? static_cast<double>(rows) / static_cast<double>(all) : 0;
}

ExpertPlaces::ExpertPlaces(LayerSet& layers, const ModelOptions& options)
    : balance_(options.balance), loads_file_(options.loads_file), warn_(options.warn) {
  const ExpertLoads earlier = read_loads(loads_file_);
  for (size_t i = layers.own.begin; i < layers.own.end; ++i) {
    const size_t count = layers.layers[i]->experts();
    if (count == 0) continue;
    balance_.add_layer(i, count, earlier);
    counted_.push_back(i);
    DividedExperts* d = layers.layers[i]->block->experts->divided();
    if (d != nullptr && d->may_move()) divided_.push_back({i, d});
  }
}

ExpertPlaces::~ExpertPlaces() {
  if (thread_.joinable()) thread_.join();
  save();
}

void ExpertPlaces::count(std::span<const uint32_t> rows) {
  for (const size_t layer : counted_) {
    const size_t n = balance_.load(layer).size();
    balance_.count(layer, rows.first(n));
    rows = rows.subspan(n);
  }
}

bool ExpertPlaces::end_step() {
  balance_.end_step();
  if (!loads_file_.empty() && balance_.steps() % kSaveLoadsEvery == 0) save();
  if (changing_ != nullptr) return ready_.load(std::memory_order_acquire);
  if (balance_.due()) begin();
  return false;
}

// Starts a change of the layer that gains most.
void ExpertPlaces::begin() {
  std::vector<uint32_t> places;
  double best = 0;
  for (Layer& l : divided_) {
    if (l.left) continue;
    const std::span<const uint64_t> load = balance_.load(l.index);
    const std::span<const uint32_t> now = l.experts->expert_of();
    const size_t here = l.experts->places_here();
    std::vector<uint32_t> then = busier_places(now, here, load, kPairs);
    const double gain = share_of_load(then, here, load) - share_of_load(now, here, load);
    if (gain > best) {
      best = gain;
      changing_ = &l;
      places = std::move(then);
    }
  }
  if (changing_ == nullptr) return;
  const std::span<const uint32_t> now = changing_->experts->expert_of();
  coming_ = 0;
  for (size_t p = 0; p < changing_->experts->places_here(); ++p) coming_ += places[p] != now[p];
  ready_ = false;
  trouble_.clear();
  thread_ = std::thread([this, l = changing_, places = std::move(places)]() mutable {
    lower_thread_priority();
    try {
      staged_ = l->experts->stage(std::move(places));
    } catch (const std::exception& e) {
      trouble_ = words_of(e);
    }
    ready_.store(true, std::memory_order_release);
  });
}

void ExpertPlaces::change() {
  thread_.join();
  Layer& l = *std::exchange(changing_, nullptr);
  if (staged_ == nullptr) {
    l.left = true;
    if (warn_)
      warn_(fmt::format("layer {}: its experts stay where they are: {}", l.index, trouble_));
    return;
  }
  try {
    l.experts->change(std::move(staged_));
  } catch (...) {
    broken_ = true;
    throw;
  }
  moved_ += coming_;
}

void ExpertPlaces::save() noexcept {
  if (balance_.steps() > 0) keep_loads(loads_file_, balance_.loads(), warn_);
}

}  // namespace moebius
