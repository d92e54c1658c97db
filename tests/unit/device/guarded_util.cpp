// SPDX-License-Identifier: Apache-2.0
#include "unit/device/guarded_util.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <thread>

#include "base/checked.h"
#include "base/error.h"
#include "device/stand_ins.h"

namespace moebius {
namespace {

// Addresses that are reserved once; pages of it are handed out, and opened and closed together.
class GuardedPages {
 public:
  GuardedPages() {
    void* p =
        mmap(nullptr, kReserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) fail("a guarded device: no addresses are left");
    base_ = static_cast<uint8_t*>(p);
  }
  ~GuardedPages() { munmap(base_, kReserved); }
  GuardedPages(const GuardedPages&) = delete;
  GuardedPages& operator=(const GuardedPages&) = delete;

  uint8_t* take(size_t bytes) {  // while open
    const size_t n = round_up(std::max<size_t>(bytes, 1), page_bytes());
    const std::lock_guard lock(mutex_);
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->second < n) continue;
      uint8_t* found = base_ + it->first;
      const size_t at = it->first, left = it->second - n;
      free_.erase(it);
      if (left > 0) free_[at + n] = left;
      return found;
    }
    if (kReserved - used_ < n) throw std::bad_alloc();
    uint8_t* found = base_ + used_;
    used_ += n;
    protect(PROT_READ | PROT_WRITE);
    return found;
  }
  void give_back(uint8_t* p, size_t bytes) noexcept {
    const size_t n = round_up(std::max<size_t>(bytes, 1), page_bytes());
    madvise(p, n, MADV_DONTNEED);
    try {
      const std::lock_guard lock(mutex_);
      free_[static_cast<size_t>(p - base_)] = n;
    } catch (...) {  // its addresses are not used again
    }
  }
  void open() { protect(PROT_READ | PROT_WRITE); }
  void close() { protect(PROT_NONE); }

 private:
  static constexpr size_t kReserved = size_t{1} << 33;  // emulators keep a record of every page
  void protect(int mode) {
    if (used_ > 0 && mprotect(base_, used_, mode) != 0)
      fail("a guarded device: pages cannot be protected");
  }
  uint8_t* base_ = nullptr;
  size_t used_ = 0;
  std::mutex mutex_;               // of the list: memory goes from any thread
  std::map<size_t, size_t> free_;  // bytes by offset
};

bool due(std::atomic<long>& count) { return count.load() >= 0 && count.fetch_sub(1) == 0; }

class Guarded final : public Executor {
 public:
  explicit Guarded(std::string_view name)
      : name_(name), slow_(name.starts_with("slow")), pages_(std::make_shared<Pages>()) {
    thread_ = std::thread([this] { work(); });
  }
  ~Guarded() override {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  std::string_view name() const override { return name_; }

  void post(size_t queue, std::function<void()> operation) override {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back({queue, std::move(operation)});
    }
    changed_.notify_all();
  }
  void wait(size_t queue) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return idle(queue); });
    if (const auto found = failed_.find(queue); found != failed_.end()) {
      const std::exception_ptr error = found->second;
      failed_.erase(found);
      std::rethrow_exception(error);
    }
  }
  void run_now(const std::function<void()>& operation) override {
    const std::lock_guard pages(pages_->mutex);
    pages_->memory.open();
    try {
      operation();
    } catch (...) {
      pages_->memory.close();
      throw;
    }
    pages_->memory.close();
  }
  DeviceMemory allocate(size_t bytes) override {  // within an operation: pages are open and ours
    if (due(guarded_faults().allocation)) throw std::bad_alloc();
    uint8_t* data = pages_->memory.take(bytes);
    return {data, bytes, std::shared_ptr<void>(data, [pages = pages_, bytes](void* p) {
              pages->memory.give_back(static_cast<uint8_t*>(p), bytes);
            })};
  }
  bool lost() const override { return lost_; }

 private:
  struct Operation {
    size_t queue;
    std::function<void()> run;
  };
  struct Pages {
    std::mutex mutex;  // held while they are open
    GuardedPages memory;
  };
  bool idle(size_t queue) const {
    return running_ != queue && std::none_of(waiting_.begin(), waiting_.end(),
                                             [&](const Operation& o) { return o.queue == queue; });
  }
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return over_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      Operation next = std::move(waiting_.front());
      waiting_.pop_front();
      if (failed_.count(next.queue) != 0) {
        if (idle(next.queue)) changed_.notify_all();
        continue;
      }
      running_ = next.queue;
      lock.unlock();
      std::exception_ptr error = execute(next);
      next.run = nullptr;
      lock.lock();
      if (error != nullptr) failed_[next.queue] = error;
      running_ = SIZE_MAX;
      changed_.notify_all();
    }
  }
  std::exception_ptr execute(const Operation& operation) {
    try {
      if (due(guarded_faults().loss)) lost_ = true;
      if (lost_) fail("the device {} is lost", name_);
      if (due(guarded_faults().operation)) fail("an operation of the device {} failed", name_);
      const auto start = std::chrono::steady_clock::now();
      run_now(operation.run);
      if (slow_)
        std::this_thread::sleep_until(
            start + std::chrono::microseconds(guarded_faults().slow_microseconds.load()));
      return nullptr;
    } catch (...) {
      return std::current_exception();
    }
  }

  std::string name_;
  bool slow_;
  std::shared_ptr<Pages> pages_;  // memory may outlive the device
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Operation> waiting_;
  std::map<size_t, std::exception_ptr> failed_;  // by queue, until it is waited for
  size_t running_ = SIZE_MAX;
  bool over_ = false;
  std::atomic<bool> lost_{false};
  std::thread thread_;
};

bool is_guarded_name(std::string_view name) {
  const size_t letters = name.starts_with("guarded") ? 7 : name.starts_with("slow") ? 4 : SIZE_MAX;
  if (letters == SIZE_MAX) return false;
  name.remove_prefix(letters);
  return std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

const bool added = (stand_ins() = {is_guarded_name, make_guarded}, true);

}  // namespace

std::unique_ptr<Executor> make_guarded(std::string_view name) {
  return std::make_unique<Guarded>(name);
}

GuardedFaults& guarded_faults() {
  static GuardedFaults faults;
  return faults;
}

}  // namespace moebius
