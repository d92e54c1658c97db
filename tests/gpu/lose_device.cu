// SPDX-License-Identifier: Apache-2.0
// Loaded into a process before it begins (LD_PRELOAD): as soon as the file MOEBIUS_LOSE_DEVICE exists, a kernel writes where nothing is,
// so that the process loses its GPU for good as after a real fault. For tests/gpu/lost_device.py.
#include <cuda_runtime.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

namespace {

__global__ void write_nowhere(int* where) { *where = 1; }

struct Watch {
  Watch() {
    const char* file = std::getenv("MOEBIUS_LOSE_DEVICE");
    if (file == nullptr) return;
    std::thread([file] {
      while (access(file, F_OK) != 0) usleep(1000);
      write_nowhere<<<1, 1>>>(reinterpret_cast<int*>(8));
      cudaDeviceSynchronize();
    }).detach();
  }
} watch;

}  // namespace
