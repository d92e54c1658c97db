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
#include "serve/fields.h"
#include "serve/generator.h"
#include "serve/structured.h"
#include "text/answer/answer_markup.h"
#include "text/chat_template.h"
#include "text/generation_config.h"
#include "text/tokenizer.h"

namespace moebius {

struct PoolingPlan;

// Which member of a message holds reasoning; by default both, in pieces of a stream the longer.
enum class ReasoningField : uint8_t { kDefault, kReasoning, kReasoningContent, kBoth };

// What requests are checked against. The parts live as long as the server.
struct ServedModel {
  std::string name;
  std::vector<std::string> aliases;
  bool any_model = false;   // every name is taken for ours
  bool priorities = false;  // requests may name one
  const Tokenizer* tokenizer = nullptr;
  const ChatTemplates* templates = nullptr;
  AnswerMarkup markup;
  ReasoningField reasoning_field = ReasoningField::kDefault;
  GenerationDefaults defaults;
  size_t context = 0, vocab = 0;
  size_t vector_size = 0;        // with pooling
  size_t max_output = SIZE_MAX;  // tokens of an answer
  size_t slots = 1;
  int64_t created = 0;
  std::string version, commit;
  std::string kernel;
  std::shared_ptr<const PoolingPlan> pooling;  // it gives vectors or scores; null: text
  std::shared_ptr<GrammarCache> grammars = std::make_shared<GrammarCache>();

  std::string fingerprint() const;
  std::vector<std::string> names() const;  // its own first
  bool is_called(std::string_view word) const;
};

// Entries of lists.
inline constexpr size_t kMostPrompts = 128, kMostMessages = 4096, kMostStops = 32;
inline constexpr size_t kMostBiases = 1024, kMostStopTokens = 1024, kMostBadWords = 128;
inline constexpr size_t kMostAllowed = 1 << 14;
inline constexpr int64_t kMostLogprobs = 20;

inline constexpr size_t kMostTools = 128;
inline constexpr size_t kMostTexts = 2048;  // of a request for vectors or scores

// Whose form a request and its answer have.
enum class Interface : uint8_t { kCompletions, kChat, kMessages, kResponses, kPooled };

enum class ToolChoice : uint8_t { kNone, kAuto, kRequired, kNamed };

struct PooledRequest;  // pooled.h

struct ApiRequest {
  Interface face = Interface::kCompletions;
  bool chat = false;
  std::vector<PromptInput> prompts;  // completions
  Json messages;                     // chat: with contents joined to text
  Json template_extra = Json::object();
  Json tools;                         // for the template; null: none
  std::shared_ptr<ToolSet> tool_set;  // what the answer may call; null: nothing
  ToolChoice tool_choice = ToolChoice::kNone;
  std::string tool_name;  // of kNamed
  bool parallel_calls = true;
  bool show_reasoning = true;
  std::optional<size_t> thinking_budget;  // tokens
  Json echoed = Json::object();           // fields that the answer repeats
  bool add_generation_prompt = true;
  bool continue_final = false;  // the last message goes on; its content ends with kContinueMark
  std::vector<std::string> bad_words;
  std::optional<std::string> prediction;  // what the answer may be like
  bool add_special = true;
  bool echo = false;
  bool stream = false, include_usage = false, continuous_usage = false;
  bool return_token_ids = false;
  AnswerFormat format;           // that its answers have to have
  GrammarLimits grammar_limits;  // of compiling the format, or the grammar of calls
  std::optional<size_t> max_tokens;
  std::optional<int> prompt_logprobs;     // asked for by that name
  std::shared_ptr<PooledRequest> pooled;  // of kPooled
  GenerationRequest generation;  // all but prompt, bad_words, prediction, max_new and client
};

// Of a body that was read for this endpoint. Throw ApiError.
ApiRequest parse_chat_request(const RequestBody& body, const ServedModel& model);
ApiRequest parse_completion_request(RequestBody body, const ServedModel& model);
// Without its length, which counting tokens does without.
ApiRequest parse_anthropic_request(const RequestBody& body, const ServedModel& model);
void read_anthropic_length(const RequestBody& body, ApiRequest& request);
ApiRequest parse_responses_request(const RequestBody& body, const ServedModel& model);
void check_model_name(const std::string& name, const ServedModel& model);

// Templates and encoding: one generation per prompt; texts that are not needed any more leave the
// request. May take a while. Throws ApiError.
std::vector<GenerationRequest> prepare(ApiRequest& request, const ServedModel& model);

// What both forms of OpenAI and the others share: sampling, stops, length, stream. Throws ApiError.
ApiRequest read_common(const RequestBody& body, const ServedModel& model);
void read_length(const Fields& fields, std::string_view name, ApiRequest& request, bool zero);

// Messages and the names that a template sees. Throws ApiError.
void read_messages(const Json& fields, ApiRequest& request);
// The answer goes on with the last message, which has a content.
void continue_last_message(ApiRequest& request);
// The text of a content: a string, or parts of these types.
std::string content_text(const Json& content, const std::string& path,
                         std::initializer_list<std::string_view> types = {"text"});
// Arguments of a past call, which are JSON within a string; none, or null: an empty object.
Json past_arguments(const std::string& text, const std::string& path, size_t& values_left);
// Further names that a template sees.
void read_template_names(const Fields& fields, ApiRequest& request);

// A prompt of so many tokens (none: of more than the context holds).
ApiError context_exceeded(std::optional<size_t> tokens, size_t context, const std::string& param);
// The same in words that clients of /v1/messages look for.
ApiError prompt_too_long(size_t tokens, size_t context);

// Answers of /tokenize, /detokenize and /v1/messages/count_tokens.
std::string tokenize_answer(const RequestBody& body, const ServedModel& model);
std::string detokenize_answer(const RequestBody& body, const ServedModel& model);
std::string count_tokens_answer(const RequestBody& body, const ServedModel& model);

}  // namespace moebius
