// SPDX-License-Identifier: Apache-2.0
// What ranks tell each other before they load: bytes there and back, and every reason to part.
#include "model/ranks/handshake.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/sha256.h"
#include "runtime/comm.h"
#include "runtime/comm_threads.h"
#include "unit/test_util.h"

namespace moebius::handshake_test {
namespace {

Handshake some_handshake() {
  Handshake h;
  h.version = "0.1.0", h.commit = "abc", h.build = "0123", h.architecture = "aarch64";
  h.cpu = "neon,dotprod,i8mm";
  h.options = {{"--dtype", "bf16"}, {"--ctx", "4096"}};
  h.files = {{"config.json", 100, "aa"}, {"model.safetensors", 1000, "bb"}};
  h.memory = {{"this machine", 1000}, {"control group /a", 500}};
  h.kernels = {{"experts", "arm_i8mm/int4", true}, {"attention", "arm_bf16/bf16", false}};
  return h;
}

std::string refusal_after(const std::function<void(Handshake&)>& change, size_t rank = 2) {
  std::vector<Handshake> ranks(3, some_handshake());
  change(ranks[rank]);
  return refusal_of(ranks, [](size_t r) { return "host" + std::to_string(r); });
}

TEST(Sha256, KnownAnswers) {
  const auto hash = [](std::string_view text) {
    Sha256 h;
    for (const char c : text) {  // byte by byte: every way to fill a block
      const auto b = static_cast<uint8_t>(c);
      h.add({&b, 1});
    }
    return h.hex();
  };
  EXPECT_EQ(hash(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  Sha256 million;
  const std::vector<uint8_t> a(1'000'000, 'a');
  million.add(a);
  EXPECT_EQ(million.hex(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Handshake, BytesThereAndBack) {
  for (const Handshake& h : {some_handshake(), Handshake{}})
    EXPECT_EQ(decode_handshake(encode(h)), h);
  Handshake other;
  other.protocol = 7;
  EXPECT_EQ(decode_handshake(encode(other)).protocol, 7u);
}

TEST(Handshake, CutBytesAreRefused) {
  const std::vector<uint8_t> bytes = encode(some_handshake());
  for (size_t n = 0; n < bytes.size(); ++n)
    EXPECT_THROW((void)decode_handshake({bytes.data(), n}), Error) << n;
  std::vector<uint8_t> longer = bytes;
  longer.push_back(0);
  EXPECT_THROW((void)decode_handshake(longer), Error);
}

TEST(Handshake, EqualRanksAgree) {
  EXPECT_EQ(refusal_after([](Handshake&) {}), "");
}

TEST(Handshake, EveryDifferenceIsNamedWithItsRank) {
  const auto expect = [](const std::function<void(Handshake&)>& change, const std::string& words) {
    EXPECT_EQ(refusal_after(change), "rank 2 (host2) " + words);
  };
  expect([](Handshake& h) { h.protocol = 9; }, "speaks protocol 9, rank 0 2");
  expect([](Handshake& h) { h.version = "0.2.0"; }, "has version 0.2.0, rank 0 has 0.1.0");
  expect([](Handshake& h) { h.commit = "def"; }, "has commit def, rank 0 has abc");
  expect([](Handshake& h) { h.architecture = "x86-64"; },
         "has architecture x86-64, rank 0 has aarch64");
  expect([](Handshake& h) { h.build = ""; }, "has build none, rank 0 has 0123");
  expect([](Handshake& h) { h.options[1].second = "8192"; }, "was given --ctx 8192, rank 0 4096");
  expect([](Handshake& h) { h.files.pop_back(); }, "lacks model.safetensors, which rank 0 has");
  expect(
      [](Handshake& h) {
        h.files.push_back({"x.json", 1, "cc"});
      },
      "has x.json, which rank 0 lacks");
  expect([](Handshake& h) { h.files[1].size = 999; },
         "has a model.safetensors of 999 bytes, rank 0 one of 1000");
  expect([](Handshake& h) { h.files[0].hash = "ab"; },
         "has another config.json than rank 0: its content differs");
  expect([](Handshake& h) { h.kernels[1].kernel = "arm_neon/f32"; },
         "would multiply attention with arm_neon/f32, rank 0 with arm_bf16/bf16, whose sums have "
         "another order: give --common-cpu");
  expect([](Handshake& h) { h.trouble = "cannot open: no such folder"; },
         "cannot go on: cannot open: no such folder");
  expect(
      [](Handshake& h) {
        h = {}, h.version = "0.1.0", h.commit = "abc", h.build = "0123", h.architecture = "aarch64",
        h.trouble = "no config.json";
      },
      "cannot go on: no config.json");
}

TEST(Handshake, ExactKernelsMayDiffer) {
  EXPECT_EQ(refusal_after([](Handshake& h) { h.kernels[0].kernel = "arm_dotprod/int4"; }), "");
}

TEST(Handshake, TroubleOfAllIsSaidOnce) {
  std::vector<Handshake> ranks(3, some_handshake());
  for (Handshake& h : ranks) h.trouble = "no folder", h.files.clear();
  EXPECT_EQ(refusal_of(ranks, [](size_t) { return "h"; }), "no folder");
}

TEST(Handshake, CommonCpuIsWhatAllHave) {
  std::vector<Handshake> ranks(2, some_handshake());
  ranks[1].cpu = "neon,fp16,dotprod";
  EXPECT_EQ(common_cpu(ranks), "neon,dotprod");
}

TEST(Handshake, IsExchangedBetweenRanks) {
  run_thread_ranks({.ranks = 3}, [](Comm& comm) {
    Handshake mine = some_handshake();
    mine.commit = std::string(static_cast<size_t>(comm.rank()) * 1000, 'c');
    const std::vector<Handshake> all = exchange_handshakes(comm, mine);
    ASSERT_EQ(all.size(), 3u);
    for (size_t r = 0; r < 3; ++r) EXPECT_EQ(all[r].commit.size(), r * 1000);
    EXPECT_EQ(all[static_cast<size_t>(comm.rank())], mine);
  });
}

// The bundled model: equal copies agree, a byte of a header or of a payload does not.
TEST(Handshake, MarksOfAFolder) {
  const test::TempDir temp;
  const std::filesystem::path copy = temp / "copy";
  std::filesystem::copy(test::bundled_model_dir(), copy, std::filesystem::copy_options::recursive);
  const auto marks = [&](const std::filesystem::path& folder, FolderCheck check) {
    return mark_folder(Checkpoint::open(folder.string(), Links::kAnywhere), check);
  };
  const std::vector<FileMark> original = marks(test::bundled_model_dir(), FolderCheck::kHeaders);
  ASSERT_GE(original.size(), 3u);
  EXPECT_EQ(marks(copy, FolderCheck::kHeaders), original);
  const std::vector<FileMark> deep = marks(copy, FolderCheck::kDeep);
  EXPECT_EQ(marks(test::bundled_model_dir(), FolderCheck::kDeep), deep);
  EXPECT_EQ(marks(test::bundled_model_dir(), FolderCheck::kSample),
            marks(copy, FolderCheck::kSample));

  const std::filesystem::path file = copy / "model.safetensors";
  std::string bytes = test::read_file(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  test::write_file(file, bytes);
  EXPECT_EQ(marks(copy, FolderCheck::kHeaders), original);
  EXPECT_NE(marks(copy, FolderCheck::kDeep), deep);
  test::write_file(copy / "generation_config.json", "{\"temperature\": 0.5}");
  EXPECT_NE(marks(copy, FolderCheck::kHeaders), original);
}

TEST(Handshake, KernelsOfTheBundledModel) {
  const Checkpoint checkpoint =
      Checkpoint::open(test::bundled_model_dir().string(), Links::kAnywhere);
  const std::vector<KernelMark> marks = mark_kernels(checkpoint, Wish());
  ASSERT_GE(marks.size(), 5u);
  EXPECT_EQ(marks.back().modules, "attention");
  for (const KernelMark& m : marks) EXPECT_FALSE(m.kernel.empty());
  const char* narrowed = std::getenv("MOEBIUS_TEST_CLASS");  // the smallest has no names
  EXPECT_EQ(handshake_of_process("v", "c").cpu.empty(),
            narrowed != nullptr && std::string_view(narrowed) == "none");
}

}  // namespace
}  // namespace moebius::handshake_test
