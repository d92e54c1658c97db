// SPDX-License-Identifier: Apache-2.0
// Files of routing: what is recorded is read again, and damaged or foreign files are refused by name.
#include "apps/route_trace.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "unit/test_util.h"

namespace moebius::route_trace_test {
namespace {

using test::TempDir;

constexpr uint16_t kNone = RouteTrace::kNoExpert;

std::string refusal(const std::string& path, const RouteTrace& sizes) {
  try {
    read_route_trace(path, sizes);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

class RouteTraceTest : public testing::Test {
 protected:
  RouteTraceTest() : checkpoint(Checkpoint::open(test::bundled_model_dir().string())) {}

  // Records steps of these numbers of tokens. Token t chooses t and the layer's number, and nothing in
  // further slots.
  void record(std::initializer_list<int> steps) const {
    RouteRecorder recorder(path, checkpoint);
    int first = 0;
    for (const int rows : steps) {
      for (const MoeBlock& b : checkpoint.moe_blocks()) {
        std::vector<int32_t> ids;
        for (int r = 0; r < rows; ++r)
          ids.insert(ids.end(), {-1, (first + r) % static_cast<int>(b.spec.experts), b.layer});
        recorder.block(b, {}, ids, 3);
      }
      first += rows;
    }
    recorder.finish();
  }

  const Checkpoint checkpoint;
  const TempDir dir;
  const std::string path = (dir / "routes").string();
};

TEST_F(RouteTraceTest, IsReadAsItWasRecorded) {
  const RouteTrace sizes = route_sizes(checkpoint);
  ASSERT_EQ(sizes.layers, checkpoint.moe_blocks().size());
  ASSERT_GE(sizes.top_k, 2u);
  record({4, 1, 1, 3});
  const RouteTrace t = read_route_trace(path, sizes);
  ASSERT_EQ(t.tokens(), 9u);
  for (size_t token = 0; token < 9; ++token)
    for (size_t layer = 0; layer < t.layers; ++layer)
      for (size_t k = 0; k < t.top_k; ++k) {
        const size_t expected = k == 0   ? token % t.experts
                                : k == 1 ? static_cast<size_t>(checkpoint.moe_blocks()[layer].layer)
                                         : kNone;
        EXPECT_EQ(t.choices[(token * t.layers + layer) * t.top_k + k], expected);
      }
}

TEST_F(RouteTraceTest, DamagedFilesAreRefused) {
  const RouteTrace sizes = route_sizes(checkpoint);
  record({2});
  const std::string whole = test::read_file(path);
  const auto said = [&](const std::string& bytes) {
    test::write_file(path, bytes);
    const std::string words = refusal(path, sizes);
    EXPECT_TRUE(bytes == whole || words.find(path) != std::string::npos) << words;
    return words;
  };
  EXPECT_EQ(said(whole), "");
  for (size_t n = 0; n < whole.size(); ++n) EXPECT_NE(said(whole.substr(0, n)), "") << n;
  EXPECT_NE(said(whole + "x").find("expected"), std::string::npos);
  std::string bytes = whole;
  bytes[3] = '?';
  EXPECT_NE(said(bytes).find("no trace"), std::string::npos);
  for (const size_t at : {16u, 20u, 24u, 32u}) {  // layers, experts, choices, tokens
    bytes = whole;
    bytes[at] ^= 1;
    EXPECT_NE(said(bytes).find("expected"), std::string::npos) << at;
  }
  bytes = whole;
  bytes[bytes.size() - 1] = '\x7f';
  EXPECT_NE(said(bytes).find("has expert "), std::string::npos);
  EXPECT_NE(refusal((dir / "none").string(), sizes), "");
}

TEST_F(RouteTraceTest, ARunWithoutStepsIsNoTrace) {
  record({});
  EXPECT_NE(refusal(path, route_sizes(checkpoint)).find("0 tokens"), std::string::npos);
}

TEST_F(RouteTraceTest, AFolderIsRefusedBeforeTheRun) {
  EXPECT_THROW(RouteRecorder(dir.path().string(), checkpoint), Error);
}

}  // namespace
}  // namespace moebius::route_trace_test
