// SPDX-License-Identifier: Apache-2.0
// Ranks in threads of their own that meet to take the maximum of their values, once.
#pragma once
#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <vector>

namespace moebius::test {

class RankMeeting {
 public:
  explicit RankMeeting(size_t ranks) : ranks_(ranks) {}
  void maximum(float* values, size_t n) {
    std::unique_lock lock(mutex_);
    if (shared_.empty()) shared_.assign(n, 0.0f);
    for (size_t i = 0; i < n; ++i) shared_[i] = std::max(shared_[i], values[i]);
    ++arrived_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return arrived_ == ranks_; });
    std::copy(shared_.begin(), shared_.end(), values);
  }

 private:
  size_t ranks_, arrived_ = 0;
  std::vector<float> shared_;
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace moebius::test
