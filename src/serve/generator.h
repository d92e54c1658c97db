// SPDX-License-Identifier: Apache-2.0
// What makes tokens for the server: the engine, or a script in tests. Nothing here knows HTTP.
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
  std::vector<int32_t> allowed_tokens;          // no other is chosen; empty: all are allowed
  std::vector<std::vector<int32_t>> bad_words;  // tokens that an answer never has in a row
  size_t max_new = 0, min_new = 0;
  std::vector<int32_t> stop_tokens;  // end-of-text tokens and the request's own
  std::vector<std::string> stops;
  bool include_stop = false, skip_special = true;
  std::shared_ptr<const AnswerRules> answer;  // null: all of it is content
  std::optional<size_t> thinking_budget;      // tokens of reasoning
  int logprobs = -1;                          // alternatives per token; -1: none at all
  int prompt_logprobs = -1;                   // likewise of each prompt token
  int priority = 0;
  size_t drafts = SIZE_MAX;         // most drafted tokens of a step; the server's limit holds too
  std::vector<int32_t> prediction;  // what the answer may be like
  std::string client, salt;
  std::shared_ptr<const Grammar> grammar = nullptr;  // of the answers; null: any text
  size_t prompt_skipped = 0;  // of a vector: tokens at the start that it need not tell of
};

struct GeneratedToken {
  int32_t token = 0;
  float logprob = 0;
  std::vector<std::pair<int32_t, float>> top;  // best first
  size_t rank = 0;                             // of a prompt token among all, from 1 on
};

enum class EndReason : uint8_t { kNone, kStop, kLength, kToolCalls, kCancelled, kError };
inline constexpr size_t kEndReasons = 6;

// How the words of an error begin that says why weights could not come back.
inline constexpr std::string_view kNotLoaded = "the model could not be loaded";

// What a step brought for one choice of a request.
struct GenerationEvent {
  uint64_t id = 0;
  size_t choice = 0;
  std::vector<GeneratedToken> tokens;
  std::string text;             // content that can no longer change, in whole characters
  AnswerEvents parts;           // the same and all else, where the request has rules for it
  size_t reasoning_tokens = 0;  // so far
  std::vector<float> vector;    // of a model that gives vectors, or one score, instead of text
  EndReason end = EndReason::kNone;
  std::optional<int32_t> stop_token;  // that ended it, if the request named it
  std::optional<std::string> stop_string;
  std::string error;                          // of kError, in words
  size_t cached_tokens = 0;                   // of the prompt
  size_t drafts_right = 0, drafts_wrong = 0;  // so far
  double queue_seconds = 0;                   // from submit until it ran
  std::vector<GeneratedToken> prompt;  // from its second token on, where asked for; in pieces
};

inline constexpr std::string_view kLoadingPhase = "loading";  // of weights that come back

struct GeneratorStats {
  bool sleeps = false, asleep = false;  // its weights may go, and have gone
  uint64_t loads = 0;                   // of the weights
  double heartbeat_seconds = 0;         // since the last step, or since it fell idle
  double step_seconds = 0;              // a usual one
  std::string_view phase = "idle";      // of the step that runs, or kLoadingPhase
  size_t running = 0, waiting = 0, slots = 0;
  uint64_t prompt_tokens = 0, cached_tokens = 0, new_tokens = 0;
  uint64_t prefix_queries = 0, prefix_hits = 0, preemptions = 0;
  uint64_t drafts = 0, drafted_tokens = 0;
  std::vector<uint64_t> drafts_right;  // by place
  uint64_t kv_blocks_used = 0, kv_blocks_cached = 0, kv_blocks_free = 0;
  uint64_t kv_budget = 0;
  // Of the prompt cache on disk.
  struct Disk {
    bool there = false;
    uint64_t files = 0, bytes = 0, tokens = 0, read_files = 0, read_bytes = 0, written_bytes = 0;
    uint64_t dropped = 0, evicted = 0, damaged = 0;
  } disk;
  uint64_t weight_bytes = 0, kv_bytes_read = 0;
  double read_roof = 0;  // bytes per second; 0: not measured
  uint64_t steps = 0;
  std::vector<std::pair<std::string, double>> phase_seconds;
  // Of every rank, where there are several: seconds of exchanges by phase, of waiting within steps,
  // and bytes that came from each.
  struct Rank {
    std::vector<std::pair<std::string, double>> exchange_seconds;
    double wait_seconds = 0;
    std::vector<uint64_t> bytes_from;
  };
  std::vector<Rank> ranks;
  size_t expert_layers = 0;
  std::vector<uint64_t> expert_rows;  // [layers][experts], added up
  // Ranks with experts of their own: as in StepStats.
  double rank_imbalance = 0;
  uint64_t layers_moved = 0, moves_given_up = 0;
};

// Figures of one step, for histograms.
struct StepSummary {
  size_t prompt_rows = 0, decode_rows = 0, batch = 0;
  double seconds = 0, predicted_seconds = 0;  // 0: not predicted
  double experts_active = -1;                 // share of experts that had a row; below 0: not known
  bool last = false;                          // no event comes any more
};

class Generator {
 public:
  // Called once per step, on the generator's thread. Must not wait.
  using Sink = std::function<void(std::vector<GenerationEvent>, const StepSummary&)>;
  virtual ~Generator() = default;
  virtual void start(Sink sink) = 0;
  // From any thread, without waiting for a step. submit throws Error when the request can never
  // run.
  virtual uint64_t submit(GenerationRequest request) = 0;
  virtual void cancel(uint64_t id) = 0;
  virtual bool waiting(uint64_t id) const = 0;  // submitted, and has not run yet
  virtual bool dead() const = 0;                // no event will come any more
  virtual GeneratorStats stats() const = 0;
  // No event comes any more. False: a step that does not end keeps its thread; wait no longer.
  virtual bool stop(std::chrono::milliseconds most) = 0;
};

}  // namespace moebius
