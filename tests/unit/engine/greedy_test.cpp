// SPDX-License-Identifier: Apache-2.0
// 64 greedy tokens of every dense golden folder are those of transformers
// (build/data/golden/greedy.json), whatever the threads, the pieces of the prompt and the company in the
// batch.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "base/file.h"
#include "base/json.h"
#include "engine/engine.h"
#include "model/run/decoder.h"
#include "unit/test_util.h"

namespace moebius::greedy_test {
namespace {

namespace fs = std::filesystem;
constexpr size_t kContext = 128;

std::vector<int32_t> ids(const Json& list) {
  std::vector<int32_t> out;
  for (const Json& v : list.items()) out.push_back(static_cast<int32_t>(v.as_int().value()));
  return out;
}

Request greedy(std::vector<int32_t> prompt, size_t max_new) {
  Request r;
  r.prompt = std::move(prompt);
  r.sampling.temperature = 0;
  r.max_new = max_new;
  return r;
}

// Tokens of every request, all of them in one engine.
std::vector<std::vector<int32_t>> generate(DecoderModel& model, size_t chunk,
                                           const std::vector<Request>& requests) {
  EngineOptions options;
  options.context = kContext;
  options.parallel = requests.size();
  options.prompt_rows = chunk;
  Engine engine(model, options);
  std::map<uint64_t, size_t> index;
  for (size_t i = 0; i < requests.size(); ++i) index[engine.add(requests[i])] = i;
  std::vector<std::vector<int32_t>> out(requests.size());
  while (!engine.idle())
    for (const StepResult& r : engine.step().results)
      out[index.at(r.id)].push_back(r.choice->token);
  return out;
}

TEST(Greedy, EveryDenseFolderContinuesAsTransformersDoes) {
  const Json golden =
      parse_json(read_text_file((test::test_data_dir() / "golden/greedy.json").string(), 1 << 20),
                 "greedy.json");
  for (const auto& entry : fs::directory_iterator(test::test_data_dir() / "golden")) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with("-dense")) {
      EXPECT_NE(golden.find(name), nullptr) << name;
    }
  }
  for (const auto& [name, said] : golden.members()) {
    SCOPED_TRACE(name);
    const std::vector<int32_t> prompt = ids(*said.find("prompt")),
                               expected = ids(*said.find("tokens"));
    ASSERT_EQ(expected.size(), 64u);
    const Checkpoint checkpoint =
        Checkpoint::open((test::test_data_dir() / "golden" / name).string());
    for (const size_t threads : {1u, 2u}) {
      ThreadPool pool(threads);
      ModelOptions options;
      options.pool = &pool;
      options.type = XType::kF32;
      options.context = kContext;
      const auto model = DecoderModel::load(checkpoint, options);
      const Request alone = greedy(prompt, expected.size());
      EXPECT_EQ(generate(*model, 512, {alone})[0], expected) << threads << " threads";
      EXPECT_EQ(generate(*model, 7, {alone})[0], expected) << threads << " threads, pieces of 7";
      const auto batch = generate(*model, 16,
                                  {greedy({3, 4, 5}, 20), alone, greedy({prompt[1], 9}, 50),
                                   greedy({prompt.begin(), prompt.end() - 3}, 30), alone});
      EXPECT_EQ(batch[1], expected) << threads << " threads, beside others";
      EXPECT_EQ(batch[4], expected) << threads << " threads, beside others";
    }
  }
}

TEST(Engine, LimitsAndTheirReasons) {
  const Checkpoint checkpoint =
      Checkpoint::open((test::test_data_dir() / "golden/qwen3moe-dense").string());
  ThreadPool pool(1);
  ModelOptions options;
  options.pool = &pool;
  options.context = 16;
  const auto model = DecoderModel::load(checkpoint, options);
  const auto run = [&](size_t max_new) {
    EngineOptions engine_options;
    engine_options.context = 16;
    engine_options.prompt_rows = 4;
    Engine engine(*model, engine_options);
    engine.add(greedy({1, 2, 3, 4, 5, 6}, max_new));
    EXPECT_EQ(engine.prompt_left(), 6u);
    std::pair<size_t, Finish> out{0, Finish::kNone};
    for (size_t step = 0; !engine.idle(); ++step) {
      for (const StepResult& r : engine.step().results) {
        out.first += r.choice.has_value();
        out.second = r.finish;
      }
      if (step == 0 && max_new != 0) {
        EXPECT_EQ(engine.prompt_left(), 2u);
      }
    }
    return out;
  };
  EXPECT_EQ(run(0), std::pair(size_t{0}, Finish::kLength));  // no token at all
  EXPECT_EQ(run(3), std::pair(size_t{3}, Finish::kLength));
  EXPECT_EQ(run(10), std::pair(size_t{10}, Finish::kLength));
  EXPECT_EQ(run(11), std::pair(size_t{10}, Finish::kContext));
  EXPECT_EQ(run(SIZE_MAX), std::pair(size_t{10}, Finish::kContext));
}

}  // namespace
}  // namespace moebius::greedy_test
