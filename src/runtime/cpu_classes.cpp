// SPDX-License-Identifier: Apache-2.0
#include "runtime/cpu_classes.h"

namespace moebius {
namespace {

constexpr CpuClass kCpuClasses[] = {
    {"i8mm", "i8mm,bf16,fhm"}, {"dotprod", "dotprod,fp16"},
    {"neon", "neon"},          {"amx", "amx_int8,amx_bf16"},
    {"avx512", "avx512_vnni"}, {"avx_vnni", "avx_vnni"},
    {"avx2", "avx2"},          {"none", "x86_64"},
};

}  // namespace

std::vector<CpuClass> smaller_cpu_classes(const Cpu& cpu) {
  std::vector<CpuClass> out;
  for (const CpuClass& c : kCpuClasses) {
    const Cpu one = parse_cpu(c.features);
    if (one.arch == cpu.arch && cpu.has(one.features) && one.features != cpu.features)
      out.push_back(c);
  }
  return out;
}

}  // namespace moebius
