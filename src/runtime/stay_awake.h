// SPDX-License-Identifier: Apache-2.0
// While an object lives, idle pool threads spin longer before they sleep: their caller waits for
// another device and will have work sooner than a thread can be woken.
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
