// SPDX-License-Identifier: Apache-2.0
// Holds a loaded model that answers prompts one after the other, and measures what the command run
// reports of an answer.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apps/kv_dir.h"
#include "apps/route_trace.h"
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
  std::vector<TokenChoice> choices;  // log-probabilities of the tokens, if asked for
  size_t prompt_tokens = 0;
  // Number of tokens of the prompt that the KV cache already held.
  size_t cached_tokens = 0;
  // Number of steps after the one that brought the first token.
  size_t decode_steps = 0;
  double prompt_seconds = 0, decode_seconds = 0;  // seconds until the first token, and after it
  size_t answers = 1;                             // number of answers in this sum
  // Reason of the answer's end: stop, tool_calls, length, context, interrupted or error.
  std::string finish = "length";
  std::string error;  // message of the error
  Json message;       // with tools: the answer as a message of a chat; null: there are no tools
};

// Adds an answer's statistics to those of a conversation.
void add(Answer& total, const Answer& a);

struct Statistics {
  double prompt_rate = 0, decode_rate = 0;  // tokens per second
  double gbs = 0;                           // GB/s of weights read while decoding
  double roof_gbs = 0;                      // GB/s that the same threads can read from memory
  uint64_t peak_memory = 0;
  double percent_of_roof() const { return roof_gbs > 0 ? 100 * gbs / roof_gbs : 0; }
};

class TextSession {
 public:
  ~TextSession();  // writes the cache to --kv-dir
  // Loads the model after `check` has accepted its config. Without a tokenizer answers are ids.
  // Throws Error.
  TextSession(const RunCommandOptions& options, std::optional<Tokenizer> given,
              const std::function<void(const ModelConfig&)>& check);

  // Returns the tokenizer; null if the folder has none.
  const Tokenizer* tokenizer() const { return tokenizer_ ? &*tokenizer_ : nullptr; }
  size_t context() const { return engine_.engine().context(); }

  // Continues the prompt. `show` receives whole characters of the text as it comes (with tools only
  // the content; without a tokenizer ids and spaces). Throws Error if the prompt cannot be
  // accepted; later errors are in the answer.
  Answer answer(std::vector<int32_t> prompt, const std::function<void(std::string_view)>& show);

  // Computes statistics of a complete answer. The roof (speed of reading memory) is measured once
  // on the same threads, after the peak memory was read, so that the measurement's own memory does
  // not count.
  Statistics statistics(const Answer& a);
  // Returns the statistics as one line.
  std::string summary(const Answer& a, const Statistics& s) const;
  Json to_json(const Answer& a, const Statistics& s) const;
  void finish_trace() const;  // writes the file of --route-trace; throws Error

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
  std::unique_ptr<KvDisk> disk_;  // the prompt cache on disk, null: none; outlives the engine
  const Checkpoint checkpoint_;
  std::unique_ptr<RouteRecorder> routes_;  // the file of --route-trace, null: none
  OpenModel open_;
  GenerationDefaults defaults_;
  TextEngine engine_;
  std::optional<std::pair<double, uint64_t>> roof_and_peak_;
};

}  // namespace moebius
