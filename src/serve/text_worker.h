// SPDX-License-Identifier: Apache-2.0
// Runs work that takes too long for the event thread (parsing, templates, encoding) on a thread of
// its own. Its queue is limited in jobs and in bytes that they hold, and the jobs of one key fill
// at most half of it.
#pragma once
#include <pthread.h>

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>

namespace moebius {

class TextWorker {
 public:
  enum class Order : uint8_t { kArrival, kShortest };  // order in which waiting jobs are run

  TextWorker(size_t most_jobs, size_t most_bytes, Order order = Order::kArrival)
      : most_jobs_(most_jobs), most_bytes_(most_bytes), order_(order), thread_([this] { run(); }) {}
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

  // Queues a job; returns false if the queue is full. A single job may hold any number of bytes.
  // `key`: who sent it; empty: nobody in particular. A job must not throw. Thread-safe.
  bool put(std::function<void()> job, size_t bytes, const std::string& key = {}) {
    {
      const std::lock_guard lock(mutex_);
      if (jobs_.size() >= most_jobs_ || (bytes_ > 0 && bytes_ + bytes > most_bytes_)) return false;
      Share* const share = key.empty() ? nullptr : &shares_[key];
      if (share != nullptr && (share->jobs >= (most_jobs_ + 1) / 2 ||
                               (share->bytes > 0 && share->bytes + bytes > most_bytes_ / 2)))
        return false;
      jobs_.emplace(order_ == Order::kShortest ? bytes : 0, Job{std::move(job), bytes, key});
      bytes_ += bytes;
      if (share != nullptr) {
        ++share->jobs;
        share->bytes += bytes;
      }
    }
    wake_.notify_one();
    return true;
  }

 private:
  void run() {
    pthread_setname_np(pthread_self(), "moebius-text");
    for (;;) {
      Job job;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
        if (ending_) return;
        job = std::move(jobs_.begin()->second);
        jobs_.erase(jobs_.begin());
      }
      job.work();
      const std::lock_guard lock(mutex_);
      bytes_ -= job.bytes;
      if (job.key.empty()) continue;
      const auto share = shares_.find(job.key);
      share->second.bytes -= job.bytes;
      if (--share->second.jobs == 0) shares_.erase(share);
    }
  }
  struct Job {
    std::function<void()> work;
    size_t bytes = 0;
    std::string key;
  };
  // Counts the jobs of one key, waiting and running.
  struct Share {
    size_t jobs = 0, bytes = 0;
  };
  const size_t most_jobs_, most_bytes_;
  const Order order_;
  size_t bytes_ = 0;  // bytes of waiting and running jobs
  std::mutex mutex_;
  std::condition_variable wake_;
  std::multimap<size_t, Job> jobs_;  // the first one is next; equal keys in order of arrival
  std::map<std::string, Share> shares_;
  bool ending_ = false;
  std::thread thread_;  // declared last, because it uses the other members
};

}  // namespace moebius
