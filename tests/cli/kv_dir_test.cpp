// SPDX-License-Identifier: Apache-2.0
// run --kv-dir: a conversation goes on in another process; full disks, folders of others and ranks are
// said in words.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/json.h"
#include "unit/test_util.h"

namespace moebius::kv_dir_test {
namespace {

namespace fs = std::filesystem;
using test::CommandResult;
using test::run_tool;

std::string ids(size_t count) {
  std::string out = "1";
  for (size_t i = 2; i <= count; ++i) out += fmt::format(",{}", i);
  return out;
}

struct Said {
  std::string tokens;
  uint64_t cached = 0;
  std::string err;
};
Said say(const std::string& args, const std::string& environment = "") {
  const CommandResult r = run_tool(
      fmt::format("run --tokens {} -n 5 --json --logprobs 2 {}", ids(420), args), environment);
  EXPECT_EQ(r.status, 0) << r.err;
  if (r.status != 0) return {};
  const Json j = parse_json(r.out, "run");
  return {j.find("tokens")->dump() + j.find("logprobs")->dump(), j.find("cached_tokens")->as_uint(),
          r.err};
}

TEST(KvDir, ARunFindsWhatTheOneBeforeRead) {
  const test::TempDir dir;
  const std::string kv = "--kv-dir " + test::shell_quote((dir / "kv").string());
  const Said plain = say(""), first = say(kv), second = say(kv);
  EXPECT_EQ(first.tokens, plain.tokens);
  EXPECT_EQ(second.tokens, plain.tokens);
  EXPECT_EQ(plain.cached, 0u);
  EXPECT_EQ(first.cached, 0u);
  EXPECT_EQ(second.cached, 419u);
  // Other number types have other keys.
  const Said other = say(kv + " --kv-dtype f32"), again = say(kv + " --kv-dtype f32");
  EXPECT_EQ(other.cached, 0u);
  EXPECT_EQ(again.cached, 419u);
  EXPECT_EQ(again.tokens, other.tokens);
  // The folder's bytes are a limit.
  uint64_t bytes = 0;
  EXPECT_EQ(say(kv + " --kv-dir-gib 0.001").tokens, plain.tokens);
  for (const auto& entry : fs::directory_iterator(dir / "kv"))
    if (entry.path().extension() == ".kv") bytes += entry.file_size();
  EXPECT_LE(bytes, uint64_t{1} << 21);
  EXPECT_EQ(say(kv).tokens, plain.tokens);
}

TEST(KvDir, AConversationGoesOn) {
  const test::TempDir dir;
  std::string long_text;
  for (int i = 0; i < 60; ++i) long_text += fmt::format("The {} dogs walked to the park. ", i);
  test::write_file(dir / "in", long_text + "\n/save " + (dir / "chat.json").string() + "\n");
  test::write_file(dir / "next", "And then?\n/stats\n");
  const std::string kv = "--kv-dir " + test::shell_quote((dir / "kv").string());
  const auto chat = [&](const char* input, const std::string& more) {
    return run_tool(
        fmt::format("run -i -n 12 {} < {}", more, test::shell_quote((dir / input).string())));
  };
  const CommandResult first = chat("in", kv);
  ASSERT_EQ(first.status, 0) << first.err;
  const std::string on = "--messages " + test::shell_quote((dir / "chat.json").string());
  const CommandResult plain = chat("next", on), cached = chat("next", on + " " + kv);
  ASSERT_EQ(cached.status, 0) << cached.err;
  EXPECT_EQ(cached.out, plain.out);
  EXPECT_EQ(plain.err.find("cached)"), std::string::npos) << plain.err;
  EXPECT_NE(cached.err.find("cached)"), std::string::npos) << cached.err;
}

TEST(KvDir, AFullDiskIsSaidAndAnswersStay) {
  if (test::full_disk_library().empty())
    GTEST_SKIP() << "no library can be loaded before this program";
  const test::TempDir dir;
  fs::create_symlink(test::full_disk_library(), dir / "full_disk.so");
  const Said plain = say("");
  for (const int at : {1, 2, 3, 5}) {
    const std::string kv =
        "--kv-dir " + test::shell_quote((dir / fmt::format("kv{}", at)).string());
    fs::create_directory(dir / fmt::format("kv{}", at));
    const Said full = say(kv, fmt::format("LD_PRELOAD={} FULL_DISK_AT={}",
                                          test::shell_quote((dir / "full_disk.so").string()), at));
    EXPECT_EQ(full.tokens, plain.tokens);
    const size_t words = full.err.find("No space left on device");
    EXPECT_NE(words, std::string::npos) << full.err;
    EXPECT_EQ(full.err.find("No space left on device", words + 1), std::string::npos) << full.err;
    for (const auto& entry : fs::directory_iterator(dir / fmt::format("kv{}", at)))
      EXPECT_FALSE(entry.path().filename().string().starts_with("writing-"));
    EXPECT_EQ(say(kv).tokens, plain.tokens);
    EXPECT_EQ(say(kv).cached, 419u);
  }
}

TEST(KvDir, WhatCannotBeIsRefusedInWords) {
  const test::TempDir dir;
  ASSERT_EQ(mkdir((dir / "open").c_str(), 0700), 0);
  ASSERT_EQ(chmod((dir / "open").c_str(), 0777), 0);
  const auto refused = [&](const std::string& args) {
    const CommandResult r = run_tool("run -p x -n 1 " + args);
    EXPECT_EQ(r.status, 1) << args;
    return r.err;
  };
  const std::string open = test::shell_quote((dir / "open").string());
  EXPECT_NE(refused("--kv-dir " + open).find("others may write to it (mode 777)"),
            std::string::npos);
  EXPECT_NE(
      refused("--kv-dir " + test::shell_quote((dir / "no/where").string())).find("cannot be made"),
      std::string::npos);
  EXPECT_NE(
      refused("--tp 2 --kv-dir " + test::shell_quote((dir / "kv").string())).find("several ranks"),
      std::string::npos);
  // Before anything is loaded, and before the device is looked for.
  for (const char* device :
       {"--device cuda", "--device cuda:3 --experts cpu", "--place attention=cuda:1-"})
    EXPECT_NE(
        refused(fmt::format("{} --kv-dir {}", device, test::shell_quote((dir / "kv").string())))
            .find("attention is on a GPU"),
        std::string::npos)
        << device;
  EXPECT_FALSE(fs::exists(dir / "kv"));
}

}  // namespace
}  // namespace moebius::kv_dir_test
