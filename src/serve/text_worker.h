// SPDX-License-Identifier: Apache-2.0
// A thread for what takes too long for the event thread: parsing, templates, encoding. Its queue is
// bounded, in jobs and in the bytes that they hold.
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
  TextWorker(size_t most_jobs, size_t most_bytes)
      : most_jobs_(most_jobs), most_bytes_(most_bytes), thread_([this] { run(); }) {}
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

  // False: there are too many already; one alone may hold any number of bytes. A job must not
  // throw.
  bool put(std::function<void()> job, size_t bytes) {
    {
      const std::lock_guard lock(mutex_);
      if (jobs_.size() >= most_jobs_ || (bytes_ > 0 && bytes_ + bytes > most_bytes_)) return false;
      jobs_.push_back({std::move(job), bytes});
      bytes_ += bytes;
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
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
      job.work();
      const std::lock_guard lock(mutex_);
      bytes_ -= job.bytes;
    }
  }
  struct Job {
    std::function<void()> work;
    size_t bytes = 0;
  };
  const size_t most_jobs_, most_bytes_;
  size_t bytes_ = 0;  // of the jobs that wait and the one that runs
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> jobs_;
  bool ending_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace moebius
