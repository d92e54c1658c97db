// SPDX-License-Identifier: Apache-2.0
// Every refusal of structured output, tools and the interfaces of agents, byte for byte in the form
// of each interface: requests and their answers are in build/data/golden-text/agents/errors.json.
#include <gtest/gtest.h>

#include <set>

#include "unit/serve/agent_util.h"

namespace moebius::test::serve_errors_test {
namespace {

constexpr const char* kFailure = "grammar_dead_end: no token of the vocabulary can continue it";

Json golden_errors() {
  const auto path = test_data_dir() / "golden-text/agents/errors.json";
  return parse_json(read_file(path), "errors.json");
}

std::string text_at(const Json& j, const char* key) {
  const Json* v = j.find(key);
  return v != nullptr && v->is_string() ? v->as_string() : "";
}

// Names of requests differ from run to run.
std::string without_request_id(std::string body) {
  const std::string key = "\"request_id\":\"";
  const size_t at = body.find(key);
  if (at == std::string::npos) return body;
  const size_t begin = at + key.size();
  return body.replace(begin, body.find('"', begin) - begin, "ID");
}

TEST(ServeErrors, BodiesOfEveryInterface) {
  const AgentServer agent("hermes", {"so"});
  const FakeServer plain;
  FakeServer failing;
  failing.generator.failure = kFailure;
  failing.generator.fail_at = 1;
  const Json cases = golden_errors();
  for (const Json& c : cases.items()) {
    const std::string server = text_at(c, "server"), path = text_at(c, "path");
    const FakeServer& s = server == "hermes" ? *agent.server : server == "plain" ? plain : failing;
    const Json* request = c.find("request");
    const Response r = s.ask(request != nullptr ? post(path, request->dump()) : get(path));
    EXPECT_EQ(r.status, static_cast<int>(c.find("status")->as_uint())) << r.body;
    EXPECT_EQ(without_request_id(r.body), text_at(c, "answer")) << path;
  }
}

// Codes of the tables in both documents.
std::set<std::string> documented_codes() {
  std::set<std::string> out;
  for (const char* page : {"agents.md", "structured.md"}) {
    const std::string text = read_file(source_dir() / "docs" / page);
    const size_t table = text.find("| code |");
    EXPECT_NE(table, std::string::npos) << page;
    const size_t end = text.find("\n\n", table);
    for (size_t at = table; (at = text.find("\n| `", at)) < end; ++at) {
      const size_t begin = at + 4;
      out.insert(text.substr(begin, text.find('`', begin) - begin));
    }
  }
  return out;
}

TEST(ServeErrors, EveryDocumentedCodeHasABody) {
  std::set<std::string> found;
  const Json cases = golden_errors();
  for (const Json& c : cases.items()) {
    const Json answer = parse_json(text_at(c, "answer"), "answer");
    found.insert(text_at(*answer.find("error"), "code"));
  }
  const std::set<std::string> codes = documented_codes();
  EXPECT_GE(codes.size(), 11u);
  for (const std::string& code : codes) EXPECT_TRUE(found.contains(code)) << code;
}

}  // namespace
}  // namespace moebius::test::serve_errors_test
