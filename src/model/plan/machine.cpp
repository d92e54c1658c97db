// SPDX-License-Identifier: Apache-2.0
#include "model/plan/machine.h"

#include <fmt/core.h>

#include "device/device_options.h"
#include "runtime/host_name.h"

namespace moebius {

Machine this_machine(const GpuSettings& gpu) {
  Machine m{host_name(), memory_limits(), {}};
  if (gpu.module == nullptr) return m;
  const uint64_t free = free_gpu_bytes(*gpu.module);
  m.gpu = Gpu{target_of(*gpu.module), free > kReservedBytes ? free - kReservedBytes : 0};
  return m;
}

Cluster this_process(const GpuSettings& gpu, size_t ranks) {
  return {std::vector<Machine>(ranks, this_machine(gpu)), ranks > 1};
}

std::string describe(const LinkFacts& link) {
  return fmt::format("{:.3f}G,{:.3f}us", 8e-9 * link.rate, 1e6 * link.latency);
}

}  // namespace moebius
