// SPDX-License-Identifier: Apache-2.0
// Packed weights by the commands: what a user sees, and a disk that fills up at any moment.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/json.h"
#include "cli/served_util.h"
#include "unit/test_util.h"

namespace moebius::test::pack_test {
namespace {

namespace fs = std::filesystem;

std::string folder() { return (test_data_dir() / "golden" / "afmoe-w4a16-g32").string(); }
std::string quoted_path(const fs::path& path) { return shell_quote(path.string()); }

[[maybe_unused]] std::string answer_of(const std::string& more,
                                       const std::string& environment = "") {
  const CommandResult r =
      run_tool("run " + quoted_path(folder()) + " --tokens 1,5,2 -n 6 --temp 0 --threads 1 " + more,
               environment);
  EXPECT_EQ(r.status, 0) << r.err;
  return r.out;
}

size_t count_of(const fs::path& folder, std::string_view suffix) {
  size_t n = 0;
  for (const auto& entry : fs::directory_iterator(folder))
    n += entry.path().string().ends_with(suffix);
  return n;
}

TEST(PackCommand, MakesChecksAndIsUsed) {
  const TempDir dir;
  const std::string pack = "pack " + quoted_path(folder()) + " " + quoted_path(dir.path());
  CommandResult r = run_tool(pack + " --check");
  EXPECT_EQ(r.status, 1);
  EXPECT_NE(r.err.find("there is no such file"), std::string::npos) << r.err;
  r = run_tool(pack + " --json");
  ASSERT_EQ(r.status, 0) << r.err;
  Json j = parse_json(r.out, "pack");
  EXPECT_TRUE(j.find("made")->as_bool());
  const std::string file = j.find("file")->as_string();
  EXPECT_EQ(fs::file_size(file), static_cast<uint64_t>(j.find("bytes")->as_int().value_or(0)));
  r = run_tool(pack + " --json");
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_FALSE(parse_json(r.out, "pack").find("made")->as_bool());
  const CommandResult used =
      run_tool("run " + quoted_path(folder()) +
               " --dtype auto --tokens 1,5,2 -n 6 --temp 0 --pack-dir " + quoted_path(dir.path()));
  EXPECT_EQ(used.status, 0) << used.err;
  EXPECT_NE(used.err.find("packed weights: "), std::string::npos) << used.err;
  EXPECT_EQ(used.err.find("packing "), std::string::npos) << used.err;
  // Another class of CPU has a file of its own.
  r = run_tool(pack + " --json", "MOEBIUS_CPU=reference");
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_TRUE(parse_json(r.out, "pack").find("made")->as_bool());
  EXPECT_EQ(count_of(dir.path(), ".packed"), 2u);
  // A file alone, without what it was made of.
  const std::string alone = "pack " + quoted_path(file) + " --check";
  r = run_tool(alone);
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_NE(r.out.find("is whole"), std::string::npos) << r.out;
  EXPECT_EQ(run_tool("pack " + quoted_path(file)).status, 2);  // it needs OUT
  std::string bytes = read_file(file);
  bytes[4096 + 100] ^= 1;  // in the first layer
  write_file(file, bytes);
  for (const std::string& check : {pack + " --check", alone}) {
    r = run_tool(check);
    EXPECT_EQ(r.status, 1);
    EXPECT_NE(r.err.find("damaged"), std::string::npos) << r.err;
  }
}

TEST(PackCommand, ListsAndRemoves) {
  const TempDir dir;
  const std::string there = " --pack-dir " + quoted_path(dir.path());
  ASSERT_EQ(run_tool("pack " + quoted_path(folder()) + " " + quoted_path(dir.path())).status, 0);
  write_file(dir / "notes.packed", "somebody else's notes");
  write_file(dir / "notes.txt", "more");
  CommandResult r = run_tool("pack --list --json" + there);
  ASSERT_EQ(r.status, 0) << r.err;
  const Json list = parse_json(r.out, "pack");
  ASSERT_EQ(list.find("files")->items().size(), 1u) << r.out;
  const Json& packed = list.find("files")->items()[0];
  const std::string name = packed.find("file")->as_string();
  EXPECT_EQ(static_cast<uint64_t>(packed.find("bytes")->as_int().value_or(0)),
            fs::file_size(dir / name));
  EXPECT_EQ(packed.find("model")->as_string(), "afmoe-w4a16-g32");
  EXPECT_NE(run_tool("--version").out.find(packed.find("version")->as_string()), std::string::npos);
  EXPECT_EQ(packed.find("problem")->as_string(), "");
  // The folder named by the environment, for people.
  r = run_tool("pack --list --quiet", "MOEBIUS_PACK_DIR=" + quoted_path(dir.path()));
  EXPECT_NE(r.out.find(name), std::string::npos) << r.out << r.err;
  EXPECT_NE(r.out.find("1 file, "), std::string::npos) << r.out;
  // A folder that does not exist yet has no files.
  r = run_tool("pack --list --json",
               "MOEBIUS_PACK_DIR= XDG_CACHE_HOME=" + quoted_path(dir / "cache"));
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(parse_json(r.out, "pack").find("folder")->as_string(),
            (dir / "cache" / "moebius" / "packed").string());
  // Only files of ours are deleted, and none by a path.
  for (const std::string& other : {std::string("notes.packed"), std::string("notes.txt"),
                                   std::string("none.packed"), "../" + name}) {
    r = run_tool("pack --remove " + quoted_path(other) + there);
    EXPECT_EQ(r.status, 1) << other << r.err;
  }
  // A damaged file and one of another layout are shown with the reason, and can be deleted.
  const std::string whole = read_file(dir / name);
  std::string bytes = whole;
  bytes[16] ^= 0x40;
  write_file(dir / "old.packed", bytes);
  bytes = whole;
  bytes[bytes.size() - 1] ^= 1;
  write_file(dir / "damaged.packed", bytes);
  r = run_tool("pack --list --json" + there);
  std::string problems;
  const Json all = parse_json(r.out, "pack");
  for (const Json& f : all.find("files")->items()) problems += f.find("problem")->as_string();
  EXPECT_NE(problems.find("layout"), std::string::npos) << problems;
  EXPECT_NE(problems.find("damaged"), std::string::npos) << problems;
  for (const std::string& file : {name, std::string("old.packed"), std::string("damaged.packed")}) {
    r = run_tool("pack --remove " + file + there);
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_FALSE(fs::exists(dir / file));
  }
  EXPECT_TRUE(fs::exists(dir / "notes.packed"));
  EXPECT_EQ(run_tool("pack --list --remove " + name + there).status, 2);
  EXPECT_EQ(run_tool("pack " + quoted_path(folder()) + " --list").status, 2);
  EXPECT_EQ(run_tool("pack").status, 2);
}

TEST(PackCommand, KeepsAFileInUse) {
  const TempDir dir;
  const Served server("--threads 1 --ctx 512 --parallel 2 --pack-dir " + quoted_path(dir.path()) +
                      " " + quoted_path(bundled_model_dir()));
  std::string name;
  for (const auto& entry : fs::directory_iterator(dir.path()))
    if (entry.path().string().ends_with(".packed")) name = entry.path().filename().string();
  const CommandResult r =
      run_tool("pack --remove " + name + " --pack-dir " + quoted_path(dir.path()));
  EXPECT_EQ(r.status, 1);
  EXPECT_NE(r.err.find("in use"), std::string::npos) << r.err;
  EXPECT_TRUE(fs::exists(dir / name));
}

// A server whose file of packed weights is cut: requests that are under way end in words, and the next one has the weights made anew.
TEST(PackCommand, AServerOutlivesACutFile) {
  const TempDir dir;
  const std::string ask = R"("prompt":"It was a dark","max_tokens":8,"temperature":0)";
  const Served server("--threads 1 --ctx 512 --parallel 2 --pack-dir " + quoted_path(dir.path()) +
                      " " + quoted_path(bundled_model_dir()));
  const auto text_of = [](const Response& r) {
    return r.status == 200 ? r.json().find("choices")->items()[0].find("text")->as_string()
                           : r.body;
  };
  const std::string expected = text_of(server.completion(ask));
  for (int round = 0; round < 2; ++round) {
    fs::path file;
    for (const auto& entry : fs::directory_iterator(dir.path()))
      if (entry.path().string().ends_with(".packed")) file = entry.path();
    fs::resize_file(file, 4096);
    const Response failed = server.completion(ask);
    EXPECT_EQ(failed.status, 500);
    EXPECT_NE(failed.body.find("packed weights could not be read"), std::string::npos)
        << failed.body;
    EXPECT_EQ(server.ask(get("/health")).status, 200);
    const Response after = server.completion(ask);
    EXPECT_EQ(after.status, 200);
    EXPECT_EQ(text_of(after), expected);
    EXPECT_EQ(server.metric("num_requests_running"), "0");
    EXPECT_EQ(count_of(dir.path(), ".packed"), 1u);
  }
}

// Whenever the disk fills up, the answer is that of every other run, and what is there afterwards is whole
// or not there.
TEST(PackCommand, FullDisk) {
  if (full_disk_library().empty()) GTEST_SKIP() << "no library can be loaded before this program";
  const std::string expected = answer_of("");
  const TempDir libraries;
  fs::create_symlink(full_disk_library(), libraries / "full_disk.so");
  bool whole = false;
  size_t refused = 0;
  for (size_t n = 1; n < 200 && !whole; n += n < 4 ? 1 : 9) {
    const TempDir dir;
    const std::string with = "--pack-dir " + quoted_path(dir.path());
    EXPECT_EQ(answer_of(with, "LD_PRELOAD=" + quoted_path(libraries / "full_disk.so") +
                                  " FULL_DISK_AT=" + std::to_string(n)),
              expected);
    whole = count_of(dir.path(), ".packed") == 1;
    refused += !whole;
    EXPECT_EQ(count_of(dir.path(), ".tmp"), 0u) << n;
    EXPECT_EQ(answer_of(with), expected);
    EXPECT_EQ(count_of(dir.path(), ".packed"), 1u);
  }
  EXPECT_TRUE(whole);
  EXPECT_GT(refused, 3u);
}

}  // namespace
}  // namespace moebius::test::pack_test
