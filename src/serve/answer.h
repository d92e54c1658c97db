// SPDX-License-Identifier: Apache-2.0
// Answers, byte for byte: events of a generator become the chunks of a stream, or one object at the
// end. Keys stand in a fixed order.
#pragma once
#include <string>
#include <vector>

#include "serve/request.h"
#include "serve/token_text.h"

namespace moebius {

struct Usage {
  size_t prompt = 0, cached = 0, completion = 0;
};

// Lists that grow token by token; of a stream they are emptied with every chunk.
class LogprobLists {
 public:
  LogprobLists(const TokenTexts& texts, bool chat) : texts_(&texts), chat_(chat) {}
  void add(const GeneratedToken& token, bool known = true);  // unknown: of a prompt's first token
  bool empty() const { return count_ == 0; }
  std::string json() const;
  void clear();  // but not the offset in the text

 private:
  void add_chat(const GeneratedToken& token);
  const TokenTexts* texts_;
  bool chat_;
  std::string tokens_, logprobs_, tops_, offsets_;  // chat: all in the first
  size_t count_ = 0, characters_ = 0;
};

class ApiAnswer {
 public:
  // The prompts' lengths and tokens are taken from `prompts`; `seconds`: since 1970.
  ApiAnswer(const ApiRequest& request, const ServedModel& model, const TokenTexts& texts,
            const std::vector<GenerationRequest>& prompts, int64_t seconds);

  const std::string& id() const { return id_; }
  const Usage& usage() const { return usage_; }
  bool complete() const { return ended_ == choices_.size(); }
  // What the event adds to the stream ("data: ..."), nothing when there is none.
  std::string take(size_t prompt, const GenerationEvent& event);
  std::string stream_end() const;  // usage where it was asked for, and the last line
  std::string whole() const;

  static std::string error_events(const std::string& error_json);

 private:
  struct Choice {
    explicit Choice(LogprobLists lists) : logprobs(std::move(lists)) {}
    std::string text;
    LogprobLists logprobs;
    std::vector<int32_t> ids;
    bool begun = false, ended = false;
    std::string finish, stop_reason;  // JSON
  };
  void begin_choice(Choice& choice, size_t prompt);
  std::string chunk(size_t index, Choice& choice, const std::string& text, size_t prompt,
                    bool first) const;
  std::string logprobs_of(const Choice& choice) const;
  std::string prompt_logprobs_of(size_t prompt) const;  // with the comma before its name
  std::string usage_json() const;
  std::string ends_of(const Choice& choice) const;

  const bool chat_, stream_, echo_, include_usage_, continuous_, ids_, logprobs_;
  const size_t alternatives_;  // of each token
  const std::optional<int> prompt_alternatives_;
  const TokenTexts& texts_;
  std::string id_, chunk_head_, whole_head_;
  std::vector<std::string> prompt_texts_;  // with echo
  std::vector<std::vector<int32_t>> prompts_;
  std::vector<std::vector<GeneratedToken>> prompt_logprobs_;
  std::vector<bool> cached_known_;
  std::vector<Choice> choices_;
  size_t per_prompt_, ended_ = 0;
  Usage usage_;
};

std::string random_hex(size_t digits);

}  // namespace moebius
