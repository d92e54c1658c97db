// SPDX-License-Identifier: Apache-2.0
// A file of the output (quantize/shard_file.h): what a stopped run had settled is taken over where its
// bytes are there, and only there.
#include "quantize/shard_file.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "unit/checkpoint/checkpoint_util.h"

namespace moebius::shard_file_test {
namespace {

// Two tensors: one copied in two pieces, one whole.
OutputPlan small_plan() {
  OutputPlan plan;
  OutputPlan::Shard& shard = plan.shards.emplace_back();
  shard.name = "model.safetensors";
  shard.header = "header";
  for (const auto& [offset, bytes] : {std::pair<uint64_t, uint64_t>(6, 10), {16, 4}}) {
    PlannedTensor& t = plan.tensors.emplace_back();
    t.info.offset = offset, t.info.bytes = bytes;
  }
  shard.bytes = 20;
  for (const uint64_t begin : {0u, 5u}) {
    WorkUnit& u = shard.units.emplace_back();
    u.begin = begin, u.count = 5, u.outputs = {0};
  }
  WorkUnit& u = shard.units.emplace_back();
  u.kind = WorkUnit::Kind::kEncode, u.outputs = {1};
  return plan;
}

const std::vector<std::vector<uint8_t>> kFirst{{'a', 'b', 'c', 'd', 'e'}},
    kSecond{{'f', 'g', 'h', 'i', 'j'}}, kThird{{'w', 'x', 'y', 'z'}};

TEST(ShardFile, GoesOnWhereTheBytesAreThere) {
  const OutputPlan plan = small_plan();
  const test::TempDir dir;
  const std::string folder = dir.path().string();
  BegunShard begun;
  {
    ShardFile file(plan, 0, folder, std::nullopt);
    EXPECT_EQ(file.done(), 0u);
    file.put(0, kFirst);
    file.put(1, kSecond);
    begun = file.settle(2);
  }
  ShardFile file(plan, 0, folder, begun);
  ASSERT_EQ(file.done(), 2u);
  file.put(2, kThird);
  const FinishedShard whole = file.finish();
  EXPECT_EQ(test::read_file(dir / "model.safetensors"), "headerabcdefghijwxyz");
  EXPECT_TRUE(ShardFile::is_whole(plan, 0, folder, whole));
  for (const size_t at : {0u, 7u, 12u, 19u}) {
    std::string bytes = "headerabcdefghijwxyz";
    bytes[at] = 'Q';
    test::write_file(dir / "model.safetensors", bytes);
    EXPECT_FALSE(ShardFile::is_whole(plan, 0, folder, whole)) << at;
  }
  test::write_file(dir / "model.safetensors", "headerabcdefghijwxy");
  EXPECT_FALSE(ShardFile::is_whole(plan, 0, folder, whole));
}

TEST(ShardFile, BeginsAnewWhereTheyAreNot) {
  const OutputPlan plan = small_plan();
  const test::TempDir dir;
  const std::string folder = dir.path().string();
  ShardFile first(plan, 0, folder, std::nullopt);
  first.put(0, kFirst);
  first.put(1, kSecond);
  const BegunShard begun = first.settle(2);
  BegunShard other = begun;
  other.name = "another.safetensors";
  EXPECT_EQ(ShardFile(plan, 0, folder, other).done(), 0u);
  const auto left = [&](const std::string& bytes, const BegunShard& b) {
    test::write_file(dir / "model.safetensors.tmp", bytes);
    return ShardFile(plan, 0, folder, b).done();
  };
  EXPECT_EQ(left("headerabcdefghij....", begun), 2u);
  EXPECT_EQ(left("headerabcdefghiJ....", begun), 0u);
  EXPECT_EQ(left("Headerabcdefghij....", begun), 0u);
  EXPECT_EQ(left("headerabcdefghij...", begun), 0u);
  other = begun;
  other.units = 4;  // more than there are
  EXPECT_EQ(left("headerabcdefghij....", other), 0u);
  other.units = 1;
  EXPECT_EQ(left("headerabcdefghij....", other), 0u);
}

}  // namespace
}  // namespace moebius::shard_file_test
