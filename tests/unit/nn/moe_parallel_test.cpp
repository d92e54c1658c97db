// SPDX-License-Identifier: Apache-2.0
// Tensor-parallel and expert-parallel ranks put together again: slices of every scheme, shared row
// maxima, biases counted once, linear and round-robin placement with a remainder, act-order with
// part of the columns, replicated experts.
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "checkpoint/eplb.h"
#include "checkpoint/parallel.h"
#include "kernels/list.h"
#include "quant/slice.h"
#include "unit/model/rank_meeting.h"
#include "unit/nn/moe_cases.h"

namespace moebius::test::moe_parallel_test {
namespace {

SchemeCase scheme(const std::string& name) {
  for (const SchemeCase& s : scheme_cases())
    if (s.name == name) return s;
  throw std::runtime_error("no scheme " + name);
}

struct Routes {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Routes random_routes(size_t T, size_t S, size_t E, Rng& rng) {
  Routes c;
  for (size_t i = 0; i < T * S; ++i) {
    c.ids.push_back(rng() % 9 == 0 ? -1 : static_cast<int32_t>(rng() % E));
    c.weights.push_back(0.1f + static_cast<float>(rng() % 100) * 0.01f);
  }
  return c;
}

const Kernel& generic_or_reference(const Problem& p) {
  for (const Kernel* k : kernel_list())
    if (k->arch == Arch::kOther && k->supports(p) == nullptr) return *k;
  return reference_kernel();
}

// What rank `rank` of `tp` holds of an expert: rows of gate and up, columns of down.
struct RankExpert {
  QuantMatrix gate, up, down;
  ExpertWeights weights;
};

RankExpert slice_expert(const ExpertCase& e, size_t tp, size_t rank, SliceMemory& memory) {
  RankExpert r;
  const auto range = parallel_range(e.up.w.N, rank, tp, "intermediate size");
  const size_t i0 = range.first, i1 = range.second;
  r.weights = weights_of(e);
  if (e.gate) r.gate = slice_rows(e.gate->w, i0, i1);
  r.up = slice_rows(e.up.w, i0, i1);
  r.down = slice_columns(e.down.w, i0, i1, memory);
  const auto cut = [&](std::span<const float> b) { return b.empty() ? b : b.subspan(i0, i1 - i0); };
  r.weights.gate.bias = cut(r.weights.gate.bias);
  r.weights.up.bias = cut(r.weights.up.bias);
  return r;
}

std::vector<float> run_tp_rank(const MoeCase& c, size_t tp, size_t rank, const Activations& x,
                               const Routes& routes, test::RankMeeting& meeting) {
  SliceMemory memory;
  MoePlan plan;
  plan.spec = c.spec;
  plan.spec.intermediate /= tp;
  plan.first_tp_rank = plan.first_rank = rank == 0;
  std::vector<RankExpert> experts;
  const auto project = [&](const QuantMatrix& w, const ActSpec& act, bool row_parallel) {
    ProjectionPlan p;
    p.problem = make_problem(w, act, c.x_type);
    if (row_parallel && needs_shared_amax(act)) p.shared_amax = act;
    if (row_parallel) p.problem = row_parallel_problem(p.problem);
    p.kernel = &generic_or_reference(p.problem);
    return p;
  };
  experts.reserve(c.experts.size() + 1);
  const auto add = [&](const ExpertCase& e) {
    experts.push_back(slice_expert(e, tp, rank, memory));
    RankExpert& r = experts.back();
    ExpertPlan p;
    if (e.gate) {
      r.weights.gate.w = &r.gate;
      p.gate = project(r.gate, c.up_scheme.act, false);
    }
    r.weights.up.w = &r.up;
    r.weights.down.w = &r.down;
    p.up = project(r.up, c.up_scheme.act, false);
    p.down = project(r.down, c.down_scheme.act, true);
    return p;
  };
  for (uint32_t e = 0; e < c.experts.size(); ++e) {
    plan.plans.push_back(add(c.experts[e]));
    plan.plan_of.push_back(e);
  }
  if (c.shared) plan.shared = add(*c.shared);
  MoeLayer layer(plan);
  for (size_t e = 0; e < c.experts.size(); ++e) layer.set_expert(e, experts[e].weights);
  if (c.shared) layer.set_shared(experts.back().weights);
  layer.finish();
  ThreadPool pool(rank % 2 == 0 ? 1 : 2);
  const auto reduce = [&](float* amax, size_t n) { meeting.maximum(amax, n); };
  const AmaxReduce callback(reduce);
  MoeOptions options;
  options.amax_reduce = &callback;
  return run_ids(layer, x, routes.ids, routes.weights, pool, options);
}

void expect_close(const std::vector<float>& got, const std::vector<float>& want, size_t H,
                  double tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t t = 0; t * H < want.size(); ++t) {
    double norm = 0, difference = 0;
    for (size_t h = 0; h < H; ++h) {
      const double a = got[t * H + h], b = want[t * H + h];
      if (std::isnan(b)) {
        EXPECT_TRUE(std::isnan(a)) << what << " row " << t;
        continue;
      }
      norm += b * b;
      difference += (a - b) * (a - b);
    }
    if (!(norm < 1e30)) continue;  // overflow depends on the order of additions
    EXPECT_LE(difference, tolerance * tolerance * norm + 1e-30) << what << " row " << t;
  }
}

class TensorParallel : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Schemes, TensorParallel,
                         testing::Values("w4a8 g32", "w4a8 asym g32", "w8a8 packed", "w8a8 static",
                                         "w4a8 g32 columns 1", "w4a8 ct g32", "fp8 channel token",
                                         "fp8 tensor static", "fp8 block 16x48", "nvfp4",
                                         "nvfp4a16 x1", "mxfp4", "mxfp8", "w4a16 g32 x1",
                                         "w4a16 g32 columns 1", "w4a16 g32 x0 asym", "w4afp8 g128",
                                         "dense f32 x0", "dense bf16 x1",
                                         "two levels 4 bits g32 offsets", "table 1 two levels"));

TEST_P(TensorParallel, RanksAddUpToTheSingleRank) {
  const SchemeCase s = scheme(GetParam());
  for (const size_t tp : {1u, 2u, 4u, 8u}) {
    Rng rng(100 + tp);
    MoeShape shape;
    shape.hidden = 64;
    shape.intermediate = 256;
    shape.experts = 4;
    shape.bias = true;
    MoeCase c = make_moe(s, s, shape, ActivationSpec{}, s.x_type, rng);
    // A granule of the input that two ranks share would need an exchange of its own.
    if (c.down_scheme.act.granule == ActGranule::kGroup && 256 / tp % c.down_scheme.act.group != 0)
      continue;
    const Activations x = make_x(c, 7, false, rng);
    const Routes routes = random_routes(7, 3, shape.experts, rng);
    const std::vector<float> want = reference_moe(c, x.values, routes.ids, routes.weights);
    test::RankMeeting meeting(tp);
    std::vector<std::vector<float>> partial(tp);
    std::vector<std::thread> ranks;
    for (size_t r = 0; r < tp; ++r)
      ranks.emplace_back([&, r] { partial[r] = run_tp_rank(c, tp, r, x, routes, meeting); });
    for (std::thread& t : ranks) t.join();
    std::vector<float> sum(want.size(), 0.0f);
    for (const auto& p : partial)
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += p[i];
    // Codes are the same on every rank, so only additions are reordered; a 16-bit intermediate or a
    // float kernel in front of a quantizer may move a code.
    const bool loose = s.act.code == ActCode::kFp8 || s.act.code == ActCode::kFp4;
    expect_close(sum, want, shape.hidden, loose ? 2e-2 : 1e-3,
                 std::string(GetParam()) + " tp " + std::to_string(tp));
  }
}

TEST(TensorParallel, SharedExpertIsCutToo) {
  Rng rng(5);
  const SchemeCase s = scheme("w4a8 g32");
  MoeShape shape;
  shape.hidden = 64;
  shape.intermediate = 128;
  MoeCase c = make_moe(s, s, shape, ActivationSpec{}, XType::kF32, rng);
  c.spec.shared = SharedKind::kPlain;
  c.shared = std::move(c.experts.back());
  c.experts.pop_back();
  c.spec.experts = c.spec.router.experts = 3;
  const Activations x = make_x(c, 5, false, rng);
  const Routes routes = random_routes(5, 2, 3, rng);
  test::RankMeeting meeting(2);
  std::vector<float> partial[2];
  std::thread other([&] { partial[1] = run_tp_rank(c, 2, 1, x, routes, meeting); });
  partial[0] = run_tp_rank(c, 2, 0, x, routes, meeting);
  other.join();
  for (size_t i = 0; i < partial[0].size(); ++i) partial[0][i] += partial[1][i];
  expect_close(partial[0], reference_moe(c, x.values, routes.ids, routes.weights), 64, 1e-4,
               "shared");
}

std::vector<float> run_ep_rank(const MoeCase& c, bool first, const std::vector<int32_t>& map,
                               const Activations& x, const Routes& routes) {
  MoePlan plan = plan_of(c, reference_kernel());
  plan.expert_map = map;
  plan.first_rank = first;
  std::vector<ExpertPlan> plans = std::move(plan.plans);
  plan.plans.clear();
  plan.plan_of.clear();
  std::vector<size_t> global_of;
  for (size_t local = 0; local < map.size(); ++local)
    for (size_t g = 0; g < map.size(); ++g)
      if (map[g] == static_cast<int32_t>(local)) {
        plan.plan_of.push_back(static_cast<uint32_t>(plan.plans.size()));
        plan.plans.push_back(plans[g]);
        global_of.push_back(g);
      }
  MoeLayer layer(plan);
  for (size_t local = 0; local < global_of.size(); ++local)
    layer.set_expert(local, weights_of(c.experts[global_of[local]]));
  layer.finish();
  ThreadPool pool(2);
  return run_ids(layer, x, routes.ids, routes.weights, pool);
}

TEST(ExpertParallel, RanksAddUpToTheSingleRank) {
  const SchemeCase s = scheme("w4a8 g32");
  for (const auto& [experts, ranks] : {std::pair<size_t, size_t>{10, 4}, {9, 2}, {8, 8}, {7, 3}}) {
    Rng rng(experts);
    MoeShape shape;
    shape.experts = experts;
    shape.bias = true;
    const MoeCase c = make_moe(s, s, shape, ActivationSpec{}, XType::kBf16, rng);
    const Activations x = make_x(c, 30, false, rng);
    const Routes routes = random_routes(30, 3, experts, rng);
    const std::vector<float> want = reference_moe(c, x.values, routes.ids, routes.weights);
    for (const Placement placement : {Placement::kLinear, Placement::kRoundRobin}) {
      std::vector<float> sum(want.size(), 0.0f);
      for (size_t r = 0; r < ranks; ++r) {
        const std::vector<float> part =
            run_ep_rank(c, r == 0, expert_map(experts, ranks, r, placement), x, routes);
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
      }
      expect_close(sum, want, shape.hidden, 1e-5, "ep " + std::to_string(ranks));
    }
  }
}

// Copies of experts on several ranks, each route served by one of them: the same answer.
TEST(ExpertParallel, ReplicasGiveTheSameAnswer) {
  Rng rng(6);
  const SchemeCase s = scheme("w4a8 g32");
  MoeShape shape;
  shape.experts = 6;
  const MoeCase c = make_moe(s, s, shape, ActivationSpec{}, XType::kF32, rng);
  const Activations x = make_x(c, 20, false, rng);
  const Routes routes = random_routes(20, 2, 6, rng);
  const std::vector<uint32_t> physical = initial_physical_map(6, 2);
  std::vector<uint32_t> first = {0}, copies;
  for (const auto& places : logical_to_physical(physical, 6)) {
    copies.insert(copies.end(), places.begin(), places.end());
    first.push_back(static_cast<uint32_t>(copies.size()));
  }
  const std::vector<uint32_t> rank_of = {0, 0, 0, 0, 1, 1, 1, 1};
  Routes mapped = routes;
  choose_copies(routes.ids, {first, copies, rank_of, 2}, mapped.ids);
  std::vector<float> sum(20 * shape.hidden, 0.0f);
  for (size_t rank = 0; rank < 2; ++rank) {
    MoePlan plan = plan_of(c, reference_kernel());
    plan.spec.experts = plan.spec.router.experts = 8;
    plan.expert_map = expert_map(8, 2, rank, Placement::kLinear);
    plan.plan_of.clear();
    for (size_t p = 4 * rank; p < 4 * rank + 4; ++p) plan.plan_of.push_back(physical[p]);
    MoeLayer layer(plan);
    for (size_t i = 0; i < 4; ++i)
      layer.set_expert(i, weights_of(c.experts[physical[4 * rank + i]]));
    layer.finish();
    ThreadPool pool(1);
    const std::vector<float> part = run_ids(layer, x, mapped.ids, mapped.weights, pool);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  expect_close(sum, reference_moe(c, x.values, routes.ids, routes.weights), shape.hidden, 1e-5,
               "replicas");
}

}  // namespace
}  // namespace moebius::test::moe_parallel_test
