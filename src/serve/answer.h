// SPDX-License-Identifier: Apache-2.0
// Answers, byte for byte: events of a generator become the chunks of a stream, or one object at the
// end. Keys stand in a fixed order.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "serve/api_error.h"
#include "serve/request.h"
#include "serve/token_text.h"

namespace moebius {

struct Usage {
  size_t prompt = 0, cached = 0, completion = 0, reasoning = 0;
  size_t drafts_right = 0, drafts_wrong = 0;
};

// An answer in the form of one interface.
class InterfaceAnswer {
 public:
  virtual ~InterfaceAnswer() = default;
  const Usage& usage() const { return usage_; }
  virtual bool complete() const = 0;
  // What the event adds to the stream, nothing when there is none.
  virtual std::string take(size_t prompt, const GenerationEvent& event) = 0;
  virtual std::string stream_end() = 0;
  virtual std::string whole() = 0;
  // Of a stream that has begun: what tells of a failure, and ends it.
  virtual std::string error_events(const ApiError& error) = 0;
  virtual std::string ping() const { return ": ping\n\n"; }

 protected:
  // Tokens of an event.
  void count(size_t prompt, const GenerationEvent& event);
  Usage usage_;
  std::vector<bool> cached_known_;                         // of each prompt
  std::map<std::pair<size_t, size_t>, size_t> reasoning_;  // by prompt and choice
  std::map<std::pair<size_t, size_t>, std::pair<size_t, size_t>> drafts_;
};

std::unique_ptr<InterfaceAnswer> make_answer(const ApiRequest& request, const ServedModel& model,
                                             const TokenTexts& texts,
                                             const std::vector<GenerationRequest>& prompts,
                                             int64_t seconds, const std::string& request_id);

// A call's id: the model's own where its family has such, else PREFIX and 24 digits.
std::string call_id(const ServedModel& model, std::string_view prefix, const AnswerEvent& begin);
// Events of an event without rules for parts: its text is content.
AnswerEvents parts_of(const GenerationEvent& event);
std::string json_quoted(std::string_view text);

// Lists that grow token by token; of a stream they are emptied with every chunk.
class LogprobLists {
 public:
  LogprobLists(const TokenTexts& texts, bool chat) : texts_(&texts), chat_(chat) {}
  void add(const GeneratedToken& token, bool known = true);  // unknown: of a prompt's first token
  bool empty() const { return count_ == 0; }
  std::string json() const;
  const std::string& chat_entries() const { return tokens_; }  // separated by commas
  void clear();                                                // but not the offset in the text

 private:
  void add_chat(const GeneratedToken& token);
  const TokenTexts* texts_;
  bool chat_;
  std::string tokens_, logprobs_, tops_, offsets_;  // chat: all in the first
  size_t count_ = 0, characters_ = 0;
};

// OpenAI's chat completions and completions.
class ApiAnswer final : public InterfaceAnswer {
 public:
  // The prompts' lengths and tokens are taken from `prompts`; `seconds`: since 1970.
  ApiAnswer(const ApiRequest& request, const ServedModel& model, const TokenTexts& texts,
            const std::vector<GenerationRequest>& prompts, int64_t seconds);

  const std::string& id() const { return id_; }
  bool complete() const override { return ended_ == choices_.size(); }
  std::string take(size_t prompt, const GenerationEvent& event) override;
  std::string stream_end() override;  // usage where it was asked for, and the last line
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
    AnswerEvents parts;  // of a stream, since the last chunk
    LogprobLists logprobs;
    std::vector<int32_t> ids;
    bool begun = false, ended = false;
    std::string finish, stop_reason;  // JSON
  };
  void begin_choice(Choice& choice, size_t prompt);
  void keep(Choice& choice, AnswerEvent part);
  std::string chunk(size_t index, Choice& choice, const std::string& text, size_t prompt,
                    bool first) const;
  std::string delta(const Choice& choice, const AnswerEvent& part) const;
  std::string reasoning_members(const std::string& text, bool whole) const;
  std::string message(const Choice& choice) const;
  std::string logprobs_of(const Choice& choice) const;
  std::string prompt_logprobs_of(size_t prompt) const;  // with the comma before its name
  std::string usage_json() const;
  std::string ends_of(const Choice& choice) const;

  const ServedModel& model_;
  const bool chat_, stream_, echo_, include_usage_, continuous_, ids_, logprobs_, show_reasoning_;
  const bool details_;         // of the tokens that were made
  const bool predicted_;       // their drafts count too
  const size_t alternatives_;  // of each token
  const std::optional<int> prompt_alternatives_;
  const TokenTexts& texts_;
  std::string id_, chunk_head_, whole_head_;
  std::vector<std::string> prompt_texts_;  // with echo
  std::vector<std::vector<int32_t>> prompts_;
  std::vector<std::vector<GeneratedToken>> prompt_logprobs_;
  std::vector<Choice> choices_;
  size_t per_prompt_, ended_ = 0;
};

std::string random_hex(size_t digits);

}  // namespace moebius
