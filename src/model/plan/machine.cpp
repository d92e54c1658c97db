// SPDX-License-Identifier: Apache-2.0
#include "model/plan/machine.h"

#include <fmt/core.h>

#include "base/error.h"
#include "device/cuda/cuda_device.h"
#include "runtime/host_name.h"

namespace moebius {

Machine this_machine(const CudaSettings& cuda) {
  Machine m{host_name(), memory_limits(), {}};
  if (cuda.module == nullptr) return m;
  uint64_t free = 0;
  check_cuda(*cuda.module->api, cuda.module->api->free_bytes(&free), "memory of the device");
  m.gpu = Gpu{cuda_target(cuda.module->facts), free > kReservedBytes ? free - kReservedBytes : 0};
  return m;
}

Cluster this_process(const CudaSettings& cuda, size_t ranks) {
  return {std::vector<Machine>(ranks, this_machine(cuda)), ranks > 1};
}

void CostCurve::add(double rows, double seconds_per_weight) {
  if (count == kMost || (count > 0 && rows <= points[count - 1].rows))
    fail("a cost of {} rows behind {} others", rows, count);
  // More rows cannot be cheaper: such a measurement was disturbed.
  const double least = count > 0 ? points[count - 1].seconds : 0;
  points[count++] = {rows, std::max(seconds_per_weight, least)};
}

double CostCurve::seconds(double weights, double rows) const {
  if (rows <= 0 || count == 0) return 0;
  const Point& last = points[count - 1];
  if (rows >= last.rows) return weights * last.seconds * rows / last.rows;
  size_t i = 0;
  while (points[i].rows < rows) ++i;
  if (i == 0) return weights * points[0].seconds;
  const Point &a = points[i - 1], &b = points[i];
  return weights * (a.seconds + (b.seconds - a.seconds) * (rows - a.rows) / (b.rows - a.rows));
}

std::string describe(const LinkFacts& link) {
  return fmt::format("{:.3f}G,{:.3f}us", 8e-9 * link.rate, 1e6 * link.latency);
}

}  // namespace moebius
