// SPDX-License-Identifier: Apache-2.0
// The test program's main. Besides GoogleTest's own options it understands
//   --only-file=TIER/NAME_test.cpp   run exactly the tests defined in that source file
//   --only-tier=TIER                 run the tests of all files in tests/TIER
//   --list-lacking                   print the kernels of this architecture that this CPU cannot run, and run nothing
// which is how ctest gets one entry per file from one program. Selecting no test is a failure.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "kernels/list.h"
#include "kernels/oracle.h"
#include "runtime/cpu.h"

namespace {

void list_lacking_kernels() {
  const moebius::Cpu cpu = moebius::host_cpu();
  for (const moebius::Kernel* k : moebius::kernel_list())
    if (k->arch == cpu.arch && !cpu.has(k->needs))
      std::printf("%s\n", moebius::title_of(*k).c_str());
}

// `part` is "/TIER/NAME_test.cpp" or "/tests/TIER/".
bool defined_in(const testing::TestInfo& test, std::string_view part) {
  return std::string_view(test.file()).find(part) != std::string_view::npos;
}

// A filter of suites where a suite lies in one file (the rule), of single tests otherwise.
std::string filter_for(std::string_view part) {
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  std::string filter;
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *all.GetTestSuite(s);
    int inside = 0;
    std::string singles;
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const testing::TestInfo& test = *suite.GetTestInfo(t);
      if (!defined_in(test, part)) continue;
      ++inside;
      singles += std::string(suite.name()) + "." + test.name() + ":";
    }
    if (inside == 0) continue;
    filter += inside == suite.total_test_count() ? std::string(suite.name()) + ".*:" : singles;
  }
  return filter;
}

}  // namespace

int main(int argc, char** argv) {
  // The tests of a smaller CPU than this one: MOEBIUS_CPU=neon,dotprod moebius_tests
  if (const char* cpu = std::getenv("MOEBIUS_CPU"); cpu != nullptr && *cpu != '\0')
    moebius::narrow_host_cpu(cpu);
  testing::InitGoogleTest(&argc, argv);
  constexpr std::string_view kOnlyFile = "--only-file=";
  constexpr std::string_view kOnlyTier = "--only-tier=";
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    std::string part;
    if (arg == "--list-lacking") {
      list_lacking_kernels();
      return 0;
    }
    if (arg.starts_with(kOnlyFile)) {
      part = "/" + std::string(arg.substr(kOnlyFile.size()));
    } else if (arg.starts_with(kOnlyTier)) {
      part = "/tests/" + std::string(arg.substr(kOnlyTier.size())) + "/";
    } else {
      std::fprintf(stderr, "unknown argument: %s\n", argv[i]);
      return 2;
    }
    const std::string filter = filter_for(part);
    if (filter.empty()) {
      std::fprintf(stderr, "no test is defined in %s\n", part.c_str());
      return 2;
    }
    testing::GTEST_FLAG(filter) = filter;
  }
  return RUN_ALL_TESTS();
}
