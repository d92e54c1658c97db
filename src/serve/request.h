// SPDX-License-Identifier: Apache-2.0
// Parses and checks the bodies of requests: every number has a range, every error names its field.
// Independent of sockets; waits for nothing.
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

class BodyFields;
struct PoolingPlan;

// Selects the member of a message that holds reasoning. kDefault: both in whole answers,
// reasoning_content in streams.
enum class ReasoningField : uint8_t { kDefault, kReasoning, kReasoningContent, kBoth };

// Describes the model that requests are checked against. Its parts live as long as the server.
struct ServedModel {
  std::string name;
  std::vector<std::string> aliases;
  bool any_model = false;   // true: requests may use any model name
  bool priorities = false;  // true: requests may set a priority
  const Tokenizer* tokenizer = nullptr;
  const ChatTemplates* templates = nullptr;
  AnswerMarkup markup;
  ReasoningField reasoning_field = ReasoningField::kDefault;
  GenerationDefaults defaults;
  size_t context = 0, vocab = 0;
  size_t vector_size = 0;        // numbers per vector, if pooling is set
  size_t max_output = SIZE_MAX;  // most tokens of an answer
  size_t slots = 1;
  int64_t created = 0;
  std::string version, commit;
  std::string kernel;
  // Rules by which the model makes vectors or scores; null: it returns text.
  std::shared_ptr<const PoolingPlan> pooling;
  std::shared_ptr<GrammarCache> grammars = std::make_shared<GrammarCache>();

  std::string fingerprint() const;
  std::vector<std::string> names() const;  // returns all names of the model, its own first
  bool is_called(std::string_view word) const;
};

// Most entries of lists in a request.
inline constexpr size_t kMostPrompts = 128, kMostMessages = 4096, kMostStops = 32;
inline constexpr size_t kMostBiases = 1024, kMostStopTokens = 1024, kMostBadWords = 128;
inline constexpr size_t kMostAllowed = 1 << 14;

inline constexpr size_t kMostTools = 128;
inline constexpr size_t kMostTexts = 2048;  // most texts of a request for vectors or scores

enum class ToolChoice : uint8_t { kNone, kAuto, kRequired, kNamed };

struct PooledRequest;  // a request for vectors or scores; defined in pooled.h

// What a request says about the form of its answer.
struct AnswerShape {
  bool chat = false;
  bool show_reasoning = true;
  bool echo = false;
  bool stream = false, include_usage = false, continuous_usage = false;
  bool return_token_ids = false;
  std::optional<int> prompt_logprobs;  // alternatives per prompt token, if requested by that name
};

struct ApiRequest : AnswerShape {
  Endpoint endpoint = Endpoint::kCompletion;  // whose form the request and its answer have
  std::vector<PromptInput> prompts;           // prompts of completions
  Json messages;                              // messages of a chat, with contents joined to text
  Json template_extra = Json::object();
  Json tools;                         // tools as the template gets them; null: none
  std::shared_ptr<ToolSet> tool_set;  // tools that the answer may call; null: none
  ToolChoice tool_choice = ToolChoice::kNone;
  std::string tool_name;  // the tool that must be called, for kNamed
  bool parallel_calls = true;
  std::optional<size_t> thinking_budget;  // most tokens of reasoning
  Json echoed = Json::object();           // fields that the answer repeats
  bool add_generation_prompt = true;
  // true: the answer continues the last message, whose content ends with kContinueMark
  bool continue_final = false;
  std::vector<std::string> bad_words;
  std::optional<std::string> prediction;  // text that the answer may resemble
  bool add_special = true;
  AnswerFormat format;           // form that the answers must have
  GrammarLimits grammar_limits;  // limits for compiling the format, or the grammar of calls
  std::optional<size_t> max_tokens;
  size_t min_tokens = 0;
  std::shared_ptr<PooledRequest> pooled;  // the request, for kPooled
  Request generation;  // all but prompt, bad words, prediction, lengths and client
};

// Parse the body of a request to the respective endpoint. Throw ApiError.
ApiRequest parse_chat_request(const RequestBody& body, const ServedModel& model);
ApiRequest parse_completion_request(RequestBody body, const ServedModel& model);
// parse_anthropic_request() leaves out the length, which counting tokens does not need;
// read_anthropic_length() reads it.
ApiRequest parse_anthropic_request(const RequestBody& body, const ServedModel& model);
void read_anthropic_length(const RequestBody& body, ApiRequest& request);
ApiRequest parse_responses_request(const RequestBody& body, const ServedModel& model);
void check_model_name(const std::string& name, const ServedModel& model);
// Parses a body of any endpoint that generates. Throws ApiError.
ApiRequest parse_request(std::string_view text, Endpoint endpoint, const ServedModel& model);

// Renders templates and encodes texts: returns one generation per prompt, and frees texts of the
// request that are not needed any more. May take long. Throws ApiError.
std::vector<Request> prepare(ApiRequest& request, const ServedModel& model);
// Calls prepare() or prepare_pooled(), as the request needs.
std::vector<Request> prepare_request(ApiRequest& request, const ServedModel& model);

// Refuses fields that are not offered, and reads those that all forms share: sampling, stops, length,
// stream. Throws ApiError.
ApiRequest read_common(const RequestBody& body, const ServedModel& model);
void read_length(const BodyFields& fields, std::string_view name, ApiRequest& request,
                 int64_t least = 0);

// Reads messages and the variables of a template. Throws ApiError.
void read_messages(const Json& fields, ApiRequest& request);
// Makes the answer continue the last message, which must have content.
void continue_last_message(ApiRequest& request);
// Returns the text of a content: a string, or parts of these types. Throws ApiError.
std::string content_text(const Json& content, const std::string& path,
                         std::initializer_list<std::string_view> types = {"text"});
// Returns the arguments of a past call, which are JSON within a string; none or null gives an empty
// object.
Json past_arguments(const std::string& text, const std::string& path, size_t& values_left);
// Reads the members of a request that are further variables for the template.
void read_template_names(const Fields& fields, ApiRequest& request);

// Sets the limits of one request; `time` is what is left for it, because all renderings of a
// request share it.
constexpr std::chrono::milliseconds kTemplateTime{200};
void limit_template(ChatInput& input, std::chrono::nanoseconds time = kTemplateTime);

// Returns a 400 error without the path of the folder, which clients must not learn.
ApiError template_refusal(const Error& error, const ServedModel& model, const std::string& texts,
                          const std::string& param);

// Returns the error for a prompt of so many tokens (none: more than the context holds).
ApiError context_exceeded(std::optional<size_t> tokens, size_t context, const std::string& param);
// Returns the same error in words that clients of /v1/messages recognize.
ApiError prompt_too_long(size_t tokens, size_t context);

// Return the answers of /tokenize, /detokenize and /v1/messages/count_tokens.
std::string tokenize_answer(const RequestBody& body, const ServedModel& model);
std::string detokenize_answer(const RequestBody& body, const ServedModel& model);
std::string count_tokens_answer(const RequestBody& body, const ServedModel& model);

}  // namespace moebius
