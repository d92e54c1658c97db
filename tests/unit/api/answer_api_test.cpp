// SPDX-License-Identifier: Apache-2.0
// Answers as messages, for callers of C++ and C.
#include <gtest/gtest.h>

#include <cstring>

#include "base/json.h"
#include "moebius/model.hpp"
#include "moebius/moebius.h"
#include "unit/test_util.h"

namespace moebius::test::answer_api_test {
namespace {

constexpr const char* kMessages = R"([{"role":"user","content":"Weather?"}])";
constexpr const char* kTools =
    R"([{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}}])";
constexpr const char* kClosedTools =
    R"([{"name":"get_weather","parameters":{"type":"object","properties":{"city":{"enum":["Oslo","Rome"]}},"required":["city"],"additionalProperties":false}}])";
constexpr const char* kText =
    "<think>hm</think>I look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": "
    "\"Oslo\"}}\n</tool_call>";

TEST(AnswerApi, AMessageOfTokens) {
  const TempDir folder;
  std::filesystem::copy(bundled_model_dir() / "tokenizer.json", folder / "tokenizer.json");
  write_file(folder / "chat_template.jinja",
             read_file(test_data_dir() / "golden-text/tools/hermes.jinja"));
  const llm::Tokenizer tokenizer = llm::Tokenizer::open(folder.path().string());
  const std::vector<int32_t> ids = tokenizer.encode(kText, false);
  llm::Chat chat;
  chat.messages = kMessages;
  chat.tools = kTools;
  const std::string expected =
      parse_json(
          R"({"role":"assistant","content":"I look.","reasoning_content":"hm","tool_calls":[{"id":"call_0","type":"function","function":{"name":"get_weather","arguments":"{\"city\": \"Oslo\"}"}}]})",
          "expected")
          .dump();
  EXPECT_EQ(tokenizer.chat_answer(chat, ids), expected);
  // Without tools a call is content.
  chat.tools.clear();
  const Json plain = parse_json(tokenizer.chat_answer(chat, ids), "message");
  EXPECT_EQ(plain.find("tool_calls"), nullptr);
  EXPECT_TRUE(plain.find("content")->as_string().ends_with("</tool_call>"));

  moebius_tokenizer* c = moebius_tokenizer_open(folder.path().c_str());
  ASSERT_NE(c, nullptr) << moebius_last_error();
  moebius_chat given{};
  given.size = sizeof given;
  given.messages = kMessages;
  given.tools = kTools;
  given.add_generation_prompt = 1;
  size_t bytes = 0;
  char* message = moebius_tokenizer_answer(c, &given, ids.data(), ids.size(), 1, &bytes);
  ASSERT_NE(message, nullptr) << moebius_last_error();
  EXPECT_EQ(std::string(message, bytes), expected);
  moebius_string_free(message);
  EXPECT_EQ(moebius_tokenizer_answer(c, &given, nullptr, 3, 1, &bytes), nullptr);
  given.tools = "{}";
  EXPECT_EQ(moebius_tokenizer_answer(c, &given, ids.data(), ids.size(), 1, &bytes), nullptr);
  EXPECT_NE(std::strstr(moebius_last_error(), "expected an array"), nullptr);
  moebius_tokenizer_free(c);
}

// Masks follow the tools of a request, in C++ and C.
TEST(AnswerApi, CallsThatAreAskedFor) {
  const TempDir folder;
  for (const auto& entry : std::filesystem::directory_iterator(bundled_model_dir()))
    std::filesystem::copy(entry.path(), folder / entry.path().filename().string());
  std::string text = read_file(test_data_dir() / "golden-text/tools/hermes.jinja");
  for (size_t at; (at = text.find("think>")) != std::string::npos;) text.replace(at, 5, "notes");
  write_file(folder / "chat_template.jinja", text);  // without reasoning
  const llm::Model model = llm::Model::load(folder.path().string());
  llm::Chat chat;
  chat.messages = kMessages;
  chat.tools = kClosedTools;
  llm::Request request;
  request.prompt = model.tokenizer().chat_tokens(chat);
  request.sampling.temperature = 1.0f;
  request.sampling.seed = 7;
  request.sampling.max_tokens = 64;
  request.sampling.tools = kClosedTools;
  request.sampling.tool_choice = "required";
  std::vector<int32_t> made;
  {
    llm::Engine engine(model);
    engine.add(request);
    while (!engine.idle())
      for (const llm::Event& e : engine.step())
        if (e.token >= 0) made.push_back(e.token);
    const std::string said = model.tokenizer().decode(made, false);
    EXPECT_TRUE(said.starts_with("<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {"))
        << said;
    const auto refuses = [&](const char* words) {
      try {
        engine.add(request);
        ADD_FAILURE() << words;
      } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
        EXPECT_EQ(e.place().field, "tools");
      }
    };
    request.sampling.tool_choice = "get_wind";
    refuses("tool_choice is 'get_wind'");
    request.sampling.tool_choice = "required";
    request.sampling.regex = "a";
    refuses("neither another form of the answer");
    request.sampling.regex.clear();
    request.sampling.min_tokens = 2;
    refuses("nor min_tokens");
  }
  moebius_model* c = moebius_model_load(folder.path().c_str(), nullptr);
  ASSERT_NE(c, nullptr) << moebius_last_error();
  moebius_engine* engine = moebius_engine_new(c, nullptr);
  moebius_request r;
  moebius_request_init(&r, sizeof r);
  r.prompt = request.prompt.data(), r.prompt_tokens = request.prompt.size();
  r.temperature = 1, r.seed = 7, r.max_tokens = 64;
  r.tools = kClosedTools, r.tool_choice = "required";
  uint64_t id = 0;
  ASSERT_EQ(moebius_engine_add(engine, &r, &id), 0) << moebius_last_error();
  std::vector<int32_t> again;
  for (bool going = true; going;) {
    const moebius_event* events = nullptr;
    size_t count = 0;
    ASSERT_EQ(moebius_engine_step(engine, &events, &count), 0) << moebius_last_error();
    for (size_t i = 0; i < count; ++i) {
      if (events[i].token >= 0) again.push_back(events[i].token);
      going = going && events[i].finish == MOEBIUS_FINISH_NONE;
    }
  }
  EXPECT_EQ(again, made);
  moebius_engine_free(engine);
  moebius_model_free(c);
}

}  // namespace
}  // namespace moebius::test::answer_api_test
