// SPDX-License-Identifier: Apache-2.0
// From logits to the next token. Order of application: tokens that may not be chosen (least length,
// allowed tokens, bad words), bias, penalties, temperature, top-k, top-p, min-p, draw; docs/numerics.md has the arithmetic. A seed fixes the random numbers
// and every sum is exact, so equal logits give equal tokens on every machine; temperature 0 is
// greedy (ties to the lower id). Logits that are not finite count as never.
//
// Samplers are values (a fork or a preempted sequence copies one). Different samplers may be asked
// by different threads at once; what a call needs beside its sampler belongs to the thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/random.h"
#include "nn/candidates.h"

namespace moebius {

struct LogitChange;
struct TokenMask;

struct TokenBias {
  int32_t token = 0;
  float bias = 0.0f;  // added to its logit
};

struct SamplingParams {
  float temperature = 0.0f;  // 0: greedy
  int top_k = 0;             // 0: all
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;                          // on tokens of prompt and answer
  float presence_penalty = 0.0f, frequency_penalty = 0.0f;  // on tokens of the answer
  uint64_t seed = 0;
  int logprobs = -1;   // how many alternatives to report; -1: none at all
  int min_tokens = 0;  // before so many were produced, stop tokens are not
  std::vector<TokenBias> logit_bias;
  std::vector<int32_t> allowed_tokens;          // no other is chosen; empty: all are allowed
  std::vector<std::vector<int32_t>> bad_words;  // tokens that the answer never has in a row
};
// Throws Error naming the parameter that is out of range.
void check(const SamplingParams& params);
// Also when a token is named that is not one of the first `vocab`.
void check(const SamplingParams& params, size_t vocab);

struct TokenChoice {
  int32_t token = 0;
  float logprob = 0.0f;                                 // of the unmodified distribution
  std::vector<std::pair<int32_t, float>> alternatives;  // best first
  size_t rank = 0;                                      // of token_logprobs: 1 for the best
};

class Sampler {
 public:
  // `stop_tokens` matter for min_tokens.
  explicit Sampler(const SamplingParams& params, std::span<const int32_t> stop_tokens = {});
  void see_prompt(std::span<const int32_t> tokens);
  // Throws Error when the logits hold no finite number, or none that may be chosen. Of the row the
  // first `limit` logits count: other tokens are never chosen.
  // `mask`: only its tokens may be chosen, after bias and penalties; where it has one, that is
  // chosen without a random number.
  TokenChoice next(std::span<const float> logits, size_t limit, const TokenMask* mask = nullptr);
  // What the next choice among `limit` logits needs of their row, where that is not all of it; and that
  // choice, from the candidates, without a mask.
  std::optional<CandidateNeed> need(size_t limit) const;
  TokenChoice next(const Candidates& candidates, size_t limit);

 private:
  // A token whose logit is not the model's. Their ids ascend.
  struct Touched {
    int32_t id;
    int32_t produced;  // how often, in the answer
    float bias;
    bool prompt, stop;
    bool ends_word;  // of bad_words
  };
  Touched& touch(int32_t id);
  bool ends_bad_word(int32_t id) const;  // that the answer's last tokens began
  void changes(std::span<const float> logits, std::vector<LogitChange>& out) const;
  void see_answer(int32_t token);
  SamplingParams params_;  // allowed tokens ascend; bad words are sorted by their last token
  SplitMix64 random_;
  std::vector<Touched> touched_;
  std::vector<int32_t> recent_;  // the answer's last tokens, as many as bad words ask for
  size_t longest_word_ = 0;
  int32_t highest_ = -1;  // token that a parameter names
  int64_t produced_ = 0;
};

// What one row of logits says of a token that is already known (of a prompt): its log-probability
// (-infinity if its logit is not finite), its rank and the best `alternatives` tokens with theirs, by the
// arithmetic of a choice. Throws Error when the row holds no finite number or the token is not below
// `limit`.
TokenChoice token_logprobs(std::span<const float> logits, size_t limit, int32_t token,
                           int alternatives);

}  // namespace moebius
