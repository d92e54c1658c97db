// SPDX-License-Identifier: Apache-2.0
// A folder of packed files: what a file says of its checkpoint, links and folders with the right name.
#include "device/packed_files.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/checksum.h"
#include "base/error.h"
#include "device/cpu/pack_file.h"
#include "unit/test_util.h"

namespace moebius::packed_files_test {
namespace {

namespace fs = std::filesystem;
using test::TempDir;

std::string packed(const std::string& about) {
  PackIndex index;
  index.about = about;
  const std::string text = pack_index(index);
  PackHeader header;
  header.index_offset = kPackHeaderBytes;
  header.index_bytes = text.size();
  header.file_bytes = kPackHeaderBytes + text.size();
  header.index_checksum = checksum({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  header.fingerprint = std::string(64, 'a');
  return pack_header(header) + text;
}

TEST(PackedFiles, SayWhereTheyComeFrom) {
  const TempDir dir;
  const std::string made = "tiny packed by moebius 9.8 for x86_64: avx2; rows of bf16";
  const std::string folder = dir.path().string();
  test::write_file(dir / "a.packed", packed(made));
  test::write_file(dir / "b.packed", packed(made + "; checkpoint " + folder));
  test::write_file(dir / "c.packed", packed(made + "; checkpoint " + folder + "/gone"));
  test::write_file(dir / "d.packed", packed("other words"));
  fs::create_directory(dir / "e.packed");
  fs::create_symlink("a.packed", dir / "f.packed");
  const std::vector<PackedFile> files = list_packed_files(folder);
  ASSERT_GE(files.size(), 4u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(files[i].model, "tiny");
    EXPECT_EQ(files[i].version, "9.8");
    EXPECT_EQ(files[i].problem, "");
    EXPECT_EQ(files[i].checkpoint_gone, i == 2);
  }
  EXPECT_EQ(files[0].checkpoint, "");
  EXPECT_EQ(files[1].checkpoint, folder);
  EXPECT_EQ(files[2].checkpoint, folder + "/gone");
  EXPECT_EQ(files[3].version, "");
  EXPECT_THROW(remove_packed_file(folder, "e.packed"), Error);
  EXPECT_THROW(remove_packed_file(folder, "f.packed"), Error) << "a link";
  EXPECT_EQ(remove_packed_file(folder, "a.packed"), packed(made).size());
  EXPECT_FALSE(fs::exists(dir / "a.packed"));
}

TEST(PackedFiles, NoFolderHasNoFiles) {
  const TempDir dir;
  EXPECT_TRUE(list_packed_files((dir / "none").string()).empty());
  test::write_file(dir / "file", "x");
  EXPECT_THROW(list_packed_files((dir / "file").string()), Error);
}

}  // namespace
}  // namespace moebius::packed_files_test
