// SPDX-License-Identifier: Apache-2.0
// Draws tokens without sorting the vocabulary. The greatest logits of blocks of tokens come first:
// the k-th greatest of them bounds the k-th greatest logit from below, so that what top-k needs
// (and the best alternatives) is gathered from a few blocks. Top-p and min-p bound their heads
// likewise. A draw from everything looks for its block among the sums of blocks.
#include "nn/token_draw.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/error.h"

namespace moebius {
namespace {

// A head with more tokens is first dealt to buckets by logit, and only the bucket where the head of
// top-p ends is sorted.
constexpr size_t kSortedAtOnce = 1024;
constexpr size_t kMassBuckets = 4096;
constexpr float kBucketsPerOctave = 64.0f;

bool better(const RankedToken& a, const RankedToken& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// Bans tokens with the logit +infinity: a later pass would take it for a usable logit.
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

}  // namespace

ScannedRow scan_row(std::span<const float> logits, SamplerScratch& s) {
  float top = scan_maxima(LogitRow(logits, s.changes), s.maxima);
  if (top > kLargestLogit) {
    ban_infinities(logits, s);
    top = scan_maxima(LogitRow(logits, s.changes), s.maxima);
  }
  return {LogitRow(logits, s.changes), top, logits.size()};
}

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

float reached_by(size_t count, SamplerScratch& s) {
  if (count > s.maxima.size()) return -kLargestLogit;
  s.ordered = s.maxima;
  const auto at = s.ordered.begin() + static_cast<std::ptrdiff_t>(count - 1);
  std::nth_element(s.ordered.begin(), at, s.ordered.end(), std::greater<>());
  return std::max(*at, -kLargestLogit);
}

namespace {

// Returns a logit below every token whose weight has an exponent of at least log2_weight; one
// percent of slack covers every rounding.
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
    head.logits[n] = logit;
    head.ids[n] = id;
    n += keep(logit, id) ? 1 : 0;
  }
  head.resize(n);
}
// Keeps `last` and all better tokens.
void cut_head(TokenHead& head, const RankedToken& last) {
  filter_head(head, [&](float logit, int32_t id) {
    return logit > last.logit || (logit == last.logit && id <= last.id);
  });
}

// Moves the best `count` tokens to the front of s.ranked, in no order.
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

// Keeps the fewest best tokens whose weights sum to `wanted`, at least one.
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

// Returns the first token, in ascending order of ids, at which the running sum exceeds `rest`.
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

// Return whether limits keep everything: takes_every(): top_k keeps all tokens; takes_all(): top_p
// and min_p keep them, too.
bool takes_every(const SamplingParams& p, size_t vocab) {
  return p.top_k == 0 || static_cast<size_t>(p.top_k) >= vocab;
}
bool takes_all(const SamplingParams& p, size_t vocab) {
  return takes_every(p, vocab) && p.top_p >= 1.0f && p.min_p <= 0.0f;
}

// Returns the binary exponent of the least weight that min_p keeps.
double least_exponent(const SamplingParams& p) {
  return p.min_p > 0 ? natural_log(static_cast<double>(p.min_p)) * 1.4426950408889634
                     : -std::numeric_limits<double>::infinity();
}

// Returns the least logit that top_n_sigma keeps: the greatest, less so many standard deviations of
// all finite logits. Sums are f64 in ascending order of ids, so that banned tokens change nothing.
float least_of_sigma(const LogitRow& row, float top, float sigmas) {
  LogitRow::Buffer buffer;
  const auto each_below_top = [&](auto&& work) {
    for (size_t b = 0; b < row.blocks(); ++b)
      for (const float v : row.block(b, buffer))
        if (std::isfinite(v)) work(static_cast<double>(v) - static_cast<double>(top));
  };
  double count = 0, sum = 0, squares = 0;
  each_below_top([&](double d) {
    count += 1;
    sum += d;
  });
  const double mean = sum / count;
  each_below_top([&](double d) { squares += (d - mean) * (d - mean); });
  const double deviation = std::sqrt(squares / count);
  const double least = static_cast<double>(top) - static_cast<double>(sigmas) * deviation;
  if (!(least > -static_cast<double>(kLargestLogit))) return -kLargestLogit;
  const auto rounded = static_cast<float>(least);
  return static_cast<double>(rounded) < least ? std::nextafter(rounded, kLargestLogit) : rounded;
}

// Draws from s.head, which holds every token that can be drawn. total: the weight of all tokens,
// used when top_p applies to the whole vocabulary.
int32_t draw_from_head(const SamplingParams& p, const RowWeights& how, bool every, double total,
                       double uniform, SamplerScratch& s) {
  if (!every) keep_best(static_cast<size_t>(p.top_k), s);
  if (p.top_p < 1.0f) {
    const double here = weigh_head(how, s);
    keep_mass(static_cast<double>(p.top_p) * (every ? total : here), how, s);
  }
  if (p.min_p > 0)
    filter_head(s.head, [&, least = least_exponent(p)](float logit, int32_t) {
      return static_cast<double>((logit - how.top) * how.rate) >= least;
    });
  const double mass = weigh_head(how, s);
  return s.head.ids[static_cast<size_t>(pick(s.weights, uniform * mass))];
}

}  // namespace

int32_t draw(const SamplingParams& p, const ScannedRow& scanned, double uniform,
             SamplerScratch& s) {
  const LogitRow& row = scanned.row;
  const RowWeights how = token_weights(scanned.top, p.temperature, scanned.vocab);
  const bool every = takes_every(p, row.size());
  if (p.top_n_sigma > 0) {
    gather_head(row, s.maxima, least_of_sigma(row, scanned.top, p.top_n_sigma), s.head);
    return draw_from_head(p, how, every, weigh_head(how, s), uniform, s);
  }
  if (takes_all(p, row.size())) return draw_from_all(row, how, uniform, s);
  float least = -kLargestLogit;
  double total = 0;
  if (!every) {
    least = reached_by(static_cast<size_t>(p.top_k), s);
  } else {
    if (p.top_p < 1.0f) {  // tokens lighter than t are together not needed for top_p
      total = sum_weights(row, how, s.sums);
      const double t =
          0.99 * (1 - static_cast<double>(p.top_p)) * total / static_cast<double>(row.size());
      least = logit_below(how, natural_log(t) * 1.4426950408889634);
    }
    if (p.min_p > 0) least = std::max(least, logit_below(how, least_exponent(p)));
  }
  gather_head(row, s.maxima, least, s.head);
  return draw_from_head(p, how, every, total, uniform, s);
}

int32_t draw(const SamplingParams& p, const Candidates& candidates, size_t vocab, double uniform,
             SamplerScratch& s) {
  const RowWeights how = token_weights(candidates.top, p.temperature, vocab);
  s.head.ids = candidates.ids;
  s.head.logits = candidates.logits;
  return draw_from_head(p, how, takes_every(p, vocab), candidates.total, uniform, s);
}

std::optional<CandidateNeed> candidate_need(const SamplingParams& p, size_t vocab) {
  CandidateNeed need;
  need.vocab = static_cast<uint32_t>(vocab);
  if (p.temperature == 0.0f) return need;
  if (takes_all(p, vocab) || p.top_n_sigma > 0) return std::nullopt;
  const RowWeights how = token_weights(0.0f, p.temperature, vocab);
  need.rate = how.rate;
  need.grid = how.grid;
  if (!takes_every(p, vocab))
    need.top_k = static_cast<uint32_t>(p.top_k);
  else
    need.top_p = static_cast<double>(p.top_p);
  // Tokens that min_p removes count in the mass of top_p among the best top_k; in all other cases no
  // token below min_p's depth is needed. One more bucket covers every rounding.
  if (p.min_p > 0 && (need.top_k == 0 || p.top_p >= 1.0f)) {
    const double depth =
        -least_exponent(p) * static_cast<double>(kCandidateBucketsPerOctave) * 1.01 + 1;
    if (depth < static_cast<double>(need.deepest)) need.deepest = static_cast<uint32_t>(depth);
  }
  return need;
}

int32_t greatest_token(const LogitRow& row, float top, SamplerScratch& s) {
  const size_t b =
      static_cast<size_t>(std::find(s.maxima.begin(), s.maxima.end(), top) - s.maxima.begin());
  LogitRow::Buffer buffer;
  const auto logits = row.block(b, buffer);
  return static_cast<int32_t>(b * kLogitBlock) +
         static_cast<int32_t>(std::find(logits.begin(), logits.end(), top) - logits.begin());
}

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

}  // namespace moebius
