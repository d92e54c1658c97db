// SPDX-License-Identifier: Apache-2.0
// Folders: which files are read, what the index decides, links, and what is said when something is
// missing.
#include "checkpoint/tensor_store.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "unit/test_util.h"

namespace moebius::tensor_store_test {
namespace {

namespace fs = std::filesystem;
using test::TempDir;
using test::write_file;

// Every tensor is two bytes: its first value tells which file it came from.
void make(const fs::path& path, std::initializer_list<std::string> names, uint8_t value = 0) {
  std::vector<TensorData> tensors;
  const std::vector<uint8_t> data(2, value);
  for (const std::string& name : names) tensors.push_back({name, DType::kU8, {2}, data});
  fs::create_directories(path.parent_path());
  write_safetensors(path.string(), tensors);
}

struct Opened {
  TensorStore store;
  std::vector<std::string> warnings;
  std::string error;
};

Opened open(const fs::path& folder) {
  Opened o;
  try {
    o.store = TensorStore::open_folder(folder.string(), o.warnings);
  } catch (const Error& e) {
    o.error = e.what();
  }
  return o;
}

void expect_parts(const std::string& message, std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << "expected '" << part << "' in: " << message;
}

std::string names(const TensorStore& store) {
  std::string text;
  for (const TensorInfo& t : store.tensors()) text += t.name + " ";
  return text;
}

uint8_t value_of(const TensorStore& store, std::string_view name) {
  std::vector<uint8_t> out(1);
  store.read(store.require(name), 0, out);
  return out[0];
}

void write_index(const TempDir& dir, std::string_view map) {
  write_file(dir / "model.safetensors.index.json",
             fmt::format(R"({{"metadata":{{"total_size":99}},"weight_map":{}}})", map));
}

TEST(TensorStore, SingleFile) {
  const TempDir dir;
  make(dir / "model.safetensors", {"b", "a", "c"}, 7);
  make(dir / "consolidated.00.safetensors", {"zzz"});
  const Opened o = open(dir.path());
  EXPECT_EQ(o.error, "");
  EXPECT_TRUE(o.warnings.empty());
  EXPECT_EQ(names(o.store), "a b c ");
  EXPECT_EQ(o.store.total_bytes(), 6u);
  EXPECT_EQ(value_of(o.store, "b"), 7);
  EXPECT_EQ(o.store.find("d"), nullptr);
  EXPECT_EQ(o.store.find(""), nullptr);
  EXPECT_EQ(o.store.where(o.store.require("a")), "model.safetensors: a");
  try {
    o.store.require("model.missing");
    FAIL();
  } catch (const Error& e) {
    expect_parts(e.what(), {"'model.missing' is missing", "model.safetensors", "3 tensors"});
  }
}

TEST(TensorStore, SingleFileWinsOverAnIndex) {
  const TempDir dir;
  make(dir / "model.safetensors", {"a"}, 1);
  write_index(dir, R"({"a":"model.safetensors"})");
  EXPECT_TRUE(open(dir.path()).warnings.empty());
  write_index(dir, R"({"a":"x.safetensors","b":"x.safetensors"})");
  Opened o = open(dir.path());
  EXPECT_EQ(value_of(o.store, "a"), 1);
  ASSERT_EQ(o.warnings.size(), 1u);
  expect_parts(o.warnings[0], {"both model.safetensors (1 tensors)", "index.json (2 tensors)"});
  write_file(dir / "model.safetensors.index.json", "{");
  o = open(dir.path());
  EXPECT_EQ(o.error, "");
  ASSERT_EQ(o.warnings.size(), 1u);
  expect_parts(o.warnings[0], {"index.json is not used", "malformed JSON"});
}

TEST(TensorStore, ShardsFollowTheIndex) {
  const TempDir dir;
  make(dir / "model-00002-of-00002.safetensors", {"c", "twice"}, 2);
  make(dir / "model-00001-of-00002.safetensors", {"a", "b", "twice"}, 1);
  make(dir / "unrelated.safetensors", {"zzz"});
  write_index(
      dir,
      R"({"c":"model-00002-of-00002.safetensors","a":"model-00001-of-00002.safetensors","twice":"model-00002-of-00002.safetensors"})");
  const Opened o = open(dir.path());
  EXPECT_EQ(o.error, "");
  EXPECT_EQ(names(o.store), "a b c twice ");
  EXPECT_EQ(o.store.files().size(), 2u);
  EXPECT_EQ(value_of(o.store, "a"), 1);
  EXPECT_EQ(value_of(o.store, "c"), 2);
  EXPECT_EQ(value_of(o.store, "twice"), 2);
  EXPECT_EQ(o.store.total_bytes(), 8u);
  ASSERT_EQ(o.warnings.size(), 2u);
  expect_parts(o.warnings[0],
               {"model-00001-of-00002.safetensors", "1 tensor(s) are not named", "'b'"});
  expect_parts(o.warnings[1], {"1 tensor(s) are read from another file", "'twice'"});
}

TEST(TensorStore, SaysWhatTheIndexGotWrong) {
  const auto error = [](std::string_view map, const std::function<void(const TempDir&)>& prepare) {
    const TempDir dir;
    make(dir / "one.safetensors", {"a", "x"});
    prepare(dir);
    write_index(dir, map);
    return open(dir.path()).error;
  };
  const auto nothing = [](const TempDir&) {};
  expect_parts(error(R"({"a":"one.safetensors","b":"two.safetensors"})", nothing),
               {"index.json", "'two.safetensors'", "missing"});
  expect_parts(
      error(R"({"a":"one.safetensors","b":"one.safetensors","c":"one.safetensors"})", nothing),
      {"index.json", "tensor 'b' is in 'one.safetensors', where it is not", "2 such tensors"});
  for (const std::string name : {"../one.safetensors", "/etc/passwd", "sub/one.safetensors", "..",
                                 ".", "", "a\\\\b", "a\\u0000b"}) {
    SCOPED_TRACE(name);
    expect_parts(error(fmt::format(R"({{"a":"{}"}})", name), nothing),
                 {"weight_map['a']", "expected a plain file name"});
  }
  expect_parts(error(R"({"a":1})", nothing),
               {"weight_map['a'] is an integer", "expected a file name"});
  expect_parts(error(R"({"a":{}})", nothing), {"weight_map['a'] is an object"});
  expect_parts(error(R"({"a":["one.safetensors"]})", nothing), {"weight_map['a'] is an array"});
  expect_parts(error(R"([])", nothing), {"weight_map is an array", "expected an object"});
  expect_parts(error(R"(null)", nothing), {"weight_map is null"});
  expect_parts(error(R"({})", nothing), {"weight_map is empty"});
  expect_parts(error(R"({"a":"one.safetensors","a":"one.safetensors"})", nothing),
               {"names a tensor twice"});
  expect_parts(error(R"({"a":"one.safetensors","z":"two.safetensors"})",
                     [](const TempDir& d) {
                       make(d / "two.safetensors", {"x", "z"});
                     }),
               {"'x' is in", "one.safetensors", "two.safetensors", "names neither"});
  expect_parts(error(R"({"a":"one.safetensors","z":"two.safetensors"})",
                     [](const TempDir& d) { fs::create_directory(d / "two.safetensors"); }),
               {"two.safetensors", "is a folder"});
  expect_parts(error(R"({"a":"one.safetensors","z":"two.safetensors"})",
                     [](const TempDir& d) { write_file(d / "two.safetensors", "short"); }),
               {"two.safetensors", "file has 5 bytes"});
}

TEST(TensorStore, IndexMustBeAnObjectWithAMap) {
  const TempDir dir;
  const fs::path index = dir / "model.safetensors.index.json";
  write_file(index, "[]");
  expect_parts(open(dir.path()).error, {"index is an array", "expected a JSON object"});
  write_file(index, R"({"metadata":{"weight_map":{}}})");
  expect_parts(open(dir.path()).error, {"'weight_map' is missing"});
  write_file(index, R"({"weight_map":{"a":"b"},"weight_map":{"a":"b"}})");
  expect_parts(open(dir.path()).error, {"weight_map appears twice"});
}

TEST(TensorStore, WithoutTheUsualNames) {
  const TempDir dir;
  expect_parts(open(dir.path()).error,
               {"neither model.safetensors nor model.safetensors.index.json"});
  make(dir / "adapter_model.safetensors", {"a"});
  expect_parts(open(dir.path()).error, {"'adapter_model.safetensors' is not read as a model"});
  write_file(dir / "pytorch_model.bin", "x");
  expect_parts(open(dir.path()).error, {"pytorch_model.bin", "only safetensors files are read"});
  make(dir / "other.safetensors", {"a"});
  const Opened o = open(dir.path());
  EXPECT_EQ(names(o.store), "a ");
  ASSERT_EQ(o.warnings.size(), 1u);
  expect_parts(o.warnings[0], {"'other.safetensors' is read instead"});
  make(dir / "third.safetensors", {"b"});
  expect_parts(open(dir.path()).error, {"2 safetensors files", "no model.safetensors.index.json"});
  expect_parts(open(dir / "nowhere").error, {"nowhere", "No such file"});
  expect_parts(open(dir / "other.safetensors").error, {"is not a folder"});
}

TEST(TensorStore, LinksMustStayInside) {
  const TempDir outside, dir;
  make(outside / "blob", {"a"}, 5);
  fs::create_symlink(outside / "blob", dir / "model.safetensors");
  expect_parts(open(dir.path()).error,
               {"model.safetensors", "symbolic link", "outside the folder"});
  fs::remove(dir / "model.safetensors");
  fs::create_symlink("model.safetensors", dir / "model.safetensors");
  expect_parts(open(dir.path()).error, {"model.safetensors", "symbolic links"});
  fs::remove(dir / "model.safetensors");
  fs::create_symlink("nowhere", dir / "model.safetensors");
  expect_parts(open(dir.path()).error,
               {"model.safetensors", "symbolic link to 'nowhere', which does not exist"});
  fs::remove(dir / "model.safetensors");
  make(dir / "sub/real", {"a"}, 6);
  fs::create_symlink("sub/real", dir / "model.safetensors");
  EXPECT_EQ(value_of(open(dir.path()).store, "a"), 6);
}

TEST(TensorStore, LinksLeadAnywhereOnRequest) {
  const TempDir outside, dir;
  std::vector<std::string> warnings;
  make(outside / "blob", {"a"}, 5);
  fs::create_symlink(outside / "blob", dir / "model.safetensors");
  const TensorStore store =
      TensorStore::open_folder(dir.path().string(), warnings, Links::kAnywhere);
  EXPECT_EQ(value_of(store, "a"), 5);
}

TEST(TensorStore, LinksOfTheHubCacheAreFollowed) {
  const TempDir cache;
  const fs::path repository = cache / "models--a--b", snapshot = repository / "snapshots/0123";
  make(repository / "blobs/abcdef", {"a"}, 8);
  fs::create_directories(snapshot);
  fs::create_symlink("../../blobs/abcdef", snapshot / "model.safetensors");
  EXPECT_EQ(value_of(open(snapshot).store, "a"), 8);
  fs::create_directory_symlink(snapshot,
                               cache / "link");  // the folder itself may be reached by a link
  EXPECT_EQ(value_of(open(cache / "link").store, "a"), 8);

  const auto refused = [&](const fs::path& folder, const std::string& target) {
    fs::create_directories(folder);
    fs::remove(folder / "model.safetensors");
    fs::create_symlink(target, folder / "model.safetensors");
    return open(folder).error;
  };
  make(repository / "other/abcdef", {"a"});
  make(repository / "blobs/deeper/abcdef", {"a"});
  expect_parts(refused(snapshot, "../../other/abcdef"), {"outside the folder"});
  expect_parts(refused(snapshot, "../../blobs/../other/abcdef"), {"outside the folder"});
  expect_parts(refused(snapshot, "../../blobs/deeper/abcdef"), {"outside the folder"});
  fs::create_symlink("../other/abcdef", repository / "blobs/link");
  expect_parts(refused(snapshot, "../../blobs/link"), {"outside the folder"});
  expect_parts(refused(repository / "elsewhere/0123", "../../blobs/abcdef"),
               {"outside the folder"});
}

TEST(TensorStore, SurvivesAMove) {
  const TempDir dir;
  make(dir / "model.safetensors", {"a", "b"}, 3);
  Opened o = open(dir.path());
  const TensorInfo* before = o.store.find("b");
  const TensorStore moved = std::move(o.store);
  EXPECT_EQ(moved.find("b"), before);
  EXPECT_EQ(value_of(moved, "b"), 3);
}

TEST(TensorStore, ReadsWhatLiesInMemory) {
  const std::vector<uint8_t> two = {7, 8}, four = {1, 2, 3, 4};
  const TensorData tensors[] = {{"b", DType::kI16, {2, 1}, four}, {"a", DType::kU8, {2}, two}};
  const TensorStore store = TensorStore::from_memory("expert 3", tensors);
  EXPECT_EQ(store.tensors()[0].name, "a");
  EXPECT_EQ(store.total_bytes(), 6u);
  EXPECT_EQ(store.where(store.require("b")), "expert 3: b");
  std::vector<uint8_t> some(2);
  store.read(store.require("b"), 1, some);
  EXPECT_EQ(some, (std::vector<uint8_t>{2, 3}));
  const auto refuses = [](const std::vector<TensorData>& bad, const char* part) {
    try {
      TensorStore::from_memory("memory", bad);
      ADD_FAILURE() << part << ": no error";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  };
  refuses({{"a", DType::kI32, {1, 1}, two}}, "I32[1,1] and has 2 bytes; expected 4");
  refuses({{"a", DType::kU8, {2}, two}, {"a", DType::kU8, {2}, two}}, "'a'");
  std::vector<uint8_t> more(5);
  EXPECT_THROW(store.read(store.require("b"), 0, more), Error);
}

}  // namespace
}  // namespace moebius::tensor_store_test
