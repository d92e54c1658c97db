// SPDX-License-Identifier: Apache-2.0
#include "engine/request_queue.h"

#include <iterator>

namespace moebius {

uint64_t RequestQueue::add(Sequences answers) {
  const std::lock_guard lock(mutex_);
  inbox_.reserve(inbox_.size() + answers.size());
  // Memory is reserved here so that cancel() cannot fail.
  cancels_.reserve(cancels_.size() + live_ + answers.size());
  live_ += answers.size();
  for (auto& s : answers) {
    s->id = next_id_;
    inbox_.push_back(std::move(s));
  }
  filled_.notify_one();
  return next_id_++;
}

void RequestQueue::cancel(uint64_t id) noexcept {
  const std::lock_guard lock(mutex_);
  const bool known = std::find(cancels_.begin(), cancels_.end(), id) != cancels_.end();
  if (!known && cancels_.size() < cancels_.capacity()) cancels_.push_back(id);
}

bool RequestQueue::wait(std::chrono::nanoseconds most) {
  std::unique_lock lock(mutex_);
  filled_.wait_for(lock, most, [&] { return woken_ || !idle(); });
  woken_ = false;
  return !idle();
}

void RequestQueue::wake() {
  const std::lock_guard lock(mutex_);
  woken_ = true;
  filled_.notify_one();
}

size_t RequestQueue::prompt_left() const {
  const std::lock_guard lock(mutex_);
  return moebius::prompt_left(inbox_);
}

std::vector<uint64_t> RequestQueue::take(Sequences& to) {
  const std::lock_guard lock(mutex_);
  std::vector<uint64_t> cancelled = cancels_;
  to.reserve(to.size() + inbox_.size());
  std::move(inbox_.begin(), inbox_.end(), std::back_inserter(to));
  inbox_.clear();
  cancels_.clear();
  return cancelled;
}

}  // namespace moebius
