// SPDX-License-Identifier: Apache-2.0
// 64 greedy tokens of every dense golden folder are those of transformers
// (tests/golden/greedy.json), whatever the threads, the pieces of the prompt and the company in the
// batch.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "base/file.h"
#include "base/json.h"
#include "model/engine.h"
#include "unit/test_util.h"

namespace moebius {
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
  Engine engine(model, {kContext, chunk}, kContext);
  std::map<uint64_t, size_t> index;
  for (size_t i = 0; i < requests.size(); ++i) index[engine.add(requests[i])] = i;
  std::vector<std::vector<int32_t>> out(requests.size());
  while (!engine.idle())
    for (const StepResult& r : engine.step()) out[index.at(r.id)].push_back(r.choice.token);
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

}  // namespace
}  // namespace moebius
