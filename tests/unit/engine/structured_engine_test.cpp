// SPDX-License-Identifier: Apache-2.0
// Answers in a form, on a backend that says anything: they fit, they end where the form does, and
// nobody's bytes depend on who else runs.
#include <gtest/gtest.h>

#include "engine/text_engine.h"
#include "runtime/thread_pool.h"
#include "text/grammar/answer_format.h"
#include "unit/engine/engine_util.h"
#include "unit/serve/serve_util.h"
#include "unit/text/grammar_util.h"

namespace moebius::structured_engine_test {
namespace {

using test::bundled_tokenizer;
using test::FakeBackend;

constexpr int32_t kEndOfText = 4092;

struct Formed {
  std::vector<int32_t> tokens;
  std::string text, error;
  Finish finish = Finish::kNone;
};

class FormedTalk {
 public:
  explicit FormedTalk(size_t parallel = 4, ThreadPool* pool = nullptr, size_t drafts = 0)
      : backend_(FakeBackend::all_kinds(), 4096) {
    EngineOptions options;
    options.context = 2048;
    options.parallel = parallel;
    options.pool = pool;
    options.drafts = drafts;
    options.every_draft = true;
    options.clock = [this] { return backend_.now; };
    engine_ = std::make_unique<TextEngine>(backend_, &bundled_tokenizer(), options);
  }
  // Schema -1: any text.
  uint64_t ask(int schema, uint64_t seed, size_t max_new = 120, size_t n = 1) {
    Request r = test::fake_request(30 + seed % 5, seed, max_new, 3000);
    r.sampling.temperature = 1;
    r.stop_tokens = {kEndOfText};
    r.n = n;
    TextRules& rules = r.text;
    if (schema >= 0) {
      rules.grammar = grammars()[static_cast<size_t>(schema)];
      rules.end_tokens = {kEndOfText};
    }
    return engine_->add(std::move(r));
  }
  void run() {
    for (; !engine_->idle(); ++steps)
      for (const StepResult& e : engine_->step().events) {
        Formed& f = answers_[{e.id, e.index}];
        if (e.choice) f.tokens.push_back(e.choice->token);
        f.text += e.text;
        f.finish = e.finish, f.error = e.error;
      }
  }
  const Formed& of(uint64_t id, size_t index = 0) { return answers_[{id, index}]; }
  TextEngine& engine() { return *engine_; }
  size_t steps = 0;

  static const std::vector<GrammarPtr>& grammars() {
    static const std::vector<GrammarPtr> all = [] {
      std::vector<GrammarPtr> out;
      for (const std::string& s : test::sample_schemas())
        out.push_back(grammar_from_schema(parse_json_strictly(s, "schema")));
      return out;
    }();
    return all;
  }

 private:
  FakeBackend backend_;
  std::unique_ptr<TextEngine> engine_;
  std::map<test::AnswerKey, Formed> answers_;
};

TEST(StructuredEngine, AnswersFitTheirSchema) {
  FormedTalk talk(8);
  std::vector<std::pair<uint64_t, size_t>> asked;
  for (size_t s = 0; s < FormedTalk::grammars().size(); ++s)
    for (uint64_t seed = 1; seed <= 3; ++seed)
      asked.emplace_back(talk.ask(static_cast<int>(s), 10 * s + seed), s);
  talk.run();
  size_t whole = 0;
  for (const auto& [id, s] : asked) {
    const Formed& f = talk.of(id);
    ASSERT_EQ(f.error, "");
    GrammarMatcher m(FormedTalk::grammars()[s]);
    EXPECT_TRUE(m.accept(f.text)) << f.text;
    if (f.finish != Finish::kStop) {
      EXPECT_EQ(f.finish, Finish::kLength);
      continue;
    }
    ++whole;
    EXPECT_EQ(f.tokens.back(), kEndOfText);
    EXPECT_TRUE(m.may_end());
    const Json schema = parse_json_strictly(test::sample_schemas()[s], "schema");
    EXPECT_TRUE(test::validates(parse_json_strictly(f.text, "answer"), schema, schema)) << f.text;
  }
  EXPECT_GT(whole, asked.size() / 3);
}

TEST(StructuredEngine, BytesDoNotDependOnCompanyThreadsOrCache) {
  std::vector<Formed> alone;
  for (int s = -1; s < 6; ++s) {
    FormedTalk talk(1);
    const uint64_t id = talk.ask(s, 77);
    talk.run();
    alone.push_back(talk.of(id));
  }
  ThreadPool two(2);
  for (ThreadPool* pool : {static_cast<ThreadPool*>(nullptr), &two})
    for (const bool again : {false, true}) {
      FormedTalk talk(8, pool);
      std::vector<uint64_t> ids;
      if (again) talk.ask(0, 77), talk.run();  // its prompt is in the cache now
      for (int s = -1; s < 6; ++s) {
        ids.push_back(talk.ask(s, 77));
        talk.ask(s, 500 + static_cast<uint64_t>(s + 1));
        talk.ask(-1, 900 + static_cast<uint64_t>(s + 1));
      }
      talk.run();
      for (size_t i = 0; i < ids.size(); ++i) {
        EXPECT_EQ(talk.of(ids[i]).tokens, alone[i].tokens) << i;
        EXPECT_EQ(talk.of(ids[i]).text, alone[i].text) << i;
        EXPECT_EQ(talk.of(ids[i]).finish, alone[i].finish) << i;
      }
    }
}

// What a form dictates runs as rows of one step and changes no byte.
TEST(StructuredEngine, ForcedRunsChangeNoAnswer) {
  const std::string keys =
      R"({"type":"object","properties":{"the_first_of_all_properties":{"type":"boolean"},)"
      R"("another_one_with_a_long_name":{"type":"integer"}},"additionalProperties":false,)"
      R"("required":["the_first_of_all_properties","another_one_with_a_long_name"]})";
  const GrammarPtr forced = grammar_from_schema(parse_json_strictly(keys, "schema"));
  std::vector<Formed> plain;
  std::vector<size_t> steps;
  for (const size_t drafts : {0u, 1u, 16u}) {
    FormedTalk talk(8, nullptr, drafts);
    std::vector<uint64_t> ids;
    for (size_t s = 0; s < FormedTalk::grammars().size(); ++s)
      ids.push_back(talk.ask(static_cast<int>(s), 40 + s, 60));
    talk.run();
    talk.steps = 0;
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      Request r = test::fake_request(30, seed, 200, 3000);
      r.stop_tokens = {kEndOfText};
      TextRules& rules = r.text;
      rules.grammar = forced;
      rules.end_tokens = {kEndOfText};
      ids.push_back(talk.engine().add(std::move(r)));
    }
    talk.run();
    steps.push_back(talk.steps);
    for (size_t i = 0; i < ids.size(); ++i) {
      const Formed& got = talk.of(ids[i]);
      ASSERT_EQ(got.error, "");
      if (drafts == 0) {
        plain.push_back(got);
        continue;
      }
      EXPECT_EQ(got.tokens, plain[i].tokens) << i;
      EXPECT_EQ(got.text, plain[i].text) << i;
      EXPECT_EQ(got.finish, plain[i].finish) << i;
    }
    const auto right = talk.engine().engine().snapshot().drafts_right;
    EXPECT_EQ(right[0] > 0, drafts > 0);
    EXPECT_EQ(right[3] > 0, drafts > 1);
  }
  EXPECT_LT(steps[2], steps[0]);
}

// The marker that ends reasoning is one run, too.
TEST(StructuredEngine, TheEndOfReasoningIsForcedInOneStep) {
  std::vector<std::vector<int32_t>> answers;
  std::vector<size_t> steps;
  for (const size_t drafts : {0u, 16u}) {
    FormedTalk talk(1, nullptr, drafts);
    Request r = test::fake_request(30, 5, 24, 3000);
    TextRules& rules = r.text;
    auto reading = std::make_shared<AnswerRules>();
    reading->reasoning = find_reasoning_format("think");
    reading->start = AnswerStart::kReasoning;
    rules.answer = reading;
    rules.thinking_budget = 3;
    const uint64_t id = talk.engine().add(std::move(r));
    talk.run();
    answers.push_back(talk.of(id).tokens);
    steps.push_back(talk.steps);
  }
  EXPECT_EQ(answers[0], answers[1]);
  const size_t marker = bundled_tokenizer().encode("</think>", false).size();
  ASSERT_GT(marker, 2u);
  EXPECT_LE(steps[1], steps[0] - (marker - 1));
}

TEST(StructuredEngine, EachOfSeveralAnswersHasItsOwnPlace) {
  FormedTalk talk(8);
  const uint64_t id = talk.ask(6, 3, 120, 4);
  talk.run();
  std::set<std::string> texts;
  for (size_t i = 0; i < 4; ++i) {
    GrammarMatcher m(FormedTalk::grammars()[6]);
    EXPECT_TRUE(m.accept(talk.of(id, i).text));
    texts.insert(talk.of(id, i).text);
  }
  EXPECT_GT(texts.size(), 1u);
}

TEST(StructuredEngine, EndsByItselfWhereTheModelHasNoEndToken) {
  FormedTalk talk;
  Request r = test::fake_request(30, 5, 50, 3000);
  r.text.grammar = compile(format_of_texts("", "", {"yes", "no"}));
  const uint64_t id = talk.engine().add(std::move(r));
  talk.run();
  EXPECT_TRUE(talk.of(id).text == "yes" || talk.of(id).text == "no") << talk.of(id).text;
  EXPECT_EQ(talk.of(id).finish, Finish::kStop);
}

TEST(StructuredEngine, RefusesWhatContradictsIt) {
  FormedTalk talk;
  for (const bool eos : {false, true}) {
    Request r = test::fake_request(30, 5, 50, 3000);
    if (eos)
      r.ignore_stop = true;
    else
      r.sampling.min_tokens = 3;
    TextRules& rules = r.text;
    rules.grammar = FormedTalk::grammars()[0];
    EXPECT_THROW(talk.engine().add(std::move(r)), Error);
  }
}

}  // namespace
}  // namespace moebius::structured_engine_test
