// SPDX-License-Identifier: Apache-2.0
// The smaller classes of CPU, and that a run narrowed to one of them is narrow. ctest's narrow.CLASS
// sets MOEBIUS_CPU and MOEBIUS_TEST_CLASS; tests of every other run see the whole machine.
#include "unit/runtime/cpu_classes.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "unit/test_util.h"

namespace moebius::cpu_classes_test {
namespace {

std::string names_below(std::string_view features) {
  std::string out;
  for (const test::CpuClass& c : test::smaller_cpu_classes(parse_cpu(features)))
    out += (out.empty() ? "" : " ") + std::string(c.name);
  return out;
}

TEST(CpuClasses, OfACpuAreThoseItCanPlay) {
  EXPECT_EQ(names_below("i8mm,bf16,fhm,sve2"), "i8mm dotprod neon");
  EXPECT_EQ(names_below("i8mm,bf16,fhm"), "dotprod neon");
  EXPECT_EQ(names_below("i8mm,bf16"), "neon");  // class dotprod has fp16 too
  EXPECT_EQ(names_below("dotprod,fp16"), "neon");
  EXPECT_EQ(names_below("neon"), "");
  EXPECT_EQ(names_below("amx_int8,amx_bf16"), "avx512 avx512bw avx_vnni avx2 none");
  EXPECT_EQ(names_below("avx512_vnni,avx512_vbmi"), "avx512 avx512bw avx2 none");
  EXPECT_EQ(names_below("avx512_vnni"), "avx512bw avx2 none");
  EXPECT_EQ(names_below("avx512bw"), "avx2 none");
  EXPECT_EQ(names_below("avx2"), "none");
  EXPECT_EQ(names_below("x86_64"), "");
  EXPECT_EQ(names_below("reference"), "");
}

// What a variable of the environment says; "" where it is not set.
std::string setting(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

TEST(CpuClasses, ThisRunIsOfTheClassItWasAskedFor) {
  const Cpu whole = detect_cpu();
  const std::string asked = setting("MOEBIUS_TEST_CLASS"), list = setting("MOEBIUS_CPU");
  if (asked.empty()) {
    const Cpu expected = list.empty() ? whole : parse_cpu(list);
    EXPECT_EQ(host_cpu().features, whole.features & expected.features);
    return;
  }
  const test::CpuClass* taken = nullptr;
  const std::vector<test::CpuClass> smaller = test::smaller_cpu_classes(whole);
  for (const test::CpuClass& c : smaller)
    if (c.name == asked) taken = &c;
  ASSERT_NE(taken, nullptr) << asked << " is no smaller class of " << describe(whole);
  EXPECT_EQ(host_cpu().features, parse_cpu(taken->features).features);
  EXPECT_NE(host_cpu().features, whole.features);
  // The programs that tests start are narrow too.
  const test::CommandResult tool = test::run_tool("explain");
  EXPECT_EQ(tool.status, 0);
  EXPECT_TRUE(tool.out.starts_with("for " + describe(host_cpu()) + "\n")) << tool.out;
}

}  // namespace
}  // namespace moebius::cpu_classes_test
