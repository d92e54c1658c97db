// SPDX-License-Identifier: Apache-2.0
// While one lives, threads of pools that have nothing to do stay awake longer: their caller waits for another device, and will be back
// with work sooner than a thread wakes up.
#pragma once
#include <atomic>

namespace moebius {

class StayAwake {
 public:
  StayAwake() { ++count(); }
  ~StayAwake() { --count(); }
  StayAwake(const StayAwake&) = delete;
  StayAwake& operator=(const StayAwake&) = delete;
  static std::atomic<int>& count() {
    static std::atomic<int> n{0};
    return n;
  }
};

}  // namespace moebius
