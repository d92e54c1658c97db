// SPDX-License-Identifier: Apache-2.0
// Answers as messages, for callers of C++ and C.
#include <gtest/gtest.h>

#include <cstring>

#include "base/json.h"
#include "moebius/model.hpp"
#include "moebius/moebius.h"
#include "unit/test_util.h"

namespace moebius::test {
namespace {

constexpr const char* kMessages = R"([{"role":"user","content":"Weather?"}])";
constexpr const char* kTools =
    R"([{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}}])";
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

}  // namespace
}  // namespace moebius::test
