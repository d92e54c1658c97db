// SPDX-License-Identifier: Apache-2.0
// The test program's main. Besides GoogleTest's own options it understands
//   --only-file=TIER/NAME_test.cpp   run exactly the tests defined in that source file
// which is how ctest gets one entry per file from one program. A file without tests is a failure.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <string_view>

namespace {

bool defined_in(const testing::TestInfo& test, std::string_view file) {
  const std::string_view path = test.file();
  return path.size() > file.size() && path.ends_with(file) &&
         path[path.size() - file.size() - 1] == '/';
}

// A filter of suites where a suite lies in one file (the rule), of single tests otherwise.
std::string filter_for(std::string_view file) {
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  std::string filter;
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *all.GetTestSuite(s);
    int inside = 0;
    std::string singles;
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const testing::TestInfo& test = *suite.GetTestInfo(t);
      if (!defined_in(test, file)) continue;
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
  testing::InitGoogleTest(&argc, argv);
  constexpr std::string_view kOnlyFile = "--only-file=";
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (!arg.starts_with(kOnlyFile)) {
      std::fprintf(stderr, "unknown argument: %s\n", argv[i]);
      return 2;
    }
    const std::string filter = filter_for(arg.substr(kOnlyFile.size()));
    if (filter.empty()) {
      std::fprintf(stderr, "no test is defined in %s\n", argv[i] + kOnlyFile.size());
      return 2;
    }
    testing::GTEST_FLAG(filter) = filter;
  }
  return RUN_ALL_TESTS();
}
