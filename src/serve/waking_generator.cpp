// SPDX-License-Identifier: Apache-2.0
#include "serve/waking_generator.h"

#include <fmt/core.h>
#include <pthread.h>

#include <algorithm>

#include "base/error.h"
#include "base/out_of_memory.h"
#include "runtime/memory.h"

namespace moebius {
namespace {

template <class List>
void add_each(List& to, const List& more) {
  if constexpr (requires { to.resize(0); }) to.resize(std::max(to.size(), more.size()));
  for (size_t i = 0; i < more.size(); ++i) to[i] += more[i];
}

}  // namespace

void add_counters(GeneratorState& to, const GeneratorState& more) {
  EngineSnapshot& sum = to.engine;
  static constexpr uint64_t EngineSnapshot::*kCounters[] = {
      &EngineSnapshot::steps,          &EngineSnapshot::prompt_tokens,
      &EngineSnapshot::cached_tokens,  &EngineSnapshot::new_tokens,
      &EngineSnapshot::drafts,         &EngineSnapshot::drafted_tokens,
      &EngineSnapshot::prefix_queries, &EngineSnapshot::prefix_hits,
      &EngineSnapshot::preemptions,    &EngineSnapshot::weight_bytes,
      &EngineSnapshot::kv_bytes_read,  &EngineSnapshot::sampling_nanoseconds,
      &EngineSnapshot::disk_tokens,    &EngineSnapshot::other_nanoseconds};
  for (const auto counter : kCounters) sum.*counter += more.engine.*counter;
  add_each(sum.drafts_right, more.engine.drafts_right);
  add_each(sum.expert_rows, more.engine.expert_rows);
  add_each(sum.phases, more.engine.phases);
  to.idle_seconds += more.idle_seconds;
}

WakingGenerator::WakingGenerator(std::unique_ptr<Generator> awake, WakingOptions options)
    : options_(std::move(options)), awake_(std::move(awake)) {}

WakingGenerator::~WakingGenerator() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  awake_.reset();  // destroyed first: its thread passes events to the rest
}

void WakingGenerator::start(Sink sink) {
  const std::lock_guard lock(mutex_);
  sink_ = std::move(sink);
  awake_->start([this](TextStep step) { pass_on(std::move(step)); });
  thread_ = std::thread([this] { run(); });
}

bool WakingGenerator::stop(std::chrono::milliseconds most) {
  const auto until = Clock::now() + most;
  std::unique_lock lock(mutex_);
  ending_ = true;
  changed_.notify_all();
  if (thread_.joinable() && !changed_.wait_until(lock, until, [&] { return ended_; })) return false;
  lock.unlock();
  return awake_ == nullptr ||
         awake_->stop(std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()));
}

uint64_t WakingGenerator::submit(Request request) {
  const std::lock_guard lock(mutex_);
  const uint64_t id = next_++;
  const auto at = jobs_.try_emplace(id).first;
  Job& job = at->second;
  job.open = request.n;
  try {
    if (awake_ != nullptr && !broken_) {
      job.inner = awake_->submit(std::move(request));
      by_inner_[job.inner] = id;
    } else {
      job.request = std::move(request);
    }
  } catch (...) {
    if (job.inner != 0) awake_->cancel(job.inner);
    jobs_.erase(at);
    throw;
  }
  changed_.notify_all();
  return id;
}

void WakingGenerator::cancel(uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto it = jobs_.find(id);
  if (it == jobs_.end()) return;
  if (it->second.inner != 0) {
    awake_->cancel(it->second.inner);
    by_inner_.erase(it->second.inner);
  }
  jobs_.erase(it);
  idle_since_ = Clock::now();
  changed_.notify_all();
}

bool WakingGenerator::waiting(uint64_t id) const {
  const std::lock_guard lock(mutex_);
  const auto it = jobs_.find(id);
  return it != jobs_.end() && (it->second.inner == 0 || awake_->waiting(it->second.inner));
}

GeneratorState WakingGenerator::state() const {
  const std::lock_guard lock(mutex_);
  GeneratorState s = awake_ != nullptr ? awake_->state() : before_;
  if (awake_ != nullptr) {
    add_counters(s, before_);
  } else {
    s.engine.waiting = jobs_.size();
    s.stage = loading_ ? kLoadingStage : "asleep";
  }
  s.sleeps = true;
  s.asleep = awake_ == nullptr;
  s.loads = loads_;
  return s;
}

void WakingGenerator::run() {
  pthread_setname_np(pthread_self(), "moebius-sleep");
  std::unique_lock lock(mutex_);
  while (!ending_) {
    try {
      if (awake_ == nullptr) {
        changed_.wait(lock, [&] { return ending_ || !jobs_.empty(); });
        if (!ending_) wake_up(lock);
      } else if (broken_) {
        fall_asleep(lock);
      } else if (!jobs_.empty() || options_.sleep_after.count() == 0) {
        const bool busy = !jobs_.empty();
        changed_.wait(lock, [&] { return ending_ || broken_ || jobs_.empty() == busy; });
      } else if (Clock::now() - idle_since_ >= options_.sleep_after) {
        fall_asleep(lock);
      } else {
        changed_.wait_until(lock, idle_since_ + options_.sleep_after,
                            [&] { return ending_ || broken_ || !jobs_.empty(); });
      }
    } catch (const std::bad_alloc&) {  // the next round tries again
      if (!lock.owns_lock()) lock.lock();
      changed_.wait_for(lock, std::chrono::milliseconds(10));
    }
  }
  ended_ = true;
  changed_.notify_all();
}

void WakingGenerator::fall_asleep(std::unique_lock<std::mutex>& lock) {
  GeneratorState last = awake_->state();
  add_counters(last, before_);
  std::unique_ptr<Generator> going = std::move(awake_);
  by_inner_.clear();
  const bool broken = std::exchange(broken_, false);
  before_ = std::move(last);
  before_.engine.running = before_.engine.waiting = 0;
  before_.heartbeat_seconds = 0;
  KvFigures& kv = before_.engine.kv;
  kv.blocks_used = kv.blocks_cached = kv.blocks_free = 0;
  lock.unlock();
  options_.unload(std::move(going));
  release_workspaces();
  options_.say(broken ? "its engine failed: the weights were let go of; the next request loads them"
                      : "asleep: nobody asked for a while, the weights were given back");
  lock.lock();
}

void WakingGenerator::wake_up(std::unique_lock<std::mutex>& lock) {
  loading_ = true;
  lock.unlock();
  const auto begin = Clock::now();
  std::unique_ptr<Generator> generator;
  std::string failure;
  try {
    generator = options_.load();
    generator->start([this](TextStep step) { pass_on(std::move(step)); });
  } catch (const std::exception& e) {
    failure = fmt::format("{}: {}", kNotLoaded, e.what());
    generator.reset();
  }
  options_.say(failure.empty()
                   ? fmt::format("awake after {:.1f} s",
                                 std::chrono::duration<double>(Clock::now() - begin).count())
                   : failure);
  lock.lock();
  loading_ = false;
  TextStep ended;
  if (generator != nullptr) {
    awake_ = std::move(generator);
    ++loads_;
    idle_since_ = Clock::now();
    for (auto it = jobs_.begin(); it != jobs_.end();) {
      Job& job = it->second;
      try {
        job.inner = awake_->submit(std::move(job.request));
        by_inner_[job.inner] = it->first;
        ++it;
      } catch (const std::exception& e) {  // the request can never run, or not now
        if (job.inner != 0) awake_->cancel(job.inner);
        fail(it->first, job, words_of(e), ended.events);
        it = jobs_.erase(it);
      }
    }
  } else {
    for (const auto& [id, job] : jobs_) fail(id, job, failure, ended.events);
    jobs_.clear();
  }
  if (!ended.events.empty()) sink_(std::move(ended));
}

void WakingGenerator::fail(uint64_t id, const Job& job, const std::string& words,
                           std::vector<StepResult>& events) {
  const size_t before = events.size();
  patiently([&] {
    events.resize(before);
    for (size_t i = 0; i < job.open; ++i) events.push_back(failed_result(id, i, words));
  });
}

// Passes events on; called on the generator's thread.
void WakingGenerator::pass_on(TextStep step) {
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(step.events, [&](StepResult& e) {
      const auto it = by_inner_.find(e.id);
      if (it == by_inner_.end()) return true;  // cancelled meanwhile
      e.id = it->second;
      Job& job = jobs_.at(e.id);
      if (e.finish == Finish::kNone || --job.open > 0) return false;
      jobs_.erase(e.id);
      by_inner_.erase(it);
      return false;
    });
    if (step.last) {
      broken_ = true;
      step.last = false;
      std::erase_if(jobs_, [&](const auto& entry) {
        if (entry.second.inner == 0) return false;
        fail(entry.first, entry.second, "the engine failed", step.events);
        return true;
      });
    }
    if (jobs_.empty()) idle_since_ = Clock::now();
  }
  changed_.notify_all();
  sink_(std::move(step));
}

}  // namespace moebius
