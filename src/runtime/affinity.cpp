// SPDX-License-Identifier: Apache-2.0
// Reads and sets affinity masks by the system call and not the C library's function, because only
// the call returns how long the kernel's mask is.
#include "runtime/affinity.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace moebius {

AffinityMask AffinityMask::current() noexcept {
  AffinityMask mask;
  const long bytes = syscall(SYS_sched_getaffinity, 0, kBytes, mask.bits_.data());
  mask.bytes_ = bytes > 0 ? static_cast<size_t>(bytes) : 0;
  return mask;
}

AffinityMask AffinityMask::of(int cpu) noexcept {
  AffinityMask mask;
  if (cpu < 0 || static_cast<size_t>(cpu) >= kBytes * 8) return mask;
  const auto c = static_cast<size_t>(cpu);
  // Bit c of the kernel's array of words; on a little-endian machine it lies in byte c / 8.
  mask.bits_[c / 8] = static_cast<unsigned char>(1u << (c % 8));
  mask.bytes_ = (c / 64 + 1) * 8;
  return mask;
}

AffinityMask AffinityMask::of(const std::vector<int>& cpus) noexcept {
  AffinityMask mask;
  for (const int cpu : cpus) {
    const AffinityMask one = of(cpu);
    for (size_t i = 0; i < one.bytes_; ++i)
      mask.bits_[i] = static_cast<unsigned char>(mask.bits_[i] | one.bits_[i]);
    if (one.bytes_ > mask.bytes_) mask.bytes_ = one.bytes_;
  }
  return mask;
}

AffinityMask AffinityMask::all() noexcept {
  AffinityMask mask;
  mask.bits_.fill(0xff);
  mask.bytes_ = kBytes;
  return mask;
}

bool AffinityMask::apply() const noexcept {
  return bytes_ > 0 && syscall(SYS_sched_setaffinity, 0, bytes_, bits_.data()) == 0;
}

std::vector<int> AffinityMask::cpus() const {
  std::vector<int> out;
  for (size_t c = 0; c < bytes_ * 8; ++c)
    if ((bits_[c / 8] >> (c % 8) & 1u) != 0) out.push_back(static_cast<int>(c));
  return out;
}

void lower_thread_priority() noexcept {
  constexpr int kLowest = 19;
  const auto thread = static_cast<id_t>(syscall(SYS_gettid));  // Linux has priorities per thread
  (void)setpriority(PRIO_PROCESS, thread, kLowest);
}

}  // namespace moebius
