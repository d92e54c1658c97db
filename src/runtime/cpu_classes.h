// SPDX-License-Identifier: Apache-2.0
// Lists the classes of CPUs that kernels were written for, largest first. A larger CPU can act as a
// smaller one by leaving features out (MOEBIUS_CPU), so that one machine tests several classes.
#pragma once
#include <string_view>
#include <vector>

#include "runtime/cpu.h"

namespace moebius {

struct CpuClass {
  std::string_view name;
  std::string_view features;  // its features, as parse_cpu takes them
};

// Returns the smaller classes that `cpu` can act as, without its own.
std::vector<CpuClass> smaller_cpu_classes(const Cpu& cpu);

}  // namespace moebius
