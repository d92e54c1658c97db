// SPDX-License-Identifier: Apache-2.0
// The test program's main. Besides GoogleTest's own options it understands
//   --only-file=TIER/.../NAME_test.cpp   run exactly the tests defined in that source file
//   --only-tier=TIER                 run the tests of all files in tests/TIER
//   --only-list=FILE                 run the tests that FILE names: one GoogleTest pattern a line, # for comments
//   --replay=NAME PATH...            run fuzz target NAME over files and the files of folders
//   --list-classes                   print "NAME FEATURES" of each smaller class of CPU that this one can play
//   --list-lacking                   print the kernels of this architecture that this CPU cannot run, and run nothing
// which is how ctest gets one entry per file from one program. Selecting no test is a failure, and so is a line of
// a list that names none.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

#include "fuzz/replay.h"
#include "kernels/list.h"
#include "kernels/oracle.h"
#include "runtime/cpu.h"
#include "unit/runtime/cpu_classes.h"

namespace {

void list_lacking_kernels() {
  const moebius::Cpu cpu = moebius::host_cpu();
  for (const moebius::Kernel* k : moebius::kernel_list())
    if (k->arch == cpu.arch && !cpu.has(k->needs))
      std::printf("%s\n", moebius::title_of(*k).c_str());
}

void list_smaller_classes() {
  for (const moebius::test::CpuClass& c : moebius::test::smaller_cpu_classes(moebius::detect_cpu()))
    std::printf("%.*s %.*s\n", static_cast<int>(c.name.size()), c.name.data(),
                static_cast<int>(c.features.size()), c.features.data());
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

bool matches(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] != '*')
    return !name.empty() && pattern[0] == name[0] && matches(pattern.substr(1), name.substr(1));
  for (size_t i = 0; i <= name.size(); ++i)
    if (matches(pattern.substr(1), name.substr(i))) return true;
  return false;
}

bool names_a_test(std::string_view pattern) {
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t)
      if (matches(pattern, std::string(suite.name()) + "." + suite.GetTestInfo(t)->name()))
        return true;
  }
  return false;
}

// Empty, after a message, when the list is empty or a line of it names no test.
std::string filter_of_list(const std::string& path) {
  std::ifstream in(path);
  std::string filter, line;
  while (std::getline(in, line)) {
    line = line.substr(0, line.find_first_of(" #"));
    if (line.empty()) continue;
    if (!names_a_test(line)) {
      std::fprintf(stderr, "%s: %s names no test\n", path.c_str(), line.c_str());
      return "";
    }
    filter += line + ":";
  }
  if (filter.empty()) std::fprintf(stderr, "%s has no line\n", path.c_str());
  return filter;
}

}  // namespace

int main(int argc, char** argv) {
  // The tests of a smaller CPU than this one: MOEBIUS_CPU=neon,dotprod moebius_tests
  if (const char* cpu = std::getenv("MOEBIUS_CPU"); cpu != nullptr && *cpu != '\0')
    moebius::narrow_host_cpu(cpu);
  testing::InitGoogleTest(&argc, argv);
  constexpr std::string_view kOnlyFile = "--only-file=", kOnlyTier = "--only-tier=",
                             kOnlyList = "--only-list=", kReplay = "--replay=";
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg == "--list-lacking") {
      list_lacking_kernels();
      return 0;
    }
    if (arg == "--list-classes") {
      list_smaller_classes();
      return 0;
    }
    if (arg.starts_with(kReplay))
      return moebius::test::replay(arg.substr(kReplay.size()), {argv + i + 1, argv + argc});
    std::string filter;
    if (arg.starts_with(kOnlyFile)) {
      filter = filter_for("/" + std::string(arg.substr(kOnlyFile.size())));
    } else if (arg.starts_with(kOnlyTier)) {
      filter = filter_for("/tests/" + std::string(arg.substr(kOnlyTier.size())) + "/");
    } else if (arg.starts_with(kOnlyList)) {
      filter = filter_of_list(std::string(arg.substr(kOnlyList.size())));
    } else {
      std::fprintf(stderr, "unknown argument: %s\n", argv[i]);
      return 2;
    }
    if (filter.empty()) {
      std::fprintf(stderr, "%s selects no test\n", argv[i]);
      return 2;
    }
    testing::GTEST_FLAG(filter) = filter;
  }
  return RUN_ALL_TESTS();
}
