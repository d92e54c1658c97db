// SPDX-License-Identifier: Apache-2.0
// Bodies of requests, read and checked: every number has a range, every error names its field.
// Nothing here knows sockets or waits for anything.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "serve/api_error.h"
#include "serve/body.h"
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

// Entries of lists.
inline constexpr size_t kMostPrompts = 128, kMostMessages = 4096, kMostStops = 32;
inline constexpr size_t kMostBiases = 1024, kMostStopTokens = 1024, kMostBadWords = 128;
inline constexpr size_t kMostAllowed = 1 << 14;

struct ApiRequest {
  bool chat = false;
  std::vector<PromptInput> prompts;  // completions
  Json messages;                     // chat: with contents joined to text
  Json template_extra = Json::object();
  bool add_generation_prompt = true;
  bool continue_final = false;  // the last message goes on; its content ends with kContinueMark
  std::vector<std::string> bad_words;
  bool add_special = true;
  bool echo = false;
  bool stream = false, include_usage = false, continuous_usage = false;
  bool return_token_ids = false;
  std::optional<size_t> max_tokens;
  std::optional<int> prompt_logprobs;  // asked for by that name
  GenerationRequest generation;        // all but prompt, bad_words, max_new and client
};

// Of a body that was read for this endpoint. Throw ApiError.
ApiRequest parse_chat_request(const RequestBody& body, const ServedModel& model);
ApiRequest parse_completion_request(RequestBody body, const ServedModel& model);
void check_model_name(const std::string& name, const ServedModel& model);

// Templates and encoding: one generation per prompt; texts that are not needed any more leave the
// request. May take a while. Throws ApiError.
std::vector<GenerationRequest> prepare(ApiRequest& request, const ServedModel& model);

// Messages and the names that a template sees. Throws ApiError.
void read_messages(const Json& fields, ApiRequest& request);

// A prompt of so many tokens (none: of more than the context holds).
ApiError context_exceeded(std::optional<size_t> tokens, size_t context, const std::string& param);

// Answers of /tokenize and /detokenize.
std::string tokenize_answer(const RequestBody& body, const ServedModel& model);
std::string detokenize_answer(const RequestBody& body, const ServedModel& model);

}  // namespace moebius
