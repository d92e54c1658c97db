// SPDX-License-Identifier: Apache-2.0
// Packed weights from start to start: equal logits from memory, from a file that was just written and
// from one that is mapped; and whatever happens to files, nothing wrong is computed with.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <thread>

#include "base/checksum.h"
#include "base/error.h"
#include "device/packed_store.h"
#include "model/ranks/ranked_model.h"
#include "model/run/decoder.h"
#include "model/run/packed_weights.h"
#include "runtime/mapped_file.h"
#include "unit/test_util.h"

namespace moebius::packed_store_test {
namespace {

namespace fs = std::filesystem;

struct Said {
  std::vector<std::string> notes, warnings;
  std::string all() const {
    std::string text;
    for (const std::string& line : notes) text += line + "\n";
    for (const std::string& line : warnings) text += "warning: " + line + "\n";
    return text;
  }
};

ModelOptions options_for(ThreadPool& pool, const fs::path& pack_dir, Said& said) {
  ModelOptions o;
  o.pool = &pool;
  o.type = XType::kF32;
  o.context = 32;
  o.pack_dir = pack_dir.string();
  o.note = [&said](const std::string& line) { said.notes.push_back(line); };
  o.warn = [&said](const std::string& line) { said.warnings.push_back(line); };
  return o;
}

std::vector<float> logits_of_model(DecoderModel& model) {
  const std::vector<int32_t> tokens = {1, 5, 2, 7, 3};
  SequenceState state = model.new_sequence();
  std::vector<float> out;
  const StepItem item{&state, tokens, true};
  model.forward({&item, 1}, out);
  return out;
}

bool same_bytes(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

fs::path golden(const std::string& name) { return test::test_data_dir() / "golden" / name; }

std::vector<float> logits_with(const fs::path& folder, const fs::path& pack_dir, Said& said,
                               size_t threads = 2) {
  ThreadPool pool(threads);
  const Checkpoint checkpoint = Checkpoint::open(folder.string());
  return logits_of_model(*DecoderModel::load(checkpoint, options_for(pool, pack_dir, said)));
}

std::vector<fs::path> files_in(const fs::path& folder, std::string_view suffix) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().string().ends_with(suffix)) found.push_back(entry.path());
  return found;
}

void expect_equal_logits(const fs::path& folder) {
  SCOPED_TRACE(folder.filename().string());
  const test::TempDir dir;
  Said none, first, second;
  const std::vector<float> plain = logits_with(folder, "", none);
  EXPECT_TRUE(same_bytes(plain, logits_with(folder, dir.path(), first)));
  ASSERT_EQ(first.notes.size(), 2u) << first.all();
  EXPECT_NE(first.notes[0].find("the disk has"), std::string::npos) << first.all();
  EXPECT_TRUE(same_bytes(plain, logits_with(folder, dir.path(), second)));
  EXPECT_EQ(second.notes.size(), 1u) << second.all();  // that it is there: nothing is packed again
  EXPECT_TRUE(first.warnings.empty() && second.warnings.empty()) << first.all() << second.all();
  EXPECT_EQ(files_in(dir.path(), kPackSuffix).size(), 1u);
  EXPECT_TRUE(files_in(dir.path(), ".tmp").empty());
}

// One of every way that weights are stored, and of every kind of layer that keeps packed weights.
TEST(PackedWeights, EqualLogits) {
  for (const char* name :
       {"qwen3moe-dense", "qwen3moe-w4a16-actorder-weight", "qwen3moe-w8a8-static-asym",
        "qwen3moe-nvfp4", "qwen3moe-mxfp8", "qwen3moe-fp8-block-ragged", "gptoss-mxfp4-native",
        "deepseekv3-dense", "deepseekv3-w4a8-g32", "qwen3-w4a8o8-channel-pack",
        "qwen3next-w4a8-g32", "qwen3moe-w8a16-embeddings", "llama-mlx-real-tied"})
    expect_equal_logits(golden(name));
}

TEST(PackedWeights, EqualLogitsOfEveryFolder) {
  if (!test::full_run()) GTEST_SKIP() << "set MOEBIUS_FULL=1";
  size_t folders = 0;
  for (const auto& entry : fs::directory_iterator(test::test_data_dir() / "golden")) {
    if (!fs::exists(entry.path() / "logits.safetensors")) continue;
    expect_equal_logits(entry.path());
    ++folders;
  }
  EXPECT_GT(folders, 100u);
}

// A folder of its own with a small model, and the file of its packed weights.
class PackedFile : public testing::Test {
 protected:
  PackedFile() {
    fs::copy(golden("afmoe-w4a16-g32"), model_, fs::copy_options::recursive);
    Said said;
    expected_ = logits_with(model_, packed_, said);
    path_ = files_in(packed_, kPackSuffix).at(0);
  }
  void expect_made_anew(const std::string& words) {
    Said said;
    EXPECT_TRUE(same_bytes(expected_, logits_with(model_, packed_, said)));
    ASSERT_EQ(said.warnings.size(), 1u) << said.all();
    EXPECT_NE(said.warnings[0].find(words), std::string::npos) << said.all();
    EXPECT_NE(said.warnings[0].find("it is made anew"), std::string::npos) << said.all();
    Said again;
    EXPECT_TRUE(same_bytes(expected_, logits_with(model_, packed_, again)));
    EXPECT_TRUE(again.warnings.empty()) << again.all();
  }
  // Whether a start would use the file as it is.
  bool used() {
    ThreadPool pool(2);
    Said said;
    const Checkpoint checkpoint = Checkpoint::open(model_.string());
    PackRequest request = pack_request(checkpoint, options_for(pool, packed_, said));
    const std::shared_ptr<PackedStore> store = PackedStore::open(checkpoint, std::move(request));
    return store != nullptr && !store->writes();
  }
  PackIndex index_of(const std::string& bytes) const {
    const std::span<const uint8_t> all(reinterpret_cast<const uint8_t*>(bytes.data()),
                                       bytes.size());
    const PackHeader h = parse_pack_header(all, bytes.size(), "file");
    return parse_pack_index(all.subspan(h.index_offset), h.index_offset, "file");
  }

  test::TempDir dir_;
  fs::path model_ = dir_ / "model", packed_ = dir_ / "packed", path_;
  std::vector<float> expected_;
};

TEST_F(PackedFile, StaleSource) {
  const fs::path shard = model_ / "model.safetensors";
  fs::last_write_time(shard, fs::last_write_time(shard) + std::chrono::seconds(2));
  expect_made_anew("was made from other files or by another version");
}

// Another CPU, another kernel or another type of rows: another file.
TEST_F(PackedFile, OneForEveryChoice) {
  ThreadPool pool(2);
  Said said;
  const Checkpoint checkpoint = Checkpoint::open(model_.string());
  ModelOptions o = options_for(pool, packed_, said);
  PackRequest same = pack_request(checkpoint, o), cpu = same;
  EXPECT_EQ(pack_target(checkpoint, same).path, path_.string());
  cpu.cpu = parse_cpu("reference");
  EXPECT_NE(pack_target(checkpoint, cpu).path, path_.string());
  o.type = XType::kBf16;
  EXPECT_NE(pack_target(checkpoint, pack_request(checkpoint, o)).path, path_.string());
  o.type = XType::kF32, o.policy.accept = Accept::kExact;
  EXPECT_NE(pack_target(checkpoint, pack_request(checkpoint, o)).path, path_.string());
}

TEST_F(PackedFile, DamagedAnywhere) {
  const std::string good = test::read_file(path_);
  const PackIndex index = index_of(good);
  const auto covered = [&](size_t at) {
    const PackHeader h = parse_pack_header(
        {reinterpret_cast<const uint8_t*>(good.data()), good.size()}, good.size(), "file");
    if (at < kPackHeaderBytes || at >= h.index_offset) return true;
    for (const auto& [key, e] : index.entries)
      if (at >= e.offset && at < e.offset + e.bytes) return true;
    return false;  // between blocks
  };
  size_t damaged = 0;
  for (size_t i = 0; i < 60; ++i) {
    const size_t at = i < 8 ? i * 13 : (good.size() - 1) / 59 * i;
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (1 << i % 8));
    test::write_file(path_, bad);
    EXPECT_EQ(used(), !covered(at)) << "byte " << at;
    damaged += covered(at);
    test::write_file(path_, good);
  }
  EXPECT_GT(damaged, 30u);
  EXPECT_TRUE(used());
  for (const size_t size : {size_t{0}, size_t{1}, size_t{15}, size_t{4095}, size_t{4096},
                            good.size() / 2, good.size() - 1}) {
    test::write_file(path_, good.substr(0, size));
    EXPECT_FALSE(used()) << size << " bytes";
  }
  test::write_file(path_, good + "x");
  EXPECT_FALSE(used());
  test::write_file(path_, good);
  std::string bad = good;
  bad[index.entries.begin()->second.offset] ^= 4;
  test::write_file(path_, bad);
  expect_made_anew("is damaged");
}

// Facts that would lead a kernel out of its memory, in a file whose checksums are right.
TEST_F(PackedFile, ForgedFacts) {
  const std::string good = test::read_file(path_);
  PackIndex index = index_of(good);
  PackHeader header = parse_pack_header(
      {reinterpret_cast<const uint8_t*>(good.data()), good.size()}, good.size(), "file");
  for (auto& [key, e] : index.entries)
    for (SlotFacts& s : e.slots) s.order.columns = {1 << 30}, s.bias = {1, 2, 3};
  const std::string forged = pack_index(index);
  header.index_bytes = forged.size(), header.file_bytes = header.index_offset + forged.size();
  header.index_checksum =
      checksum({reinterpret_cast<const uint8_t*>(forged.data()), forged.size()});
  test::write_file(
      path_, pack_header(header) +
                 good.substr(kPackHeaderBytes, header.index_offset - kPackHeaderBytes) + forged);
  Said said;
  EXPECT_TRUE(same_bytes(expected_, logits_with(model_, packed_, said)));
  EXPECT_NE(said.all().find("the next start makes it anew"), std::string::npos) << said.all();
  EXPECT_FALSE(fs::exists(path_));
}

// The file is cut while a model runs from it: the step fails in words; when it is whole again, the next
// one runs.
TEST_F(PackedFile, CutWhileItIsMapped) {
  ThreadPool pool(2);
  Said said;
  const Checkpoint checkpoint = Checkpoint::open(model_.string());
  const auto model = DecoderModel::load(checkpoint, options_for(pool, packed_, said));
  EXPECT_TRUE(same_bytes(expected_, logits_of_model(*model)));
  const std::string good = test::read_file(path_);
  ASSERT_EQ(::truncate(path_.c_str(), 4096), 0);
  for (int i = 0; i < 2; ++i) {
    try {
      logits_of_model(*model);
      ADD_FAILURE() << "it computed with zeros";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("packed weights could not be read"), std::string::npos)
          << e.what();
    }
  }
  {
    FILE* f = std::fopen(path_.c_str(), "r+b");
    ASSERT_NE(f, nullptr);
    EXPECT_EQ(std::fwrite(good.data(), 1, good.size(), f), good.size());
    std::fclose(f);
  }
  EXPECT_TRUE(same_bytes(expected_, logits_of_model(*model)));
}

// Every rank has a file of its own.
TEST(PackedWeights, Ranks) {
  const test::TempDir dir;
  ThreadPool pool(1);
  Said none, said;
  const Checkpoint checkpoint = Checkpoint::open(golden("deepseekv3-w4a8-g32").string());
  const std::vector<float> plain =
      logits_of_model(*DecoderModel::load(checkpoint, options_for(pool, "", none)));
  ModelOptions o = options_for(pool, dir.path(), said);
  std::mutex mutex;
  o.note = o.warn = [&](const std::string& line) {
    const std::lock_guard lock(mutex);
    said.notes.push_back(line);
  };
  for (const RankSplit& split : {RankSplit{1, 2, 1}, RankSplit{1, 1, 2}})
    for (int start = 0; start < 2; ++start) {
      said = {};
      ThreadRankedModel ranked(checkpoint, o, split, {});
      EXPECT_TRUE(same_bytes(plain, logits_of_model(ranked.model()))) << describe(split);
      EXPECT_EQ(said.notes.size(), start == 0 ? 4u : 2u) << said.all();
    }
  EXPECT_EQ(files_in(dir.path(), kPackSuffix).size(), 4u);
}

TEST(PackedWeights, TwoAtOnce) {
  const fs::path folder = golden("afmoe-w4a16-g32");
  Said none;
  const std::vector<float> plain = logits_with(folder, "", none);
  for (int round = 0; round < 3; ++round) {
    const test::TempDir dir;
    std::vector<float> found[3];
    Said said[3];
    std::vector<std::thread> threads;
    for (size_t i = 0; i < 3; ++i)
      threads.emplace_back([&, i] { found[i] = logits_with(folder, dir.path(), said[i], 1); });
    for (std::thread& t : threads) t.join();
    size_t packed = 0;
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(same_bytes(plain, found[i]));
      EXPECT_TRUE(said[i].warnings.empty()) << said[i].all();
      packed += said[i].all().find("packing ") != std::string::npos;
    }
    EXPECT_EQ(packed, 1u);
    EXPECT_EQ(files_in(dir.path(), kPackSuffix).size(), 1u);
    EXPECT_TRUE(files_in(dir.path(), ".tmp").empty());
  }
}

// A process that is killed while it writes leaves nothing that is read, and nothing that is in the way.
TEST(PackedWeights, KilledWhileWriting) {
  if (!test::plain_build()) GTEST_SKIP() << "a forked child confuses sanitizers and emulators";
  const test::TempDir dir;
  const Checkpoint checkpoint = Checkpoint::open(golden("afmoe-w4a16-g32").string());
  const auto begin = [&] {
    PackRequest r;
    r.folder = dir.path().string();
    r.bytes = 1 << 20;
    r.note = r.warn = [](const std::string&) {};
    return PackedStore::open(checkpoint, std::move(r));
  };
  const std::vector<uint8_t> bytes(100000, 7);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto store = begin();
    (void)store->keep("a", bytes, {});
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_TRUE(files_in(dir.path(), kPackSuffix).empty());
  auto store = begin();
  ASSERT_NE(store, nullptr);
  EXPECT_TRUE(store->writes());
  EXPECT_FALSE(store->find("a"));
  EXPECT_TRUE(store->keep("b", bytes, {}));
  store->finish();
  store = begin();
  EXPECT_FALSE(store->writes());
  const auto kept = store->find("b");
  ASSERT_TRUE(kept);
  EXPECT_EQ(std::memcmp(kept->memory.data(), bytes.data(), bytes.size()), 0);
  EXPECT_TRUE(files_in(dir.path(), ".tmp").empty());
}

TEST(PackedWeights, TooLittleDisk) {
  const test::TempDir dir;
  const Checkpoint checkpoint = Checkpoint::open(golden("afmoe-w4a16-g32").string());
  Said said;
  PackRequest r;
  r.folder = dir.path().string();
  r.bytes = uint64_t{1} << 60;
  r.note = [&](const std::string& line) { said.notes.push_back(line); };
  r.warn = [&](const std::string& line) { said.warnings.push_back(line); };
  EXPECT_EQ(PackedStore::open(checkpoint, std::move(r)), nullptr);
  ASSERT_EQ(said.warnings.size(), 1u);
  EXPECT_NE(said.warnings[0].find("weights are packed into memory"), std::string::npos);
  EXPECT_TRUE(files_in(dir.path(), kPackSuffix).empty());
}

TEST(PackFile, IndexOfAnySize) {
  PackIndex index;
  index.about = "a model";
  PackEntry& e = index.entries["model.layers.0#1"];
  e.offset = 4096, e.bytes = kPackPiece + 1;
  e.ends = usual_pieces(e.bytes), e.checksums = {1, 2};
  e.slots.resize(1);
  e.slots[0].bias = {1.5f}, e.slots[0].order.columns = {0, 1}, e.slots[0].order.group_ends = {2};
  const std::string text = pack_index(index);
  const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  const uint64_t end = 4096 + kPackPiece + 1;
  EXPECT_EQ(pack_index(parse_pack_index(bytes, end, "f")), text);
  EXPECT_THROW(parse_pack_index(bytes, end - 1, "f"), Error);
  for (size_t n = 0; n < bytes.size(); ++n)
    EXPECT_THROW(parse_pack_index(bytes.first(n), end, "f"), Error) << n;
  const std::string more = text + "x";
  EXPECT_THROW(
      parse_pack_index({reinterpret_cast<const uint8_t*>(more.data()), more.size()}, end, "f"),
      Error);
}

}  // namespace
}  // namespace moebius::packed_store_test
