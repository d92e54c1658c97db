// SPDX-License-Identifier: Apache-2.0
// Times of the operations of CUDA devices by their names, while somebody asks for them: a switch of the process, as a profiler is.
#pragma once
#include <atomic>
#include <map>
#include <mutex>
#include <string>

namespace moebius {

struct CudaTrace {
  std::atomic<bool> on{false};  // changes between steps
  std::mutex mutex;
  std::map<std::string, double> milliseconds;
};
CudaTrace& cuda_trace();

}  // namespace moebius
