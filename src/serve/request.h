// SPDX-License-Identifier: Apache-2.0
// Bodies of requests, read and checked: every number has a range, every error names its field.
// Nothing here knows sockets or waits for anything.
#pragma once
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/json.h"
#include "serve/generator.h"
#include "text/chat_template.h"
#include "text/generation_config.h"
#include "text/tokenizer.h"

namespace moebius {

// What requests are checked against. The parts live as long as the server.
struct ServedModel {
  std::string name;
  std::vector<std::string> aliases;
  bool any_model = false;   // every name is taken for ours
  bool priorities = false;  // requests may name one
  const Tokenizer* tokenizer = nullptr;
  const ChatTemplates* templates = nullptr;
  GenerationDefaults defaults;
  size_t context = 0, vocab = 0;
  size_t max_output = SIZE_MAX;  // tokens of an answer
  size_t slots = 1;
  int64_t created = 0;
  std::string version, commit;
  std::string kernel;

  std::string fingerprint() const;
};

using PromptInput = std::variant<std::string, std::vector<int32_t>>;

struct ApiRequest {
  bool chat = false;
  std::vector<PromptInput> prompts;  // completions
  Json messages;                     // chat: with contents joined to text
  Json template_extra = Json::object();
  bool add_special = true;
  bool echo = false;
  bool stream = false, include_usage = false, continuous_usage = false;
  bool return_token_ids = false;
  std::optional<size_t> max_tokens;
  GenerationRequest generation;  // all but prompt, max_new and client
};

// Text of a body to an object, by the rules for strangers. Throws ApiError 400.
Json parse_body(std::string_view text);

// Of an object. Throw ApiError.
ApiRequest parse_chat_request(const Json& body, const ServedModel& model);
ApiRequest parse_completion_request(const Json& body, const ServedModel& model);
void check_model_name(const std::string& name, const ServedModel& model);

// Templates and encoding: one generation per prompt. May take a while. Throws ApiError.
std::vector<GenerationRequest> prepare(const ApiRequest& request, const ServedModel& model);

// Messages and the names that a template sees. Throws ApiError.
void read_messages(const Json& body, ApiRequest& request);

// Answers of /tokenize and /detokenize.
std::string tokenize_answer(const Json& body, const ServedModel& model);
std::string detokenize_answer(const Json& body, const ServedModel& model);

}  // namespace moebius
