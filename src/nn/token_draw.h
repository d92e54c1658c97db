// SPDX-License-Identifier: Apache-2.0
// The passes of a sampler over one row of logits: scan, draw, log-probabilities. Functions are
// thread-safe with different scratch memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "nn/logit_row.h"
#include "nn/sampler.h"

namespace moebius {

constexpr float kLargestLogit = std::numeric_limits<float>::max();

struct RankedToken {
  float logit;
  int32_t id;
  float weight;
};

// Memory that a call uses while it runs. Calls borrow it (Borrowed in schedule.h), so that later
// calls allocate nothing. It is no thread_local object: the C library would register that, and ends
// the process if it has no memory for it.
struct SamplerScratch {
  std::vector<LogitChange> changes, merged;
  std::vector<float> allowed;  // logits of the allowed tokens
  std::vector<int32_t> ids;    // tokens that a mask allows
  std::vector<float> masked;   // the row with kNever for tokens that the mask excludes
  std::vector<float> maxima, ordered, weights;
  std::vector<double> sums;
  TokenHead head;
  std::vector<RankedToken> ranked;
};

struct ScannedRow {
  LogitRow row;
  float top;
  size_t vocab;  // number of tokens in the model's row
};
// Scans the row with s.changes replacing logits, and writes block maxima to s.maxima.
ScannedRow scan_row(std::span<const float> logits, SamplerScratch& s);
// Scans a row that consists of the allowed tokens alone: ids in changes and in the choice are
// indices into `allowed`. Sums of weights are exact and tokens keep their order, so the result
// equals that of the whole row with all other tokens banned.
ScannedRow scan_allowed(std::span<const float> logits, std::span<const int32_t> allowed,
                        SamplerScratch& s);
[[noreturn]] void fail_without_logit(size_t count);
// Returns a logit that at least `count` tokens of the scanned row reach.
float reached_by(size_t count, SamplerScratch& s);

// Returns the token drawn with `uniform`, a random number in [0, 1).
int32_t draw(const SamplingParams& p, const ScannedRow& scanned, double uniform, SamplerScratch& s);
// Draw from candidates: candidate_need() returns what a draw from a row of `vocab` logits needs, or
// nothing if it needs all of them; draw() draws from candidates that satisfy this.
int32_t draw(const SamplingParams& p, const Candidates& candidates, size_t vocab, double uniform,
             SamplerScratch& s);
std::optional<CandidateNeed> candidate_need(const SamplingParams& p, size_t vocab);
int32_t greatest_token(const LogitRow& row, float top, SamplerScratch& s);
// Fills logprob and alternatives of the choice from a scanned row.
void add_logprobs(const ScannedRow& scanned, size_t alternatives, TokenChoice& choice,
                  SamplerScratch& s);

}  // namespace moebius
