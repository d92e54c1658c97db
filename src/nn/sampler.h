// SPDX-License-Identifier: Apache-2.0
// Draws the next token from logits. Order of application: tokens that may not be chosen (least
// length, allowed tokens, bad words), bias, penalties, top-n-sigma, temperature, top-k, top-p, min-p,
// draw; docs/numerics.md has the arithmetic. A seed fixes the random numbers and every sum is exact, so
// equal logits give equal tokens on every machine; temperature 0 is greedy (ties to the lower id).
// Tokens whose logit is not finite are never chosen.
//
// Samplers are values: forked and preempted sequences copy them. Different threads may use
// different samplers at the same time; scratch memory is borrowed per call.
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
  float bias = 0.0f;  // added to the token's logit before sampling
};

struct SamplingParams {
#define MOEBIUS_SAMPLING_NUMBER(type, name, none, least, greatest) type name = none;
#include "base/sampling_numbers.inc"
  uint64_t seed = 0;
  int logprobs = -1;   // number of alternatives to report per token; -1: no probabilities
  int min_tokens = 0;  // stop tokens are banned until so many tokens were produced
  std::vector<TokenBias> logit_bias;
  std::vector<int32_t> allowed_tokens;  // only these tokens may be chosen; empty: all
  // Sequences of tokens that the answer must not contain.
  std::vector<std::vector<int32_t>> bad_words;
};
// Throws Error that names a parameter which is out of range.
void check(const SamplingParams& params);
// Throws Error as the other check() does, and also if a parameter names a token that is not one of
// the first `vocab`.
void check(const SamplingParams& params, size_t vocab);

struct TokenChoice {
  int32_t token = 0;
  float logprob = 0.0f;  // log-probability in the distribution before sampling parameters
  // Most likely tokens with log-probabilities, best first.
  std::vector<std::pair<int32_t, float>> alternatives;
  size_t rank = 0;  // rank of the token, from 1 (the most likely) on; set by token_logprobs only
};

class Sampler {
 public:
  // `stop_tokens`: tokens that are banned until SamplingParams::min_tokens were produced.
  explicit Sampler(const SamplingParams& params, std::span<const int32_t> stop_tokens = {});
  void see_prompt(std::span<const int32_t> tokens);
  // Draws the next token from the first `limit` logits and records it. `mask`: only its tokens may
  // be chosen, after bias and penalties; a mask of one token is chosen without using a random
  // number. Throws Error if the logits hold no finite number, or none that may be chosen.
  TokenChoice next(std::span<const float> logits, size_t limit, const TokenMask* mask = nullptr);
  // Draw on a device: need() returns what the next draw from `limit` logits needs of their row, or
  // nothing if it needs the whole row; next() draws from candidates that satisfy this, without a
  // mask.
  std::optional<CandidateNeed> need(size_t limit) const;
  TokenChoice next(const Candidates& candidates, size_t limit);
  // Draw from a few exact logits: reads_few() returns whether draws depend on the few greatest
  // logits alone. list_few() then lists the tokens on which the next draw depends, if every logit
  // lies within the bounds of its row; next() draws the same token if all other logits become
  // -infinity. Returns false if it cannot say.
  bool reads_few() const;
  bool list_few(const LogitBounds& row, size_t limit, const TokenMask* mask,
                std::vector<int32_t>& ids) const;

 private:
  // A token whose logit is changed before sampling. The list's ids ascend.
  struct Touched {
    int32_t id;
    int32_t produced;  // how often the token is in the answer
    float bias;
    bool prompt, stop;
    bool ends_word;  // true: the token is the last one of one of bad_words
  };
  Touched& touch(int32_t id);
  // Returns true if the token would complete a bad word that the answer's last tokens began.
  bool ends_bad_word(int32_t id) const;
  void changes(std::span<const float> logits, std::vector<LogitChange>& out) const;
  void see_answer(int32_t token);
  SamplingParams params_;  // allowed tokens ascend; bad words are sorted by their last token
  SplitMix64 random_;
  std::vector<Touched> touched_;
  std::vector<int32_t> recent_;  // the answer's last tokens, as many as bad words need
  size_t longest_word_ = 0;
  int32_t highest_ = -1;  // highest token that a parameter names
  int64_t produced_ = 0;
};

// Returns facts about a token that is already known (of a prompt), from its row of logits: its
// log-probability (-infinity if its logit is not finite), its rank, and the best `alternatives`
// tokens with theirs. Throws Error if the row holds no finite number or the token is not below
// `limit`.
TokenChoice token_logprobs(std::span<const float> logits, size_t limit, int32_t token,
                           int alternatives);

}  // namespace moebius
