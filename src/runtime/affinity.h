// SPDX-License-Identifier: Apache-2.0
// Reads and sets the CPUs on which a thread may run. Only cpus() allocates, so that a region can
// pin its caller and restore it.
#pragma once
#include <array>
#include <cstddef>
#include <vector>

namespace moebius {

class AffinityMask {
 public:
  AffinityMask() = default;                  // an unknown mask, whose apply() does nothing
  static AffinityMask current() noexcept;    // mask of the calling thread
  static AffinityMask of(int cpu) noexcept;  // mask of that CPU alone
  // Returns a mask of these CPUs; numbers that the machine does not have are ignored.
  static AffinityMask of(const std::vector<int>& cpus) noexcept;
  static AffinityMask all() noexcept;  // every possible CPU; the system grants what it allows
  // Sets the calling thread's mask; returns false if the mask is unknown or the system refuses.
  bool apply() const noexcept;
  std::vector<int> cpus() const;  // ascending; {} if the mask is unknown

 private:
  static constexpr size_t kBytes = 1024;  // room for 8192 CPUs; some systems refuse a shorter mask
  alignas(8) std::array<unsigned char, kBytes> bits_{};
  size_t bytes_ = 0;  // size of the mask as the kernel reported it
};

// Gives the calling thread the lowest scheduling priority; no effect where the system has none.
void lower_thread_priority() noexcept;

}  // namespace moebius
