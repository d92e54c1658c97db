// SPDX-License-Identifier: Apache-2.0
// Selects experts for one row with several lanes (a warp of a GPU) or one: the steps of
// nn/router.cpp with the same operations in the same order, so that ids and weights have the same
// bytes. Tests compare it, with one lane, with that file.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/math_functions.h"
#include "nn/router_steps.h"

namespace moebius {

struct DeviceRouter {
  RouterSpec spec;
  const float* bias;          // [width] correction bias, or null
  const float* expert_scale;  // [experts] factors of weights, or null
  bool grouped;               // true: only the best groups of experts may be chosen
};

// A candidate expert: the larger score is better; of equal scores the lower id.
struct RouterPick {
  float score;
  int32_t id;
};
MOEBIUS_ALWAYS_INLINE bool is_before(const RouterPick& a, const RouterPick& b) {
  return a.score > b.score || (a.score == b.score && a.id < b.id);
}

// Lanes as RowRouter uses them, for a single lane: lane(), sync(), the best pick and the largest
// number of all lanes.
struct OneLane {
  static constexpr int kCount = 1;
  MOEBIUS_ALWAYS_INLINE int lane() const { return 0; }
  MOEBIUS_ALWAYS_INLINE void sync() const {}
  MOEBIUS_ALWAYS_INLINE RouterPick best(RouterPick p) const { return p; }
  MOEBIUS_ALWAYS_INLINE float largest(float v) const { return v; }
};

// Returns how many floats of scratch memory a row needs in addition to its logits.
MOEBIUS_ALWAYS_INLINE constexpr size_t device_router_floats(const RouterSpec& s) {
  return 2 * (s.experts + s.zero_experts) + s.groups + 8 + 2 * s.top_k;
}

template <class Lanes>
class RowRouter {
 public:
  // logits: [width], changed if they are capped; scratch: device_router_floats.
  MOEBIUS_ALWAYS_INLINE RowRouter(const DeviceRouter& r, const Lanes& lanes, float* logits,
                                  float* scratch)
      : r_(r), lanes_(lanes), logits_(logits) {
    n_ = static_cast<int>(r.spec.experts + r.spec.zero_experts);
    k_ = static_cast<int>(r.spec.top_k);
    scores_ = scratch;
    choice_ = scores_ + n_;
    groups_ = choice_ + n_;
    sums_ = groups_ + r.spec.groups;
    weights_ = sums_ + 8;
    ids_ = reinterpret_cast<int32_t*>(weights_ + k_);
  }

  // Writes the ids and weights [top_k + shared_slots] of the chosen experts; zero_weight receives
  // the weight of identity experts and may be null.
  MOEBIUS_ALWAYS_INLINE void run(uint64_t row, int32_t* ids, float* weights, float* zero_weight) {
    const RouterSpec& spec = r_.spec;
    lanes_.sync();
    if (spec.logit_cap > 0.0f) {
      for (int i = lanes_.lane(); i < n_; i += Lanes::kCount)
        logits_[i] = cap_f32(logits_[i], spec.logit_cap);
      lanes_.sync();
    }
    if (spec.method == RouterMethod::kSparseMixer) {
      if (lanes_.lane() == 0) mix();
    } else if (spec.method == RouterMethod::kSimulated) {
      if (lanes_.lane() == 0) simulate_row(r_.spec, row, static_cast<size_t>(n_), ids_, weights_);
    } else {
      select();
    }
    lanes_.sync();
    if (lanes_.lane() == 0) finish(ids, weights, zero_weight);
    lanes_.sync();
  }

 private:
  MOEBIUS_ALWAYS_INLINE static float no_score() { return f32_from_bits(0xFF800000u); }

  // Returns the sum of x, always as eight partial sums, so that it does not depend on the number of
  // lanes.
  MOEBIUS_ALWAYS_INLINE float sum(const float* x, int n) {
    for (int j = lanes_.lane(); j < 8; j += Lanes::kCount) {
      float s = 0.0f;
      for (int i = j; i < n; i += 8) s += x[i];
      sums_[j] = s;
    }
    lanes_.sync();
    return joined_eight(sums_);
  }
  // Replaces x by its softmax. Called by one lane.
  MOEBIUS_ALWAYS_INLINE void softmax_few(float* x, int n) {
    float top = no_score();
    for (int i = 0; i < n; ++i) top = x[i] > top ? x[i] : top;
    for (int i = 0; i < n; ++i) x[i] = exp_minus(x[i], top);
    for (int j = 0; j < 8; ++j) {
      sums_[j] = 0.0f;
      for (int i = j; i < n; i += 8) sums_[j] += x[i];
    }
    const float total = joined_eight(sums_);
    for (int i = 0; i < n; ++i) x[i] = finite_or_zero(x[i] / total);
  }

  MOEBIUS_ALWAYS_INLINE void score() {
    const Scoring scoring = r_.spec.softmax_after_topk ? Scoring::kNone : r_.spec.scoring;
    if (scoring == Scoring::kSoftmax) {
      float top = no_score();
      for (int i = lanes_.lane(); i < n_; i += Lanes::kCount)
        top = logits_[i] > top ? logits_[i] : top;
      top = lanes_.largest(top);
      for (int i = lanes_.lane(); i < n_; i += Lanes::kCount)
        scores_[i] = exp_minus(logits_[i], top);
      lanes_.sync();
      const float total = sum(scores_, n_);
      for (int i = lanes_.lane(); i < n_; i += Lanes::kCount)
        scores_[i] = finite_or_zero(scores_[i] / total);
    } else {
      for (int i = lanes_.lane(); i < n_; i += Lanes::kCount) {
        const float v = logits_[i];
        scores_[i] = finite_or_zero(scoring == Scoring::kSigmoid        ? sigmoid_f32(v)
                                    : scoring == Scoring::kSqrtSoftplus ? sqrtsoftplus_f32(v)
                                                                        : v);
      }
    }
    lanes_.sync();
  }

  MOEBIUS_ALWAYS_INLINE void mask_groups() {
    const int groups = static_cast<int>(r_.spec.groups), each = n_ / groups;
    for (int g = lanes_.lane(); g < groups; g += Lanes::kCount)
      groups_[g] = group_score(r_.spec, choice_ + g * each, static_cast<size_t>(each));
    lanes_.sync();
    for (int i = lanes_.lane(); i < n_; i += Lanes::kCount)
      if (!is_best_group(r_.spec, groups_, static_cast<size_t>(i / each))) choice_[i] = no_score();
    lanes_.sync();
  }

  // Writes the `count` best experts of [begin, end) by score `by` to `to`, best first.
  MOEBIUS_ALWAYS_INLINE void pick(const float* by, int begin, int end, int count, int32_t* to) {
    RouterPick last{0.0f, -1};
    for (int j = 0; j < count; ++j) {
      RouterPick best{no_score(), INT32_MAX};
      for (int i = begin + lanes_.lane(); i < end; i += Lanes::kCount) {
        const RouterPick p{by[i], i};
        if ((j == 0 || is_before(last, p)) && is_before(p, best)) best = p;
      }
      last = lanes_.best(best);
      if (lanes_.lane() == 0) to[j] = last.id;
    }
  }

  MOEBIUS_ALWAYS_INLINE void select() {
    const RouterSpec& spec = r_.spec;
    score();
    const float* by = scores_;
    if (spec.select_on_logits || spec.has_bias || r_.grouped) {
      for (int i = lanes_.lane(); i < n_; i += Lanes::kCount) {
        float v = spec.select_on_logits ? finite_or_zero(logits_[i]) : scores_[i];
        if (spec.has_bias) v = finite_or_zero(v + r_.bias[i]);
        choice_[i] = v;
      }
      lanes_.sync();
      by = choice_;
    }
    if (r_.grouped) mask_groups();
    if (spec.method == RouterMethod::kGroupEqual && spec.groups > 1) {
      const int groups = static_cast<int>(spec.groups), each = n_ / groups, some = k_ / groups;
      for (int g = 0; g < groups; ++g) pick(by, g * each, (g + 1) * each, some, ids_ + g * some);
    } else {
      pick(by, 0, n_, k_, ids_);
    }
    if (lanes_.lane() != 0) return;
    for (int j = 0; j < k_; ++j) weights_[j] = scores_[ids_[j]];
    if (spec.softmax_after_topk) softmax_few(weights_, k_);
  }

  MOEBIUS_ALWAYS_INLINE void mix() {
    const auto n = static_cast<size_t>(n_);
    for (size_t i = 0; i < n; ++i) scores_[i] = finite_or_zero(logits_[i]);
    ids_[0] = sparse_pick(scores_, n, -1, r_.spec.jitter_epsilon, &weights_[0]);
    ids_[1] = sparse_pick(scores_, n, ids_[0], r_.spec.jitter_epsilon, &weights_[1]);
  }

  MOEBIUS_ALWAYS_INLINE void finish(int32_t* ids, float* weights, float* zero_weight) {
    sort_slots(ids_, weights_, r_.spec.top_k);
    const float zero = finish_slots(r_.spec, r_.expert_scale, -1, ids_, weights_, ids, weights);
    if (zero_weight != nullptr) *zero_weight = zero;
  }

  const DeviceRouter& r_;
  const Lanes& lanes_;
  float *logits_, *scores_, *choice_, *groups_, *sums_, *weights_;
  int32_t* ids_;
  int n_, k_;
};

}  // namespace moebius
