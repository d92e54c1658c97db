// SPDX-License-Identifier: Apache-2.0
// On which CPUs a thread may run. Nothing here allocates but cpus(), so that a region can pin its
// caller and put it back.
#pragma once
#include <array>
#include <cstddef>
#include <vector>

namespace moebius {

class AffinityMask {
 public:
  AffinityMask() = default;                  // unknown: applying it does nothing
  static AffinityMask current() noexcept;    // of the calling thread
  static AffinityMask of(int cpu) noexcept;  // that CPU alone
  static AffinityMask of(
      const std::vector<int>& cpus) noexcept;  // these; unknown ones are left out
  static AffinityMask all() noexcept;  // every CPU there may be; the system takes what it grants
  bool apply() const noexcept;         // to the calling thread; false when unknown or refused
  std::vector<int> cpus() const;       // ascending; {} when unknown

 private:
  static constexpr size_t kBytes =
      1024;  // 8192 CPUs; a shorter mask would be refused by some kernels
  alignas(8) std::array<unsigned char, kBytes> bits_{};
  size_t bytes_ = 0;  // as the kernel has it
};

// The calling thread gives way to all others; does nothing where the system has no such thing.
void lower_thread_priority() noexcept;

}  // namespace moebius
