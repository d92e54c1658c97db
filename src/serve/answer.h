// SPDX-License-Identifier: Apache-2.0
// Writes answers, byte for byte: events of a generator become chunks of a stream, or one object at
// the end. Keys are in a fixed order.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "serve/api_error.h"
#include "serve/request.h"
#include "text/tokenizer.h"

namespace moebius {

struct Usage {
  size_t prompt = 0, cached = 0, completion = 0, reasoning = 0;
  size_t drafts_right = 0, drafts_wrong = 0;
};

// What an answer is made of. The references live as long as the answer, except `request` and
// `prompts`.
struct AnswerInput {
  const ApiRequest& request;
  const ServedModel& model;
  const std::vector<Request>& prompts;  // with their tokens
  int64_t seconds;                      // since 1970
  const std::string& request_id;
};

// An answer in the form of one API. Used on the event thread only.
class InterfaceAnswer {
 public:
  virtual ~InterfaceAnswer() = default;
  const Usage& usage() const { return usage_; }
  virtual bool complete() const = 0;
  // Adds an event and returns its text for the stream; "" if nothing is streamed.
  virtual std::string take(size_t prompt, const StepResult& event) = 0;
  virtual std::string stream_end() = 0;
  virtual std::string whole() = 0;
  // Returns the text that reports a failure in a stream that has begun, and ends it.
  virtual std::string error_events(const ApiError& error) = 0;
  virtual std::string ping() const { return ": ping\n\n"; }
  // Returns why an answer ended: stop, tool_calls (a stop after a complete call), length, cancelled
  // or error.
  std::string_view finish_word(size_t prompt, const StepResult& last) const;

 protected:
  // Counts the tokens of an event.
  void count(size_t prompt, const StepResult& event);
  Usage usage_;

 private:
  // Sums that the last event of one answer reported.
  struct Counted {
    size_t reasoning = 0, drafts_right = 0, drafts_wrong = 0;
    bool called = false;  // true: the answer made a complete call
  };
  std::vector<bool> cached_known_;  // [prompts] true once cached tokens were counted
  std::map<std::pair<size_t, size_t>, Counted> counted_;  // by prompt and choice
};

std::unique_ptr<InterfaceAnswer> make_answer(const AnswerInput& in);

// Returns the id of a call: the model's own if its family has ids, else PREFIX and 24 digits.
std::string call_id(const ServedModel& model, std::string_view prefix, const AnswerEvent& begin);
// Returns the parts of an event; if the request has no rules for parts, its text is content.
AnswerEvents parts_of(const StepResult& event);
std::string json_quoted(std::string_view text);

// Builds lists of log-probabilities, token by token; in a stream they are cleared with every chunk.
class LogprobLists {
 public:
  LogprobLists(const Tokenizer& tokenizer, bool chat) : tokenizer_(&tokenizer), chat_(chat) {}
  // Known false: the first token of a prompt, which has no probability.
  void add(const TokenChoice& token, bool known = true);
  bool empty() const { return count_ == 0; }
  std::string json() const;
  // Entries in the form of chat completions, separated by commas.
  const std::string& chat_entries() const { return tokens_; }
  void clear();  // empties the lists; keeps the offset within the text

 private:
  void add_chat(const TokenChoice& token);
  const Tokenizer* tokenizer_;
  bool chat_;
  // The lists as JSON text. Chat completions have one list of objects, in tokens_.
  std::string tokens_, logprobs_, tops_, offsets_;
  size_t count_ = 0, characters_ = 0;
};

// Writes answers of OpenAI's chat completions and completions.
class ApiAnswer final : public InterfaceAnswer {
 public:
  explicit ApiAnswer(const AnswerInput& in);

  const std::string& id() const { return id_; }
  bool complete() const override { return ended_ == choices_.size(); }
  std::string take(size_t prompt, const StepResult& event) override;
  std::string stream_end() override;  // usage if it was requested, and the last line
  std::string whole() override;
  std::string error_events(const ApiError& error) override;

 private:
  struct Choice {
    explicit Choice(LogprobLists lists) : logprobs(std::move(lists)) {}
    std::string text, reasoning;
    struct Call {
      std::string id, name, arguments;
    };
    std::vector<Call> calls;
    AnswerEvents parts;  // the answer's parts; in a stream, those since the last chunk
    LogprobLists logprobs;
    std::vector<int32_t> ids;
    bool begun = false, ended = false;
    std::string finish, stop_reason;  // how the answer ended, as JSON texts
  };
  void begin_choice(Choice& choice, size_t prompt);
  void keep(Choice& choice, AnswerEvent part);
  std::string chunk(size_t index, Choice& choice, const std::string& text, size_t prompt,
                    bool first) const;
  std::string delta(const Choice& choice, const AnswerEvent& part) const;
  std::string reasoning_members(const std::string& text, bool whole) const;
  std::string message(const Choice& choice) const;
  std::string logprobs_of(const Choice& choice) const;
  // Returns the member as JSON, with a comma before its name.
  std::string prompt_logprobs_of(size_t prompt) const;
  std::string usage_json() const;
  std::string ends_of(const Choice& choice) const;

  const ServedModel& model_;
  const AnswerShape shape_;
  const int logprobs_;    // number of alternatives per token; below 0: no probabilities
  const bool details_;    // true: details of generated tokens are included in the usage
  const bool predicted_;  // true: drafts from a prediction are counted, too
  std::string id_, chunk_head_, whole_head_;
  std::vector<std::string> prompt_texts_;  // texts of the prompts, used with echo
  std::vector<std::vector<int32_t>> prompts_;
  std::vector<std::vector<TokenChoice>> prompt_logprobs_;
  std::vector<Choice> choices_;
  size_t per_prompt_, ended_ = 0;
};

std::string random_hex(size_t digits);

}  // namespace moebius
