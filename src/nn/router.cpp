// SPDX-License-Identifier: Apache-2.0
// Chooses experts. A row takes four steps: score all experts; choose k of them (bias and groups
// change only this choice); take the weights from the scores; renormalize and scale. Sums run in
// fixed lanes, so rows are equal on every machine.
#include "nn/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "base/math_functions.h"
#include "kernels/row_functions.h"
#include "nn/router_steps.h"

namespace moebius {
namespace {

constexpr float kNoScore = -std::numeric_limits<float>::infinity();
constexpr size_t kSumLanes = 8;

bool is_finite(float v) { return (f32_bits(v) & 0x7F800000u) != 0x7F800000u; }

void clean_row(const float* x, float* y, size_t n) {
  MOEBIUS_INDEPENDENT_LOOP
  for (size_t i = 0; i < n; ++i) y[i] = finite_or_zero(x[i]);
}

float sum_row(const float* x, size_t n) {
  float lane[kSumLanes] = {};
  size_t i = 0;
  for (; i + kSumLanes <= n; i += kSumLanes)
    for (size_t j = 0; j < kSumLanes; ++j) lane[j] += x[i + j];
  for (; i < n; ++i) lane[i % kSumLanes] += x[i];
  return joined_eight(lane);
}

float max_row(const float* x, size_t n) {
  float best = kNoScore;
  for (size_t i = 0; i < n; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

// Computes the softmax of a row; a NaN or +infinity makes all scores of the row 0.
void softmax_row(const float* x, float* y, size_t n) {
  const float top = max_row(x, n);
  row_functions().exp_minus(x, top, y, n);
  const float sum = sum_row(y, n);
  MOEBIUS_INDEPENDENT_LOOP
  for (size_t i = 0; i < n; ++i) y[i] = finite_or_zero(y[i] / sum);
}

void score_row(Scoring scoring, const float* x, float* y, size_t n) {
  switch (scoring) {
    case Scoring::kSoftmax:
      softmax_row(x, y, n);
      return;
    case Scoring::kSigmoid:
      row_functions().activate({.function = RowFunction::kSigmoid}, nullptr, x, y, n);
      clean_row(y, y, n);
      return;
    case Scoring::kSqrtSoftplus:
      row_functions().activate({.function = RowFunction::kSqrtSoftplus}, nullptr, x, y, n);
      clean_row(y, y, n);
      return;
    case Scoring::kNone:
      clean_row(x, y, n);
      return;
  }
}

// Finds the k largest of x[0..n), best first, ties to the lower index; ids are offset by `base`.
// values: room for k floats.
void top_k(const float* x, size_t n, size_t k, int32_t base, int32_t* ids, float* values) {
  size_t have = 0;
  for (size_t i = 0; i < n; ++i) {
    const float v = x[i];
    if (have == k && !(v > values[k - 1])) continue;
    size_t at = have < k ? have++ : k - 1;
    for (; at > 0 && values[at - 1] < v; --at) {
      values[at] = values[at - 1];
      ids[at] = ids[at - 1];
    }
    values[at] = v;
    ids[at] = base + static_cast<int32_t>(i);
  }
}

// Excludes all but the best topk_group groups from the choice. score: spec.groups floats.
void mask_groups(const RouterSpec& spec, float* choice, size_t n, float* score) {
  const size_t per_group = n / spec.groups;
  for (size_t g = 0; g < spec.groups; ++g)
    score[g] = group_score(spec, choice + g * per_group, per_group);
  for (size_t g = 0; g < spec.groups; ++g)
    if (!is_best_group(spec, score, g)) std::fill_n(choice + g * per_group, per_group, kNoScore);
}

}  // namespace

Router::Router(const RouterSpec& spec) : spec_(spec) {
  const size_t n = width();
  if (spec.experts == 0) fail("router: 0 experts");
  if (n > size_t{1} << 24 || spec.shared_slots > size_t{1} << 16)
    fail("router: {} experts; at most 16777216", n);
  if (spec.top_k == 0 || spec.top_k > n)
    fail("router: top_k is {}; expected 1 to {} (experts)", spec.top_k, n);
  if ((spec.groups == 0) != (spec.topk_group == 0))
    fail("router: groups is {} and topk_group is {}; grouped selection needs both", spec.groups,
         spec.topk_group);
  if (spec.topk_group > spec.groups)
    fail("router: topk_group is {}; expected at most groups = {}", spec.topk_group, spec.groups);
  if (spec.method == RouterMethod::kSparseMixer && (spec.top_k != 2 || n < 2))
    fail("router: the sparse mixer selects 2 of at least 2 experts, not {} of {}", spec.top_k, n);
  if (spec.method == RouterMethod::kGroupEqual && spec.groups > 0 &&
      (n % spec.groups != 0 || spec.top_k % spec.groups != 0))
    fail("router: {} experts and top_k {} do not divide evenly into {} groups", n, spec.top_k,
         spec.groups);
  if (!is_finite(spec.logit_cap) || spec.logit_cap < 0)
    fail("router: the cap of logits is {}; expected 0 or more", spec.logit_cap);
  if (!is_finite(spec.scaling)) fail("router: scaling factor is {}", spec.scaling);
  if (!(spec.renormalize_epsilon >= 0))
    fail("router: renormalization epsilon is {}", spec.renormalize_epsilon);
  if (spec.softmax_after_topk && spec.scoring != Scoring::kSoftmax)
    fail(
        "router: softmax over the selected logits and another scoring function exclude each other");
  // More groups than experts, or groups of unequal size, mean plain selection with the same scores,
  // bias and scale.
  grouped_ = spec.method == RouterMethod::kTopK && spec.groups > 1 && n > spec.groups &&
             n % spec.groups == 0;
  if (grouped_ && spec.topk_group * (n / spec.groups) < spec.top_k)
    fail("router: top_k is {}, but {} groups of {} experts hold only {}", spec.top_k,
         spec.topk_group, n / spec.groups, spec.topk_group * (n / spec.groups));
}

void Router::check(const RouterInput& in) const {
  if (in.T == 0) return;
  if (in.logits == nullptr && spec_.method != RouterMethod::kSimulated)
    fail("router: no logits for {} tokens", in.T);
  if (spec_.has_bias && in.bias == nullptr)
    fail("router: the method needs a correction bias [{}]", width());
  if (spec_.per_expert_scale && in.expert_scale == nullptr)
    fail("router: the method needs a scale per expert [{}]", spec_.experts);
  if (spec_.method != RouterMethod::kTable) return;
  if (in.table == nullptr || in.token_ids == nullptr)
    fail("this block chooses experts by token id, not by logits; give ids and weights of experts");
  for (size_t t = 0; t < in.T; ++t) {
    const int64_t token = in.token_ids[t];
    if (token < 0 || static_cast<uint64_t>(token) >= in.table_rows)
      fail("router: token id {} of row {}; the table has {} rows", token, t, in.table_rows);
    const int32_t* row = in.table + static_cast<size_t>(token) * spec_.top_k;
    for (size_t j = 0; j < spec_.top_k; ++j)
      if (row[j] < 0 || static_cast<size_t>(row[j]) >= width())
        fail("router: table row {}, slot {}: expert id {}; expected 0 to {}", token, j, row[j],
             width() - 1);
  }
}

void Router::select(const float* logits, const RouterInput& in, int32_t* ids, float* weights,
                    float* scratch) const noexcept {
  const size_t n = width(), k = spec_.top_k;
  float* scores = scratch;
  float* choice = scratch + n;
  if (spec_.softmax_after_topk) {
    clean_row(logits, scores, n);
  } else {
    score_row(spec_.scoring, logits, scores, n);
  }
  const float* chosen_by = scores;
  if (spec_.select_on_logits) {
    clean_row(logits, choice, n);
    chosen_by = choice;
  }
  if (spec_.has_bias) {
    MOEBIUS_INDEPENDENT_LOOP
    for (size_t i = 0; i < n; ++i) choice[i] = finite_or_zero(chosen_by[i] + in.bias[i]);
    chosen_by = choice;
  }
  if (grouped_) {
    if (chosen_by != choice) std::copy_n(scores, n, choice);
    mask_groups(spec_, choice, n, choice + n);
    chosen_by = choice;
  }
  if (spec_.method == RouterMethod::kGroupEqual && spec_.groups > 1) {
    const size_t per_group = n / spec_.groups, each = k / spec_.groups;
    for (size_t g = 0; g < spec_.groups; ++g)
      top_k(chosen_by + g * per_group, per_group, each, static_cast<int32_t>(g * per_group),
            ids + g * each, weights + g * each);
  } else {
    top_k(chosen_by, n, k, 0, ids, weights);
  }
  for (size_t j = 0; j < k; ++j) weights[j] = scores[ids[j]];
  if (spec_.softmax_after_topk) softmax_row(weights, weights, k);
}

void Router::route_row(const RouterInput& in, size_t t, const RouterOutput& out,
                       float* scratch) const noexcept {
  const size_t n = width(), k = spec_.top_k;
  int32_t* ids = out.ids + t * slots();
  float* weights = out.weights + t * slots();
  const float* logits = in.logits + t * n;
  if (spec_.logit_cap > 0.0f) {
    float* capped = scratch + 2 * n + 2 * spec_.groups;
    row_functions().activate({.function = RowFunction::kCap, .limit = spec_.logit_cap}, nullptr,
                             logits, capped, n);
    logits = capped;
  }
  switch (spec_.method) {
    case RouterMethod::kTopK:
    case RouterMethod::kGroupEqual:
      select(logits, in, ids, weights, scratch);
      break;
    case RouterMethod::kSparseMixer:
      clean_row(logits, scratch, n);
      ids[0] = sparse_pick(scratch, n, -1, spec_.jitter_epsilon, &weights[0]);
      ids[1] = sparse_pick(scratch, n, ids[0], spec_.jitter_epsilon, &weights[1]);
      break;
    case RouterMethod::kTable: {
      const int32_t* row = in.table + static_cast<size_t>(in.token_ids[t]) * k;
      score_row(spec_.scoring, logits, scratch, n);
      for (size_t j = 0; j < k; ++j) {
        ids[j] = row[j];
        weights[j] = scratch[row[j]];
      }
      break;
    }
    case RouterMethod::kSimulated:
      simulate_row(spec_, t, n, ids, weights);
      break;
  }
  sort_slots(ids, weights, k);
  finish(in, t, out);
}

void Router::finish(const RouterInput& in, size_t t, const RouterOutput& out) const noexcept {
  int32_t* ids = out.ids + t * slots();
  float* weights = out.weights + t * slots();
  const float zero = finish_slots(spec_, in.expert_scale, out.zero_id, ids, weights, ids, weights);
  if (out.zero_weights != nullptr) out.zero_weights[t] = zero;
}

}  // namespace moebius
