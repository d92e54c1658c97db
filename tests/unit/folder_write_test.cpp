// SPDX-License-Identifier: Apache-2.0
// What a new model folder is written with (checkpoint/folder_write.h).
#include "checkpoint/folder_write.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/json.h"
#include "unit/checkpoint_util.h"

namespace moebius {
namespace {

TEST(FolderWrite, AMemberIsAddedAndNothingElseChanges) {
  const std::string text =
      "{\n  \"b\": 1.0e-06,\n  \"a\": [1, {\"x\": \"}\\\"\"}],\n  \"c\": 3\n}\n";
  EXPECT_EQ(with_member(text, "q", "{\n  \"k\": 1\n}"),
            "{\n  \"b\": 1.0e-06,\n  \"a\": [1, {\"x\": \"}\\\"\"}],\n  \"c\": 3,\n  \"q\": {\n    "
            "\"k\": 1\n  }\n}\n");
  EXPECT_EQ(with_member("{\"a\": 1}", "q", "2"), "{\"a\": 1, \"q\": 2}");
  EXPECT_EQ(with_member("{}", "q", "2"), "{\"q\": 2}");
  EXPECT_EQ(with_member(" {\n} ", "q", "2"), " {\n\"q\": 2\n} ");
}

TEST(FolderWrite, AMemberIsReplacedWhereItStands) {
  EXPECT_EQ(with_member("{\"q\": {\"a\": [1, 2]}, \"b\": 1e5}", "q", "7"),
            "{\"q\": 7, \"b\": 1e5}");
  EXPECT_EQ(with_member("{\n \"a\": 0,\n \"q\": null\n}", "q", "[\n 1\n]"),
            "{\n \"a\": 0,\n \"q\": [\n  1\n ]\n}");
  // The name inside another member is not meant.
  EXPECT_EQ(with_member("{\"t\": {\"q\": 1}, \"s\": \"q\"}", "q", "2"),
            "{\"t\": {\"q\": 1}, \"s\": \"q\", \"q\": 2}");
}

TEST(FolderWrite, FilesGetTheirNameWhenTheyAreWhole) {
  const test::TempDir dir;
  const std::string path = (dir / "a.tmp").string(), name = (dir / "a").string();
  const std::vector<uint8_t> bytes = {1, 2, 3, 4};
  {
    OutputFile file(path, 8);
    file.write_at(4, bytes);
    file.write_at(0, bytes);
    EXPECT_FALSE(std::filesystem::exists(name));
    file.finish(name);
  }
  EXPECT_EQ(test::read_file(name), std::string("\1\2\3\4\1\2\3\4", 8));
  EXPECT_EQ(test::error_of([&] { OutputFile((dir / "no/such").string(), 1); }),
            (dir / "no/such").string() + ": cannot create: No such file or directory");
}

}  // namespace
}  // namespace moebius
