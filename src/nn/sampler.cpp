// SPDX-License-Identifier: Apache-2.0
// Decides which tokens may be chosen and changes their logits; token_draw passes over the row.
#include "nn/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <optional>

#include "base/error.h"
#include "base/token_mask.h"
#include "nn/schedule.h"
#include "nn/token_draw.h"

namespace moebius {
namespace {

void in_range(const char* name, double value, double low, double high) {
  if (!(value >= low && value <= high))
    fail("sampling parameter {} is {}; expected {} to {}", name, value, low, high);
}

void check_tokens(const SamplingParams& p, size_t vocab) {
  const auto known = [&](const char* name, int32_t token) {
    if (token < 0) fail("sampling parameter {} names token {}; ids begin at 0", name, token);
    if (static_cast<size_t>(token) >= vocab)
      fail("sampling parameter {} names token {}; the model has {}, counted from 0", name, token,
           vocab);
  };
  for (const TokenBias& b : p.logit_bias) known("logit_bias", b.token);
  for (const int32_t t : p.allowed_tokens) known("allowed_tokens", t);
  for (const auto& word : p.bad_words)
    for (const int32_t t : word) known("bad_words", t);
}

}  // namespace

void check(const SamplingParams& p) {
#define MOEBIUS_SAMPLING_NUMBER(type, name, none, least, greatest) \
  in_range(#name, p.name, least, greatest);
#include "base/sampling_numbers.inc"
  in_range("logprobs", p.logprobs, -1, 1000);
  in_range("min_tokens", p.min_tokens, 0, 1 << 30);
  for (const TokenBias& b : p.logit_bias) in_range("logit_bias", b.bias, -100, 100);
  for (const auto& word : p.bad_words)
    if (word.empty()) fail("sampling parameter bad_words has a word without a token");
  check_tokens(p, INT32_MAX);
}

void check(const SamplingParams& p, size_t vocab) {
  check(p);
  check_tokens(p, vocab);
}

Sampler::Sampler(const SamplingParams& params, std::span<const int32_t> stop_tokens)
    : params_(params), random_(params.seed) {
  check(params);
  const auto named = [&](int32_t token) { highest_ = std::max(highest_, token); };
  for (const TokenBias& b : params.logit_bias) {
    touch(b.token).bias += b.bias;
    named(b.token);
  }
  if (params.min_tokens > 0)
    for (const int32_t t : stop_tokens)
      if (t >= 0) touch(t).stop = true;
  auto& allowed = params_.allowed_tokens;
  std::sort(allowed.begin(), allowed.end());
  allowed.erase(std::unique(allowed.begin(), allowed.end()), allowed.end());
  if (!allowed.empty()) named(allowed.back());
  for (const auto& word : params.bad_words) {
    touch(word.back()).ends_word = true;
    longest_word_ = std::max(longest_word_, word.size());
    for (const int32_t t : word) named(t);
  }
  std::sort(params_.bad_words.begin(), params_.bad_words.end(),
            [](const auto& a, const auto& b) { return a.back() < b.back(); });
}

bool Sampler::ends_bad_word(int32_t id) const {
  const auto& words = params_.bad_words;
  auto at = std::lower_bound(words.begin(), words.end(), id,
                             [](const auto& word, int32_t i) { return word.back() < i; });
  for (; at != words.end() && at->back() == id; ++at)
    if (at->size() - 1 <= recent_.size() &&
        std::equal(at->begin(), at->end() - 1,
                   recent_.end() - static_cast<std::ptrdiff_t>(at->size() - 1)))
      return true;
  return false;
}

Sampler::Touched& Sampler::touch(int32_t id) {
  const auto at = std::lower_bound(touched_.begin(), touched_.end(), id,
                                   [](const Touched& t, int32_t i) { return t.id < i; });
  if (at != touched_.end() && at->id == id) return *at;
  return *touched_.insert(at, Touched{id, 0, 0.0f, false, false, false});
}

void Sampler::see_prompt(std::span<const int32_t> tokens) {
  if (params_.repetition_penalty == 1.0f) return;
  std::vector<int32_t> ids(tokens.begin(), tokens.end());  // sorted, so that each addition appends
  std::sort(ids.begin(), ids.end());
  for (const int32_t t : ids)
    if (t >= 0) touch(t).prompt = true;
}

void Sampler::changes(std::span<const float> logits, std::vector<LogitChange>& out) const {
  out.clear();
  const float repetition = params_.repetition_penalty;
  for (const Touched& t : touched_) {
    if (static_cast<size_t>(t.id) >= logits.size()) break;
    float v = logits[static_cast<size_t>(t.id)];
    if (!std::isfinite(v) || (t.stop && produced_ < params_.min_tokens) ||
        (t.ends_word && ends_bad_word(t.id))) {
      out.push_back({t.id, kNever});
      continue;
    }
    v += t.bias;
    if (t.prompt || t.produced > 0) v = v > 0 ? v / repetition : v * repetition;
    if (t.produced > 0)
      v -= params_.presence_penalty + params_.frequency_penalty * static_cast<float>(t.produced);
    out.push_back({t.id, std::clamp(v, -kLargestLogit, kLargestLogit)});
  }
}

namespace {

// Returns the tokens that both masks allow, if they are few; otherwise nothing, and s.masked is the
// masked row.
std::optional<std::span<const int32_t>> masked_tokens(std::span<const float> logits,
                                                      const std::vector<int32_t>& allowed,
                                                      const TokenMask& mask, SamplerScratch& s) {
  const auto known = [&](int32_t id) { return static_cast<size_t>(id) < logits.size(); };
  s.ids.clear();
  if (!allowed.empty()) {
    for (const int32_t id : allowed)
      if (known(id) && mask.has(id)) s.ids.push_back(id);
    return s.ids;
  }
  if (mask.listed) {
    for (const int32_t id : mask.ids)
      if (known(id)) s.ids.push_back(id);
    return s.ids;
  }
  if (mask.count < logits.size() / 8) {
    for (size_t w = 0; w < mask.bits.size(); ++w)
      for (uint64_t left = mask.bits[w]; left != 0; left &= left - 1) {
        const auto id = static_cast<int32_t>(w * 64 + static_cast<size_t>(std::countr_zero(left)));
        if (known(id)) s.ids.push_back(id);
      }
    return s.ids;
  }
  s.masked.resize(logits.size());
  keep_masked(logits, mask.bits, s.masked);
  for (LogitChange& c : s.changes)
    if (!mask.has(c.id)) c.logit = kNever;
  return std::nullopt;
}

// Scans the tokens that may be chosen, with s.changes. Sets `few` if they are few: the scanned row
// then has these tokens alone.
ScannedRow scan_choosable(std::span<const float> logits, const std::vector<int32_t>& allowed,
                          const TokenMask* mask, SamplerScratch& s,
                          std::optional<std::span<const int32_t>>& few) {
  if (mask != nullptr) {
    few = masked_tokens(logits, allowed, *mask, s);
    if (!few) return scan_row(s.masked, s);
  } else if (!allowed.empty()) {
    few = allowed;
  }
  return few ? scan_allowed(logits, *few, s) : scan_row(logits, s);
}

}  // namespace

TokenChoice Sampler::next(std::span<const float> row, size_t limit, const TokenMask* mask) {
  const std::span<const float> logits = row.first(std::min(row.size(), limit));
  if (highest_ >= 0 && static_cast<size_t>(highest_) >= logits.size())
    check(params_, logits.size());
  const Borrowed<SamplerScratch> scratch;
  SamplerScratch& s = *scratch;
  changes(logits, s.changes);
  const bool changed = !s.changes.empty() || mask != nullptr;
  std::optional<std::span<const int32_t>> allowed;
  const ScannedRow scanned = scan_choosable(logits, params_.allowed_tokens, mask, s, allowed);
  if (scanned.top == kNever) {
    s.changes.clear();
    if (scan_row(logits, s).top == kNever) fail_without_logit(logits.size());
    fail("min_tokens, bad_words{} and allowed_token_ids leave none of {} tokens to choose",
         mask != nullptr ? ", the answer's format" : "", logits.size());
  }
  TokenChoice choice;
  const bool greedy = params_.temperature == 0.0f || (mask != nullptr && mask->count == 1);
  choice.token = greedy ? greatest_token(scanned.row, scanned.top, s)
                        : draw(params_, scanned, random_.uniform(), s);
  if (allowed) choice.token = (*allowed)[static_cast<size_t>(choice.token)];
  if (params_.logprobs >= 0) {
    const auto alternatives = static_cast<size_t>(params_.logprobs);
    if (changed || allowed) {
      s.changes.clear();
      add_logprobs(scan_row(logits, s), alternatives, choice, s);
    } else {
      add_logprobs(scanned, alternatives, choice, s);
    }
  }
  see_answer(choice.token);
  return choice;
}

void Sampler::see_answer(int32_t token) {
  ++produced_;
  if (longest_word_ > 1) {
    if (recent_.size() + 1 == longest_word_) recent_.erase(recent_.begin());
    recent_.push_back(token);
  }
  if (params_.repetition_penalty != 1.0f || params_.presence_penalty != 0.0f ||
      params_.frequency_penalty != 0.0f)
    ++touch(token).produced;
}

std::optional<CandidateNeed> Sampler::need(size_t limit) const {
  const bool as_they_are =
      touched_.empty() && params_.allowed_tokens.empty() && params_.logprobs < 0;
  if (!as_they_are || limit == 0 || limit > INT32_MAX) return std::nullopt;
  return candidate_need(params_, limit);
}

bool Sampler::reads_few() const {
  constexpr int kFew = 32;
  const SamplingParams& p = params_;
  return p.logprobs < 0 &&
         (p.temperature == 0.0f || (p.top_n_sigma <= 0.0f && p.top_k > 0 && p.top_k <= kFew));
}

bool Sampler::list_few(const LogitBounds& row, size_t limit, const TokenMask* mask,
                       std::vector<int32_t>& ids) const {
  const Borrowed<SamplerScratch> scratch;
  SamplerScratch& s = *scratch;
  std::optional<std::span<const int32_t>> few;
  const auto scan = [&](std::span<const float> logits) {
    logits = logits.first(std::min(logits.size(), limit));
    changes(logits, s.changes);
    return scan_choosable(logits, params_.allowed_tokens, mask, s, few);
  };
  const ScannedRow least = scan(row.lower);
  if (few) return ids.assign(few->begin(), few->end()), !ids.empty();
  if (least.top == kNever) return false;
  const size_t k = params_.temperature == 0.0f ? 1 : static_cast<size_t>(params_.top_k);
  gather_head(least.row, s.maxima, reached_by(k, s), s.head);
  std::vector<float>& best = s.head.logits;
  const auto last = best.begin() + static_cast<std::ptrdiff_t>(std::min(k, best.size()) - 1);
  std::nth_element(best.begin(), last, best.end(), std::greater<>());
  const float reached = *last;
  gather_head(scan(row.upper).row, s.maxima, reached, s.head);
  ids = s.head.ids;
  return true;
}

TokenChoice Sampler::next(const Candidates& candidates, size_t limit) {
  if (candidates.top == kNever) fail_without_logit(limit);
  TokenChoice choice;
  choice.token = params_.temperature == 0.0f ? candidates.ids.at(0)
                                             : draw(params_, candidates, limit, random_.uniform(),
                                                    *Borrowed<SamplerScratch>());
  see_answer(choice.token);
  return choice;
}

TokenChoice token_logprobs(std::span<const float> row, size_t limit, int32_t token,
                           int alternatives) {
  const std::span<const float> logits = row.first(std::min(row.size(), limit));
  in_range("logprobs", alternatives, 0, 1000);
  if (token < 0 || static_cast<size_t>(token) >= logits.size())
    fail("token {} has no logit: the row has {}, counted from 0", token, logits.size());
  const Borrowed<SamplerScratch> scratch;
  SamplerScratch& s = *scratch;
  s.changes.clear();
  const ScannedRow scanned = scan_row(logits, s);
  if (scanned.top == kNever) fail_without_logit(logits.size());
  TokenChoice choice;
  choice.token = token;
  add_logprobs(scanned, static_cast<size_t>(alternatives), choice, s);
  choice.rank = 1;
  const float own = std::isfinite(logits[static_cast<size_t>(token)])
                        ? logits[static_cast<size_t>(token)]
                        : kNever;
  for (size_t i = 0; i < logits.size(); ++i) {
    const float other = logits[i];
    const bool before = other > own || (other == own && i < static_cast<size_t>(token));
    choice.rank += before && other <= kLargestLogit ? 1 : 0;
  }
  return choice;
}

}  // namespace moebius
