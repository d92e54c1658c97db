// SPDX-License-Identifier: Apache-2.0
// Places memory on NUMA nodes. A page belongs to the node that its first writer names, so code that
// packs weights announces before writing which node's threads will read [p, p + bytes).
// ThreadPool::node_memory is null on machines with one node. Tests replace this object and check
// the announcements.
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

namespace moebius {

class NodeMemory {
 public:
  virtual ~NodeMemory() = default;
  // Announces that the calling thread writes [p, p + bytes) next and that the pages shall be on
  // `node`, counted from 0. Best effort.
  virtual void begin(const void* p, size_t bytes, size_t node) noexcept = 0;
  // Ends begin(): the calling thread's pages are placed where it runs again.
  virtual void end() noexcept = 0;
  // Announces, before anything is written, that neighbouring bytes of [p, p + bytes) belong to
  // different nodes, so that no huge pages are used.
  virtual void mixed(void* p, size_t bytes) noexcept = 0;
};

// Returns an implementation by the system's memory policy; `nodes` maps node numbers from 0 to the
// system's.
std::unique_ptr<NodeMemory> system_node_memory(std::vector<int> nodes);

}  // namespace moebius
