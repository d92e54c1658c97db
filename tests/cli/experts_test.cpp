// SPDX-License-Identifier: Apache-2.0
// A run's routing recorded and replayed, and reads of a disk: what the commands print, and what they
// refuse.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <sstream>

#include "base/json.h"
#include "unit/test_util.h"

namespace moebius::test::experts_test {
namespace {

std::string quoted_path(const std::filesystem::path& path) { return shell_quote(path.string()); }

std::vector<Json> lines_of(const std::string& text) {
  std::vector<Json> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(parse_json(line, "bench"));
  return lines;
}

TEST(RouteTrace, IsRecordedAndReplayed) {
  const TempDir dir;
  const std::string trace = quoted_path(dir / "routes");
  const std::string run = "run --tokens 1,5,2,9 -n 40 --temp 1 --seed 3 --threads 1 --quiet";
  const CommandResult plain = run_tool(run);
  const CommandResult traced = run_tool(run + " --route-trace " + trace);
  ASSERT_EQ(traced.status, 0) << traced.err;
  EXPECT_EQ(traced.out, plain.out);
  const std::string bench = "bench experts --trace " + trace + " --json --gib ";
  // Room for so much that every expert is missed once.
  CommandResult r = run_tool(bench + "1");
  ASSERT_EQ(r.status, 0) << r.err;
  std::vector<Json> lines = lines_of(r.out);
  ASSERT_EQ(lines.size(), 4u);
  const double most = lines[0].find("hits")->as_double();
  EXPECT_GT(most, 0);
  for (const Json& j : lines) {
    EXPECT_EQ(j.find("hits")->as_double(), most);
    EXPECT_EQ(j.find("share")->as_double(), 1);
    EXPECT_GE(j.find("tokens")->as_int().value_or(0), 43);  // drafts that were rejected count, too
  }
  // A fraction of that: the optimum is not beaten.
  r = run_tool(bench + "0.002,0.004");
  ASSERT_EQ(r.status, 0) << r.err;
  std::map<std::pair<double, std::string>, double> hits;
  for (const Json& j : lines_of(r.out))
    hits[{j.find("gib")->as_double(), j.find("policy")->as_string()}] = j.find("hits")->as_double();
  EXPECT_EQ(hits.size(), 8u);
  for (const auto& [of, share] : hits) EXPECT_LE(share, hits.at({of.first, "optimum"}));
  EXPECT_LE(hits.at({0.002, "optimum"}), hits.at({0.004, "optimum"}));
  // Refusals in words.
  for (const char* gib : {"0", "-1", "nan", "1,x"}) EXPECT_EQ(run_tool(bench + gib).status, 2);
  r = run_tool(bench + "1e-9");
  EXPECT_EQ(r.status, 1);
  EXPECT_NE(r.err.find("room for 0 experts"), std::string::npos) << r.err;
  r = run_tool("bench experts " + quoted_path(test_data_dir() / "golden" / "afmoe-w4a16-g32") +
               " --gib 1 --trace " + trace);
  EXPECT_EQ(r.status, 1);
  EXPECT_NE(r.err.find("is of a model with"), std::string::npos) << r.err;
  EXPECT_EQ(run_tool(run + " --ranks 2 --route-trace " + trace).status, 2);
}

TEST(BenchDisk, ReadsAtEveryDepth) {
  const TempDir dir;
  write_file(dir / "file", std::string(1 << 20, 'x'));
  const std::string bench = "bench disk " + quoted_path(dir / "file") + " --seconds 0 --json";
  CommandResult r = run_tool(bench + " --bytes 65536 --depths 1,4");
  ASSERT_EQ(r.status, 0) << r.err;
  size_t buffered = 0;
  for (const Json& j : lines_of(r.out)) {
    buffered += !j.find("direct")->as_bool();
    EXPECT_EQ(j.find("bytes")->as_int().value_or(0), 65536);
    EXPECT_GT(j.find("gbs")->as_double(), 0);
    EXPECT_GE(j.find("cpu_s_per_gb")->as_double(), 0);
  }
  EXPECT_EQ(buffered, 2u);
  r = run_tool(bench);
  EXPECT_EQ(r.status, 1);
  EXPECT_NE(r.err.find("has 1048576 bytes; expected at least"), std::string::npos) << r.err;
  EXPECT_EQ(run_tool("bench disk " + quoted_path(dir.path())).status, 1);
  EXPECT_EQ(run_tool("bench disk").status, 2);
}

TEST(BenchDisk, SaysWhereDirectReadsAreRefused) {
  // Files in memory have no disk to read from directly; old kernels refuse O_DIRECT there.
  const std::filesystem::path shm = "/dev/shm";
  if (!std::filesystem::is_directory(shm)) GTEST_SKIP() << "no /dev/shm";
  const std::filesystem::path file = shm / ("moebius-bench-disk-" + std::to_string(getpid()));
  write_file(file, std::string(1 << 16, 'x'));
  const CommandResult r =
      run_tool("bench disk " + quoted_path(file) + " --bytes 4096 --depths 2 --seconds 0 --json");
  std::filesystem::remove(file);
  ASSERT_EQ(r.status, 0) << r.err;
  const bool direct = r.out.find("\"direct\": true") != std::string::npos;
  EXPECT_NE(direct, r.err.find("refuses direct reads") != std::string::npos) << r.out << r.err;
}

}  // namespace
}  // namespace moebius::test::experts_test
