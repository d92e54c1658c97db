// SPDX-License-Identifier: Apache-2.0
// A loaded model that answers prompts one after the other, with what run says about an answer.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apps/kv_dir.h"
#include "apps/run.h"
#include "engine/text_engine.h"
#include "text/answer/answer_markup.h"
#include "text/answer/call_grammar.h"
#include "text/generation_config.h"
#include "text/tokenizer.h"

namespace moebius {

struct Answer {
  std::string text;
  std::vector<int32_t> prompt;
  std::vector<int32_t> tokens;
  std::vector<TokenChoice> choices;  // of the tokens, when log-probabilities were asked for
  size_t prompt_tokens = 0;
  size_t cached_tokens = 0;                       // of these: in the KV cache from before
  size_t decode_steps = 0;                        // after the step that brought the first token
  double prompt_seconds = 0, decode_seconds = 0;  // until the first token, and after it
  size_t answers = 1;                             // that this is the sum of
  // stop | tool_calls | length | context | interrupted | error
  std::string finish = "length";
  std::string error;  // what went wrong
  Json message;       // with tools: the answer as a message of a chat; null: there were none
};

// A conversation as one answer, for its statistics.
void add(Answer& total, const Answer& a);

struct Statistics {
  double prompt_rate = 0, decode_rate = 0;  // tokens per second
  double gbs = 0;                           // weights read while decoding
  double roof_gbs = 0;                      // what the same threads can read from memory
  uint64_t peak_memory = 0;
  double percent_of_roof() const { return roof_gbs > 0 ? 100 * gbs / roof_gbs : 0; }
};

class TextSession {
 public:
  ~TextSession();  // what was said goes to --kv-dir
  // Loads the model after `check` has accepted its config. Without a tokenizer answers are ids.
  TextSession(const RunCommandOptions& options, std::optional<Tokenizer> given,
              const std::function<void(const ModelConfig&)>& check);

  // Null: the folder has none.
  const Tokenizer* tokenizer() const { return tokenizer_ ? &*tokenizer_ : nullptr; }
  size_t context() const { return engine_.engine().context(); }

  // Continues the prompt. `show` gets the text as it comes, in whole characters (with tools: the
  // content alone); ids and spaces where there is no tokenizer. Throws Error when the prompt cannot be taken; what goes wrong later
  // stands in the answer.
  Answer answer(std::vector<int32_t> prompt, const std::function<void(std::string_view)>& show);

  // Taken when the answer is complete. The roof is measured once, on the same threads, after the
  // peak of memory was read: the measurement's own memory does not count.
  Statistics statistics(const Answer& a);
  std::string summary(const Answer& a, const Statistics& s) const;  // one line
  Json to_json(const Answer& a, const Statistics& s) const;

 private:
  class Run;
  RunCommandOptions options_;
  std::optional<Tokenizer> tokenizer_;
  struct Tools {
    std::shared_ptr<const ToolSet> set;
    AnswerMarkup markup;
    CallDemand demand;
  };
  static std::optional<Tools> tools_of(const RunCommandOptions& options,
                                       const Tokenizer* tokenizer);
  std::optional<Tools> tools_;
  std::unique_ptr<KvDisk> disk_;  // null: none; outlives the engine
  OpenModel open_;
  GenerationDefaults defaults_;
  TextEngine engine_;
  std::optional<std::pair<double, uint64_t>> roof_and_peak_;
};

}  // namespace moebius
