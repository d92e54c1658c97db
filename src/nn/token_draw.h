// SPDX-License-Identifier: Apache-2.0
// The passes over one row of logits that a sampler makes: scan, draw, log-probabilities.
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

// The memory that a call needs while it runs. Calls borrow it (Borrowed in schedule.h), so that the next one allocates nothing: an object of
// the thread would be registered with the C library, which ends the process where it has no memory for that.
struct SamplerScratch {
  std::vector<LogitChange> changes, merged;
  std::vector<float> allowed;  // logits of the tokens that are allowed
  std::vector<int32_t> ids;    // tokens that a mask leaves
  std::vector<float> masked;   // the row with kNever for all others
  std::vector<float> maxima, ordered, weights;
  std::vector<double> sums;
  TokenHead head;
  std::vector<RankedToken> ranked;
};

struct ScannedRow {
  LogitRow row;
  float top;
  size_t vocab;  // tokens of the model's row
};
// With s.changes in place of the row's logits; s.maxima are those of the result.
ScannedRow scan_row(std::span<const float> logits, SamplerScratch& s);
// As a row of these tokens alone: ids of changes and of what is chosen count in `allowed`. Sums of
// weights are exact and tokens keep their order, so that nothing but their number differs from the
// whole row with all others banned.
ScannedRow scan_allowed(std::span<const float> logits, std::span<const int32_t> allowed,
                        SamplerScratch& s);
[[noreturn]] void fail_without_logit(size_t count);

// `uniform`: of [0, 1).
int32_t draw(const SamplingParams& p, const ScannedRow& scanned, double uniform, SamplerScratch& s);
// The same from candidates of a row of `vocab` logits that candidate_need asked for; where a draw needs
// all of them, that asks for none.
int32_t draw(const SamplingParams& p, const Candidates& candidates, size_t vocab, double uniform,
             SamplerScratch& s);
std::optional<CandidateNeed> candidate_need(const SamplingParams& p, size_t vocab);
int32_t greatest_token(const LogitRow& row, float top, SamplerScratch& s);
// Fills logprob and alternatives; s.maxima belong to the row.
void add_logprobs(const ScannedRow& scanned, size_t alternatives, TokenChoice& choice,
                  SamplerScratch& s);

}  // namespace moebius
