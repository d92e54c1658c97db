// SPDX-License-Identifier: Apache-2.0
// Models whose experts are read from disk when a step needs them: equal bytes to the model in
// memory, for every folder with experts, from the checkpoint and from a file of packed weights; and
// failures of files while the model runs.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "model/run/decoder.h"
#include "unit/test_util.h"

namespace moebius::experts_on_disk_test {
namespace {

namespace fs = std::filesystem;

ModelOptions options_for(ThreadPool& pool) {
  ModelOptions o;
  o.pool = &pool;
  o.context = 32;
  return o;
}

std::vector<float> logits_of(DecoderModel& model, size_t tokens) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < tokens; ++i)
    ids.push_back(static_cast<int32_t>((i * 7 + 3) % model.vocab()));
  SequenceState state = model.new_sequence();
  std::vector<float> out, all;
  const std::span<const int32_t> list = ids;
  // A prompt, whose experts need several waves where places are few, then single tokens.
  for (const auto& [begin, count] :
       {std::pair<size_t, size_t>{0, tokens - 2}, {tokens - 2, 1}, {tokens - 1, 1}}) {
    const StepItem item{&state, list.subspan(begin, count), true};
    model.forward({&item, 1}, out);
    all.insert(all.end(), out.begin(), out.end());
  }
  return all;
}

bool same_bytes(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Returns the fewest bytes that the plan accepts, rounded up to a power of two; 0: the plan knows
// no store for this model.
uint64_t least_budget(const Checkpoint& checkpoint, Wish wish) {
  for (wish.expert_bytes = 4096; *wish.expert_bytes < uint64_t{1} << 40; *wish.expert_bytes *= 2) {
    const ModelPlan plan = plan_model(checkpoint, wish, {});
    if (plan.refusal.empty()) return *plan.wish.expert_bytes;
    EXPECT_NE(plan.refusal.find("experts that are read from disk need at least"),
              std::string::npos);
  }
  return 0;
}

TEST(ExpertsOnDisk, EqualBytesOfEveryFolder) {
  ThreadPool pool(2);
  size_t folders = 0;
  for (const auto& entry : fs::directory_iterator(test::test_data_dir() / "golden")) {
    if (!fs::exists(entry.path() / "config.json")) continue;
    std::optional<Checkpoint> checkpoint;
    ModelOptions options = options_for(pool);
    std::vector<float> expected;
    try {
      checkpoint.emplace(Checkpoint::open(entry.path().string()));
      if (checkpoint->moe_blocks().empty()) continue;
      expected = logits_of(*DecoderModel::load(*checkpoint, options), 24);
    } catch (const Error&) {
      continue;  // no whole model
    }
    const uint64_t least = least_budget(*checkpoint, options);
    if (least == 0) continue;
    SCOPED_TRACE(entry.path().filename().string());
    ++folders;
    const test::TempDir dir;
    options.expert_bytes = least;
    for (const bool packed : {false, true, true}) {  // the second time the file is there
      options.pack_dir = packed ? dir.path().string() : "";
      const auto model = DecoderModel::load(*checkpoint, options);

      EXPECT_TRUE(same_bytes(logits_of(*model, 24), expected)) << packed;
      ASSERT_TRUE(model->last_step().experts.has_value());
      EXPECT_GT(model->last_step().experts->counts.misses, 0u);
      EXPECT_LE(model->last_step().experts->memory, least);
    }
  }
  EXPECT_GT(folders, 100u);
}

std::string failure_of(DecoderModel& model) {
  try {
    logits_of(model, 24);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

fs::path file_ending_with(const fs::path& folder, std::string_view suffix) {
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().string().ends_with(suffix)) return entry.path();
  return {};
}

// A copy of a golden folder, loaded with the fewest places.
struct Loaded {
  test::TempDir dir;
  ThreadPool pool{2};
  fs::path folder = dir.path() / "model", packed = dir.path() / "packed";
  std::optional<Checkpoint> checkpoint;
  std::vector<float> expected;
  std::unique_ptr<DecoderModel> model;

  explicit Loaded(bool pack) {
    fs::copy(test::test_data_dir() / "golden" / "qwen2moe-w4a16-g32", folder);
    checkpoint.emplace(Checkpoint::open(folder.string()));
    ModelOptions options = options_for(pool);
    expected = logits_of(*DecoderModel::load(*checkpoint, options), 24);
    options.expert_bytes = least_budget(*checkpoint, options);
    if (pack) options.pack_dir = packed.string();
    model = DecoderModel::load(*checkpoint, options);
  }
};

TEST(ExpertsOnDisk, APackedFileThatIsUnlinkedIsReadOn) {
  Loaded m(/*pack=*/true);
  fs::remove_all(m.packed);
  EXPECT_TRUE(same_bytes(logits_of(*m.model, 24), m.expected));
}

TEST(ExpertsOnDisk, APackedFileThatIsCutFailsItsSteps) {
  Loaded m(/*pack=*/true);
  const fs::path file = file_ending_with(m.packed, ".packed");
  fs::resize_file(file, 8192);
  const std::string why = failure_of(*m.model);
  EXPECT_NE(why.find(file.string()), std::string::npos) << why;
}

TEST(ExpertsOnDisk, ADamagedExpertFailsItsSteps) {
  Loaded m(/*pack=*/true);
  const fs::path file = file_ending_with(m.packed, ".packed");
  std::string bytes = test::read_file(file);
  for (size_t i = 4096; i < bytes.size() * 9 / 10; i += 64) bytes[i] ^= 1;
  {
    std::fstream out(file, std::ios::in | std::ios::out | std::ios::binary);  // the same file
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  const std::string why = failure_of(*m.model);
  EXPECT_NE(why.find("is damaged, in the "), std::string::npos) << why;
}

TEST(ExpertsOnDisk, ACheckpointThatChangedFailsItsSteps) {
  Loaded m(/*pack=*/false);
  EXPECT_TRUE(same_bytes(logits_of(*m.model, 24), m.expected));
  const fs::path file = file_ending_with(m.folder, "model.safetensors");
  fs::copy_file(file, m.dir.path() / "copy");
  fs::rename(m.dir.path() / "copy", file);
  const std::string why = failure_of(*m.model);
  EXPECT_NE(why.find(file.string()), std::string::npos) << why;
  EXPECT_NE(why.find("changed"), std::string::npos) << why;
}

}  // namespace
}  // namespace moebius::experts_on_disk_test
