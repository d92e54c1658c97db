// SPDX-License-Identifier: Apache-2.0
// Counts what a thread asks of operator new, which the test program replaces
// (not under sanitizers, where it stays 0), and lets one of them fail.
#pragma once
#include <cstddef>

namespace moebius::test {

size_t allocations();  // of the calling thread so far

bool allocations_can_fail();  // not under sanitizers

// While it lives, the n-th allocation from now on, by any thread, fails.
class FailAllocation {
 public:
  explicit FailAllocation(long n);
  ~FailAllocation();
  FailAllocation(const FailAllocation&) = delete;
  FailAllocation& operator=(const FailAllocation&) = delete;
};
long allocations_left();     // until it fails; negative afterwards
void allocations_succeed();  // from now on; what is left stays

// While it lives, none fails and none counts.
class NoAllocationFails {
 public:
  NoAllocationFails();
  ~NoAllocationFails();
  NoAllocationFails(const NoAllocationFails&) = delete;
  NoAllocationFails& operator=(const NoAllocationFails&) = delete;

 private:
  bool before_;
};

}  // namespace moebius::test
