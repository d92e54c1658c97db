// SPDX-License-Identifier: Apache-2.0
// Protocol of one region: the caller publishes the function and raises `epoch`; every worker sees
// the new epoch, runs the function and lowers `pending`; the caller, having run its own share,
// waits for pending == 0. Barriers count arrivals in `arrived`; the last one resets the count and
// raises `phase`. Every wait spins for kSpinMicroseconds, then sleeps in the kernel
// (std::atomic::wait, whose notify is a load when nobody sleeps). With more threads than CPUs
// nobody spins: the thread that is waited for may need the CPU of the one that waits.
#include "runtime/thread_pool.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "runtime/topology.h"

#if defined(__linux__)
#include <pthread.h>
#endif

namespace moebius {
namespace {

constexpr int kSpinMicroseconds =
    100;  // longer than the gap between two layers of a decoding model
constexpr size_t kMaxThreads = 4096;

thread_local int region_depth = 0;

struct RegionScope {
  RegionScope() { ++region_depth; }
  ~RegionScope() { --region_depth; }
};

// Thrown out of barrier() to unwind the other members when one member failed; never leaves run().
struct RegionAborted {};

inline void cpu_relax() noexcept {
#if defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");  // YIELD is a no-op on most cores; ISB really pauses
#elif defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Waits until value != old.
template <class T>
void wait_while(std::atomic<T>& value, T old, bool spin) noexcept {
  if (spin) {
    for (int i = 0; i < 64; ++i) {
      if (value.load(std::memory_order_acquire) != old) return;
      cpu_relax();
    }
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::microseconds(kSpinMicroseconds);
    do {
      for (int i = 0; i < 64; ++i) {
        if (value.load(std::memory_order_acquire) != old) return;
        cpu_relax();
      }
    } while (std::chrono::steady_clock::now() < end);
  }
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

#if defined(__linux__)
void name_thread(size_t index) {
  const std::string name = fmt::format("moebius-{}", index);
  (void)pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
}
#else
void name_thread(size_t) {}
#endif

}  // namespace

size_t available_cpus() {
  const size_t n = allowed_cpus().size();
  return n > 0 ? n : std::max<size_t>(1, std::thread::hardware_concurrency());
}

size_t default_thread_count() { return usable_topology().default_threads(); }

struct ThreadPool::State {
  alignas(64) std::atomic<uint32_t> epoch{0};
  alignas(64) std::atomic<uint32_t> pending{0};
  alignas(64) std::atomic<uint32_t> arrived{0};
  alignas(64) std::atomic<uint32_t> phase{0};
  alignas(64) const FunctionRef<void(Member&)>* fn = nullptr;
  std::atomic<bool> aborted{false};
  bool stop = false;  // written before epoch is raised
  bool spin = true;
  std::mutex turn;  // callers on different threads
  std::mutex error_mutex;
  std::exception_ptr error;
  std::vector<std::thread> threads;

  void record_error() noexcept {
    {
      const std::lock_guard lock(error_mutex);
      if (!error) error = std::current_exception();
    }
    aborted.store(true, std::memory_order_release);
    phase.fetch_add(1, std::memory_order_acq_rel);  // frees whoever waits at a barrier
    phase.notify_all();
  }
};

ThreadPool::ThreadPool(size_t threads) : state_(std::make_unique<State>()), size_(threads) {
  if (threads == 0 || threads > kMaxThreads)
    fail("a thread pool needs 1 to {} threads, not {}", kMaxThreads, threads);
  const std::vector<int> cpus = allowed_cpus();
  const size_t n_cpus = cpus.empty() ? available_cpus() : cpus.size();
  state_->spin = size_ <= n_cpus;
  // Pin only when the pool covers the whole machine: two half-size pools pinned to the same half
  // would share cores. Worker i takes CPU i; CPU 0 of the list is left to the caller, whose
  // affinity is its own affair.
  const bool pin = size_ == cpus.size() && size_ > 1;
  state_->threads.reserve(size_ - 1);
  try {
    for (size_t i = 1; i < size_; ++i) {
      const int cpu = pin ? cpus[i] : -1;
      state_->threads.emplace_back([this, i, cpu] {
        name_thread(i);
        if (cpu >= 0) pin_this_thread({cpu});
        work(i);
      });
    }
  } catch (const std::exception& e) {
    size_ = state_->threads.size() + 1;  // what could be started is joined by the same path
    state_->stop = true;
    state_->epoch.fetch_add(1, std::memory_order_acq_rel);
    state_->epoch.notify_all();
    for (std::thread& t : state_->threads) t.join();
    fail("cannot start thread {} of {}: {}", state_->threads.size() + 2, threads, e.what());
  }
}

ThreadPool::~ThreadPool() {
  state_->stop = true;
  state_->epoch.fetch_add(1, std::memory_order_acq_rel);
  state_->epoch.notify_all();
  for (std::thread& t : state_->threads) t.join();
}

void ThreadPool::work(size_t index) {
  State& s = *state_;
  ++region_depth;  // whatever a worker runs is inside a region
  uint32_t seen = 0;
  for (;;) {
    wait_while(s.epoch, seen, s.spin);
    seen = s.epoch.load(std::memory_order_acquire);
    if (s.stop) return;
    Member member(this, index, size_);
    try {
      (*s.fn)(member);
    } catch (const RegionAborted&) {
    } catch (...) {
      s.record_error();
    }
    if (s.pending.fetch_sub(1, std::memory_order_acq_rel) == 1) s.pending.notify_one();
  }
}

void ThreadPool::Member::barrier() {
  if (pool_ == nullptr || count_ == 1) return;
  State& s = *pool_->state_;
  // The phase is read before the flag: whoever sees the phase raised by a failing member also sees
  // the flag.
  const uint32_t phase = s.phase.load(std::memory_order_acquire);
  if (s.aborted.load(std::memory_order_acquire)) throw RegionAborted{};
  if (s.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
    s.arrived.store(0, std::memory_order_relaxed);
    s.phase.fetch_add(1, std::memory_order_acq_rel);
    s.phase.notify_all();
  } else {
    wait_while(s.phase, phase, s.spin);
  }
  if (s.aborted.load(std::memory_order_acquire)) throw RegionAborted{};
}

void ThreadPool::run(FunctionRef<void(Member&)> fn) {
  if (size_ == 1 || region_depth > 0) return run_alone(fn);
  run_team(fn);
}

void ThreadPool::run_alone(FunctionRef<void(Member&)> fn) {
  Member alone(nullptr, 0, 1);
  fn(alone);
}

void ThreadPool::run_team(FunctionRef<void(Member&)> fn) {
  State& s = *state_;
  const std::lock_guard turn(s.turn);
  s.fn = &fn;
  s.arrived.store(0, std::memory_order_relaxed);
  s.aborted.store(false, std::memory_order_relaxed);
  const auto workers = static_cast<uint32_t>(size_ - 1);
  s.pending.store(workers, std::memory_order_relaxed);
  s.epoch.fetch_add(1, std::memory_order_acq_rel);
  s.epoch.notify_all();
  {
    const RegionScope scope;
    Member member(this, 0, size_);
    try {
      fn(member);
    } catch (const RegionAborted&) {
    } catch (...) {
      s.record_error();
    }
  }
  for (uint32_t left = s.pending.load(std::memory_order_acquire); left != 0;
       left = s.pending.load(std::memory_order_acquire))
    wait_while(s.pending, left, s.spin);
  s.fn = nullptr;
  if (s.error) {
    const std::exception_ptr error = std::move(s.error);
    s.error = nullptr;
    std::rethrow_exception(error);
  }
}

void ThreadPool::parallel_for(size_t count, FunctionRef<void(size_t)> fn, size_t grain) {
  if (count == 0) return;
  grain = std::max<size_t>(1, grain);
  if (count <= grain || size_ == 1 || region_depth > 0) {
    for (size_t i = 0; i < count; ++i) fn(i);
    return;
  }
  WorkCounter counter;
  run([&](Member&) {
    for (size_t i = counter.take(grain); i < count; i = counter.take(grain)) {
      try {
        for (size_t j = i; j < std::min(i + grain, count); ++j) fn(j);
      } catch (...) {
        counter.next.store(count, std::memory_order_relaxed);  // nobody starts another index
        throw;
      }
    }
  });
}

bool ThreadPool::inside_region() noexcept { return region_depth > 0; }

}  // namespace moebius
