// SPDX-License-Identifier: Apache-2.0
#include "nn/expert_store.h"

#include <algorithm>
#include <numeric>
#include <system_error>

#include "base/checked.h"
#include "base/error.h"
#include "base/human.h"
#include "runtime/memory_limits.h"

#include <sys/mman.h>

namespace moebius {
namespace {

constexpr size_t kReaders = 16;  // threads that read: the disk's queue has this depth at most
constexpr auto kLookEvery = std::chrono::seconds(1);

size_t least_places(size_t experts, size_t top_k) {
  return std::min(std::max<size_t>(experts, 1), 2 * std::max<size_t>(top_k, 1));
}

size_t place_bytes(size_t bytes) { return round_up(bytes, ExpertStore::kAlignment); }

}  // namespace

ExpertStore::ExpertStore(uint64_t bytes, bool expects) : bytes_(bytes), expects_(expects) {}

void ExpertStore::close() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  for (std::thread& t : readers_) t.join();
  readers_.clear();
}

uint64_t ExpertStore::least_bytes(size_t bytes, size_t experts, size_t top_k) {
  return uint64_t{least_places(experts, top_k)} * place_bytes(bytes);
}

size_t ExpertStore::add(size_t experts, size_t bytes, size_t top_k, Source source) {
  const size_t size = place_bytes(bytes);
  auto pool =
      std::find_if(pools_.begin(), pools_.end(), [&](const Pool& p) { return p.bytes == size; });
  if (pool == pools_.end()) {
    pool = pools_.emplace(pools_.end());
    pool->bytes = size;
  }
  Layer layer;
  layer.pool = static_cast<size_t>(pool - pools_.begin());
  layer.first = pool->experts;
  layer.experts = experts;
  layer.source = std::move(source);
  pool->experts += experts;
  pool->least = std::max(pool->least, least_places(experts, top_k));
  layers_.push_back(std::move(layer));
  return layers_.size() - 1;
}

// Divides the memory in proportion to the bytes of the pools' experts.
void ExpertStore::open(uint64_t mapped) {
  uint64_t least = 0, all = 0;
  for (const Pool& p : pools_) {
    least += uint64_t{p.least} * p.bytes;
    all += uint64_t{p.experts} * p.bytes;
  }
  if (least > bytes_)
    fail("experts need at least {} of memory, and {} are allowed", human_bytes(least),
         human_bytes(bytes_));
  const auto spare = static_cast<double>(bytes_ - least);
  stats_.experts = all;
  mapped_ = mapped - std::min(mapped, all);
  for (Pool& p : pools_) {
    const double share = static_cast<double>(uint64_t{p.experts} * p.bytes) /
                         static_cast<double>(std::max<uint64_t>(all, 1));
    const auto more = static_cast<size_t>(spare * share / static_cast<double>(p.bytes));
    p.most = std::min(p.experts, p.least + more);
    p.memory = AlignedBuffer(p.most * p.bytes + kAlignment);
    p.policy = std::make_unique<PlacePolicy>(p.experts, p.most);
    p.places = std::make_unique<Place[]>(p.most);
    stats_.memory += uint64_t{p.most} * p.bytes;
  }
  try {
    while (readers_.size() < kReaders) readers_.emplace_back([this] { read_orders(); });
  } catch (const std::system_error&) {
    if (readers_.empty()) throw;  // fewer threads read as well, only slower
  }
}

uint8_t* ExpertStore::address(Pool& pool, uint32_t place) {
  const auto begin = reinterpret_cast<uintptr_t>(pool.memory.data());
  return pool.memory.data() + (round_up(begin, kAlignment) - begin) + size_t{place} * pool.bytes;
}

bool ExpertStore::reads() const {
  return std::any_of(pools_.begin(), pools_.end(),
                     [](const Pool& p) { return p.most < p.experts; });
}

ExpertStoreStats ExpertStore::stats() const {
  const std::lock_guard lock(mutex_);
  ExpertStoreStats s = stats_;
  for (const Pool& p : pools_) {
    const PlacePolicy::Counts& c = p.policy->counts();
    s.counts.hits += c.hits;
    s.counts.misses += c.misses;
    s.counts.expected += c.expected;
    s.counts.expected_used += c.expected_used;
  }
  return s;
}

// Gives an expert a place and orders its reading, if it has none. Returns false if no place can be
// given.
bool ExpertStore::order(size_t layer, uint32_t expert, Why why) {
  const bool demanded = why == Why::kDemanded;
  const Layer& l = layers_[layer];
  Pool& pool = pools_[l.pool];
  const uint32_t id = number(l, expert);
  uint32_t place = pool.policy->place_of(id);
  if (place != PlacePolicy::kNone && pool.places[place].state == State::kFailed) {
    pool.policy->drop(id);
    place = PlacePolicy::kNone;
  }
  if (place != PlacePolicy::kNone) {
    Place& p = pool.places[place];
    if (!demanded) return true;
    pool.policy->use(id);
    p.unasked = false;
    // Parts that nobody reads yet become urgent.
    if (p.state != State::kReady && p.begun < l.source.parts)
      demanded_.push_back({layer, expert, place, p.given});
    return true;
  }
  place = (why == Why::kExpected ? pool.policy->give_expected(id) : pool.policy->give(id)).place;
  if (place == PlacePolicy::kNone) return false;
  Place& p = pool.places[place];
  p.state = State::kQueued;
  p.begun = p.ended = 0;
  p.failed = false;
  p.unasked = !demanded;
  (demanded ? demanded_ : expected_).push_back({layer, expert, place, ++p.given});
  return true;
}

void ExpertStore::expect(size_t layer, std::span<const uint32_t> experts, Why why) {
  if (!expects_ || layer >= layers_.size()) return;
  {
    const std::lock_guard lock(mutex_);
    const PlacePolicy::Counts& c = pools_[layers_[layer].pool].policy->counts();
    constexpr uint64_t kEnough = 512,
                       kLeastUsed = 3;  // of them, one in so many must have been used
    if (why == Why::kExpected && c.expected >= kEnough && c.expected_used * kLeastUsed < c.expected)
      return;
    for (const uint32_t e : experts)
      if (!order(layer, e, why)) break;
  }
  work_.notify_all();
}

// Gives up reads of a layer's experts that nobody demanded when the layer ran.
void ExpertStore::drop_expected(size_t layer) {
  const Layer& l = layers_[layer];
  Pool& pool = pools_[l.pool];
  std::erase_if(expected_, [&](const Order& o) {
    Place& p = pool.places[o.place];
    if (o.layer != layer) return false;
    if (p.given != o.given) return true;
    if (p.begun > 0) return p.begun == l.source.parts;
    if (!p.unasked) return true;  // it stands among the demanded ones, too
    p.state = State::kEmpty;
    ++p.given;
    pool.policy->drop(number(l, o.expert));
    return true;
  });
}

// Reads the next part of the first order.
void ExpertStore::read_part(std::unique_lock<std::mutex>& lock, std::deque<Order>& orders) {
  const Order o = orders.front();
  const Layer& l = layers_[o.layer];
  Pool& pool = pools_[l.pool];
  Place& p = pool.places[o.place];
  // The place may have gone to another expert since, or the expert was ordered twice.
  if (p.given != o.given || p.begun == l.source.parts) return orders.pop_front();
  const size_t part = p.begun++;
  if (p.begun == l.source.parts) orders.pop_front();
  if (part == 0) {
    p.state = State::kReading;
    pool.policy->hold(o.place);
  }
  std::string failure;
  const auto unlocked = [&](auto&& f) {
    lock.unlock();
    try {
      f();
    } catch (const std::exception& e) {
      failure = e.what();
    }
    lock.lock();
    p.failed |= !failure.empty();
    if (!failure.empty()) failure_ = std::move(failure);
  };
  unlocked([&] { l.source.read(o.expert, part, address(pool, o.place)); });
  if (++p.ended < l.source.parts) return;
  if (l.source.check && !p.failed)
    unlocked([&] { l.source.check(o.expert, address(pool, o.place)); });
  stats_.bytes += pool.bytes;
  p.state.store(p.failed ? State::kFailed : State::kReady, std::memory_order_release);
  pool.policy->release(o.place);
  done_.notify_all();
}

void ExpertStore::read_orders() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [&] { return stopping_ || !demanded_.empty() || !expected_.empty(); });
    if (stopping_) return;
    read_part(lock, demanded_.empty() ? expected_ : demanded_);
  }
}

void ExpertStore::count_waiting(int change) {
  const auto now = std::chrono::steady_clock::now();
  if (waiting_ > 0)
    stats_.waited += static_cast<uint64_t>(std::chrono::nanoseconds(now - waits_since_).count());
  waits_since_ = now;
  waiting_ += change;
}

// Takes less memory for places while the machine or a control group is short of it, and takes it
// again later.
void ExpertStore::follow_memory() {
  const auto now = std::chrono::steady_clock::now();
  if (now - looked_ < kLookEvery) return;
  looked_ = now;
  bool shrinks = false, grows = true;
  for (const MemoryLimit& m : memory_limits()) {
    const uint64_t reserve = m.reserve + mapped_;
    shrinks |= m.free < reserve;
    grows &= m.free > 2 * reserve;
  }
  if (!shrinks && !grows) return;
  constexpr size_t kPart = 20;  // of the places change hands at a time
  stats_.memory = 0;
  for (Pool& p : pools_) {
    const size_t step = std::max<size_t>(1, p.most / kPart), now_places = p.policy->places();
    const size_t wanted = shrinks ? std::max(p.least, now_places - std::min(now_places, step))
                                  : std::min(p.most, now_places + step);
    std::vector<uint32_t> emptied;
    if (wanted != now_places) p.policy->resize(wanted, emptied);
    for (const uint32_t place : emptied) {
      p.places[place].state = State::kEmpty;
      ++p.places[place].given;
      (void)::madvise(address(p, place), p.bytes, MADV_DONTNEED);
    }
    stats_.memory += uint64_t{p.policy->places()} * p.bytes;
  }
}

ExpertStore::Call::Call(ExpertStore& store, size_t layer)
    : store_(store),
      layer_(layer),
      turn_(store.turn_),
      places_(store.layers_[layer].experts, PlacePolicy::kNone) {
  const std::lock_guard lock(store_.mutex_);
  store_.follow_memory();
  if (layer == 0)
    for (Pool& p : store_.pools_) p.policy->next_step();
}

ExpertStore::Call::~Call() { let_go(); }

size_t ExpertStore::Call::most() const {
  const std::lock_guard lock(store_.mutex_);
  const Pool& pool = store_.pool_of(layer_);
  return std::max<size_t>(1, pool.policy->places() / 2);
}

void ExpertStore::Call::demand(std::span<const uint32_t> experts, std::vector<uint8_t*>& at) {
  const Layer& l = store_.layers_[layer_];
  Pool& pool = store_.pools_[l.pool];
  at.clear();
  std::unique_lock lock(store_.mutex_);
  for (const uint32_t e : experts) {
    // Places in which experts are being read become free soon.
    while (!store_.order(layer_, e, Why::kDemanded)) store_.done_.wait(lock);
    places_[e] = pool.policy->place_of(store_.number(l, e));
    pool.policy->hold(places_[e]);
    at.push_back(store_.address(pool, places_[e]));
  }
  held_.insert(held_.end(), experts.begin(), experts.end());
  store_.drop_expected(layer_);
  lock.unlock();
  store_.work_.notify_all();
}

void ExpertStore::Call::expect_next_layer() {
  if (layer_ + 1 >= store_.layers_.size()) return;
  std::vector<uint32_t> all(store_.layers_[layer_ + 1].experts);
  std::iota(all.begin(), all.end(), 0U);
  all.resize(std::min(all.size(), most()));
  store_.expect(layer_ + 1, all, Why::kCertain);
}

bool ExpertStore::Call::here(uint32_t expert) const noexcept {
  return store_.pool_of(layer_).places[places_[expert]].state.load(std::memory_order_acquire) ==
         State::kReady;
}

bool ExpertStore::Call::wait(uint32_t expert) noexcept {
  if (here(expert)) return true;
  const std::atomic<State>& state = store_.pool_of(layer_).places[places_[expert]].state;
  std::unique_lock lock(store_.mutex_);
  store_.count_waiting(1);
  store_.done_.wait(lock, [&] { return state == State::kReady || state == State::kFailed; });
  store_.count_waiting(-1);
  if (state == State::kFailed) failed_ = true;
  return state == State::kReady;
}

void ExpertStore::Call::let_go() noexcept {
  Pool& pool = store_.pool_of(layer_);
  const std::lock_guard lock(store_.mutex_);
  for (const uint32_t e : held_) pool.policy->release(places_[e]);
  held_.clear();
}

void ExpertStore::Call::release() {
  let_go();
  const std::lock_guard lock(store_.mutex_);
  if (failed_) fail("{}", store_.failure_);
}

}  // namespace moebius
