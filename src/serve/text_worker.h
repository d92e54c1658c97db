// SPDX-License-Identifier: Apache-2.0
// A thread for what takes too long for the event thread: parsing, templates, encoding. Its queue is
// bounded.
#pragma once
#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace moebius {

class TextWorker {
 public:
  explicit TextWorker(size_t most) : most_(most), thread_([this] { run(); }) {}
  ~TextWorker() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
      jobs_.clear();
    }
    wake_.notify_all();
    thread_.join();
  }
  TextWorker(const TextWorker&) = delete;
  TextWorker& operator=(const TextWorker&) = delete;

  // False: there are too many already. A job must not throw.
  bool put(std::function<void()> job) {
    {
      const std::lock_guard lock(mutex_);
      if (jobs_.size() >= most_) return false;
      jobs_.push_back(std::move(job));
    }
    wake_.notify_one();
    return true;
  }

 private:
  void run() {
    pthread_setname_np(pthread_self(), "moebius-text");
    for (;;) {
      std::function<void()> job;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
        if (ending_) return;
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
      job();
    }
  }
  size_t most_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_;
  bool ending_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace moebius
