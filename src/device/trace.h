// SPDX-License-Identifier: Apache-2.0
// Collects times of the operations of GPUs by name while it is switched on: one switch per
// process, for profiling.
#pragma once
#include <atomic>
#include <map>
#include <mutex>
#include <string>

namespace moebius {

struct DeviceTrace {
  std::atomic<bool> on{false};  // switch; change it between steps only
  std::mutex mutex;
  std::map<std::string, double> milliseconds;
};
DeviceTrace& device_trace();

}  // namespace moebius
