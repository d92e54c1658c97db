// SPDX-License-Identifier: Apache-2.0
// Routing: published vectors, every numbered method, ties, poisoned rows, groups, zero experts,
// shared slots, tables.
#include "nn/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "base/error.h"
#include "unit/nn/moe_cases.h"
#include "unit/nn/routing_method.h"

namespace moebius::router_test {
namespace {

using test::from_routing_method;
using test::routing_method_of;
using test::RoutingMethod;
using test::RoutingParams;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
const std::vector<float> kLogits = {2, 1, 0, -1, 1.5f, 1.4f, -2, -2};

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights, zero;
};

Routed route(const RouterSpec& spec, const std::vector<float>& logits,
             const std::vector<float>& bias = {}) {
  const Router router(spec);
  const size_t T = logits.size() / router.width();
  Routed r;
  r.ids.resize(T * router.slots());
  r.weights.resize(T * router.slots());
  r.zero.resize(T);
  RouterInput in;
  in.logits = logits.data();
  in.T = T;
  in.bias = bias.empty() ? nullptr : bias.data();
  test::route_rows(router, in, {r.ids.data(), r.weights.data(), r.zero.data()});
  return r;
}

RouterSpec method(int number, size_t experts, size_t k, float scaling = 1.0f) {
  RoutingParams p;
  p.experts = experts;
  p.top_k = k;
  p.scaling = scaling;
  return from_routing_method(number, p);
}

void expect_near(const std::vector<float>& got, const std::vector<float>& want,
                 float tolerance = 2e-6f) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], tolerance) << "slot " << i;
}

using Ids = std::vector<int32_t>;

TEST(Router, SoftmaxVectors) {
  const Routed plain = route(method(0, 8, 3), kLogits);
  EXPECT_EQ(plain.ids, (Ids{0, 4, 5}));
  expect_near(plain.weights, {.364302f, .22096f, .199933f});
  for (const int m : {1, 4}) {
    const Routed renormalized = route(method(m, 8, 3), kLogits);
    EXPECT_EQ(renormalized.ids, (Ids{0, 4, 5}));
    expect_near(renormalized.weights, {.463963f, .281408f, .254629f});
  }
  const Routed all = route(method(0, 8, 8), kLogits);
  EXPECT_EQ(all.ids, (Ids{0, 4, 5, 1, 2, 3, 6, 7})) << "ties go to the lower id";
  expect_near(all.weights,
              {.364302f, .22096f, .199933f, .134019f, .049303f, .018138f, .006672f, .006672f});
}

TEST(Router, GroupedSigmoidVector) {
  RoutingParams p;
  p.experts = 8;
  p.top_k = 2;
  p.groups = 2;
  p.topk_group = 1;
  p.scaling = 2.5f;
  const Routed r = route(from_routing_method(2, p), kLogits, {0, 0, 0, 0, .1f, .2f, 0, 0});
  EXPECT_EQ(r.ids, (Ids{4, 5})) << "slots in descending weight, the bias only selects";
  expect_near(r.weights, {1.261877f, 1.238123f});
}

TEST(Router, SqrtSoftplusVector) {
  RouterSpec spec = method(100, 8, 8);
  spec.renormalize = false;
  const Routed r = route(spec, kLogits);
  EXPECT_EQ(r.ids, (Ids{0, 4, 5, 1, 2, 3, 6, 7}));
  expect_near(r.weights,
              {1.458399f, 1.304382f, 1.272956f, 1.145976f, .832555f, .559698f, .35627f, .35627f});
  RoutingParams p;
  p.experts = 8;
  p.top_k = 2;
  p.scaling = 1.5f;
  p.has_bias = true;
  const Routed biased = route(from_routing_method(100, p), kLogits, {0, 0, 0, 0, 0, 0, 0, 5});
  EXPECT_EQ(biased.ids, (Ids{0, 7}));
  expect_near(biased.weights, {1.5f * 1.458399f / 1.814669f, 1.5f * .35627f / 1.814669f});
}

TEST(Router, NumberedMethods) {
  const auto sigmoid = [](float v) { return 1.0f / (1.0f + std::exp(-v)); };
  const float s0 = sigmoid(2), s4 = sigmoid(1.5f);
  expect_near(route(method(3, 8, 1), kLogits).weights, {s0});
  EXPECT_TRUE(method(3, 8, 1).weight_on_input);
  expect_near(route(method(5, 8, 2), kLogits).weights, {2.0f, 1.5f});
  expect_near(route(method(6, 8, 2), kLogits).weights, {s0 / (s0 + s4), s4 / (s0 + s4)});
  expect_near(route(method(8, 8, 2), kLogits).weights, {s0, s4});
  const Routed mini = route(method(7, 8, 2, 2.0f), kLogits, {0, 0, 0, 3, 0, 0, 0, 0});
  const float s3 = sigmoid(-1);
  EXPECT_EQ(mini.ids, (Ids{0, 3}));
  expect_near(mini.weights, {2 * s0 / (s0 + s3), 2 * s3 / (s0 + s3)});
  const Routed simulated = route(method(102, 8, 8), kLogits);
  EXPECT_EQ(std::set<int32_t>(simulated.ids.begin(), simulated.ids.end()).size(), 8u);
  EXPECT_THROW(method(9, 8, 2), Error);
  EXPECT_THROW(method(101, 8, 2), Error);
  EXPECT_THROW(method(10, 8, 2), Error);
  for (const int m : {0, 1, 3, 4, 5, 6, 7, 8, 102})
    EXPECT_EQ(static_cast<int>(routing_method_of(method(m, 8, 2))), m) << name_of(RoutingMethod(m));
}

TEST(Router, Llama4SelectsByLogitEvenWhereSigmoidSaturates) {
  EXPECT_EQ(route(method(3, 3, 1), {30, 40, 35}).ids, (Ids{1}));
  EXPECT_EQ(route(method(8, 3, 1), {30, 40, 35}).ids, (Ids{0}))
      << "scores are equal there: lower id";
}

TEST(Router, PoisonedRowsPickTheFirstExpertsWithFiniteWeights) {
  for (const float bad : {kNan, kInf}) {
    for (const int m : {0, 4}) {
      std::vector<float> logits = kLogits;
      logits[5] = bad;
      logits.insert(logits.end(), kLogits.begin(), kLogits.end());
      const Routed r = route(method(m, 8, 3), logits);
      EXPECT_EQ(Ids(r.ids.begin(), r.ids.begin() + 3), (Ids{0, 1, 2}));
      for (int j = 0; j < 3; ++j) EXPECT_EQ(r.weights[static_cast<size_t>(j)], 0.0f);
      EXPECT_EQ(Ids(r.ids.begin() + 3, r.ids.end()), (Ids{0, 4, 5}))
          << "the other row is untouched";
    }
  }
  for (const int m : {0, 1, 3, 4, 5, 6, 7, 8, 100}) {
    const std::vector<float> logits = {kNan, kInf, -kInf, 1, -1, kNan, 2, 0};
    const Routed r = route(method(m, 8, m == 3 ? 1 : 4), logits, std::vector<float>(8, 0.0f));
    for (const float w : r.weights) EXPECT_TRUE(std::isfinite(w)) << "method " << m;
    for (const int32_t id : r.ids) EXPECT_TRUE(id >= 0 && id < 8);
  }
  const Routed sigmoid = route(method(8, 3, 3), {kNan, -1, 1});
  EXPECT_EQ(sigmoid.ids, (Ids{2, 1, 0})) << "only the poisoned score counts as 0";
  const Routed masked = route(method(4, 4, 2), {-kInf, 1, -kInf, 1});
  EXPECT_EQ(masked.ids, (Ids{1, 3}));
  expect_near(masked.weights, {.5f, .5f});
}

TEST(Router, SparseMixer) {
  RouterSpec spec;
  spec.method = RouterMethod::kSparseMixer;
  spec.experts = 4;
  spec.top_k = 2;
  // 2.00 and 1.99 are within 2 % of each other, 1.5 is not; then 1.99 alone.
  const Routed r = route(spec, {1.99f, 2.0f, 1.5f, -3.0f});
  const float first = 1.0f / (1.0f + std::exp(-0.01f));
  EXPECT_EQ(r.ids, (Ids{0, 1})) << "the second pick has the larger weight";
  expect_near(r.weights, {1.0f, first});
  EXPECT_EQ(route(spec, {0, 0, 0, 0}).ids, (Ids{1, 0})) << "one of three, then one of four";
  spec.top_k = 3;
  EXPECT_THROW(Router{spec}, Error);
}

TEST(Router, BestOfEachGroup) {
  RouterSpec spec;
  spec.method = RouterMethod::kGroupEqual;
  spec.experts = 8;
  spec.top_k = 4;
  spec.groups = 2;
  spec.topk_group = 2;
  spec.renormalize = true;
  const Routed r = route(spec, kLogits);
  EXPECT_EQ(r.ids, (Ids{0, 4, 5, 1}));
  const Routed skewed = route(spec, {9, 8, 7, 6, 0, 1, 0, 0});
  EXPECT_EQ(skewed.ids, (Ids{0, 1, 5, 4})) << "two of each group";
  spec.top_k = 3;
  EXPECT_THROW(Router{spec}, Error);
}

TEST(Router, ExpertScalesComeLast) {
  RouterSpec spec;
  spec.experts = 8;
  spec.top_k = 2;
  spec.select_on_logits = spec.renormalize = spec.per_expert_scale = true;
  const std::vector<float> scale = {1, 1, 1, 1, 10, 1, 1, 1};
  const Router router(spec);
  std::vector<int32_t> ids(2);
  std::vector<float> weights(2);
  RouterInput in;
  in.logits = kLogits.data();
  in.T = 1;
  EXPECT_THROW(test::route_rows(router, in, {ids.data(), weights.data()}), Error);
  in.expert_scale = scale.data();
  test::route_rows(router, in, {ids.data(), weights.data()});
  EXPECT_EQ(ids, (Ids{0, 4}));
  expect_near(weights, {.622459f, 3.77541f}, 1e-5f);
}

TEST(Router, ZeroExpertsAndSharedSlots) {
  RouterSpec spec;
  spec.experts = 6;
  spec.zero_experts = 2;
  spec.top_k = 3;
  spec.scaling = 2.0f;
  spec.shared_slots = 2;
  const Routed r = route(spec, {0, 1, 0, 0, 0, 0, 2, 3});
  EXPECT_EQ(r.ids, (Ids{0, 0, 1, 6, 7}));
  double sum = 0;
  for (const double l : {0., 1., 0., 0., 0., 0., 2., 3.}) sum += std::exp(l);
  expect_near(r.weights, {0, 0, static_cast<float>(2 * std::exp(1.0) / sum), 1, 1}, 1e-6f);
  EXPECT_NEAR(r.zero[0], 2 * (std::exp(2.0) + std::exp(3.0)) / sum, 1e-6);
}

TEST(Router, TableRouting) {
  RoutingParams p;
  p.experts = 8;
  p.top_k = 2;
  p.from_table = true;
  p.scaling = 1.5f;
  const Router router(from_routing_method(100, p));
  const std::vector<int32_t> table = {1, 2, 5, 0, 7, 7};
  std::vector<int64_t> tokens = {1, 2};
  std::vector<float> logits = kLogits;
  logits.insert(logits.end(), kLogits.begin(), kLogits.end());
  std::vector<int32_t> ids(4);
  std::vector<float> weights(4);
  RouterInput in;
  in.logits = logits.data();
  in.T = 2;
  in.table = table.data();
  in.table_rows = 3;
  in.token_ids = tokens.data();
  test::route_rows(router, in, {ids.data(), weights.data()});
  EXPECT_EQ(ids, (Ids{0, 5, 7, 7}));
  const float sum = 1.458399f + 1.272956f;
  expect_near(weights, {1.5f * 1.458399f / sum, 1.5f * 1.272956f / sum, .75f, .75f});
  tokens[1] = 3;
  EXPECT_THROW(test::route_rows(router, in, {ids.data(), weights.data()}), Error);
  tokens[1] = -1;
  EXPECT_THROW(test::route_rows(router, in, {ids.data(), weights.data()}), Error);
}

TEST(Router, DegenerateGroupsFallBackToPlainSelection) {
  RoutingParams p;
  p.experts = 8;
  p.top_k = 2;
  p.scaling = 2.0f;
  const std::vector<float> bias(8, 0.0f);
  const Routed plain = route(from_routing_method(2, p), kLogits, bias);
  for (const auto& [groups, keep] : {std::pair<size_t, size_t>{1, 1}, {3, 1}, {8, 2}, {16, 4}}) {
    p.groups = groups;
    p.topk_group = keep;
    const Routed r = route(from_routing_method(2, p), kLogits, bias);
    EXPECT_EQ(r.ids, plain.ids) << groups;
    EXPECT_EQ(r.weights, plain.weights) << groups;
  }
}

// A cap changes the weights of large logits, never their order.
TEST(Router, CapsLogits) {
  RouterSpec spec = method(8, 8, 2);
  const Routed plain = route(spec, kLogits);
  spec.logit_cap = 1.5f;
  const Routed capped = route(spec, kLogits);
  EXPECT_EQ(capped.ids, plain.ids);
  const auto weight = [](double x) { return 1 / (1 + std::exp(-1.5 * std::tanh(x / 1.5))); };
  expect_near(capped.weights, {static_cast<float>(weight(2)), static_cast<float>(weight(1.5))});
  EXPECT_EQ(routing_method_of(spec), RoutingMethod::kCustom);
  spec.logit_cap = -1.0f;
  EXPECT_THROW(Router{spec}, Error);
}

TEST(Router, RefusesImpossibleSpecs) {
  EXPECT_THROW(Router(method(0, 0, 1)), Error);
  EXPECT_THROW(Router(method(0, 8, 0)), Error);
  EXPECT_THROW(Router(method(0, 8, 9)), Error);
  RouterSpec spec = method(0, 8, 3);
  spec.groups = 4;
  EXPECT_THROW(Router{spec}, Error) << "one of the two group numbers";
  spec.topk_group = 5;
  EXPECT_THROW(Router{spec}, Error);
  spec.topk_group = 1;
  EXPECT_THROW(Router{spec}, Error) << "2 experts for 3 slots";
  spec.topk_group = 2;
  EXPECT_NO_THROW(Router{spec});
  spec.scaling = kNan;
  EXPECT_THROW(Router{spec}, Error);
  spec = method(7, 8, 2);
  EXPECT_THROW(route(spec, kLogits), Error) << "no bias given";
}

// The definition, written the slow way: sort all experts by choice, then by index.
Routed slow(const RouterSpec& s, const std::vector<float>& logits, const std::vector<float>& bias) {
  const size_t n = s.experts;
  Routed r;
  for (size_t t = 0; t * n < logits.size(); ++t) {
    const float* l = logits.data() + t * n;
    std::vector<double> score(n), choice(n);
    double top = *std::max_element(l, l + n), sum = 0;
    for (size_t i = 0; i < n; ++i) sum += std::exp(l[i] - top);
    for (size_t i = 0; i < n; ++i) {
      score[i] = s.scoring == Scoring::kSoftmax ? std::exp(l[i] - top) / sum
                                                : 1 / (1 + std::exp(-static_cast<double>(l[i])));
      choice[i] = score[i] + (bias.empty() ? 0.0f : bias[i]);
    }
    std::vector<size_t> order(n);
    for (size_t i = 0; i < n; ++i) order[i] = i;
    if (s.groups > 1) {
      const size_t per = n / s.groups;
      std::vector<std::pair<double, size_t>> groups;
      for (size_t g = 0; g < s.groups; ++g) {
        std::vector<double> c(choice.begin() + static_cast<long>(g * per),
                              choice.begin() + static_cast<long>((g + 1) * per));
        std::sort(c.rbegin(), c.rend());
        groups.emplace_back(-(s.group_score_top2 ? c[0] + c[1] : c[0]), g);
      }
      std::sort(groups.begin(), groups.end());
      std::erase_if(order, [&](size_t i) {
        for (size_t g = 0; g < s.topk_group; ++g)
          if (groups[g].second == i / per) return false;
        return true;
      });
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return choice[a] > choice[b]; });
    order.resize(s.top_k);
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return score[a] > score[b]; });
    double total = s.renormalize_epsilon;
    for (const size_t i : order) total += score[i];
    for (const size_t i : order) {
      r.ids.push_back(static_cast<int32_t>(i));
      r.weights.push_back(static_cast<float>(score[i] / (s.renormalize ? total : 1) * s.scaling));
    }
  }
  return r;
}

TEST(Router, RandomRowsAgreeWithTheSlowDefinition) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (const auto& [experts, k, groups, keep] : {std::array<size_t, 4>{6, 3, 0, 0},
                                                 {16, 2, 8, 2},
                                                 {64, 6, 8, 4},
                                                 {128, 8, 0, 0},
                                                 {256, 8, 8, 4},
                                                 {512, 22, 0, 0}}) {
    for (const Scoring scoring : {Scoring::kSoftmax, Scoring::kSigmoid}) {
      for (const bool biased : {false, true}) {
        RouterSpec s;
        s.experts = experts;
        s.top_k = k;
        s.groups = groups;
        s.topk_group = keep;
        s.scoring = scoring;
        s.has_bias = s.group_score_top2 = biased;
        s.renormalize = biased;
        s.scaling = biased ? 2.5f : 1.0f;
        std::vector<float> logits(33 * experts), bias(biased ? experts : 0);
        for (float& v : logits) v = normal(random);
        for (float& v : bias) v = .3f * normal(random);
        const Routed got = route(s, logits, bias), want = slow(s, logits, bias);
        EXPECT_EQ(got.ids, want.ids);
        expect_near(got.weights, want.weights, 1e-5f);
        const Routed alone = route(s,
                                   {logits.begin() + static_cast<long>(5 * experts),
                                    logits.begin() + static_cast<long>(6 * experts)},
                                   bias);
        EXPECT_TRUE(std::equal(alone.weights.begin(), alone.weights.end(),
                               got.weights.begin() + static_cast<long>(5 * k)));
      }
    }
  }
}

}  // namespace
}  // namespace moebius::router_test
