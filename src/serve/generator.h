// SPDX-License-Identifier: Apache-2.0
// WAIST 5 (ARCHITECTURE.md): the interface of what produces tokens for the server: the engine, or a
// script in tests. Independent of HTTP.
#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/answer/events.h"
#include "text/answer/tool_format.h"

namespace moebius {

class Grammar;

struct GenerationRequest {
  std::vector<int32_t> prompt;
  size_t choices = 1;
  float temperature = 1, top_p = 1, min_p = 0;
  int top_k = 0;
  float repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  uint64_t seed = 0;
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::vector<int32_t> allowed_tokens;  // only these tokens may be chosen; empty: all
  // Sequences of tokens that an answer must not contain.
  std::vector<std::vector<int32_t>> bad_words;
  size_t max_new = 0, min_new = 0;
  std::vector<int32_t> stop_tokens;  // end-of-text tokens and those of the request
  std::vector<std::string> stops;
  bool include_stop = false, skip_special = true;
  std::shared_ptr<const AnswerRules> answer;  // null: all of the answer is content
  std::optional<size_t> thinking_budget;      // most tokens of reasoning
  int logprobs = -1;         // alternatives reported per token; -1: no probabilities
  int prompt_logprobs = -1;  // alternatives reported per prompt token; -1: no probabilities
  int priority = 0;
  size_t drafts = SIZE_MAX;         // most drafted tokens per step; the server's limit holds too
  std::vector<int32_t> prediction;  // text that the answer may resemble: drafts are looked up in it
  std::string client, salt;
  std::shared_ptr<const Grammar> grammar = nullptr;  // constrains the answers; null: any text
  // Models that return vectors (embeddings): number of tokens at the start of the prompt whose
  // vectors are not pooled.
  size_t prompt_skipped = 0;
};

struct GeneratedToken {
  int32_t token = 0;
  float logprob = 0;
  std::vector<std::pair<int32_t, float>> top;  // most likely tokens, best first
  size_t rank = 0;  // of a prompt token: its rank among all tokens, from 1 on
};

enum class EndReason : uint8_t { kNone, kStop, kLength, kToolCalls, kCancelled, kError };
inline constexpr size_t kEndReasons = 6;

// First words of the error message of a request whose weights could not be loaded again after they
// were released (sleep).
inline constexpr std::string_view kNotLoaded = "the model could not be loaded";

// One result of a step for one choice of a request.
struct GenerationEvent {
  uint64_t id = 0;
  size_t choice = 0;
  std::vector<GeneratedToken> tokens;
  std::string text;  // new content, in whole characters, that later tokens cannot change
  // ^ All parts of the answer (content, reasoning, tool calls), if the request has rules that tell
  // them apart.
  AnswerEvents parts;
  size_t reasoning_tokens = 0;  // since the answer began
  std::vector<float> vector;    // for models that return vectors or scores instead of text
  EndReason end = EndReason::kNone;
  std::optional<int32_t> stop_token;  // token that ended the answer, if the request named it
  std::optional<std::string> stop_string;
  std::string error;                          // the reason, if `end` is kError
  size_t cached_tokens = 0;                   // tokens of the prompt that were in the cache
  size_t drafts_right = 0, drafts_wrong = 0;  // since the answer began
  double queue_seconds = 0;                   // from submit() until the request first ran
  // The prompt's tokens from the second on, if requested; in several events.
  std::vector<GeneratedToken> prompt;
};

// GeneratorStats::phase while weights are being loaded again.
inline constexpr std::string_view kLoadingPhase = "loading";

struct GeneratorStats {
  bool sleeps = false, asleep = false;  // sleeps: weights may be released; asleep: they are
  uint64_t loads = 0;                   // how often the weights were loaded
  // Seconds since the last step, or since the generator became idle; a large value means that a
  // step hangs.
  double heartbeat_seconds = 0;
  double step_seconds = 0;          // running mean of the time of a step
  std::string_view phase = "idle";  // phase of the running step, or kLoadingPhase
  size_t running = 0, waiting = 0, slots = 0;
  uint64_t prompt_tokens = 0, cached_tokens = 0, new_tokens = 0;
  uint64_t prefix_queries = 0, prefix_hits = 0, preemptions = 0;
  uint64_t drafts = 0, drafted_tokens = 0;
  std::vector<uint64_t> drafts_right;  // [i] drafts that were right at place i after the last token
  uint64_t kv_blocks_used = 0, kv_blocks_cached = 0, kv_blocks_free = 0;
  uint64_t kv_budget = 0;
  // Counters of the prompt cache on disk.
  struct Disk {
    bool there = false;
    uint64_t files = 0, bytes = 0, tokens = 0, read_files = 0, read_bytes = 0, written_bytes = 0;
    uint64_t dropped = 0, evicted = 0, damaged = 0;
  } disk;
  uint64_t weight_bytes = 0, kv_bytes_read = 0;
  double read_roof = 0;  // measured bytes per second; 0: not measured
  uint64_t steps = 0;
  std::vector<std::pair<std::string, double>> phase_seconds;
  // Counters of each rank, if there are several: seconds of exchanges by phase, seconds of waiting
  // within steps, and bytes received from each rank.
  struct Rank {
    std::vector<std::pair<std::string, double>> exchange_seconds;
    double wait_seconds = 0;
    std::vector<uint64_t> bytes_from;
  };
  std::vector<Rank> ranks;
  size_t expert_layers = 0;
  std::vector<uint64_t> expert_rows;  // [layers][experts], summed over steps
  // Figures of expert parallelism, as in StepStats (model/backend.h).
  double rank_imbalance = 0;
  uint64_t layers_moved = 0, moves_given_up = 0;
};

// Figures of one step, for the histograms of /metrics.
struct StepSummary {
  size_t prompt_rows = 0, decode_rows = 0, batch = 0;
  double seconds = 0, predicted_seconds = 0;  // predicted 0: not predicted
  double experts_active = -1;  // share of experts that had a row; negative: not known
  bool last = false;           // true: no event follows any more
};

class Generator {
 public:
  // Receives the results of a step. Called once per step, on the generator's thread; must not
  // block.
  using Sink = std::function<void(std::vector<GenerationEvent>, const StepSummary&)>;
  virtual ~Generator() = default;
  virtual void start(Sink sink) = 0;
  // submit(), cancel() and waiting() are thread-safe and do not wait for a step. submit() returns
  // the request's id; throws Error if the request can never run.
  virtual uint64_t submit(GenerationRequest request) = 0;
  virtual void cancel(uint64_t id) = 0;
  virtual bool waiting(uint64_t id) const = 0;  // true: submitted, but has not run yet
  virtual bool dead() const = 0;                // true: no event will come any more
  virtual GeneratorStats stats() const = 0;
  // Stops the generator; no event comes afterwards. Returns false if the running step did not end
  // within `most`: its thread is then still running.
  virtual bool stop(std::chrono::milliseconds most) = 0;
};

}  // namespace moebius
