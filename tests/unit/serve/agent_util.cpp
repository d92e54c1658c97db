// SPDX-License-Identifier: Apache-2.0
#include "unit/serve/agent_util.h"

#include <regex>

namespace moebius::test {
namespace {

constexpr int32_t kEndToken = 4092;
constexpr const char* kSchema =
    R"({"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"]})";

std::string body_of(const std::string& own, const std::string& tools, const std::string& fields) {
  return "{" + own + (tools.empty() ? "" : "," + tools) + (fields.empty() ? "" : "," + fields) +
         "}";
}

ChatTemplates templates_of(const std::string& format, const TempDir& folder) {
  write_file(folder / "chat_template.jinja",
             read_file(test_data_dir() / "golden-text/tools" / (format + ".jinja")));
  return ChatTemplates::from_folder(folder.path().string());
}

}  // namespace

AgentServer::AgentServer(const std::string& format, std::vector<std::string> texts,
                         ReasoningField field)
    : templates(templates_of(format, folder)), answers(std::move(texts)) {
  const auto script = [this](const Request& r, size_t) {
    last_prompt = r.prompt;
    last_grammar = r.text.grammar;
    const std::string& text = answers[std::min<size_t>(asked++, answers.size() - 1)];
    std::vector<int32_t> ids = bundled_tokenizer().encode(text, false);
    ids.push_back(kEndToken);
    return ids;
  };
  server = std::make_unique<FakeServer>(ServerOptions{}, script, 4, [&](ServedModel& m) {
    m.templates = &templates;
    m.markup = choose_answer_markup(templates, bundled_tokenizer());
    m.reasoning_field = field;
  });
}

std::string AgentServer::prompt() const { return bundled_tokenizer().decode(last_prompt, false); }

Response AgentServer::chat(const std::string& fields, bool tools) const {
  const std::string own = fields.find("\"messages\"") == std::string::npos
                              ? R"("messages":[{"role":"user","content":"Weather?"}])"
                              : R"("model":"tiny")";
  return server->ask(post(
      "/v1/chat/completions",
      body_of(
          own,
          tools
              ? std::string(
                    R"("tools":[{"type":"function","function":{"name":"get_weather","description":"d","parameters":)") +
                    kSchema + "}}]"
              : "",
          fields)));
}

Response AgentServer::messages(const std::string& fields, bool tools) const {
  std::string own = R"("model":"tiny")";
  if (fields.find("\"messages\"") == std::string::npos)
    own += R"(,"messages":[{"role":"user","content":"Weather?"}])";
  if (fields.find("\"max_tokens\"") == std::string::npos) own += R"(,"max_tokens":500)";
  return server->ask(post(
      "/v1/messages",
      body_of(
          own,
          tools ? std::string(R"("tools":[{"name":"get_weather","input_schema":)") + kSchema + "}]"
                : "",
          fields)));
}

Response AgentServer::responses(const std::string& fields, bool tools) const {
  const std::string own =
      fields.find("\"input\"") == std::string::npos ? R"("input":"Weather?")" : R"("model":"tiny")";
  return server->ask(post(
      "/v1/responses",
      body_of(
          own,
          tools ? std::string(R"("tools":[{"type":"function","name":"get_weather","parameters":)") +
                      kSchema + "}]"
                : "",
          fields)));
}

std::string without_ids(std::string text) {
  static const std::regex kIds("(chatcmpl-|call_|toolu_|msg_|resp_|rs_|fc_)[0-9a-f]{24}");
  static const std::regex kTimes("\"created(_at)?\":[0-9]+");
  text = std::regex_replace(text, kIds, "$1ID");
  return std::regex_replace(text, kTimes, "\"created$1\":1");
}

std::vector<std::string> stream_lines(const Response& response) {
  std::vector<std::string> out;
  std::string rest = without_ids(response.body);
  for (size_t end; (end = rest.find("\n\n")) != std::string::npos; rest.erase(0, end + 2))
    out.push_back(rest.substr(0, end));
  return out;
}

}  // namespace moebius::test
