// SPDX-License-Identifier: Apache-2.0
// What a new model folder is written with (checkpoint/folder_write.h), and files that a user names
// (base/file.h).
#include "checkpoint/folder_write.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "unit/checkpoint/checkpoint_util.h"

namespace moebius::folder_write_test {
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

// --- write_output: files that a user names ---------------------------------------------------------

namespace fs = std::filesystem;

void put(const fs::path& path, std::string_view text) {
  const std::span<const uint8_t> part(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  write_output(path.string(), {&part, 1});
}

size_t files_in(const fs::path& folder) {
  return static_cast<size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST(WriteOutput, FollowsLinksAndReplacesTheFileBehindThem) {
  const test::TempDir dir;
  fs::create_directory(dir / "there");
  test::write_file(dir / "there/real", "old");
  fs::create_hard_link(dir / "there/real", dir / "there/kept");
  fs::create_symlink("there/real", dir / "link");
  fs::create_symlink(dir / "link", dir / "first");
  put(dir / "first", "new");
  EXPECT_TRUE(fs::is_symlink(dir / "first"));
  EXPECT_TRUE(fs::is_symlink(dir / "link"));
  EXPECT_EQ(test::read_file(dir / "there/real"), "new");
  EXPECT_EQ(test::read_file(dir / "there/kept"), "old") << "replaced, not written over";
  EXPECT_EQ(files_in(dir / "there"), 2u) << "no temporary file is left";
  fs::create_symlink("there/fresh", dir / "ahead");  // leads to a file that does not exist yet
  put(dir / "ahead", "made");
  EXPECT_TRUE(fs::is_symlink(dir / "ahead"));
  EXPECT_EQ(test::read_file(dir / "there/fresh"), "made");
  fs::create_symlink("loop", dir / "loop");
  EXPECT_EQ(test::error_of([&] { put(dir / "loop", "x"); }),
            (dir / "loop").string() + ": cannot open: Too many levels of symbolic links");
  EXPECT_TRUE(fs::is_symlink(dir / "loop"));
}

TEST(WriteOutput, WritesPipes) {
  const test::TempDir dir;
  ASSERT_EQ(mkfifo((dir / "pipe").c_str(), 0600), 0);
  const int reader = open((dir / "pipe").c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  put(dir / "pipe", "text");
  EXPECT_TRUE(fs::is_fifo(dir / "pipe"));
  char text[8] = {};
  EXPECT_EQ(read(reader, text, sizeof text), 4);
  EXPECT_STREQ(text, "text");
  close(reader);
}

TEST(WriteOutput, WritesDevices) {
  const int device = posix_openpt(O_RDWR | O_NOCTTY);
  if (device < 0 || grantpt(device) != 0 || unlockpt(device) != 0)
    GTEST_SKIP() << "no pseudo terminal";
  const std::string name = ptsname(device);
  const int held =
      open(name.c_str(), O_RDWR | O_NOCTTY);  // what was written stays until it is read
  put(name, "text");
  EXPECT_TRUE(fs::is_character_file(name));
  char text[8] = {};
  EXPECT_EQ(read(device, text, sizeof text), 4);
  EXPECT_STREQ(text, "text");
  close(held);
  close(device);
  const test::TempDir dir;  // a device that can be removed, where a test may make one
  if (mknod((dir / "null").c_str(), S_IFCHR | 0600, fs::exists("/dev/null") ? 0x103 : 0) != 0)
    return;
  const int opened = open((dir / "null").c_str(), O_WRONLY);
  if (opened < 0) return;  // a file system without devices
  close(opened);
  put(dir / "null", "text");
  EXPECT_TRUE(fs::is_character_file(dir / "null"));
}

TEST(WriteOutput, WritesSockets) {
  const test::TempDir dir;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  (dir / "socket").string().copy(address.sun_path, sizeof address.sun_path - 1);
  const int listener = socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(test::error_of([&] { put(dir / "socket", "x"); }),
            (dir / "socket").string() + ": cannot open: Connection refused");
  ASSERT_EQ(listen(listener, 1), 0);
  put(dir / "socket", "text");
  EXPECT_TRUE(fs::is_socket(dir / "socket"));
  const int peer = accept(listener, nullptr, nullptr);
  char text[8] = {};
  EXPECT_EQ(read(peer, text, sizeof text), 4);
  EXPECT_STREQ(text, "text");
  close(peer);
  close(listener);
}

TEST(WriteOutput, RefusesFolders) {
  const test::TempDir dir;
  fs::create_directory(dir / "folder");
  fs::create_symlink("folder", dir / "link");
  for (const char* name : {"folder", "link"})
    EXPECT_EQ(test::error_of([&] { put(dir / name, "x"); }),
              (dir / name).string() + ": is a folder; expected a file to write");
  EXPECT_TRUE(fs::is_directory(dir / "folder"));
  EXPECT_EQ(files_in(dir / "folder"), 0u);
}

// Packed weights, the KV store and the journal of quantize: what has their name is replaced.
TEST(WriteOutput, FilesOfThisProgramsOwnReplaceALink) {
  const test::TempDir dir;
  test::write_file(dir / "real", "old");
  fs::create_symlink("real", dir / "link");
  write_text_file((dir / "link").string(), "new");
  EXPECT_FALSE(fs::is_symlink(dir / "link"));
  EXPECT_EQ(test::read_file(dir / "real"), "old");
}

}  // namespace
}  // namespace moebius::folder_write_test
