// SPDX-License-Identifier: Apache-2.0
// No pass sorts the vocabulary. The greatest logits of blocks of tokens come first: the k-th
// greatest of them bounds the k-th greatest logit from below, so that what top-k needs (and the best
// alternatives) is gathered from a few blocks. Top-p and min-p bound their heads likewise. A draw
// from everything looks for its block among the sums of blocks.
#include "nn/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>

#include "base/error.h"
#include "base/token_mask.h"
#include "nn/logit_row.h"

namespace moebius {
namespace {

constexpr float kLargestLogit = std::numeric_limits<float>::max();
// More tokens than this are first dealt to buckets by their logits, and only the bucket in which the
// head of top-p ends is sorted.
constexpr size_t kSortedAtOnce = 1024;
constexpr size_t kMassBuckets = 4096;
constexpr float kBucketsPerOctave = 64.0f;

struct RankedToken {
  float logit;
  int32_t id;
  float weight;
};
bool better(const RankedToken& a, const RankedToken& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// What a call needs for the time it runs, kept by the thread so that the next allocates nothing.
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
SamplerScratch& sampler_scratch() {
  thread_local SamplerScratch scratch;
  return scratch;
}

void in_range(const char* name, double value, double low, double high) {
  if (!(value >= low && value <= high))
    fail("sampling parameter {} is {}; expected {} to {}", name, value, low, high);
}

// +infinity is the one number that the passes would take for a logit: it becomes a change.
void ban_infinities(std::span<const float> logits, SamplerScratch& s) {
  s.merged.clear();
  size_t next = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (next < s.changes.size() && static_cast<size_t>(s.changes[next].id) == i)
      s.merged.push_back(s.changes[next++]);
    else if (logits[i] > kLargestLogit)
      s.merged.push_back({static_cast<int32_t>(i), kNever});
  }
  std::swap(s.changes, s.merged);
}

struct ScannedRow {
  LogitRow row;
  float top;
  size_t vocab;  // tokens of the model's row
};
// With s.changes in place of the row's logits; s.maxima are those of the result.
ScannedRow scan_row(std::span<const float> logits, SamplerScratch& s) {
  float top = scan_maxima(LogitRow(logits, s.changes), s.maxima);
  if (top > kLargestLogit) {
    ban_infinities(logits, s);
    top = scan_maxima(LogitRow(logits, s.changes), s.maxima);
  }
  return {LogitRow(logits, s.changes), top, logits.size()};
}

// As a row of these tokens alone: ids of changes and of what is chosen count in `allowed`. Sums of
// weights are exact and tokens keep their order, so that nothing but their number differs from the
// whole row with all others banned.
ScannedRow scan_allowed(std::span<const float> logits, std::span<const int32_t> allowed,
                        SamplerScratch& s) {
  s.allowed.resize(allowed.size());
  for (size_t i = 0; i < allowed.size(); ++i)
    s.allowed[i] = logits[static_cast<size_t>(allowed[i])];
  s.merged.clear();
  for (const LogitChange& c : s.changes) {
    const auto at = std::lower_bound(allowed.begin(), allowed.end(), c.id);
    if (at != allowed.end() && *at == c.id)
      s.merged.push_back({static_cast<int32_t>(at - allowed.begin()), c.logit});
  }
  std::swap(s.changes, s.merged);
  ScannedRow scanned = scan_row(s.allowed, s);
  scanned.vocab = logits.size();
  return scanned;
}

[[noreturn]] void fail_without_logit(size_t count) {
  fail("the model produced no finite logit (of {}): the weights or the input are broken", count);
}

// A logit that at least `count` tokens reach.
float reached_by(size_t count, SamplerScratch& s) {
  if (count > s.maxima.size()) return -kLargestLogit;
  s.ordered = s.maxima;
  const auto at = s.ordered.begin() + static_cast<std::ptrdiff_t>(count - 1);
  std::nth_element(s.ordered.begin(), at, s.ordered.end(), std::greater<>());
  return std::max(*at, -kLargestLogit);
}

// A logit below all those whose weight has an exponent of at least log2_weight; a percent of slack
// covers every rounding.
float logit_below(const RowWeights& how, double log2_weight) {
  const double exponent = 1.01 * std::min(log2_weight, 0.0) - 0.01;
  const double least = (static_cast<double>(how.top) + exponent / static_cast<double>(how.rate));
  if (!(least > -static_cast<double>(kLargestLogit))) return -kLargestLogit;
  return std::max(std::nextafter(static_cast<float>(least), -kLargestLogit), -kLargestLogit);
}

template <class Keep>
void filter_head(TokenHead& head, Keep keep) {
  size_t n = 0;
  for (size_t i = 0; i < head.size(); ++i) {
    const float logit = head.logits[i];
    const int32_t id = head.ids[i];
    head.logits[n] = logit, head.ids[n] = id;
    n += keep(logit, id) ? 1 : 0;
  }
  head.resize(n);
}
// Keeps `last` and what is better.
void cut_head(TokenHead& head, const RankedToken& last) {
  filter_head(head, [&](float logit, int32_t id) {
    return logit > last.logit || (logit == last.logit && id <= last.id);
  });
}

// The best `count` stand first in s.ranked, in no order.
void rank_head(size_t count, SamplerScratch& s) {
  s.ranked.clear();
  for (size_t i = 0; i < s.head.size(); ++i)
    s.ranked.push_back({s.head.logits[i], s.head.ids[i], 0.0f});
  if (count > 0 && count < s.ranked.size())
    std::nth_element(s.ranked.begin(), s.ranked.begin() + static_cast<std::ptrdiff_t>(count - 1),
                     s.ranked.end(), better);
}

void keep_best(size_t count, SamplerScratch& s) {
  if (count >= s.head.size()) return;
  rank_head(count, s);
  cut_head(s.head, s.ranked[count - 1]);
}

double weigh_head(const RowWeights& how, SamplerScratch& s) {
  s.weights.resize(s.head.size());
  return row_functions().weigh(how, s.head.logits.data(), s.weights.data(), s.head.size());
}

// Keeps the fewest best tokens whose weights reach `wanted`, one at least.
void keep_mass(double wanted, const RowWeights& how, SamplerScratch& s) {
  const size_t n = s.head.size();
  const auto bucket_of = [&](float logit) {
    const float depth = (how.top - logit) * how.rate * kBucketsPerOctave;
    return depth < static_cast<float>(kMassBuckets - 1) ? static_cast<size_t>(depth)
                                                        : kMassBuckets - 1;
  };
  double sum = 0;
  size_t bucket = 0;
  const bool dealt = n > kSortedAtOnce;
  if (dealt) {
    s.sums.assign(kMassBuckets, 0.0);
    for (size_t i = 0; i < n; ++i)
      s.sums[bucket_of(s.head.logits[i])] += static_cast<double>(s.weights[i]);
    while (bucket + 1 < kMassBuckets && sum + s.sums[bucket] < wanted) sum += s.sums[bucket++];
  }
  s.ranked.clear();
  for (size_t i = 0; i < n; ++i)
    if (!dealt || bucket_of(s.head.logits[i]) == bucket)
      s.ranked.push_back({s.head.logits[i], s.head.ids[i], s.weights[i]});
  std::sort(s.ranked.begin(), s.ranked.end(), better);
  for (const RankedToken& t : s.ranked)
    if ((sum += static_cast<double>(t.weight)) >= wanted) return cut_head(s.head, t);
}

// The first token in ascending order of ids at which the running sum exceeds `rest`.
int32_t pick(std::span<const float> weights, double rest) {
  size_t last = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] > 0.0f) last = i;
    if ((rest -= static_cast<double>(weights[i])) < 0) return static_cast<int32_t>(i);
  }
  return static_cast<int32_t>(last);
}

int32_t draw_from_all(const LogitRow& row, const RowWeights& how, double uniform,
                      SamplerScratch& s) {
  double rest = uniform * sum_weights(row, how, s.sums);
  size_t b = 0;
  while (b + 1 < s.sums.size() && rest >= s.sums[b]) rest -= s.sums[b++];
  LogitRow::Buffer buffer, weights;
  const auto logits = row.block(b, buffer);
  row_functions().weigh(how, logits.data(), weights.data(), logits.size());
  return static_cast<int32_t>(b * kLogitBlock) + pick({weights.data(), logits.size()}, rest);
}

int32_t draw(const SamplingParams& p, const ScannedRow& scanned, double uniform,
             SamplerScratch& s) {
  const LogitRow& row = scanned.row;
  const RowWeights how = token_weights(scanned.top, p.temperature, scanned.vocab);
  const auto k = static_cast<size_t>(p.top_k);
  const bool every = k == 0 || k >= row.size();
  if (every && p.top_p >= 1.0f && p.min_p <= 0.0f) return draw_from_all(row, how, uniform, s);
  const double top_p = static_cast<double>(p.top_p), min_p = static_cast<double>(p.min_p);
  const double least_exponent = min_p > 0 ? natural_log(min_p) * 1.4426950408889634
                                          : -std::numeric_limits<double>::infinity();
  float least = -kLargestLogit;
  double total = 0;
  if (!every) {
    least = reached_by(k, s);
  } else {
    if (top_p < 1) {  // tokens that weigh less than t are, all together, not needed to reach top_p
      total = sum_weights(row, how, s.sums);
      const double t = 0.99 * (1 - top_p) * total / static_cast<double>(row.size());
      least = logit_below(how, natural_log(t) * 1.4426950408889634);
    }
    if (min_p > 0) least = std::max(least, logit_below(how, least_exponent));
  }
  gather_head(row, s.maxima, least, s.head);
  if (!every) keep_best(k, s);
  if (top_p < 1) {
    const double here = weigh_head(how, s);
    keep_mass(top_p * (every ? total : here), how, s);
  }
  if (min_p > 0)
    filter_head(s.head, [&](float logit, int32_t) {
      return static_cast<double>((logit - how.top) * how.rate) >= least_exponent;
    });
  const double mass = weigh_head(how, s);
  return s.head.ids[static_cast<size_t>(pick(s.weights, uniform * mass))];
}

int32_t greatest_token(const LogitRow& row, float top, SamplerScratch& s) {
  const size_t b =
      static_cast<size_t>(std::find(s.maxima.begin(), s.maxima.end(), top) - s.maxima.begin());
  LogitRow::Buffer buffer;
  const auto logits = row.block(b, buffer);
  return static_cast<int32_t>(b * kLogitBlock) +
         static_cast<int32_t>(std::find(logits.begin(), logits.end(), top) - logits.begin());
}

// Fills logprob and alternatives; s.maxima belong to the row.
void add_logprobs(const ScannedRow& scanned, size_t alternatives, TokenChoice& choice,
                  SamplerScratch& s) {
  const LogitRow& row = scanned.row;
  const double sum = sum_weights(row, token_weights(scanned.top, 1.0f, row.size()), s.sums);
  const double norm = static_cast<double>(scanned.top) + natural_log(sum);
  const auto logprob = [&](float logit) {
    return std::isfinite(logit) ? static_cast<float>(static_cast<double>(logit) - norm) : kNever;
  };
  choice.logprob = logprob(row.at(choice.token));
  if (alternatives == 0) return;
  const size_t count = std::min(alternatives, row.size());
  gather_head(row, s.maxima, reached_by(count, s), s.head);
  rank_head(count, s);
  s.ranked.resize(std::min(count, s.ranked.size()));
  std::sort(s.ranked.begin(), s.ranked.end(), better);
  choice.alternatives.reserve(s.ranked.size());
  for (const RankedToken& t : s.ranked) choice.alternatives.emplace_back(t.id, logprob(t.logit));
}

}  // namespace

namespace {

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
  in_range("temperature", p.temperature, 0, 100);
  in_range("top_k", p.top_k, 0, 1 << 30);
  in_range("top_p", p.top_p, 0, 1);
  in_range("min_p", p.min_p, 0, 1);
  in_range("repetition_penalty", p.repetition_penalty, 0.01, 100);
  in_range("presence_penalty", p.presence_penalty, -100, 100);
  in_range("frequency_penalty", p.frequency_penalty, -100, 100);
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
  std::vector<int32_t> ids(tokens.begin(), tokens.end());  // sorted, so that each lands at the end
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

// The tokens that both leave, where these are few; otherwise nothing, and s.masked is the row.
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

}  // namespace

TokenChoice Sampler::next(std::span<const float> row, size_t limit, const TokenMask* mask) {
  const std::span<const float> logits = row.first(std::min(row.size(), limit));
  if (highest_ >= 0 && static_cast<size_t>(highest_) >= logits.size())
    check(params_, logits.size());
  SamplerScratch& s = sampler_scratch();
  changes(logits, s.changes);
  std::optional<std::span<const int32_t>> allowed;
  std::span<const float> choosable = logits;
  if (mask != nullptr) {
    allowed = masked_tokens(logits, params_.allowed_tokens, *mask, s);
    if (!allowed) choosable = s.masked;
  } else if (!params_.allowed_tokens.empty()) {
    allowed = params_.allowed_tokens;
  }
  const bool modified = !s.changes.empty() || allowed || mask != nullptr;
  const ScannedRow scanned = allowed ? scan_allowed(logits, *allowed, s) : scan_row(choosable, s);
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
    if (modified) {
      s.changes.clear();
      add_logprobs(scan_row(logits, s), alternatives, choice, s);
    } else {
      add_logprobs(scanned, alternatives, choice, s);
    }
  }
  ++produced_;
  if (longest_word_ > 1) {
    if (recent_.size() + 1 == longest_word_) recent_.erase(recent_.begin());
    recent_.push_back(choice.token);
  }
  if (params_.repetition_penalty != 1.0f || params_.presence_penalty != 0.0f ||
      params_.frequency_penalty != 0.0f)
    ++touch(choice.token).produced;
  return choice;
}

TokenChoice token_logprobs(std::span<const float> row, size_t limit, int32_t token,
                           int alternatives) {
  const std::span<const float> logits = row.first(std::min(row.size(), limit));
  in_range("logprobs", alternatives, 0, 1000);
  if (token < 0 || static_cast<size_t>(token) >= logits.size())
    fail("token {} has no logit: the row has {}, counted from 0", token, logits.size());
  SamplerScratch& s = sampler_scratch();
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
