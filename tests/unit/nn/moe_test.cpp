// SPDX-License-Identifier: Apache-2.0
// The MoE layer against its scalar definition: every scheme, random shapes, routings and inputs;
// independence of threads and of the rest of the batch; identity experts, maps, concurrent calls;
// bad calls.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include "base/error.h"
#include "base/math_functions.h"
#include "kernels/list.h"
#include "unit/nn/moe_cases.h"

namespace moebius::test::moe_test {
namespace {

// The first kernel of the list that this machine runs and that takes all projections of the case.
const Kernel& best_kernel(const MoeCase& c) {
  for (const Kernel* k : kernel_list()) {
    if (!missing_features(detect_cpu(), k->arch, k->needs).empty()) continue;
    bool all = true;
    const MoePlan plan = plan_of(c, *k);
    for (const ExpertPlan& p : plan.plans)
      for (const ProjectionPlan* q : {&p.gate, &p.up, &p.down})
        if (q->kernel != nullptr && (k->supports(q->problem) != nullptr ||
                                     k->numerics(q->problem) == Numerics::kApproximate))
          all = false;
    if (c.shared_gate &&
        k->supports(make_problem(c.shared_gate->w, ActSpec{}, c.x_type)) != nullptr)
      all = false;
    if (c.shared)
      for (const ProjectionPlan* q : {&plan.shared->gate, &plan.shared->up, &plan.shared->down})
        if (q->kernel != nullptr && k->supports(q->problem) != nullptr) all = false;
    if (all) return *k;
  }
  return reference_kernel();
}

struct Choice {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Choice random_choice(size_t T, size_t S, size_t E, Rng& rng, bool holes = true) {
  Choice c;
  for (size_t i = 0; i < T * S; ++i) {
    c.ids.push_back(holes && rng() % 8 == 0 ? -1 : static_cast<int32_t>(rng() % E));
    c.weights.push_back(static_cast<float>(rng() % 1000) * 0.002f - 0.3f);
  }
  return c;
}

SchemeCase scheme(const std::string& name) {
  for (const SchemeCase& s : scheme_cases())
    if (s.name == name) return s;
  throw std::runtime_error("no scheme " + name);
}

ActivationSpec random_activation(Rng& rng) {
  ActivationSpec a;
  a.kind = static_cast<ActivationKind>(rng() % 10);
  if (rng() % 2 == 0) a.limit = 3.0f;
  if (rng() % 2 == 0) a.situ_lb = 2.0f;
  return a;
}

void expect_layer(const MoeCase& c, const Kernel& kernel, const Activations& x,
                  const Choice& choice, const std::vector<float>& want, ThreadPool& pool,
                  const std::string& what) {
  const auto layer = build(c, kernel, &pool);
  const std::vector<float> got = run_ids(*layer, x, choice.ids, choice.weights, pool);
  if (is_exact(c, kernel)) {
    const long at = first_difference(got, want);
    EXPECT_EQ(at, -1) << what << " kernel " << kernel.name << ": element " << at << " is "
                      << got[static_cast<size_t>(at)] << ", expected "
                      << want[static_cast<size_t>(at)];
  } else {
    EXPECT_LT(distance(got, want), 0.03) << what << " kernel " << kernel.name;
  }
}

// Every scheme of the kernel tier, once as the whole layer: the layer adds no rounding of its own.
TEST(Moe, EverySchemeEqualsTheDefinition) {
  Rng rng(test_seed());
  ThreadPool pool(2);
  for (const SchemeCase& s : scheme_cases()) {
    MoeShape shape;
    shape.hidden = 96;
    shape.intermediate = 64 + rng() % 3 * 7;
    shape.bias = rng() % 2 == 0;
    const MoeCase c = make_moe(s, s, shape, ActivationSpec{}, s.x_type, rng);
    const Activations x = make_x(c, 5, false, rng);
    const Choice choice = random_choice(5, 3, shape.experts, rng);
    const std::vector<float> want = reference_moe(c, x.values, choice.ids, choice.weights);
    expect_layer(c, reference_kernel(), x, choice, want, pool, s.name);
    expect_layer(c, best_kernel(c), x, choice, want, pool, s.name);
  }
}

// Random scheme x shape x input. Fixed seeds, so that a failure repeats.
TEST(Moe, DifferentialFuzz) {
  const std::vector<SchemeCase> schemes = scheme_cases();
  ThreadPool pool(3);
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    Rng rng(seed * 7919);
    const SchemeCase& up = schemes[rng() % schemes.size()];
    const SchemeCase& down = rng() % 2 == 0 ? up : schemes[rng() % schemes.size()];
    MoeShape shape;
    shape.hidden = 1 + rng() % 130;
    shape.intermediate = 1 + rng() % 100;
    shape.experts = 1 + rng() % 9;
    shape.top_k = 1 + rng() % shape.experts;
    shape.bias = rng() % 3 == 0;
    shape.shared = rng() % 3 == 0;
    shape.shared_gate = rng() % 2 == 0;
    const XType type =
        up.act.code == ActCode::kAsIs || rng() % 2 == 0 ? up.x_type : static_cast<XType>(rng() % 3);
    MoeCase c = make_moe(up, down, shape, random_activation(rng), type, rng);
    c.spec.router.weight_on_input = rng() % 4 == 0;
    const size_t T = std::array<size_t, 8>{0, 1, 1, 2, 3, 7, 20, 40}[rng() % 8], S = 1 + rng() % 6;
    const bool ugly = rng() % 2 == 0;
    const Activations x = make_x(c, T, ugly, rng);
    const Choice choice = random_choice(T, S, shape.experts, rng);
    const std::vector<float> want = reference_moe(c, x.values, choice.ids, choice.weights);
    const std::string what = "seed " + std::to_string(seed) + " " + up.name + " / " + down.name;
    expect_layer(c, reference_kernel(), x, choice, want, pool, what);
    const Kernel& best = best_kernel(c);
    if (is_exact(c, best) || !ugly) expect_layer(c, best, x, choice, want, pool, what);
    if (testing::Test::HasFailure()) break;
  }
}

class MoeSchemes : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Schemes, MoeSchemes,
                         testing::Values("w4a8 g32", "w8a8 static", "fp8 channel token", "nvfp4",
                                         "w4a16 g32 x1", "dense bf16 x1",
                                         "two levels 4 bits g32 offsets", "table 1 two levels"));

TEST_P(MoeSchemes, BytesDoNotDependOnThreads) {
  Rng rng(11);
  const SchemeCase s = scheme(GetParam());
  MoeShape shape;
  shape.hidden = 128;
  shape.intermediate = 96;
  shape.experts = 8;
  shape.shared = true;
  const MoeCase c = make_moe(s, s, shape, ActivationSpec{}, s.x_type, rng);
  const auto layer = build(c, best_kernel(c));
  for (const size_t T : {1u, 3u, 50u, 300u}) {
    const Activations x = make_x(c, T, true, rng);
    Choice choice = random_choice(T, 4, shape.experts, rng);
    for (size_t i = 0; i < choice.ids.size(); i += 2)
      choice.ids[i] = 5;  // half of everything meets one expert
    ThreadPool one(1);
    const std::vector<float> want = run_ids(*layer, x, choice.ids, choice.weights, one);
    for (const size_t threads : {2u, 7u, 64u}) {
      ThreadPool pool(threads);
      EXPECT_EQ(first_difference(run_ids(*layer, x, choice.ids, choice.weights, pool), want), -1)
          << T << " tokens, " << threads << " threads";
    }
  }
}

TEST_P(MoeSchemes, BytesDoNotDependOnTheBatch) {
  Rng rng(12);
  const SchemeCase s = scheme(GetParam());
  MoeShape shape;
  shape.hidden = 96;
  shape.intermediate = 80;
  shape.experts = 5;
  shape.shared = shape.shared_gate = true;
  const MoeCase c = make_moe(s, s, shape, ActivationSpec{}, s.x_type, rng);
  const auto layer = build(c, best_kernel(c));
  ThreadPool pool(2);
  const size_t T = 70, S = 3, H = shape.hidden;
  Activations x = make_x(c, T, true, rng);
  const Choice choice = random_choice(T, S, shape.experts, rng);
  const std::vector<float> whole = run_ids(*layer, x, choice.ids, choice.weights, pool);
  for (const auto& [t0, t1] :
       {std::pair<size_t, size_t>{0, 1}, {3, 4}, {69, 70}, {10, 12}, {20, 57}}) {
    Activations part;
    part.view = x.view;
    part.view.rows = t1 - t0;
    part.view.data =
        static_cast<const uint8_t*>(x.view.data) + t0 * H * (bits_of(x.view.dtype) / 8);
    const std::vector<float> got = run_ids(*layer, part,
                                           {choice.ids.begin() + static_cast<long>(t0 * S),
                                            choice.ids.begin() + static_cast<long>(t1 * S)},
                                           {choice.weights.begin() + static_cast<long>(t0 * S),
                                            choice.weights.begin() + static_cast<long>(t1 * S)},
                                           pool);
    EXPECT_EQ(first_difference(got, {whole.begin() + static_cast<long>(t0 * H),
                                     whole.begin() + static_cast<long>(t1 * H)}),
              -1);
  }
}

TEST(Moe, LogitsAndIdsGiveTheSameAnswer) {
  Rng rng(13);
  MoeShape shape;
  shape.experts = 16;
  shape.top_k = 4;
  MoeCase c =
      make_moe(scheme("w4a8 g32"), scheme("w4a8 g32"), shape, ActivationSpec{}, XType::kBf16, rng);
  c.spec.router.renormalize = true;
  const auto layer = build(c, best_kernel(c));
  for (const size_t T : {0u, 1u, 6u, 100u}) {
    ThreadPool pool(3);
    const Activations x = make_x(c, T, false, rng);
    std::vector<float> logits(T * 16);
    for (float& v : logits) v = static_cast<float>(rng() % 4000) * 0.001f;
    std::vector<int32_t> ids(T * 4);
    std::vector<float> weights(T * 4), y(T * shape.hidden);
    MoeOptions options;
    options.ids_out = ids.data();
    options.weights_out = weights.data();
    layer->forward_logits(x.view, f32_rows(logits.data(), T, 16),
                          f32_rows(y.data(), T, shape.hidden), pool, options);
    RouterInput in;
    in.logits = logits.data();
    in.T = T;
    std::vector<int32_t> want_ids(T * 4);
    std::vector<float> want_weights(T * 4);
    route_rows(layer->router(), in, {want_ids.data(), want_weights.data()});
    EXPECT_EQ(ids, want_ids);
    EXPECT_EQ(weights, want_weights);
    EXPECT_EQ(first_difference(y, run_ids(*layer, x, ids, weights, pool)), -1);
  }
}

TEST(Moe, IdentityExpertsAddTheInput) {
  Rng rng(14);
  MoeCase c = make_moe(scheme("w4a8 g32"), scheme("w4a8 g32"), MoeShape{}, ActivationSpec{},
                       XType::kF32, rng);
  c.spec.router.zero_experts = 2;
  const auto layer = build(c, best_kernel(c));
  ThreadPool pool(2);
  const Activations x = make_x(c, 1, false, rng);
  const std::vector<float> logits = {1, 0, 0, 0, 0, 3};  // expert 0 and the second identity expert
  std::vector<float> y(32);
  std::vector<int32_t> ids(2);
  std::vector<float> weights(2);
  MoeOptions options;
  options.ids_out = ids.data();
  options.weights_out = weights.data();
  layer->forward_logits(x.view, f32_rows(logits.data(), 1, 6), f32_rows(y.data(), 1, 32), pool,
                        options);
  EXPECT_EQ(ids, (std::vector<int32_t>{-1, 0})) << "nobody counts it as a row of expert 0";
  EXPECT_EQ(weights[0], 0.0f);
  float sum = 0;
  for (const float l : logits) sum += std::exp(l - 3);
  const std::vector<float> routed = reference_moe(c, x.values, {0}, {weights[1]});
  for (size_t h = 0; h < 32; ++h) EXPECT_NEAR(y[h], routed[h] + x.values[h] / sum, 1e-5f);
}

TEST(Moe, SharedSlotsAreExpertsBehindTheOthers) {
  Rng rng(15);
  MoeShape shape;
  shape.experts = 5;
  MoeCase c = make_moe(scheme("w8a8 packed"), scheme("w8a8 packed"), shape, ActivationSpec{},
                       XType::kF32, rng);
  c.spec.experts = c.spec.router.experts = 4;
  c.spec.router.shared_slots = 1;
  const auto layer = build(c, best_kernel(c));
  EXPECT_EQ(layer->local_experts(), 5u);
  EXPECT_EQ(layer->slots(), 3u);
  ThreadPool pool(1);
  const Activations x = make_x(c, 2, false, rng);
  const std::vector<float> logits = {0, 1, 2, 0, 3, 0, 0, 2.5f};
  std::vector<int32_t> ids(6);
  std::vector<float> weights(6), y(2 * 32);
  MoeOptions options;
  options.ids_out = ids.data();
  options.weights_out = weights.data();
  layer->forward_logits(x.view, f32_rows(logits.data(), 2, 4), f32_rows(y.data(), 2, 32), pool,
                        options);
  EXPECT_EQ(ids, (std::vector<int32_t>{2, 1, 4, 0, 3, 4}));
  EXPECT_EQ(first_difference(y, reference_moe(c, x.values, ids, weights)), -1);
}

TEST(Moe, OutputIsRoundedOnce) {
  Rng rng(16);
  const MoeCase c = make_moe(scheme("w4a8 g32"), scheme("w4a8 g32"), MoeShape{}, ActivationSpec{},
                             XType::kBf16, rng);
  const auto layer = build(c, best_kernel(c));
  ThreadPool pool(2);
  const Activations x = make_x(c, 9, true, rng);
  const Choice choice = random_choice(9, 2, 4, rng);
  const std::vector<float> exact = run_ids(*layer, x, choice.ids, choice.weights, pool);
  std::vector<uint16_t> bf16(9 * 40, 0x7777), f16(9 * 32);
  layer->forward_ids(x.view, choice.ids, choice.weights, Rows{bf16.data(), DType::kBf16, 9, 32, 40},
                     pool);
  layer->forward_ids(x.view, choice.ids, choice.weights, Rows{f16.data(), DType::kF16, 9, 32, 32},
                     pool);
  for (size_t t = 0; t < 9; ++t) {
    for (size_t h = 0; h < 32; ++h) {
      EXPECT_EQ(bf16[t * 40 + h], f32_to_bf16(exact[t * 32 + h]));
      EXPECT_EQ(f16[t * 32 + h], f32_to_f16(exact[t * 32 + h]));
    }
    for (size_t h = 32; h < 40; ++h) EXPECT_EQ(bf16[t * 40 + h], 0x7777) << "wrote beyond the row";
  }
}

TEST(Moe, ManyTokensAreCutIntoChunks) {
  Rng rng(17);
  MoeShape shape;
  shape.hidden = 8;
  shape.intermediate = 8;
  const MoeCase c = make_moe(scheme("w8a8 packed"), scheme("w8a8 packed"), shape, ActivationSpec{},
                             XType::kF32, rng);
  const auto layer = build(c, best_kernel(c));
  ThreadPool pool(2);
  const size_t T = 4100;
  const Activations x = make_x(c, T, false, rng);
  const Choice choice = random_choice(T, 2, 4, rng);
  const std::vector<float> got = run_ids(*layer, x, choice.ids, choice.weights, pool);
  EXPECT_EQ(first_difference(got, reference_moe(c, x.values, choice.ids, choice.weights)), -1);
}

// The extremes of real models: 512 experts, 16 per token, and one expert for everything.
TEST(Moe, ManyExpertsAndOne) {
  ThreadPool pool(2);
  for (const auto& [experts, slots] : {std::pair<size_t, size_t>{512, 16}, {1, 1}, {1, 16}}) {
    Rng rng(experts + slots);
    MoeShape shape;
    shape.hidden = 32;
    shape.intermediate = 16;
    shape.experts = experts;
    shape.top_k = std::min(experts, slots);
    const SchemeCase s = scheme("w4a8 g16");
    const MoeCase c = make_moe(s, s, shape, ActivationSpec{}, XType::kF16, rng);
    const auto layer = build(c, best_kernel(c));
    for (const size_t T : {1u, 37u}) {
      const Activations x = make_x(c, T, false, rng);
      const Choice choice = random_choice(T, slots, experts, rng);
      EXPECT_EQ(first_difference(run_ids(*layer, x, choice.ids, choice.weights, pool),
                                 reference_moe(c, x.values, choice.ids, choice.weights)),
                -1);
    }
  }
}

TEST(Moe, ConcurrentCallsOnOneLayer) {
  Rng rng(18);
  MoeShape shape;
  shape.hidden = 128;
  shape.intermediate = 64;
  const MoeCase c =
      make_moe(scheme("w4a8 g32"), scheme("w4a8 g32"), shape, ActivationSpec{}, XType::kF32, rng);
  MoePlan plan = plan_of(c, best_kernel(c));
  MoeLayer layer(std::move(plan));
  ThreadPool pool(3);
  pool.parallel_for(c.experts.size(),
                    [&](size_t e) { layer.set_expert(e, weights_of(c.experts[e]), &pool); });
  layer.finish();
  const Activations x = make_x(c, 21, false, rng);
  const Choice choice = random_choice(21, 2, 4, rng);
  const std::vector<float> want = reference_moe(c, x.values, choice.ids, choice.weights);
  std::vector<std::thread> callers;
  std::vector<long> differences(4, -2);
  for (size_t i = 0; i < 4; ++i)
    callers.emplace_back([&, i] {
      for (int round = 0; round < 10 && differences[i] < 0; ++round)
        differences[i] =
            first_difference(run_ids(layer, x, choice.ids, choice.weights, pool), want);
    });
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(differences, std::vector<long>(4, -1));
  long inside = 0;
  pool.run([&](ThreadPool::Member& m) {
    if (m.index() == 0)
      inside = first_difference(run_ids(layer, x, choice.ids, choice.weights, pool), want);
  });
  EXPECT_EQ(inside, -1) << "from inside a region";
}

template <class F>
std::string message_of(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(Moe, BadCallsNameBothSides) {
  Rng rng(19);
  const MoeCase c = make_moe(scheme("w4a16 g32 x1"), scheme("w4a16 g32 x1"), MoeShape{},
                             ActivationSpec{}, XType::kBf16, rng);
  const auto layer = build(c, best_kernel(c));
  ThreadPool pool(1);
  const Activations x = make_x(c, 2, false, rng);
  std::vector<float> y(64), weights(4, 0.5f);
  const Rows out = f32_rows(y.data(), 2, 32);
  const auto call = [&](const ConstRows& in, std::vector<int32_t> ids, const Rows& to) {
    return message_of([&] { layer->forward_ids(in, ids, weights, to, pool); });
  };
  EXPECT_EQ(call(x.view, {0, 1, 2, 3}, out), "no error");
  EXPECT_EQ(call(x.view, {0, 1, 2, 4}, out),
            "experts: token 1, slot 1: expert id 4; expected 0 to 3, or -1 for none");
  EXPECT_EQ(call(x.view, {0, 1, -2, 3}, out),
            "experts: token 1, slot 0: expert id -2; expected 0 to 3, or -1 for none");
  ConstRows narrow = x.view;
  narrow.cols = 31;
  EXPECT_EQ(call(narrow, {0, 1, 2, 3}, out), "x is [2,31]; expected [2,32]");
  EXPECT_EQ(call(x.view, {0, 1, 2, 3}, f32_rows(y.data(), 1, 32)), "y is [1,32]; expected [2,32]");
  EXPECT_EQ(call(x.view, {0, 1, 2}, out), "3 expert ids and 4 weights; expected as many");
  ConstRows half = x.view;
  half.dtype = DType::kF16;
  EXPECT_EQ(call(half, {0, 1, 2, 3}, out), "x is F16; the layer was built for BF16");
  ConstRows bytes = x.view;
  bytes.dtype = DType::kI8;
  EXPECT_EQ(call(bytes, {0, 1, 2, 3}, out), "x is I8; expected F32, BF16 or F16");
  const std::vector<float> logits(10);
  EXPECT_EQ(
      message_of([&] { layer->forward_logits(x.view, f32_rows(logits.data(), 2, 5), out, pool); }),
      "router logits is [2,5]; expected [2,4]");
  EXPECT_EQ(message_of([&] {
              narrow_ids(std::vector<int64_t>{0, 1, 1ll << 40}, 2);
            }),
            "token 1, slot 0: expert id 1099511627776 is out of range");
}

TEST(Moe, BadPlansAndWeightsAreRefused) {
  Rng rng(20);
  const SchemeCase s = scheme("w4a8 g32");
  const MoeCase c = make_moe(s, s, MoeShape{}, ActivationSpec{}, XType::kF32, rng);
  const Kernel& kernel = best_kernel(c);
  EXPECT_EQ(message_of([&] {
              MoeLayer layer(plan_of(c, kernel));
              for (size_t e = 0; e < 3; ++e) layer.set_expert(e, weights_of(c.experts[e]));
              layer.finish();
            }),
            "experts: expert 3 of 4 was not loaded");
  MoeLayer layer(plan_of(c, kernel));
  EXPECT_NE(message_of([&] { layer.set_expert(4, weights_of(c.experts[0])); }), "no error");
  layer.set_expert(0, weights_of(c.experts[0]));
  EXPECT_EQ(message_of([&] { layer.set_expert(0, weights_of(c.experts[0])); }),
            "experts.0 gate was given twice");
  const MatrixCase wrong = make_matrix(s, 47, 32, rng);
  ExpertWeights w = weights_of(c.experts[1]);
  w.up.w = &wrong.w;
  EXPECT_EQ(message_of([&] { layer.set_expert(1, w); }),
            "experts.1 up is [47,32]; expected [48,32]");
  w = weights_of(c.experts[2]);
  const std::vector<float> bias(31);
  w.gate.bias = bias;
  EXPECT_EQ(message_of([&] { layer.set_expert(2, w); }),
            "experts.2 gate: bias has 31 values; expected 48");
  MoePlan plan = plan_of(c, kernel);
  plan.plans[1].down.problem.K = 40;
  EXPECT_EQ(message_of([&] { MoeLayer bad(plan); }),
            "experts: down takes 40 inputs, up has 48 outputs");
  plan = plan_of(c, kernel);
  plan.spec.router.top_k = 5;
  EXPECT_NE(message_of([&] { MoeLayer bad(plan); }), "no error");
  plan = plan_of(c, kernel);
  plan.expert_map = {0, 1, 1, -1};
  EXPECT_NE(message_of([&] { MoeLayer bad(plan); }), "no error");
  plan = plan_of(c, kernel);
  plan.spec.activation.limit = -1.0f;
  EXPECT_NE(message_of([&] { MoeLayer bad(plan); }), "no error");
}

}  // namespace
}  // namespace moebius::test::moe_test
