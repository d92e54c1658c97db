// SPDX-License-Identifier: Apache-2.0
// Lists the classes of CPUs that kernels were written for, largest first. A larger CPU can act as a
// smaller one by leaving features out (MOEBIUS_CPU), so that one machine tests several classes.
#pragma once
#include <string_view>
#include <vector>

#include "runtime/cpu.h"

namespace moebius::test {

struct CpuClass {
  std::string_view name;
  std::string_view features;  // its features, as parse_cpu takes them
};

inline constexpr CpuClass kCpuClasses[] = {
    {"i8mm", "i8mm,bf16,fhm"}, {"dotprod", "dotprod,fp16"},
    {"neon", "neon"},          {"amx", "amx_int8,amx_bf16"},
    {"avx512", "avx512_vnni"}, {"avx512bw", "avx512bw"},
    {"avx_vnni", "avx_vnni"},  {"avx2", "avx2"},
    {"none", "x86_64"},
};

// Returns the smaller classes that `cpu` can act as, without its own.
inline std::vector<CpuClass> smaller_cpu_classes(const Cpu& cpu) {
  std::vector<CpuClass> out;
  for (const CpuClass& c : kCpuClasses) {
    const Cpu one = parse_cpu(c.features);
    if (one.arch == cpu.arch && cpu.has(one.features) && one.features != cpu.features)
      out.push_back(c);
  }
  return out;
}

}  // namespace moebius::test
