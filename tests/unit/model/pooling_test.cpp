// SPDX-License-Identifier: Apache-2.0
// Vectors and scores against what sentence-transformers made of the same folders
// (tests/python/make_embeddings.py), and what a folder may say of them.
#include "model/run/pooling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "base/error.h"
#include "base/json.h"
#include "model/run/decoder.h"
#include "model/run/scoring.h"
#include "runtime/thread_pool.h"
#include "serve/pooling_generator.h"
#include "text/tokenizer.h"
#include "unit/allocations_util.h"
#include "unit/test_util.h"

namespace moebius::pooling_test {
namespace {

namespace fs = std::filesystem;

fs::path folder(const char* name) { return test::test_data_dir() / "golden-embed" / name; }

const Json& expected() {
  static const Json j =
      parse_json(test::read_file(test::test_data_dir() / "golden-embed/expected.json"), "expected");
  return j;
}

std::string words_of(const fs::path& path) {
  try {
    (void)read_pooling(Checkpoint::open(path.string()));
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

double distance(const std::vector<float>& found, const Json& wanted) {
  EXPECT_EQ(found.size(), wanted.items().size());
  double most = 0;
  for (size_t i = 0; i < std::min(found.size(), wanted.items().size()); ++i)
    most = std::max(most, std::abs(found[i] - wanted.items()[i].as_double()));
  return most;
}

// Every way of pooling, with rows that come in pieces of several sizes.
TEST(Pooling, EveryModeIsThatOfSentenceTransformers) {
  const Checkpoint checkpoint = Checkpoint::open(folder("mean").string());
  const Tokenizer tokenizer = Tokenizer::from_folder(folder("mean").string());
  ThreadPool pool(2);
  ModelOptions o;
  o.pool = &pool;
  o.type = XType::kF32;
  const auto model = load_rows_model(checkpoint, o);
  const std::pair<const char*, bool> kCases[] = {
      {"mean", true}, {"lasttoken", false}, {"mean without its prompt", true}};
  const auto& texts = expected().find("texts")->items();
  for (size_t i = 0; i < texts.size(); ++i) {
    for (const auto& [name, mean] : kCases) {
      PoolingPlan plan;
      plan.mean = mean;
      plan.include_prompt = name != std::string("mean without its prompt");
      const std::string prompt = plan.include_prompt ? "" : "Query: ";
      const std::vector<int32_t> ids = tokenizer.encode(prompt + texts[i].as_string(), true);
      std::vector<float> once;
      for (const size_t piece : {size_t{512}, size_t{7}}) {
        SequenceState state = model->new_sequence();
        Pooler pooler(plan, 32, tokenizer.encode(prompt, true).size());
        std::vector<float> rows;
        for (size_t at = 0; at < ids.size(); at += piece) {
          const StepItem item{&state, std::span(ids).subspan(at, std::min(piece, ids.size() - at)),
                              true, ids.size()};
          model->forward({&item, 1}, rows);
          ASSERT_EQ(rows.size(), item.tokens.size() * 32);
          for (size_t r = 0; r < item.tokens.size(); ++r)
            pooler.add(std::span(rows).subspan(32 * r, 32));
        }
        const std::vector<float> found = pooler.finish();
        EXPECT_LT(distance(found, expected().find("pooled")->find(name)->items()[i]), 1e-5)
            << name << " of text " << i;
        if (piece == 512)
          once = found;
        else
          EXPECT_EQ(found, once) << name << " of text " << i;  // to the bit
      }
    }
  }
}

TEST(Pooling, WhatFoldersSay) {
  const auto last = read_pooling(Checkpoint::open(folder("last").string()));
  ASSERT_TRUE(last);
  EXPECT_TRUE(last->normalize);
  EXPECT_FALSE(last->needs_all_rows());
  EXPECT_FALSE(last->truncates);
  EXPECT_EQ(last->default_prompt, "document");
  EXPECT_EQ(last->prompts.at("query"), "Instruct: find it\nQuery: ");
  const auto mean = read_pooling(Checkpoint::open(folder("mean").string()));
  ASSERT_TRUE(mean);
  EXPECT_EQ(mean->dimensions, (std::vector<size_t>{8, 16, 32}));
  const auto head = read_pooling(Checkpoint::open(folder("head").string()));
  ASSERT_TRUE(head);
  EXPECT_TRUE(head->scores && head->sigmoid && !head->needs_logits());
  EXPECT_EQ(head->head.size(), 32u);
  const auto tokens = read_pooling(Checkpoint::open(folder("tokens").string()));
  ASSERT_TRUE(tokens);
  EXPECT_EQ(tokens->yes, 100);
  EXPECT_EQ(tokens->no, 200);
  EXPECT_FALSE(read_pooling(Checkpoint::open(test::bundled_model_dir().string())));
}

// What cannot be run is refused in words; nothing outside the folder is read.
TEST(Pooling, WhatCannotBeIsRefused) {
  const test::TempDir dir;
  const auto with = [&](const char* name, const std::string& file, const std::string& from,
                        const std::string& to) {
    const fs::path copy = dir / std::to_string(std::rand());
    fs::copy(folder(name), copy, fs::copy_options::recursive);
    std::string text = test::read_file(copy / file);
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    test::write_file(copy / file, text.replace(at, from.size(), to));
    return words_of(copy);
  };
  const auto says = [](const std::string& words, const char* part) {
    EXPECT_NE(words.find(part), std::string::npos) << words;
  };
  says(with("mean", "1_Pooling/config.json", "\"mean\"", "\"best\""),
       "pooling_mode is \"best\"; expected mean or lasttoken");
  says(with("mean", "1_Pooling/config.json", "\"mean\"", "[\"mean\", \"cls\"]"),
       "pooling_mode is [\"mean\", \"cls\"]; expected mean or lasttoken");
  says(with("mean", "1_Pooling/config.json", "32", "31"), "expected the model's 32");
  says(with("last", "modules.json", "normalize.Normalize", "cnn.CNN"), "cnn.CNN is not offered");
  says(words_of(folder("dense")), "dense.Dense is not offered");
  says(with("last", "modules.json", "\"1_Pooling\"", "\"../x\""), "leads out of the folder");
  says(with("last", "modules.json", "pooling.Pooling", "normalize.Normalize"), "no module Pooling");
  says(with("last", "modules.json", "[", "{"), "modules.json");
  says(with("tokens", "1_LogitScore/config.json", "100", "100000"), "expected a token below 512");
  says(with("tokens", "config_sentence_transformers.json", "Sigmoid", "Tanh"),
       "only Sigmoid and Identity");
  says(with("last", "config.json", "\"hidden_act\"", "\"is_causal\": false,\n \"hidden_act\""),
       "not offered");
}

// A generator over the folder `dir`, and the events that ended its texts.
class PoolingBench {
 public:
  explicit PoolingBench(const std::string& dir)
      : checkpoint_(Checkpoint::open(dir)), plan_(read_pooling(checkpoint_)) {
    ModelOptions o;
    o.pool = &pool_;
    o.type = XType::kF32;
    model_ = load_rows_model(checkpoint_, o);
    PoolingGeneratorOptions options;
    options.slots = 2;
    options.kv_bytes = 1 << 20;
    options.row = 32;
    generator_ = std::make_unique<PoolingGenerator>(*model_, *plan_, options);
  }
  uint64_t submit(std::vector<int32_t> tokens) {
    Request request;
    request.prompt = std::move(tokens);
    return generator_->submit(std::move(request));
  }
  void start() {
    generator_->start([&](TextStep step) {
      const std::lock_guard lock(mutex_);
      for (StepResult& e : step.events) ended_[e.id] = std::move(e);
      changed_.notify_all();
    });
  }
  void wait(uint64_t id) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_.count(id) > 0; });
  }
  StepResult end(uint64_t id) {
    wait(id);
    const std::lock_guard lock(mutex_);
    return ended_[id];
  }

 private:
  const Checkpoint checkpoint_;
  const std::optional<PoolingPlan> plan_;
  ThreadPool pool_{2};
  std::unique_ptr<DecoderModel> model_;
  std::map<uint64_t, StepResult> ended_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<PoolingGenerator> generator_;  // ends first
};

// A model whose row of one token is not a number: texts with it end with words, others in the same steps
// with their vectors.
TEST(Pooling, NumbersThatAreNotFiniteEndTheirTextAlone) {
  const test::TempDir temp;
  fs::copy(folder("mean"), temp.path(), fs::copy_options::recursive);
  std::string bytes = test::read_file(temp / "model.safetensors");
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof(header));
  const Json tensors = parse_json(std::string_view(bytes).substr(8, header), "header");
  const Json* table = tensors.find("embed_tokens.weight");
  const auto begin = static_cast<size_t>(*table->find("data_offsets")->items()[0].as_int());
  constexpr int32_t kToken = 7;
  std::memset(bytes.data() + 8 + header + begin + kToken * 32 * sizeof(float), 0xff,
              32 * sizeof(float));
  test::write_file(temp / "model.safetensors", bytes);

  PoolingBench bench(temp.path().string());
  const uint64_t bad = bench.submit({5, kToken, 6}), good = bench.submit({5, 8, 6});
  bench.start();
  EXPECT_EQ(bench.end(bad).finish, Finish::kError);
  EXPECT_EQ(bench.end(bad).error, "number 0 of the model's result is nan");
  EXPECT_TRUE(bench.end(bad).vector.empty());
  EXPECT_EQ(bench.end(good).finish, Finish::kStop);
  EXPECT_EQ(bench.end(good).vector.size(), 32u);
}

// Memory that runs out at any moment ends the texts that were taken, in words; the next one has its
// vector.
TEST(Pooling, FailedAllocationsEndTheirTextsAlone) {
  if (!test::allocations_can_fail()) GTEST_SKIP() << "allocations cannot be made to fail here";
  PoolingBench bench(folder("mean"));
  bench.start();
  const std::vector<int32_t> text = {5, 8, 6};
  const std::vector<float> vector = bench.end(bench.submit(text)).vector;
  ASSERT_EQ(vector.size(), 32u);
  size_t refused = 0;
  bool failed = true;
  for (long n = 0; failed && n < 5000; ++n) {
    std::optional<uint64_t> id;
    {
      const test::FailAllocation fail(n);
      try {
        id = bench.submit(text);
      } catch (const std::bad_alloc&) {
      }
      if (id) bench.wait(*id);
      failed = test::allocations_left() < 0;
    }
    const StepResult e = id ? bench.end(*id) : StepResult();
    if (id && e.finish == Finish::kStop) {
      EXPECT_EQ(e.vector, vector) << "allocation " << n;
    } else {
      ++refused;
      EXPECT_TRUE(e.vector.empty() && (!id || !e.error.empty())) << "allocation " << n;
    }
    ASSERT_EQ(bench.end(bench.submit(text)).vector, vector) << "after allocation " << n;
  }
  EXPECT_GT(refused, 0u);
  EXPECT_FALSE(failed);  // all of them were tried
}

TEST(Pooling, CutVectorsAreOfUnitLengthAgain) {
  std::vector<float> v = {3, 4, 12};
  cut_vector(v, 2, true);
  EXPECT_EQ(v, (std::vector<float>{0.6f, 0.8f}));
  std::vector<float> zero = {0, 0};
  cut_vector(zero, 2, true);
  EXPECT_EQ(zero, (std::vector<float>{0, 0}));
}

}  // namespace
}  // namespace moebius::pooling_test
