// SPDX-License-Identifier: Apache-2.0
// Expert selection as the CUDA plugin does it, by one lane: the bytes of the router of the CPU, for every rule and for broken logits.
#include "device/cuda/device_router.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"
#include "nn/router.h"
#include "unit/test_util.h"

namespace moebius::device_router_test {
namespace {

RouterSpec device_rule(size_t experts, size_t k) {
  RouterSpec s;
  s.experts = experts, s.top_k = k;
  return s;
}

std::vector<RouterSpec> device_rules() {
  std::vector<RouterSpec> all;
  const auto add = [&](size_t experts, size_t k, auto&& change) {
    RouterSpec s = device_rule(experts, k);
    change(s);
    all.push_back(s);
  };
  for (const Scoring scoring :
       {Scoring::kSoftmax, Scoring::kSigmoid, Scoring::kSqrtSoftplus, Scoring::kNone}) {
    add(60, 6, [&](RouterSpec& s) { s.scoring = scoring; });
    add(64, 8, [&](RouterSpec& s) {
      s.scoring = scoring, s.has_bias = s.renormalize = true, s.renormalize_epsilon = 1e-20f;
      s.scaling = 2.5f, s.groups = 8, s.topk_group = 3, s.group_score_top2 = true;
    });
    add(33, 5,
        [&](RouterSpec& s) { s.scoring = scoring, s.select_on_logits = s.renormalize = true; });
  }
  add(128, 8, [](RouterSpec& s) { s.softmax_after_topk = true; });
  add(128, 9, [](RouterSpec& s) { s.softmax_after_topk = s.has_bias = true; });
  add(64, 4, [](RouterSpec& s) { s.groups = 4, s.topk_group = 2; });
  add(64, 8,
      [](RouterSpec& s) { s.method = RouterMethod::kGroupEqual, s.groups = 4, s.topk_group = 4; });
  add(16, 2, [](RouterSpec& s) { s.method = RouterMethod::kSparseMixer; });
  add(40, 4, [](RouterSpec& s) { s.method = RouterMethod::kSimulated, s.seed = 99; });
  add(32, 4, [](RouterSpec& s) { s.zero_experts = 8, s.has_bias = true; });
  add(32, 4, [](RouterSpec& s) { s.logit_cap = 3.0f, s.per_expert_scale = true; });
  add(24, 3, [](RouterSpec& s) { s.shared_slots = 2, s.scaling = 0.5f; });
  add(5, 5, [](RouterSpec&) {});
  return all;
}

// Rows of all kinds: usual, ties, huge, broken.
std::vector<float> device_logits(size_t T, size_t n, SplitMix64& random) {
  std::vector<float> x(T * n);
  for (size_t t = 0; t < T; ++t)
    for (size_t i = 0; i < n; ++i) {
      const float u = static_cast<float>(random.next() % 4001) / 1000.0f - 2.0f;
      x[t * n + i] = t % 5 == 1   ? std::floor(u)
                     : t % 5 == 2 ? u * 60.0f
                     : t % 5 == 3 && i % 7 == t % 7
                         ? (t % 2 == 0 ? std::numeric_limits<float>::quiet_NaN()
                                       : -std::numeric_limits<float>::infinity())
                         : u;
      if (t == 9 && i == 3) x[t * n + i] = std::numeric_limits<float>::infinity();
    }
  return x;
}

TEST(DeviceRouter, ChoosesAsTheCpuDoes) {
  SplitMix64 random(5);
  size_t rule = 0;
  for (const RouterSpec& spec : device_rules()) {
    SCOPED_TRACE(rule++);
    const Router router(spec);
    const size_t T = 40, n = router.width(), slots = router.slots();
    const std::vector<float> logits = device_logits(T, n, random);
    std::vector<float> bias(n), scale(spec.experts);
    for (float& b : bias) b = static_cast<float>(random.next() % 100) / 400.0f;
    for (float& s : scale) s = 0.5f + static_cast<float>(random.next() % 100) / 100.0f;
    RouterInput in;
    in.logits = logits.data(), in.T = T, in.bias = bias.data(), in.expert_scale = scale.data();
    std::vector<int32_t> ids(T * slots), got_ids(T * slots);
    std::vector<float> weights(T * slots), zero(T), got_weights(T * slots), got_zero(T);
    std::vector<float> scratch(router.scratch_floats()), own(n + device_router_floats(spec));
    RouterOutput out;
    out.ids = ids.data(), out.weights = weights.data(), out.zero_weights = zero.data();
    out.zero_id = -1;
    DeviceRouter device{spec, bias.data(), scale.data(),
                        spec.method == RouterMethod::kTopK && spec.groups > 1};
    const OneLane lane;
    for (size_t t = 0; t < T; ++t) {
      router.route_row(in, t, out, scratch.data());
      std::copy_n(logits.data() + t * n, n, own.data());
      RowRouter<OneLane> row(device, lane, own.data(), own.data() + n);
      row.run(t, got_ids.data() + t * slots, got_weights.data() + t * slots, &got_zero[t]);
    }
    EXPECT_EQ(ids, got_ids);
    for (size_t i = 0; i < weights.size(); ++i)
      ASSERT_EQ(f32_bits(weights[i]), f32_bits(got_weights[i])) << i;
    for (size_t t = 0; t < T; ++t) ASSERT_EQ(f32_bits(zero[t]), f32_bits(got_zero[t])) << t;
  }
}

}  // namespace
}  // namespace moebius::device_router_test
