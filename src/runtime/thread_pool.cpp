// SPDX-License-Identifier: Apache-2.0
// Runs regions on the threads of a pool. Protocol of one region: the caller publishes the function
// and raises `epoch`; every worker of the team sees the new epoch, runs the function and lowers
// `pending`; the caller, having run its own share, waits for pending == 0. Barriers count arrivals
// in `arrived`; the last one resets the count and raises `phase`. Every wait spins for
// kSpinNanoseconds, yields once, then sleeps in the kernel (std::atomic::wait, whose notify is a
// load when nobody sleeps). With more threads than CPUs nobody spins: the thread that is waited for
// may need the CPU of the one that waits.
//
// Who is in the team is decided by the caller between two regions (roster.h). A worker that sits
// out finds role 0, says that it is parked, and sleeps on its role; it is called back only when it
// is parked, with the epoch from which it is to wait, so it can never run a region that did not
// count it.
#include "runtime/thread_pool.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "runtime/affinity.h"
#include "runtime/loss_meter.h"
#include "runtime/node_memory.h"
#include "runtime/openmp.h"
#include "runtime/roster.h"
#include "runtime/stay_awake.h"
#include "runtime/topology.h"

namespace moebius {
namespace {

// Time for which a member spins before it sleeps: longer than the gap between two layers of a
// decoding model, and short beside the slice for which a descheduled thread waits.
constexpr int64_t kSpinNanoseconds = 50'000;
constexpr int64_t kAwakeNanoseconds = 500'000;  // while another device works (stay_awake.h)
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
void wait_while(std::atomic<T>& value, T old, bool spin, LossMeter& meter) noexcept {
  const auto changed = [&] { return value.load(std::memory_order_acquire) != old; };
  if (changed()) return;
  int64_t now = now_ns();
  if (spin) {
    const int64_t begin = now;
    const auto awake = [&] {
      return now - begin < kSpinNanoseconds ||
             (now - begin < kAwakeNanoseconds && StayAwake::count() > 0);
    };
    for (; awake(); now = now_ns())
      for (int i = 0; i < 64; ++i) {
        if (changed()) return;
        cpu_relax();
      }
    std::this_thread::yield();
  }
  if (changed()) return;
  while (!changed()) value.wait(old, std::memory_order_acquire);
  meter.away(now_ns() - now);
}

void name_thread(size_t index) {
  const std::string name = fmt::format("moebius-{}", index);
  (void)pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
}
uint32_t process_number() { return static_cast<uint32_t>(getpid()); }

// Binds the calling thread to a CPU and puts it back. Holds nest; the outermost one restores the
// thread's mask.
class CallerBinding {
 public:
  void hold(int cpu) noexcept {
    ++depth_;
    if (cpu < 0 || cpu == cpu_) return;
    if (cpu_ < 0) before_ = AffinityMask::current();
    if (AffinityMask::of(cpu).apply()) cpu_ = cpu;
  }
  void leave() noexcept {
    if (--depth_ == 0) let_go();
  }
  void let_go() noexcept {
    if (cpu_ >= 0) (void)before_.apply();
    cpu_ = -1;
  }

 private:
  int depth_ = 0, cpu_ = -1;  // `cpu_` is -1 while the thread is not bound
  AffinityMask before_;
};

thread_local CallerBinding caller_place;

struct HoldScope {
  explicit HoldScope(int cpu) { caller_place.hold(cpu); }
  ~HoldScope() { caller_place.leave(); }
};

}  // namespace

size_t available_cpus() {
  const size_t n = AffinityMask::current().cpus().size();
  return n > 0 ? n : std::max<size_t>(1, std::thread::hardware_concurrency());
}

size_t default_thread_count() { return usable_topology().default_threads(); }

// Holds the pool's state of one member; seat 0 belongs to the calling thread, whichever that is.
struct alignas(64) ThreadPool::Seat {
  std::atomic<uint32_t> role{0};  // index in the team; 0 for a worker that sits out
  std::atomic<bool> parked{false};
  uint32_t resume = 0;  // epoch from which a worker that is called back waits
  int cpu = -1;         // -1: not bound
  size_t node = 0;
  double lost = -1;  // share of the last window that was lost; negative: no new value
  LossMeter meter;
};

struct ThreadPool::State {
  State(const CpuList& list, bool balanced)
      : places(list),
        roster(list.cpus, process_number()),
        balance(balanced),
        seats(list.cpus.size()),
        lost(list.cpus.size()) {}

  CpuList places;
  std::vector<int> nodes{0};  // the system's node numbers, by the pool's own numbers

  alignas(64) std::atomic<uint32_t> epoch{0};
  alignas(64) std::atomic<uint32_t> pending{0};
  alignas(64) std::atomic<uint32_t> arrived{0};
  alignas(64) std::atomic<uint32_t> phase{0};
  alignas(64) const FunctionRef<void(Member&)>* fn = nullptr;
  size_t team = 1;  // members of the current region
  std::atomic<bool> aborted{false};
  std::atomic<bool> stop{false};  // workers end; written before epoch is raised
  bool spin = true;
  bool pinned = false;
  // OpenMP runtime whose team runs the regions; null: the pool's own threads.
  const OpenMp* openmp = nullptr;

  std::mutex turn;  // serializes callers on different threads; guards what follows
  Roster roster;
  bool balance;        // whether members may sit out
  bool waits = false;  // a worker that is to come back has not parked yet
  std::vector<Seat> seats;
  std::vector<double> lost;
  std::thread::id caller;
  int64_t caller_left = 0;  // time at which the caller's last region ended

  std::mutex error_mutex;
  std::exception_ptr error;
  std::vector<std::thread> threads;

  void record_error() noexcept {
    {
      const std::lock_guard lock(error_mutex);
      if (!error) error = std::current_exception();
    }
    aborted.store(true, std::memory_order_release);
    phase.fetch_add(1, std::memory_order_acq_rel);  // releases members that wait at a barrier
    phase.notify_all();
  }
  void take_part(Member& member) noexcept {
    try {
      (*fn)(member);
    } catch (const RegionAborted&) {
    } catch (...) {
      record_error();
    }
  }
  void run_openmp(FunctionRef<void(Member&)> fn);
  void rethrow();
  void find_nodes();
  void sit_at(Seat& seat, int cpu) noexcept;
  void work(size_t index);
  void sit_out(Seat& seat) noexcept;
  void meet(int64_t now) noexcept;
  void assign_roles() noexcept;
  void start_caller_window(int64_t now) noexcept;
  void end_caller_window() noexcept;
};

bool ThreadPool::pinned() const noexcept { return state_->pinned; }
size_t ThreadPool::nodes() const noexcept { return state_->nodes.size(); }
NodeMemory* ThreadPool::node_memory() const noexcept {
  return nodes() > 1 ? state_->places.memory.get() : nullptr;
}
size_t ThreadPool::Member::node() const noexcept { return seat_ == nullptr ? 0 : seat_->node; }

void ThreadPool::State::find_nodes() {
  if (!pinned || places.nodes.empty()) return;
  const std::set<int> different(places.nodes.begin(), places.nodes.end());
  nodes.assign(different.begin(), different.end());
  if (nodes.size() > 1 && places.memory == nullptr) places.memory = system_node_memory(nodes);
}

// Gives a member a CPU, which may belong to another node.
void ThreadPool::State::sit_at(Seat& seat, int cpu) noexcept {
  seat.cpu = pinned ? cpu : -1;
  if (nodes.size() == 1) return;
  const auto at = std::find(places.cpus.begin(), places.cpus.end(), cpu) - places.cpus.begin();
  const int number = places.nodes[static_cast<size_t>(at)];
  seat.node = static_cast<size_t>(std::find(nodes.begin(), nodes.end(), number) - nodes.begin());
}

namespace {

size_t possible(size_t threads) {
  if (threads == 0 || threads > kMaxThreads)
    fail("a thread pool needs 1 to {} threads, not {}", kMaxThreads, threads);
  return threads;
}

}  // namespace

CpuList places_on(const Topology& topology, size_t threads) {
  CpuList list;
  list.cpus.assign(possible(threads), -1);
  Topology unlimited = topology;
  unlimited.quota = 0;  // other containers under a quota use the same first CPUs
  if (threads < unlimited.default_threads() || threads > topology.threads.size()) return list;
  for (size_t i = 0; i < threads; ++i) {
    list.cpus[i] = topology.threads[i].cpu;
    list.nodes.push_back(topology.threads[i].node);
  }
  return list;
}

ThreadPool::ThreadPool(size_t threads)
    : ThreadPool(places_on(usable_topology(), possible(threads))) {}

ThreadPool::ThreadPool(const CpuList& list) : size_(list.cpus.size()) {
  const std::vector<int>& cpus = list.cpus;
  const size_t threads = possible(size_);
  const std::set<int> different(cpus.begin(), cpus.end());
  if (cpus[0] >= 0 && (different.size() < threads || *different.begin() < 0))
    fail("a thread pool needs a CPU of its own for each of its {} threads", threads);
  if (!list.nodes.empty() && list.nodes.size() != threads)
    fail("a thread pool of {} threads was given {} nodes", threads, list.nodes.size());
  if (cpus[0] == kOpenMpPlace) {
    state_ = std::make_unique<State>(list, false);
    state_->openmp = OpenMp::loaded();
    if (state_->openmp == nullptr) fail("no OpenMP runtime is loaded in this process");
    return;
  }
  const bool share = cpus[0] >= 0 || threads <= available_cpus();
  state_ = std::make_unique<State>(list, share && threads > 1);
  State& s = *state_;
  s.spin = share;
  s.pinned = threads > 1 && cpus[0] >= 0;
  s.team = size_;
  s.find_nodes();
  s.threads.reserve(size_ - 1);
  for (size_t i = 0; i < size_; ++i) {
    s.sit_at(s.seats[i], cpus[i]);
    s.seats[i].role.store(static_cast<uint32_t>(i), std::memory_order_relaxed);
  }
  try {
    for (size_t i = 1; i < size_; ++i) s.threads.emplace_back([&s, i] { s.work(i); });
  } catch (const std::exception& e) {
    stop_workers();
    fail("cannot start thread {} of {}: {}", s.threads.size() + 2, threads, e.what());
  }
}

ThreadPool::~ThreadPool() { stop_workers(); }

void ThreadPool::stop_workers() noexcept {
  State& s = *state_;
  s.stop.store(true, std::memory_order_release);
  s.epoch.fetch_add(1, std::memory_order_acq_rel);
  s.epoch.notify_all();
  for (Seat& seat : s.seats) {  // wakes workers that sit out
    seat.role.store(1, std::memory_order_release);
    seat.role.notify_all();
  }
  for (std::thread& t : s.threads) t.join();
}

void ThreadPool::State::work(size_t index) {
  Seat& seat = seats[index];
  name_thread(index);
  (void)AffinityMask::of(seat.cpu).apply();  // best effort: a container may refuse to bind
  ++region_depth;                            // everything that a worker runs is inside a region
  seat.meter.restart(now_ns());
  uint32_t seen = 0;
  for (;;) {
    wait_while(epoch, seen, spin, seat.meter);
    seen = epoch.load(std::memory_order_acquire);
    if (stop.load(std::memory_order_acquire)) return;
    const uint32_t role = seat.role.load(std::memory_order_acquire);
    if (role == 0) {
      sit_out(seat);
      if (stop.load(std::memory_order_acquire)) return;
      seen = seat.resume;
      continue;
    }
    Member member(this, &seat, role, team);
    take_part(member);
    if (balance) seat.lost = seat.meter.close(now_ns());
    if (pending.fetch_sub(1, std::memory_order_acq_rel) == 1) pending.notify_one();
  }
}

void ThreadPool::State::sit_out(Seat& seat) noexcept {
  seat.parked.store(true, std::memory_order_release);
  while (seat.role.load(std::memory_order_acquire) == 0)
    seat.role.wait(0, std::memory_order_acquire);
  (void)AffinityMask::of(seat.cpu).apply();
  seat.meter.restart(now_ns());
}

// Collects the members' lost time and decides who takes part in the next region. Runs on the
// caller's thread between two regions.
void ThreadPool::State::meet(int64_t now) noexcept {
  bool news = waits || team < seats.size();
  for (size_t i = 0; i < seats.size(); ++i) {
    const bool present = i == 0 || seats[i].role.load(std::memory_order_relaxed) != 0;
    lost[i] = present ? std::exchange(seats[i].lost, -1) : -1;
    news |= lost[i] > 0;
  }
  if (news && (roster.update(static_cast<double>(now) * 1e-9, lost) || waits)) assign_roles();
}

void ThreadPool::State::assign_roles() noexcept {
  uint32_t next = 1;
  waits = false;
  for (size_t i = 1; i < seats.size(); ++i) {
    Seat& seat = seats[i];
    const bool away = seat.role.load(std::memory_order_relaxed) == 0;
    if (roster.sits_out(i)) {
      seat.role.store(0, std::memory_order_relaxed);
    } else if (away && !seat.parked.load(std::memory_order_acquire)) {
      waits = true;
    } else if (away) {
      seat.parked.store(false, std::memory_order_relaxed);
      seat.resume = epoch.load(std::memory_order_relaxed);
      sit_at(seat, roster.cpu(i));
      seat.lost = -1;
      seat.role.store(next++, std::memory_order_release);
      seat.role.notify_one();
    } else {
      seat.role.store(next++, std::memory_order_relaxed);
    }
  }
  sit_at(seats[0], roster.cpu(0));
  team = next;
  if (team > 1) return;
  // Wakes the workers: no region will, and one that has not noticed that it sits out cannot be
  // called back.
  epoch.fetch_add(1, std::memory_order_acq_rel);
  epoch.notify_all();
}

// Starts to count the caller's lost time anew; only its time in regions counts, not what it does
// between them.
void ThreadPool::State::start_caller_window(int64_t now) noexcept {
  const std::thread::id self = std::this_thread::get_id();
  constexpr int64_t kPause = 1'000'000;
  if (caller != self || now - caller_left > kPause) {
    caller = self;
    seats[0].meter.restart(now);
  } else {
    seats[0].meter.away(now - caller_left);
  }
}

void ThreadPool::State::end_caller_window() noexcept {
  caller_left = now_ns();
  seats[0].lost = seats[0].meter.close(caller_left);
}

void ThreadPool::Member::barrier() {
  if (state_ == nullptr || count_ == 1) return;
  State& s = *state_;
  // Reads the phase before the flag: a member that sees the phase raised by a failing one then sees
  // its flag, too.
  const uint32_t phase = s.phase.load(std::memory_order_acquire);
  if (s.aborted.load(std::memory_order_acquire)) throw RegionAborted{};
  if (s.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
    s.arrived.store(0, std::memory_order_relaxed);
    s.phase.fetch_add(1, std::memory_order_acq_rel);
    s.phase.notify_all();
  } else {
    wait_while(s.phase, phase, s.spin, seat_->meter);
  }
  if (s.aborted.load(std::memory_order_acquire)) throw RegionAborted{};
}

void ThreadPool::run(FunctionRef<void(Member&)> fn) {
  if (size_ == 1 || region_depth > 0) return run_alone(fn);
  run_team(fn);
}

void ThreadPool::run_alone(FunctionRef<void(Member&)> fn) {
  Member alone(nullptr, nullptr, 0, 1);
  fn(alone);
}

void ThreadPool::State::rethrow() {
  if (!error) return;
  const std::exception_ptr thrown = std::move(error);
  error = nullptr;
  std::rethrow_exception(thrown);
}

// Runs a region on an OpenMP team. The runtime may grant fewer members than asked; all granted ones
// take part, so they may meet at barriers.
void ThreadPool::State::run_openmp(FunctionRef<void(Member&)> function) {
  const std::lock_guard lock(turn);
  fn = &function;
  arrived.store(0, std::memory_order_relaxed);
  aborted.store(false, std::memory_order_relaxed);
  openmp->run(seats.size(), [&](size_t index, size_t count) {
    const RegionScope scope;
    Member member(this, &seats[index], index, count);
    take_part(member);
  });
  fn = nullptr;
  rethrow();
}

void ThreadPool::run_team(FunctionRef<void(Member&)> fn) {
  State& s = *state_;
  if (s.openmp != nullptr) return s.openmp->inside() ? run_alone(fn) : s.run_openmp(fn);
  const std::lock_guard turn(s.turn);
  const RegionScope scope;
  if (s.balance) {
    const int64_t now = now_ns();
    s.meet(now);
    if (s.team == 1) {
      caller_place.let_go();  // the system finds the freest core for the caller
      return run_alone(fn);
    }
    s.start_caller_window(now);
  }
  const HoldScope hold(s.seats[0].cpu);
  s.fn = &fn;
  s.arrived.store(0, std::memory_order_relaxed);
  s.aborted.store(false, std::memory_order_relaxed);
  s.pending.store(static_cast<uint32_t>(s.team - 1), std::memory_order_relaxed);
  s.epoch.fetch_add(1, std::memory_order_acq_rel);
  s.epoch.notify_all();
  Member member(&s, &s.seats[0], 0, s.team);
  s.take_part(member);
  for (uint32_t left = s.pending.load(std::memory_order_acquire); left != 0;
       left = s.pending.load(std::memory_order_acquire))
    wait_while(s.pending, left, s.spin, s.seats[0].meter);
  s.fn = nullptr;
  if (s.balance) s.end_caller_window();
  s.rethrow();
}

ThreadPool::Stay::Stay(ThreadPool& pool) {
  int cpu = -1;
  if (region_depth == 0) {
    const std::lock_guard turn(pool.state_->turn);
    cpu = pool.state_->seats[0].cpu;
  }
  caller_place.hold(cpu);
}

ThreadPool::Stay::~Stay() { caller_place.leave(); }

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
        counter.next.store(count, std::memory_order_relaxed);  // no other member starts an index
        throw;
      }
    }
  });
}

bool ThreadPool::inside_region() noexcept { return region_depth > 0; }

}  // namespace moebius
