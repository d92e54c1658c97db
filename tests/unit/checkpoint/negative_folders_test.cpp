// SPDX-License-Identifier: Apache-2.0
// Every broken folder of build/data/negative/{folders,fp8,packed,vendors} is refused, at the stage and in the words that
// its maker wrote down; and what only a running system can break: files that change, links that loop.
#include <gtest/gtest.h>

#include <filesystem>

#include "unit/checkpoint/checkpoint_util.h"

namespace moebius::test::negative_folders_test {
namespace {

namespace fs = std::filesystem;

// Loads every module as a run would; the first message, or "".
std::string deep_error(const Checkpoint& c) {
  LoadBuffer buffer;
  for (const Module& m : c.modules()) {
    if (!has_matrix(m)) continue;
    buffer.reset();
    const std::string message =
        error_of([&] { reader_for(m.decision.scheme.format).load(m.plan, c.store(), buffer); });
    if (!message.empty()) return message;
  }
  return "";
}

std::string refusal(const std::string& folder, const std::string& stage) {
  if (stage == "open") return error_of([&] { Checkpoint::open(folder); });
  const Checkpoint c = Checkpoint::open(folder);
  if (stage == "unsupported") return error_of([&] { c.require_supported(); });
  return deep_error(c);
}

constexpr const char* kSets[] = {"folders", "fp8", "packed", "vendors"};

class NegativeSet : public testing::TestWithParam<const char*> {
 protected:
  const fs::path root = test_data_dir() / "negative" / GetParam();
  const Json expected = parse_json(read_file(root / "expected.json"), "expected.json");
};

TEST_P(NegativeSet, EachIsRefusedInWords) {
  EXPECT_GT(expected.members().size(), 50u);
  for (const auto& [name, facts] : expected.members()) {
    SCOPED_TRACE(name);
    const std::string stage = facts.find("stage")->as_string();
    const std::string message = refusal((root / name).string(), stage);
    EXPECT_EQ(message.empty(), stage == "good") << message;
    for (const Json& part : facts.find("says")->items())
      EXPECT_TRUE(contains(message, part.as_string())) << part.as_string() << "\n  " << message;
  }
}

TEST_P(NegativeSet, EveryFolderIsListed) {
  for (const auto& entry : fs::directory_iterator(root))
    if (entry.is_directory()) {
      EXPECT_NE(expected.find(entry.path().filename().string()), nullptr) << entry.path();
    }
}

INSTANTIATE_TEST_SUITE_P(Sets, NegativeSet, testing::ValuesIn(kSets));

// Copies the good folder somewhere it can be broken.
std::string copy_good(const TempDir& dir) {
  fs::copy(test_data_dir() / "negative" / "folders" / "good", dir.path(),
           fs::copy_options::recursive);
  return dir.path().string();
}

TEST(NegativeFolders, AFileThatShrinksWhileLoading) {
  const TempDir dir;
  const Checkpoint c = Checkpoint::open(copy_good(dir));
  EXPECT_EQ(deep_error(c), "");
  fs::resize_file(dir / "model.safetensors", 6000);
  EXPECT_TRUE(contains(deep_error(c), "model.safetensors")) << deep_error(c);
}

TEST(NegativeFolders, LoopingLinks) {
  const TempDir dir;
  const std::string folder = copy_good(dir);
  for (const char* name : {"config.json", "model.safetensors"}) {
    fs::remove(dir / name);
    fs::create_symlink(name, dir / name);
    EXPECT_TRUE(contains(error_of([&] { Checkpoint::open(folder); }), name));
    fs::remove(dir / name);
    fs::copy(test_data_dir() / "negative" / "folders" / "good" / name, dir / name);
  }
  EXPECT_EQ(error_of([&] { Checkpoint::open(folder); }), "");
}

}  // namespace
}  // namespace moebius::test::negative_folders_test
