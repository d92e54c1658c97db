// SPDX-License-Identifier: Apache-2.0
// A server whose model answers from a script, in the form of some family.
#pragma once
#include <string>
#include <vector>

#include "unit/serve/serve_util.h"
#include "unit/test_util.h"

namespace moebius::test {

struct AgentServer {
  // The templates of build/data/golden-text/tools. Each request takes the next answer, the last one
  // again and again; an end token follows it.
  explicit AgentServer(const std::string& format, std::vector<std::string> answers,
                       ReasoningField field = ReasoningField::kDefault);

  Response chat(const std::string& fields, bool tools = true) const;
  Response messages(const std::string& fields, bool tools = true) const;
  Response responses(const std::string& fields, bool tools = true) const;
  std::string prompt() const;  // of the last request, as text

  TempDir folder;
  ChatTemplates templates;
  std::vector<std::string> answers;
  std::atomic<size_t> asked{0};
  std::vector<int32_t> last_prompt;
  std::shared_ptr<const Grammar> last_grammar;
  std::unique_ptr<FakeServer> server;
};

// Random ids and times become words.
std::string without_ids(std::string text);
// "event: X" and "data: X" of a stream, ids replaced.
std::vector<std::string> stream_lines(const Response& response);

}  // namespace moebius::test
