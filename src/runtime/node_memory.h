// SPDX-License-Identifier: Apache-2.0
// On which NUMA node memory lies. A page belongs to the node that its first writer names, so
// whoever packs weights says before it writes: [p, p + bytes) is read by the threads of that node.
// Where there is one node nobody asks (ThreadPool::node_memory is null). A test puts an object of its
// own in the pool and sees what was said.
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

namespace moebius {

class NodeMemory {
 public:
  virtual ~NodeMemory() = default;
  // The calling thread writes [p, p + bytes) next, which shall lie on a node; nodes are counted from
  // 0. Best effort: the system may have no page there.
  virtual void begin(const void* p, size_t bytes, size_t node) noexcept = 0;
  virtual void end() noexcept = 0;  // the calling thread's pages come from where it runs again
  // Neighbouring bytes of [p, p + bytes) are for different nodes: no page may be larger than it
  // needs to be. Before anything is written.
  virtual void mixed(void* p, size_t bytes) noexcept = 0;
};

// By the system's memory policy; `nodes` are its numbers for the nodes that callers count from 0.
std::unique_ptr<NodeMemory> system_node_memory(std::vector<int> nodes);

}  // namespace moebius
