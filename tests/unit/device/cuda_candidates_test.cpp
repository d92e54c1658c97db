// SPDX-License-Identifier: Apache-2.0
// Draws on a CUDA device (emulated, tests/gpu/emulated_plugin.cpp): candidates cross instead of rows of logits, and the tokens are
// those of whole rows.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "device/cuda/cuda_device.h"
#include "engine/engine.h"
#include "model/run/decoder.h"
#include "unit/device/cuda_util.h"
#include "unit/engine/engine_util.h"
#include "unit/test_util.h"

namespace moebius::cuda_candidates_test {
namespace {

const CudaModule& emulated() {
  static const CudaModule module = open_cuda_module(test::emulated_plugin());
  return module;
}

size_t downloaded() {
  void* library = ::dlopen(test::emulated_plugin().c_str(), RTLD_NOW | RTLD_NOLOAD);
  const auto count =
      reinterpret_cast<size_t (*)()>(::dlsym(library, "moebius_emulated_downloaded"));
  ::dlclose(library);
  return count();
}

class CudaCandidatesTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!test::has_emulated_plugin()) GTEST_SKIP() << "skipped: no emulated plugin in this bundle";
    ASSERT_TRUE(emulated().ready()) << emulated().words;
    ModelOptions options;
    options.pool = &pool_, options.placement = parse_placement(GetParam()), options.context = 128;
    options.gpu.module = &emulated();
    model_ = DecoderModel::load(
        Checkpoint::open((test::test_data_dir() / "golden" / "qwen3moe-w4a8-g32-pack").string()),
        options);
  }

  struct Run {
    std::map<test::AnswerKey, test::FakeAnswer> answers;
    size_t bytes, tokens = 0;
  };
  Run run(std::vector<Request> requests, bool whole_rows) const {
    for (Request& r : requests)
      if (whole_rows) r.sampling.logprobs = 0;
    EngineOptions options;
    options.context = 128, options.parallel = 4;
    Engine engine(*model_, options);
    const size_t before = downloaded();
    Run out{test::answers_of(engine, requests), 0};
    out.bytes = downloaded() - before;
    for (const auto& [key, answer] : out.answers) out.tokens += answer.tokens.size();
    return out;
  }
  Request request(uint64_t seed, float temperature, int top_k, float top_p, float min_p) const {
    Request r = test::fake_request(3 + seed % 9, seed, 12, model_->vocab());
    r.sampling = {};
    r.sampling.temperature = temperature, r.sampling.top_k = top_k, r.sampling.top_p = top_p;
    r.sampling.min_p = min_p, r.sampling.seed = seed;
    return r;
  }

  ThreadPool pool_{1};
  std::unique_ptr<DecoderModel> model_;
};

TEST_P(CudaCandidatesTest, TokensAreThoseOfWholeRows) {
  std::vector<Request> requests;
  for (uint64_t seed = 1; seed <= 18; ++seed) {
    const float t = 0.3f + 0.2f * static_cast<float>(seed % 4);
    requests.push_back(seed % 6 == 0   ? request(seed, 0, 0, 1, 0)
                       : seed % 6 == 1 ? request(seed, t, 5, 1, 0)
                       : seed % 6 == 2 ? request(seed, t, 0, 0.5f, 0)
                       : seed % 6 == 3 ? request(seed, t, 0, 1, 0.2f)
                       : seed % 6 == 4 ? request(seed, t, 9, 0.8f, 0.1f)
                                       : request(seed, t, 0, 1, 0));  // all of the row
  }
  requests[3].n = 2, requests[8].n = 3;
  requests[5].sampling.presence_penalty = 0.5f;
  const Run some = run(requests, false), whole = run(requests, true);
  ASSERT_EQ(some.answers.size(), whole.answers.size());
  for (const auto& [key, answer] : whole.answers)
    EXPECT_EQ(answer.tokens, some.answers.at(key).tokens) << key.first << " " << key.second;
  EXPECT_LT(some.bytes, whole.bytes);
}

// A row of logits never crosses for a greedy choice, and not for the best few.
TEST_P(CudaCandidatesTest, RowsOfLogitsDoNotCross) {
  const size_t row = model_->vocab() * sizeof(float);
  std::vector<Request> greedy, best, mass;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    greedy.push_back(request(seed, 0, 0, 1, 0));
    best.push_back(request(seed, 0.5f, 2, 1, 0));
    mass.push_back(request(seed, 0.1f, 0, 0.3f, 0));
  }
  for (const auto& requests : {greedy, best, mass}) {
    const Run some = run(requests, false), whole = run(requests, true);
    EXPECT_GT(some.tokens, 30u);
    // The rest (counts of experts; rows of experts on the CPU) crosses in both.
    ASSERT_GT(whole.bytes, some.bytes);
    const size_t saved = whole.bytes - some.bytes;
    EXPECT_GT(saved, whole.tokens * row / 2) << "of " << whole.tokens * row;
    EXPECT_EQ(whole.answers.at({0, 0}).tokens, some.answers.at({0, 0}).tokens);
  }
}

INSTANTIATE_TEST_SUITE_P(Placements, CudaCandidatesTest,
                         testing::Values("cuda", "cuda,experts=cpu"));

}  // namespace
}  // namespace moebius::cuda_candidates_test
