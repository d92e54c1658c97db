// SPDX-License-Identifier: Apache-2.0
// The safetensors reader and writer on good files: every dtype, scalars, empty tensors, odd but
// legal headers, reads, shrinking files, special files, and how long a header of 100,000 tensors
// takes (printed, not asserted).
#include "checkpoint/safetensors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <ctime>
#include <functional>
#include <thread>

#include "base/error.h"
#include "unit/test_util.h"

namespace moebius::safetensors_test {
namespace {

using test::TempDir;
using test::write_file;

std::string file_bytes(const std::string& header, const std::string& data, uint64_t length) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(length >> (8 * i));
  return bytes + header + data;
}
std::string file_bytes(const std::string& header, const std::string& data = "") {
  return file_bytes(header, data, header.size());
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

void expect_parts(const std::string& message, std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << "expected '" << part << "' in: " << message;
}

TEST(Safetensors, ReadsEveryDtype) {
  const auto path = (test_data_dir() / "fuzz/corpus/safetensors/all_dtypes.safetensors").string();
  const SafetensorsFile file = SafetensorsFile::open(path);
  ASSERT_EQ(file.tensors().size(), std::size(kDTypes));
  for (const TensorInfo& t : file.tensors()) {
    EXPECT_EQ(t.name, "t." + std::string(name_of(t.dtype)));
    EXPECT_EQ(t.bytes, bits_of(t.dtype));  // 2 x 4 elements
    EXPECT_EQ(describe(t), std::string(name_of(t.dtype)) + "[2,4]");
  }
}

TEST(Safetensors, AcceptsOddButLegalHeaders) {
  const TempDir dir;
  const auto tensors = [&](const std::string& header, const std::string& data) {
    write_file(dir / "f", file_bytes(header, data));
    return SafetensorsFile::open((dir / "f").string()).tensors();
  };
  EXPECT_TRUE(tensors(" \n{}\t ", "").empty());
  EXPECT_TRUE(tensors(R"({"__metadata__":null})", "").empty());
  EXPECT_TRUE(tensors(R"({"__metadata__":{"format":"pt","x":""}})", "").empty());
  const auto scalar = tensors(R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", "abcd");
  ASSERT_EQ(scalar.size(), 1u);
  EXPECT_EQ(describe(scalar[0]), "F32[]");
  const auto empty = tensors(
      R"({"b":{"dtype":"F32","shape":[0,5],"data_offsets":[4,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
      "abcd");
  ASSERT_EQ(empty.size(), 2u);
  EXPECT_EQ(empty[1].bytes, 0u);
  const auto extra = tensors(
      R"({"a":{"x":[1,{"dtype":[]}],"data_offsets":[0,4],"y":-1,"shape":[4],"z":"","dtype":"U8","w":1.5}})",
      "abcd");
  EXPECT_EQ(describe(extra.at(0)), "U8[4]");
  const auto name = tensors(R"({"é\"\\":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "abcd");
  EXPECT_EQ(name.at(0).name, "\u00e9\"\\");
  const auto sub_byte =
      tensors(R"({"f":{"dtype":"F4","shape":[2,4],"data_offsets":[0,4]}})", "abcd");
  EXPECT_EQ(sub_byte.at(0).shape, (std::vector<uint64_t>{2, 4}));
}

TEST(Safetensors, ReadsPayloadAtAnyPlace) {
  const TempDir dir;
  const std::string header =
      R"({"b":{"dtype":"U8","shape":[3],"data_offsets":[2,5]},"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})";
  write_file(dir / "f", file_bytes(header, "ABCDE"));
  const SafetensorsFile file = SafetensorsFile::open((dir / "f").string());
  ASSERT_EQ(file.tensors()[1].name, "b");
  std::vector<uint8_t> out(2);
  file.read(file.tensors()[1], 1, out);
  EXPECT_EQ(std::string(out.begin(), out.end()), "DE");
  expect_parts(error_of([&] { file.read(file.tensors()[1], 2, out); }), {"'b'", "which has 3"});
  file.read(file.tensors()[1], 3, {});
}

TEST(Safetensors, AShrinkingFileIsAnError) {
  const TempDir dir;
  const std::string header = R"({"a":{"dtype":"U8","shape":[100000],"data_offsets":[0,100000]}})";
  const std::string path = (dir / "f.safetensors").string();
  write_file(path, file_bytes(header, std::string(100000, 'x')));
  const SafetensorsFile file = SafetensorsFile::open(path);
  ASSERT_EQ(truncate(path.c_str(), 5000), 0);
  std::vector<uint8_t> out(100000);
  expect_parts(error_of([&] { file.read(file.tensors()[0], 0, out); }),
               {"f.safetensors", "file shrank", "byte 5000"});
}

TEST(Safetensors, RefusesWhatIsNotARegularFile) {
  const TempDir dir;
  const auto open = [&](const std::string& path) {
    return error_of([&] { SafetensorsFile::open(path); });
  };
  expect_parts(open((dir / "missing").string()), {"missing", "No such file"});
  expect_parts(open(dir.path().string()), {"is a folder", "regular file"});
  const std::string fifo = (dir / "fifo").string();
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  expect_parts(open(fifo), {"fifo", "is a pipe"});
  expect_parts(open("/dev/null"), {"is a device"});
  std::filesystem::create_symlink("loop", dir / "loop");
  expect_parts(open((dir / "loop").string()), {"loop", "symbolic links"});
  expect_parts(open(std::string("a\0b", 3)), {"zero byte"});
}

TEST(Safetensors, HeaderAtTheCapIsReadAndJudged) {
  const TempDir dir;
  const std::string path = (dir / "cap.safetensors").string();
  const auto sparse = [&](uint64_t length) {  // zero bytes as header: takes no space on disk
    write_file(path, file_bytes("", "", length));
    ASSERT_EQ(truncate(path.c_str(), static_cast<off_t>(8 + length)), 0);
  };
  sparse(kMaxHeaderBytes);
  expect_parts(error_of([&] { SafetensorsFile::open(path); }),
               {"cap.safetensors", "malformed JSON"});
  sparse(kMaxHeaderBytes + 1);
  expect_parts(error_of([&] { SafetensorsFile::open(path); }),
               {"header length is 100000001", "at most 100000000"});
}

TEST(Safetensors, TooManyTensorsAreRefused) {
  std::string header = "{";
  for (size_t i = 0; i <= kMaxTensors; ++i)
    header += fmt::format("{}\"{}\":{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
                          i > 0 ? "," : "", i);
  header += "}";
  expect_parts(error_of([&] { parse_safetensors_header(header, 8 + header.size(), "f"); }),
               {"more than 1000000 tensors"});
}

TEST(Safetensors, MeasureAHeaderOf100000Tensors) {
  std::string header = "{";
  uint64_t at = 0;
  for (size_t i = 0; i < 100'000; ++i) {
    header += fmt::format(
        "{}\"model.layers.{}.mlp.experts.{}.down_proj.weight_packed\":{{\"dtype\":\"I32\","
        "\"shape\":[4096,512],\"data_offsets\":[{},{}]}}",
        i > 0 ? "," : "", i / 1000, i % 1000, at, at + 8388608);
    at += 8388608;
  }
  header += "}";
  const std::clock_t start = std::clock();  // processor time: other programs do not count
  const auto tensors = parse_safetensors_header(header, 8 + header.size() + at, "f");
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  EXPECT_EQ(tensors.size(), 100'000u);
  EXPECT_EQ(tensors.back().offset + tensors.back().bytes, 8 + header.size() + at);
  std::printf("header of 100,000 tensors (%.1f MB): %.3f s of processor time\n",
              static_cast<double>(header.size()) * 1e-6, seconds);
}

TEST(SafetensorsWriter, RoundTripsInTheReferenceOrder) {
  const TempDir dir;
  const std::string path = (dir / "out.safetensors").string();
  const std::vector<uint8_t> bytes = {1, 2, 3, 4, 5, 6, 7, 8};
  const std::span<const uint8_t> all(bytes);
  const std::vector<TensorData> tensors = {
      {"b", DType::kU8, {3}, all.subspan(0, 3)},
      {"a", DType::kU8, {1, 2}, all.subspan(3, 2)},
      {"z", DType::kF32, {}, all.subspan(0, 4)},
      {"e\"", DType::kI64, {0}, {}},
      {"q", DType::kF4, {2, 8}, all},
  };
  write_safetensors(path, tensors);
  const std::string raw = test::read_file(path);
  EXPECT_EQ(raw.substr(8, 20), R"({"e\"":{"dtype":"I64)");
  EXPECT_EQ(static_cast<unsigned char>(raw[0]) % 8, 0);
  const SafetensorsFile file = SafetensorsFile::open(path);
  std::string order;
  for (const TensorInfo& t : file.tensors()) order += t.name + " ";
  EXPECT_EQ(order, "e\" z a b q ");
  for (const TensorInfo& t : file.tensors()) {
    for (const TensorData& d : tensors) {
      if (d.name != t.name) continue;
      EXPECT_EQ(t.shape, d.shape);
      EXPECT_EQ(t.dtype, d.dtype);
      std::vector<uint8_t> read(t.bytes);
      file.read(t, 0, read);
      EXPECT_TRUE(std::equal(read.begin(), read.end(), d.data.begin(), d.data.end())) << t.name;
    }
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1)
      << "a temporary file was left";
}

TEST(SafetensorsWriter, RefusesWhatItCannotWrite) {
  const TempDir dir;
  const std::vector<uint8_t> bytes(8);
  const std::string path = (dir / "out").string();
  const auto write = [&](std::vector<TensorData> t, const std::string& to) {
    return error_of([&] { write_safetensors(to, t); });
  };
  expect_parts(write({{"a", DType::kF32, {3}, bytes}}, path), {"'a'", "F32[3]", "8 bytes"});
  expect_parts(write({{"a", DType::kF32, {1ull << 63, 4}, bytes}}, path), {"'a'"});
  expect_parts(write({{"a", DType::kF32, {2}, bytes}, {"a", DType::kF32, {2}, bytes}}, path),
               {"'a'", "taken"});
  expect_parts(write({{"__metadata__", DType::kF32, {2}, bytes}}, path), {"taken"});
  expect_parts(write({{"a", DType::kF32, {2}, bytes}}, (dir / "no/such/folder").string()),
               {"cannot create", "No such file"});
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(Safetensors, ManyThreadsMayRead) {
  const TempDir dir;
  std::string data(1 << 16, '\0');
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 7 >> 3);
  write_file(dir / "f",
             file_bytes(R"({"a":{"dtype":"U8","shape":[65536],"data_offsets":[0,65536]}})", data));
  const SafetensorsFile file = SafetensorsFile::open((dir / "f").string());
  std::vector<std::thread> threads;
  std::array<bool, 4> same{};
  for (size_t n = 0; n < same.size(); ++n)
    threads.emplace_back([&, n] {
      std::vector<uint8_t> out(data.size() - n);
      file.read(file.tensors()[0], n, out);
      same[n] = std::equal(out.begin(), out.end(), data.begin() + static_cast<ptrdiff_t>(n),
                           [](uint8_t a, char b) { return a == static_cast<uint8_t>(b); });
    });
  for (std::thread& t : threads) t.join();
  for (const bool ok : same) EXPECT_TRUE(ok);
}

}  // namespace
}  // namespace moebius::safetensors_test
