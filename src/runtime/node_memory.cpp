// SPDX-License-Identifier: Apache-2.0
// Calls set_mempolicy by its number, because libnuma would be a dependency for one call. The policy
// belongs to the thread: threads can pack for different nodes at once, and areas are not split as
// mbind would split them (a process may have 65,530).
#include "runtime/node_memory.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <climits>

#include "base/checked.h"
#include "runtime/memory.h"

namespace moebius {
namespace {

constexpr int kPolicyDefault = 0, kPolicyPreferred = 1;  // values of linux/mempolicy.h
constexpr size_t kNodeWords = 16;                        // enough for 1024 nodes
constexpr size_t kWordBits = sizeof(unsigned long) * CHAR_BIT;

class SystemNodeMemory : public NodeMemory {
 public:
  explicit SystemNodeMemory(std::vector<int> nodes) : nodes_(std::move(nodes)) {}
  void begin(const void*, size_t, size_t node) noexcept override {
    std::array<unsigned long, kNodeWords> mask{};
    const auto number = node < nodes_.size() ? static_cast<size_t>(nodes_[node]) : SIZE_MAX;
    if (number >= kNodeWords * kWordBits) return;
    mask[number / kWordBits] = 1ul << (number % kWordBits);
    (void)syscall(SYS_set_mempolicy, kPolicyPreferred, mask.data(), kNodeWords * kWordBits);
  }
  void end() noexcept override { (void)syscall(SYS_set_mempolicy, kPolicyDefault, nullptr, 0); }
  void mixed(void* p, size_t bytes) noexcept override {
    const size_t page = page_bytes();
    const auto first = round_up(reinterpret_cast<uintptr_t>(p), page),
               last = (reinterpret_cast<uintptr_t>(p) + bytes) / page * page;
    if (first < last) (void)madvise(reinterpret_cast<void*>(first), last - first, MADV_NOHUGEPAGE);
  }

 private:
  std::vector<int> nodes_;
};

}  // namespace

std::unique_ptr<NodeMemory> system_node_memory(std::vector<int> nodes) {
  return std::make_unique<SystemNodeMemory>(std::move(nodes));
}

}  // namespace moebius
