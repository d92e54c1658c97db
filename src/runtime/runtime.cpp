// SPDX-License-Identifier: Apache-2.0
#include "runtime/runtime.h"

#include <fmt/format.h>

#include <pthread.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <new>
#include <set>

namespace moebius {
namespace {

struct SharedRuntimes {
  std::mutex mutex;
  std::map<size_t, std::weak_ptr<Runtime>> by_threads;
  pid_t process = ::getpid();  // after fork() the pool's threads do not exist in the child
};
SharedRuntimes& shared_runtimes() {
  // Never destroyed: layers may outlive static objects. A child of fork() gets a new lock, because
  // a thread that it does not have may hold the old one.
  static auto* all = [] {
    pthread_atfork(nullptr, nullptr, [] { new (&shared_runtimes().mutex) std::mutex; });
    return new SharedRuntimes;
  }();
  return *all;
}

std::string range_of(int first, int last) {
  return first == last ? std::to_string(first) : fmt::format("{}-{}", first, last);
}

CpuList with_memory(CpuList list, std::shared_ptr<NodeMemory> memory) {
  list.memory = std::move(memory);
  return list;
}

}  // namespace

ThreadChoice choose_threads(const Topology& topology, size_t asked) {
  if (asked > 0) return {asked, "as asked for"};
  Topology unlimited = topology;
  unlimited.quota = 0;
  const size_t wanted = unlimited.default_threads(), threads = topology.default_threads();
  if (threads < wanted)
    return {threads, fmt::format("the control group grants {:.3g} of {} cores", topology.quota,
                                 topology.cores())};
  if (wanted < topology.cores())
    return {threads, "one per big core; the efficient ones add no bandwidth"};
  return {threads, "one per core"};
}

std::string usable_cpus(const Topology& topology) {
  std::set<int> cpus;
  for (const HardwareThread& t : topology.threads) cpus.insert(t.cpu);
  std::string out;
  for (auto it = cpus.begin(); it != cpus.end();) {
    const int first = *it;
    int last = first;
    for (++it; it != cpus.end() && *it == last + 1; ++it) ++last;
    out += (out.empty() ? "" : ",") + range_of(first, last);
  }
  return out;
}

Runtime::Runtime(size_t threads) : Runtime(usable_topology(), threads, nullptr) {}

Runtime::Runtime(const Topology& topology, size_t threads, std::shared_ptr<NodeMemory> memory)
    : topology_(topology),
      choice_(choose_threads(topology_, threads)),
      pool_(with_memory(places_on(topology_, choice_.threads), std::move(memory))) {}

Runtime::Runtime(const CpuList& places)
    : topology_(usable_topology()), choice_{places.cpus.size(), "as asked for"}, pool_(places) {}

std::shared_ptr<Runtime> Runtime::shared(size_t threads) {
  if (threads == 0) threads = choose_threads(usable_topology(), 0).threads;
  SharedRuntimes& all = shared_runtimes();
  const std::lock_guard lock(all.mutex);
  if (all.process != ::getpid()) {
    all.by_threads.clear();
    all.process = ::getpid();
  }
  std::weak_ptr<Runtime>& held = all.by_threads[threads];
  std::shared_ptr<Runtime> runtime = held.lock();
  if (runtime == nullptr) held = runtime = std::make_shared<Runtime>(threads);
  return runtime;
}

}  // namespace moebius
