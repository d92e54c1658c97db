// SPDX-License-Identifier: Apache-2.0
// The classes of CPUs that kernels were written for, largest first. A larger CPU plays a smaller
// one by leaving features out (MOEBIUS_CPU), which is how one machine tests several.
#pragma once
#include <string_view>
#include <vector>

#include "runtime/cpu.h"

namespace moebius {

struct CpuClass {
  std::string_view name;
  std::string_view features;  // a list for parse_cpu
};

// The classes that `cpu` can play; never its own.
std::vector<CpuClass> smaller_cpu_classes(const Cpu& cpu);

}  // namespace moebius
