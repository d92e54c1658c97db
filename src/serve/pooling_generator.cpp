// SPDX-License-Identifier: Apache-2.0
#include "serve/pooling_generator.h"

#include <pthread.h>

#include <algorithm>

#include "base/error.h"
#include "engine/kv_store.h"
#include "model/run/scoring.h"

namespace moebius {

PoolingGenerator::PoolingGenerator(DecoderModel& model, const PoolingPlan& plan,
                                   PoolingGeneratorOptions options)
    : model_(model), plan_(plan), options_(std::move(options)) {}

PoolingGenerator::~PoolingGenerator() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void PoolingGenerator::start(Sink sink) {
  sink_ = std::move(sink);
  thread_ = std::thread([this] { run(); });
}

bool PoolingGenerator::stop(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  ending_ = true;
  changed_.notify_all();
  return !thread_.joinable() || changed_.wait_for(lock, most, [&] { return ended_; });
}

uint64_t PoolingGenerator::submit(Request request) {
  if (request.prompt.empty()) fail("the text is empty: there is no token");
  const std::lock_guard lock(mutex_);
  const uint64_t id = next_++;
  const auto live = live_.insert(id).first;
  try {
    waiting_.push_back({id, std::move(request), Clock::now()});
  } catch (...) {
    live_.erase(live);
    throw;
  }
  changed_.notify_all();
  return id;
}

void PoolingGenerator::cancel(uint64_t id) {
  const std::lock_guard lock(mutex_);
  auto known = live_.extract(id);
  if (std::erase_if(waiting_, [&](const Waiting& w) { return w.id == id; }) == 0)
    cancelled_.insert(std::move(known));
}

bool PoolingGenerator::waiting(uint64_t id) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(waiting_.begin(), waiting_.end(),
                     [&](const Waiting& w) { return w.id == id; });
}

GeneratorState PoolingGenerator::state() const {
  const std::lock_guard lock(mutex_);
  GeneratorState s;
  s.slots = options_.slots;
  s.engine.waiting = waiting_.size();
  s.engine.running = live_.size() - std::min(live_.size(), waiting_.size());
  s.engine.prompt_tokens = tokens_;
  s.engine.steps = steps_;
  s.engine.weight_bytes = weight_bytes_;
  s.step_seconds = step_seconds_;
  if (in_step_) {
    s.stage = "pass";
    s.heartbeat_seconds = std::chrono::duration<double>(Clock::now() - step_began_).count();
  }
  return s;
}

void PoolingGenerator::run() {
  pthread_setname_np(pthread_self(), "moebius-pooling");
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return ending_ || !waiting_.empty() || !running_.empty(); });
      if (ending_) break;
    }
    try {
      admit();
      forget_cancelled();
      if (!running_.empty()) step();
    } catch (const std::exception& e) {  // the next texts may succeed
      give_up(e.what());
    }
  }
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

void PoolingGenerator::admit() {
  const std::lock_guard lock(mutex_);
  uint64_t taken = 0;
  for (const auto& t : running_) taken += t->kv;
  while (!waiting_.empty() && running_.size() < options_.slots) {
    const uint64_t kv = kv_bytes_of(model_.kv_kinds(), waiting_.front().request.prompt.size());
    if (!running_.empty() && taken + kv > options_.kv_bytes) return;
    taken += kv;
    untold_.insert(waiting_.front().id);
    Waiting w = std::move(waiting_.front());
    waiting_.pop_front();
    running_.push_back(std::make_unique<Text>(
        Text{w.id, std::move(w.request.prompt), model_.new_sequence(),
             Pooler(plan_, options_.row, w.request.prompt_skipped), kv, w.came, Clock::now()}));
  }
}

void PoolingGenerator::tell(TextStep step) {
  std::vector<uint64_t> ids;
  for (const StepResult& e : step.events) ids.push_back(e.id);
  {
    const std::lock_guard lock(mutex_);
    in_step_ = false;
    for (const uint64_t id : ids) live_.erase(id);
  }
  sink_(std::move(step));
  for (const uint64_t id : ids) untold_.erase(id);
}

void PoolingGenerator::give_up(const char* why) {
  running_.clear();
  for (;;) {
    try {
      TextStep step;
      for (const uint64_t id : untold_) step.events.push_back(failed_result(id, 0, why));
      return tell(std::move(step));
    } catch (const std::exception&) {  // no memory for the message either
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
}

void PoolingGenerator::forget_cancelled() {
  const std::lock_guard lock(mutex_);
  std::erase_if(running_, [&](const auto& t) { return cancelled_.count(t->id) > 0; });
  for (const uint64_t id : cancelled_) untold_.erase(id);
  cancelled_.clear();
}

void PoolingGenerator::step() {
  const StepTurns::Turn turn(options_.turns.get());
  const auto begin = Clock::now();
  {
    const std::lock_guard lock(mutex_);
    in_step_ = true;
    step_began_ = begin;
  }
  const bool all = plan_.needs_all_rows();
  std::vector<StepItem> items;
  std::vector<Text*> texts;
  size_t left = kTokensPerStep;
  for (const auto& t : running_) {
    const size_t n = std::min(left, t->tokens.size() - t->state.length());
    if (n == 0) break;
    items.push_back({&t->state, std::span<const int32_t>(t->tokens).subspan(t->state.length(), n),
                     all, t->tokens.size()});
    texts.push_back(t.get());
    left -= n;
  }
  TextStep out;
  std::string failure;
  std::vector<float> rows;
  try {
    model_.forward(items, rows);
  } catch (const std::exception& e) {
    failure = e.what();
  }
  std::set<uint64_t> done;
  const float* row = rows.data();
  for (size_t i = 0; i < items.size(); ++i) {
    Text& t = *texts[i];
    StepResult e;
    e.id = t.id;
    e.queue_seconds = std::chrono::duration<double>(t.ran - t.came).count();
    if (!failure.empty()) {
      e.finish = Finish::kError;
      e.error = failure;
    } else {
      for (size_t n = all ? items[i].tokens.size() : 1; n-- > 0; row += options_.row)
        if (all || t.state.length() == t.tokens.size()) t.pooler.add({row, options_.row});
      if (t.state.length() < t.tokens.size()) continue;
      try {
        e.vector = t.pooler.finish();
        e.finish = Finish::kStop;
      } catch (const Error& error) {  // the failure of this text alone
        e.finish = Finish::kError;
        e.error = error.what();
      }
    }
    done.insert(t.id);
    out.events.push_back(std::move(e));
  }
  for (const StepItem& item : items) out.figures.prompt_rows += item.tokens.size();
  out.figures.batch = items.size();
  out.figures.nanoseconds =
      static_cast<uint64_t>(std::chrono::nanoseconds(Clock::now() - begin).count());
  std::erase_if(running_, [&](const auto& t) { return done.count(t->id) > 0; });
  {
    const std::lock_guard lock(mutex_);
    step_seconds_ = running_mean(step_seconds_, out.figures.seconds());
    ++steps_;
    if (failure.empty()) {
      tokens_ += out.figures.prompt_rows;
      weight_bytes_ += model_.last_step().weight_bytes;
    }
  }
  tell(std::move(out));
}

}  // namespace moebius
