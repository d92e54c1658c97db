// SPDX-License-Identifier: Apache-2.0
// The container of GGUF (gguf/gguf.h): what is read of good files, and the sentence for bad ones.
#include "gguf/gguf.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <functional>
#include <limits>

#include "base/error.h"
#include "unit/gguf/gguf_bytes.h"
#include "unit/test_util.h"

namespace moebius::gguf_test {
namespace {

using test::gguf_text;
using test::GgufBytes;
using test::raw;

GgufBytes good() {
  GgufBytes file;
  file.text("general.architecture", "qwen3moe").u32("qwen3moe.block_count", 2);
  file.tensor("a.weight", {64, 2}, 8, std::string(2 * 2 * 34, '\1'));
  file.tensor("b.weight", {3}, 0, std::string(12, '\2'));
  return file;
}

std::string refusal(const std::string& bytes) {
  try {
    const auto header = parse_gguf_header(bytes, bytes.size(), "m.gguf");
    return header ? "accepted" : "incomplete";
  } catch (const Error& e) {
    return e.what();
  }
}

TEST(Gguf, ValuesOfEveryKindAreRead) {
  GgufBytes file;
  file.key("i8", GgufKind::kI8, raw<int8_t>(-3)).key("u16", GgufKind::kU16, raw<uint16_t>(7));
  file.key("u64", GgufKind::kU64, raw<uint64_t>(8)).key("i64", GgufKind::kI64, raw<int64_t>(9));
  file.key("f64", GgufKind::kF64, raw(0.5)).f32("f32", 1.5f).flag("yes", true);
  file.text("text", "a\nb").texts("texts", {"", "xy"});
  file.numbers<uint8_t>("list", GgufKind::kU8, {1, 255});
  file.key("large", GgufKind::kU64, raw(std::numeric_limits<uint64_t>::max()));
  const std::string bytes = file.bytes();
  const auto header = parse_gguf_header(bytes, bytes.size(), "m.gguf");
  ASSERT_TRUE(header.has_value());
  const GgufMetadata& m = header->metadata;
  EXPECT_EQ(m.count("u16", 7), 7u);
  EXPECT_EQ(m.count("u64", 100), 8u);
  EXPECT_EQ(m.count("i64", 100), 9u);
  EXPECT_EQ(m.count("none", 100), std::nullopt);
  EXPECT_EQ(m.number("i8"), -3.0);
  EXPECT_EQ(m.number("f64"), 0.5);
  EXPECT_EQ(m.number("f32"), 1.5);
  EXPECT_EQ(m.flag("yes"), true);
  EXPECT_EQ(m.text("text"), "a\nb");
  EXPECT_EQ(m.texts("texts"), (std::vector<std::string_view>{"", "xy"}));
  EXPECT_EQ(m.integers("list"), (std::vector<int64_t>{1, 255}));
  EXPECT_EQ(m.integers("u16"), (std::vector<int64_t>{7}));
  EXPECT_EQ(m.numbers("f32"), (std::vector<double>{1.5}));
  const auto words = [&](const std::function<void()>& read) -> std::string {
    try {
      read();
    } catch (const Error& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_EQ(words([&] { (void)m.count("u16", 6); }),
            "m.gguf: u16 is 7; expected an integer from 0 to 6");
  EXPECT_EQ(words([&] { (void)m.count("i8", 6); }),
            "m.gguf: i8 is -3; expected an integer from 0 to 6");
  EXPECT_EQ(words([&] { (void)m.count("large", 6); }),
            "m.gguf: large is 18446744073709551615; expected an integer from 0 to 6");
  EXPECT_EQ(words([&] { (void)m.text("list"); }),
            "m.gguf: list is an array of 2 u8; expected a string");
  EXPECT_EQ(words([&] { (void)m.integers("f32"); }), "m.gguf: f32 is 1.5; expected integers");
  EXPECT_EQ(words([&] { (void)m.flag("text"); }),
            "m.gguf: text is \"a\\x0ab\"; expected true or false");
}

TEST(Gguf, TensorsAreReadWithTheirBytes) {
  const std::string bytes = good().bytes();
  const auto header = parse_gguf_header(bytes, bytes.size(), "m.gguf");
  ASSERT_TRUE(header.has_value());
  ASSERT_EQ(header->tensors.size(), 2u);
  const GgufTensor& a = header->tensors[0];
  EXPECT_EQ(a.name, "a.weight");
  EXPECT_EQ(a.type->name, "Q8_0");
  EXPECT_EQ(a.shape, (std::vector<uint64_t>{2, 64}));
  EXPECT_EQ(a.bytes, 136u);
  EXPECT_EQ(bytes.substr(a.offset, a.bytes), std::string(136, '\1'));
  const GgufTensor& b = header->tensors[1];
  EXPECT_EQ(bytes.substr(b.offset, b.bytes), std::string(12, '\2'));
  // Bytes behind the data are accepted, and the version before the last reads the same.
  EXPECT_EQ(refusal(bytes + "more"), "accepted");
  GgufBytes older = good();
  older.version = 2;
  EXPECT_EQ(refusal(older.bytes()), "accepted");
}

TEST(Gguf, EveryCutIsRefused) {
  const std::string bytes = good().bytes();
  for (size_t size = 0; size < bytes.size(); ++size) {
    const std::string cut = bytes.substr(0, size);
    EXPECT_NE(refusal(cut), "accepted") << size;
    EXPECT_NE(refusal(cut), "incomplete") << size;
    // As the beginning of the whole file: more is asked for until the header ends.
    const auto header = parse_gguf_header(cut, bytes.size(), "m.gguf");
    EXPECT_EQ(header.has_value(), size >= good().head().size()) << size;
  }
}

TEST(Gguf, BadHeadersAreRefusedInWords) {
  const auto with = [](const std::function<void(GgufBytes&)>& change) {
    GgufBytes file = good();
    change(file);
    return refusal(file.bytes());
  };
  const auto magic = [](std::string_view begin) {
    return refusal(std::string(begin) + std::string(40, '\0'));
  };
  EXPECT_EQ(refusal(""), "m.gguf: the file is empty");
  EXPECT_NE(refusal("GGU").find("cut, join them with cat"), std::string::npos);
  EXPECT_NE(refusal("GGUF").find("it is incomplete or damaged"), std::string::npos);
  for (const char* old : {"GGML", "lmgg", "tjgg", "algg", "fmgg"})
    EXPECT_NE(magic(old).find("older than GGUF; convert the model again"), std::string::npos);
  EXPECT_EQ(magic("version https://git-lfs"),
            "m.gguf: a Git LFS pointer: the file itself was not downloaded");
  EXPECT_NE(magic("<!DOCTYPE html>").find("an HTML page"), std::string::npos);
  EXPECT_EQ(magic(std::string_view("PK\3\4", 4)), "m.gguf: a zip archive or a PyTorch file");
  for (const uint32_t version : {0u, 4u})
    EXPECT_EQ(
        with([&](GgufBytes& f) { f.version = version; }),
        fmt::format("m.gguf: GGUF version {} is not supported; versions 2 and 3 are", version));
  EXPECT_EQ(with([](GgufBytes& f) { f.version = 1; }),
            "m.gguf: GGUF version 1 is not supported; convert the model again");
  EXPECT_EQ(with([](GgufBytes& f) { f.version = 0x03000000; }),
            "m.gguf: big-endian GGUF is not supported");
  for (const uint64_t count : {1ull << 63, 1ull << 40})
    EXPECT_EQ(with([&](GgufBytes& f) { f.tensors = count; }),
              fmt::format("m.gguf: {} tensors; at most 1000000 are allowed", count));
  EXPECT_NE(with([](GgufBytes& f) { f.tensors = 999'999; }).find("it is incomplete or damaged"),
            std::string::npos);
  EXPECT_EQ(with([](GgufBytes& f) { f.keys = ~0ull; }),
            "m.gguf: 18446744073709551615 keys; at most 65536 are allowed");
  EXPECT_NE(with([](GgufBytes& f) { ++f.keys; }), "accepted");
  EXPECT_NE(with([](GgufBytes& f) { --f.keys; }), "accepted");
}

TEST(Gguf, BadKeysAreRefusedInWords) {
  const auto with = [](const std::function<void(GgufBytes&)>& change) {
    GgufBytes file = good();
    change(file);
    return refusal(file.bytes());
  };
  const auto key_of_length = [&](uint64_t length) {
    return with([&](GgufBytes& f) {
      ++f.keys;
      f.key_bytes += raw(length) + "name" + raw<uint32_t>(4) + raw<uint32_t>(1);
    });
  };
  EXPECT_NE(key_of_length(~0ull).find("a key has 18446744073709551615 bytes"), std::string::npos);
  EXPECT_NE(key_of_length(100'000).find("are left of the file"), std::string::npos);
  EXPECT_EQ(with([](GgufBytes& f) { f.u32("", 1); }), "m.gguf: a key is empty");
  EXPECT_EQ(with([](GgufBytes& f) { f.u32("k", 1).u32("k", 1); }), "m.gguf: k occurs twice");
  EXPECT_EQ(with([](GgufBytes& f) { f.key("k", static_cast<GgufKind>(13), ""); }),
            "m.gguf: k: value type 13 is not known");
  EXPECT_EQ(with([](GgufBytes& f) { f.array("k", GgufKind::kArray, 1, ""); }),
            "m.gguf: k: an array of arrays is not allowed");
  EXPECT_EQ(with([](GgufBytes& f) { f.array("k", static_cast<GgufKind>(13), 1, ""); }),
            "m.gguf: k: value type 13 is not known");
  EXPECT_EQ(with([](GgufBytes& f) { f.array("k", GgufKind::kU64, 1ull << 61, ""); }),
            "m.gguf: k: 2305843009213693952 elements; at most 16777216 are allowed");
  EXPECT_EQ(with([](GgufBytes& f) { f.array("k", GgufKind::kString, 1ull << 40, ""); }),
            "m.gguf: k: 1099511627776 elements; at most 16777216 are allowed");
  EXPECT_NE(with([](GgufBytes& f) {
              f.array("k", GgufKind::kString, 1u << 24, "");
            }).find("are left of the file"),
            std::string::npos);
  EXPECT_NE(with([](GgufBytes& f) {
              f.key("k", GgufKind::kString, raw<uint64_t>(1ull << 32));
            }).find("k has 4294967296 bytes"),
            std::string::npos);
  EXPECT_EQ(with([](GgufBytes& f) { f.key("k", GgufKind::kBool, raw<uint8_t>(2)); }),
            "m.gguf: k: a boolean is 2; expected 0 or 1");
  const auto alignment = [&](GgufKind kind, const std::string& value) {
    return with([&](GgufBytes& f) { f.key("general.alignment", kind, value); });
  };
  const std::string expected = "; expected a power of two from 8 to 1048576 of type u32";
  EXPECT_EQ(alignment(GgufKind::kI32, raw<int32_t>(32)),
            "m.gguf: general.alignment is 32" + expected);
  for (const uint32_t bad : {0u, 3u, 1u << 31})
    EXPECT_EQ(alignment(GgufKind::kU32, raw(bad)),
              fmt::format("m.gguf: general.alignment is {}{}", bad, expected));
  EXPECT_EQ(alignment(GgufKind::kString, gguf_text("32")),
            "m.gguf: general.alignment is \"32\"" + expected);
}

// Metadata of 600 MB: pages that nobody writes hold zeros, and texts are not read.
TEST(Gguf, MetadataHasALimit) {
  constexpr size_t kText = kMaxGgufText, kTexts = 40, kSize = kTexts * (kText + 64);
  void* pages = ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  auto* at = static_cast<char*>(pages);
  const auto put = [&](const std::string& bytes) {
    std::memcpy(at, bytes.data(), bytes.size());
    at += bytes.size();
  };
  put("GGUF" + raw<uint32_t>(3) + raw<uint64_t>(0) + raw<uint64_t>(kTexts));
  for (size_t i = 0; i < kTexts; ++i) {
    put(gguf_text(fmt::format("k{}", i)) + raw(static_cast<uint32_t>(GgufKind::kString)) +
        raw<uint64_t>(kText));
    at += kText;
  }
  try {
    parse_gguf_header({static_cast<char*>(pages), kSize}, kSize, "m.gguf");
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(),
                 "m.gguf: metadata of more than 536870912 bytes; at most that is allowed");
  }
  ::munmap(pages, kSize);
}

TEST(Gguf, BadTensorsAreRefusedInWords) {
  const auto with = [](std::string_view name, const std::vector<uint64_t>& ne, uint32_t type,
                       uint64_t offset) {
    GgufBytes file = good();
    file.entry(name, ne, type, offset);
    file.data += std::string(4096, '\0');
    return refusal(file.bytes());
  };
  EXPECT_EQ(with("c", {64}, 0, 192), "accepted");
  EXPECT_EQ(with(std::string(300, 'n'), {64}, 0, 192),
            "m.gguf: a tensor's name has 300 bytes; at most 256 are allowed");
  EXPECT_EQ(with("a.weight", {64}, 0, 192), "m.gguf: a.weight occurs twice");
  EXPECT_EQ(with("c\nd", {0}, 0, 192),
            "m.gguf: c\\x0ad: dimension 0 is 0; expected 1 to 281474976710656");
  EXPECT_EQ(with("c", {}, 0, 192), "m.gguf: c has 0 dimensions; expected 1 to 4");
  EXPECT_EQ(with("c", {1, 1, 1, 1, 1}, 0, 192), "m.gguf: c has 5 dimensions; expected 1 to 4");
  EXPECT_EQ(with("c", {1ull << 32, 1ull << 32}, 0, 192),
            "m.gguf: c: the product of its dimensions exceeds 64 bits");
  EXPECT_NE(with("c", {(1ull << 42) + 1}, 0, 192).find("end behind the file"), std::string::npos);
  for (const uint32_t type : {4u, 5u, 31u, 36u})
    EXPECT_NE(with("c", {64}, type, 192).find("removed from GGUF in December 2024"),
              std::string::npos);
  for (const uint32_t type : {43u, 1u << 31})
    EXPECT_EQ(with("c", {64}, type, 192),
              fmt::format("m.gguf: c: type {} is a type newer than this program", type));
  EXPECT_EQ(with("c", {64}, 144, 192),
            "m.gguf: c: type 144 is (IQ4_KS) one of ik_llama.cpp's, not of GGUF; files that "
            "llama.cpp reads run");
  for (const uint32_t type : {9u, 15u})
    EXPECT_NE(with("c", {256}, type, 192).find("a type of activations"), std::string::npos);
  EXPECT_EQ(with("c", {100}, 12, 192),
            "m.gguf: c: rows of 100 numbers; expected a multiple of 256, the block of Q4_K");
  EXPECT_EQ(with("c", {8}, 0, 193), "m.gguf: c: offset 193 is no multiple of 32");
  EXPECT_EQ(with("c", {64}, 0, 128), "m.gguf: a.weight and c overlap");
  EXPECT_NE(with("c", {64}, 0, 1u << 20).find("end behind the file"), std::string::npos);
  EXPECT_NE(with("c", {64}, 0, ~0ull - 31).find("end behind the file"), std::string::npos);
  GgufBytes gptoss;
  gptoss.text("general.architecture", "gptoss").entry("c", {32}, 4, 0);
  EXPECT_NE(refusal(gptoss.bytes()).find("ollama's own form of gpt-oss"), std::string::npos);
  const std::string shorter = good().bytes();
  EXPECT_NE(refusal(shorter.substr(0, shorter.size() - 1)).find("which lacks 1 bytes"),
            std::string::npos);
}

// A model of three parts; `no` and `count` of the second may be wrong.
void write_parts(const test::TempDir& folder, uint16_t no = 1, uint16_t count = 3,
                 int32_t tensors = 3, std::string_view name = "t1") {
  for (uint16_t i = 0; i < 3; ++i) {
    GgufBytes part;
    if (i == 0) part.text("general.architecture", "qwen3moe");
    part.key("split.no", GgufKind::kU16, raw(i == 1 ? no : i));
    part.key("split.count", GgufKind::kU16, raw(i == 1 ? count : uint16_t{3}));
    part.key("split.tensors.count", GgufKind::kI32, raw(tensors));
    part.tensor(i == 1 ? std::string(name) : fmt::format("t{}", i), {4}, 0, std::string(16, 'x'));
    test::write_file(folder / fmt::format("m-{:05}-of-00003.gguf", i + 1), part.bytes());
  }
}

std::string opened(const std::filesystem::path& path) {
  try {
    const Gguf gguf = Gguf::open(path);
    std::string names;
    for (const GgufTensor& t : gguf.tensors()) names += fmt::format("{}:{} ", t.name, t.part);
    return names;
  } catch (const Error& e) {
    return e.what();
  }
}

TEST(Gguf, AnyPartNamesASplitModel) {
  const test::TempDir folder;
  write_parts(folder);
  for (int part = 1; part <= 3; ++part)
    EXPECT_EQ(opened(folder / fmt::format("m-{:05}-of-00003.gguf", part)), "t0:0 t1:1 t2:2 ");
  const Gguf gguf = Gguf::open(folder / "m-00003-of-00003.gguf");
  ASSERT_NE(gguf.find("t2"), nullptr);
  EXPECT_EQ(gguf.find("t2")->part, 2u);
  EXPECT_EQ(gguf.files().size(), 3u);
  EXPECT_EQ(gguf.metadata().text("general.architecture"), "qwen3moe");
}

TEST(Gguf, PartsThatDoNotBelongTogetherAreRefused) {
  const test::TempDir folder;
  const auto ends = [&](std::string_view words) {
    const std::string said = opened(folder / "m-00001-of-00003.gguf");
    return said.ends_with(words) ? "" : said;
  };
  write_parts(folder, /*no=*/2);
  EXPECT_EQ(ends("split.no is 2; expected 1, as the file's name says"), "");
  write_parts(folder, 1, /*count=*/2);
  EXPECT_EQ(ends("split.count is 2; expected 3, as the file's name says"), "");
  write_parts(folder, 1, 3, /*tensors=*/4);
  EXPECT_EQ(ends("split.tensors.count is 4; expected 3, the tensors of all parts"), "");
  write_parts(folder, 1, 3, 3, "t0");
  EXPECT_EQ(ends("t0 is in two parts"), "");
  write_parts(folder);
  std::filesystem::remove(folder / "m-00002-of-00003.gguf");
  EXPECT_EQ(ends("3 parts, of which are missing: m-00002-of-00003.gguf"), "");
}

}  // namespace
}  // namespace moebius::gguf_test
