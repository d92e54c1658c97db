// SPDX-License-Identifier: Apache-2.0
// Compares a mixture-of-experts layer on ranks that are threads of this process with one rank that
// has as many threads as all of them: `bench moe --tp 2`, `--ep 2`. The two take turns, so that
// disturbances of the machine affect both. Times are those of the slowest rank, with the gather of
// the layer's output.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ostream>
#include <thread>

#include "apps/cli/interrupt.h"
#include "base/error.h"
#include "bench/bench_report.h"
#include "bench/bench_synthetic.h"
#include "device/cpu/layer_loader.h"
#include "model/ranks/ranked_model.h"
#include "quant/expert_copies.h"
#include "runtime/comm_threads.h"

namespace moebius {
namespace {

// Time after which idle threads of a pool sleep.
constexpr auto kPoolSleeps = std::chrono::microseconds(200);

struct RankBenchLayer {
  std::unique_ptr<MoeLayer> layer;
  size_t first = 0;  // first expert of the rank
};

// Makes the experts and outputs of one rank; for a split of one, the whole layer.
RankBenchLayer make_layer(const BenchOptions& o, const SyntheticScheme& scheme,
                          const RankSplit& split, size_t member, ThreadPool& pool) {
  const size_t H = o.hidden, I = o.intermediate, tp_rank = member % split.tp,
               ep_rank = member / split.tp;
  LayerOptions lo;
  lo.policy = policy_of(o.run);
  lo.x_type = x_type_from(o.dtype);
  SyntheticMatrix wide(scheme, I, H), down(scheme, H, I);
  const Range inner = output_range(I, split.tp, tp_rank, "--intermediate"),
              outer = output_range(H, split.tp, tp_rank, "--hidden");
  const auto projection = [&](const SyntheticMatrix& m, const Range& rows) {
    ProjectionPlan p;
    p.kernel = &kernel_for(make_problem(m.view(), scheme.act, lo.x_type), lo, scheme.name);
    p.problem = make_problem(slice_rows(m.view(), rows.begin, rows.end), scheme.act, lo.x_type);
    return p;
  };
  MoePlan plan;
  plan.spec.hidden = H;
  plan.spec.intermediate = I;
  plan.spec.experts = o.experts;
  plan.spec.router.experts = o.experts;
  plan.spec.router.top_k = o.top_k;
  plan.plans = {{projection(wide, inner), projection(wide, inner), projection(down, outer)}};
  RankBenchLayer out;
  size_t count = o.experts;
  if (split.members() > 1)
    plan.split = moe_split(H, split.tp, tp_rank, split.ep, ep_rank, "--hidden");
  if (split.ep > 1) {
    plan.expert_map = expert_map(o.experts, split.ep, ep_rank, Placement::kLinear);
    count = expert_count(o.experts, split.ep, ep_rank);
    for (size_t r = 0; r < split.ep; ++r) {
      const size_t n = expert_count(o.experts, split.ep, r);
      if (r < ep_rank) out.first += n;
      plan.split.rank_of.insert(plan.split.rank_of.end(), n, static_cast<uint32_t>(r));
    }
  }
  out.layer = std::make_unique<MoeLayer>(std::move(plan));
  WorkCounter next;
  pool.run([&](ThreadPool::Member&) {
    SyntheticExpert x(scheme, H, I);
    for (size_t e = next.take(); e < count; e = next.take()) {
      BenchRandom random(1 + out.first + e);
      x.refill(random);
      const QuantMatrix g = slice_rows(x.gate.view(), inner.begin, inner.end),
                        u = slice_rows(x.up.view(), inner.begin, inner.end),
                        d = slice_rows(x.down.view(), outer.begin, outer.end);
      ExpertWeights w = x.weights();
      w.gate.w = &g;
      w.up.w = &u;
      w.down.w = &d;
      out.layer->set_expert(e, w);
    }
  });
  out.layer->finish();
  return out;
}

// Returns how much more than its share the busiest rank has to do.
double busiest_share(std::span<const int32_t> ids, size_t experts, size_t ep) {
  std::vector<double> rows(experts, 0.0);
  for (const int32_t id : ids) rows[static_cast<size_t>(id)] += 1;
  double most = 0, sum = 0;
  for (size_t r = 0, e = 0; r < ep; ++r) {
    double cost = 0;
    for (size_t i = 0; i < expert_count(experts, ep, r); ++i, ++e)
      cost += rows[e] > 0 ? rows[e] + static_cast<double>(kRowsOfReading) : 0;
    sum += cost;
    most = std::max(most, cost);
  }
  return sum > 0 ? most * static_cast<double>(ep) / sum : 1;
}

struct RankBenchRow {
  size_t tokens = 0;
  Timing one, ranks;
  double busiest = 1;
  bool equal = true;
  double percent() const { return 100 * one.median / ranks.median; }
};

// Holds the state that all ranks read; rank 0 writes it between two barriers.
struct RankBenchState {
  std::atomic<bool> stop{false};
  // Number of the current turn. Until their turn, all ranks but rank 0 sleep, so that it has all
  // cores.
  std::atomic<size_t> turn{0};
  std::vector<std::vector<float>> y;  // [rank] output
};

RankBenchRow measure_rank(const BenchOptions& o, size_t tokens, Ranks& ranks, Comm& comm,
                          const MoeLayer* whole, ThreadPool* whole_pool, const MoeLayer& part,
                          ThreadPool& pool, RankBenchState& state) {
  const size_t H = o.hidden, width = part.outputs();
  const XType type = x_type_from(o.dtype);
  const RankSplit& split = ranks.split();
  std::vector<Range> columns;
  for (size_t m = 0; m < split.members(); ++m)
    columns.push_back(moe_split(H, split.tp, m % split.tp, split.ep, m / split.tp, "--hidden")
                          .columns[m / split.tp]);
  SyntheticRows x(type, tokens, H);
  SyntheticRouting routing(tokens, o.experts, o.top_k, o.skew);
  BenchRandom random(tokens);
  std::vector<float> mine(tokens * width), all(tokens * H), want(tokens * H);
  MoeOptions options;
  options.exchange = &ranks.for_experts();
  RankBenchRow row;
  row.tokens = tokens;
  std::vector<double> one, several;
  double busiest = 0, start = now_seconds();
  size_t runs = 0, turn = state.turn.load();
  comm.barrier("bench");
  for (;;) {
    x.refill(random), routing.refill(random);
    double began = now_seconds();
    if (whole != nullptr) {
      whole->forward_ids(x.view(), routing.ids(), routing.weights(),
                         f32_rows(want.data(), tokens, H, type), *whole_pool);
      if (runs > 1) one.push_back(now_seconds() - began);
      std::this_thread::sleep_for(kPoolSleeps);
      state.turn.fetch_add(1);
      state.turn.notify_all();
    } else {
      state.turn.wait(turn);
    }
    ++turn;
    comm.barrier("bench"), comm.barrier("bench");  // at the second barrier, all ranks are awake
    began = now_seconds();
    part.forward_ids(x.view(), routing.ids(), routing.weights(),
                     f32_rows(mine.data(), tokens, width, type), pool, options);
    ranks.gather(type, mine, columns, all, H, tokens, "output", 0);
    comm.barrier("bench");
    if (runs > 1) several.push_back(now_seconds() - began);
    if (whole != nullptr) {
      row.equal = row.equal && want == all;
      busiest += busiest_share(routing.ids(), o.experts, split.ep);
      const bool enough = runs >= 7 && now_seconds() - start > o.seconds;
      state.stop.store(enough || runs > 400 || interrupt_seen());
    }
    ++runs;
    comm.barrier("bench");
    if (state.stop.load()) break;
  }
  comm.barrier("bench");
  row.one = summarize(std::move(one));
  row.ranks = summarize(std::move(several));
  row.busiest = busiest / static_cast<double>(runs);
  return row;
}

void print_row(const BenchOptions& o, const RankSplit& split, const SyntheticScheme& scheme,
               const RankBenchRow& r, size_t threads, std::ostream& out) {
  if (o.json) {
    Json j = Json::object({{"bench", "moe_ranks"}, {"scheme", scheme.name}});
    j.set("tp", split.tp), j.set("ep", split.ep);
    j.set("tokens", r.tokens), j.set("threads", threads);
    j.set("one_rank_ms", rounded(r.one.median * 1e3, 4));
    j.set("ranks_ms", rounded(r.ranks.median * 1e3, 4));
    j.set("busiest", rounded(r.busiest, 4));
    j.set("percent", rounded(r.percent(), 4));
    j.set("percent_even", rounded(r.percent() * r.busiest, 4));
    j.set("equal", r.equal);
    print_json(j, out);
    return;
  }
  out << fmt::format("{:>6}  {:>14}  {:>14}  {:>8.2f}  {:>5.1f} %  {:>10.1f} %  {}\n", r.tokens,
                     with_spread(r.one.median * 1e3, r.one.median * r.one.spread * 1e3),
                     with_spread(r.ranks.median * 1e3, r.ranks.median * r.ranks.spread * 1e3),
                     r.busiest, r.percent(), r.percent() * r.busiest, r.equal ? "yes" : "NO")
      << std::flush;
}

}  // namespace

int run_bench_moe_ranks(const BenchOptions& o, std::ostream& out) {
  const RankSplit split{1, static_cast<size_t>(o.ranks.tp), static_cast<size_t>(o.ranks.ep)};
  check_split(split);
  if (!o.folder.empty()) fail("bench moe with --tp or --ep takes random weights; give no folder");
  interrupt_is_noted();
  const size_t R = split.ranks(), total = o.threads.empty() ? default_thread_count() : o.threads[0],
               threads = std::max<size_t>(1, total / R);
  bool equal = true;
  for (const std::string& name : o.schemes) {
    const SyntheticScheme scheme = synthetic_scheme(
        name, o.groups.empty() ? std::nullopt : std::optional<int64_t>(o.groups[0]),
        act_request_of(o.run));
    if (!o.json)
      out << fmt::format(
          "{}: {} of {} thread{} against one rank of {}\n{:>6}  {:>14}  {:>14}  {:>8}  {:>7}  "
          "{:>12}  equal\n",
          scheme.name, describe(split), threads, threads == 1 ? "" : "s", R * threads, "tokens",
          "one rank, ms", "ranks, ms", "busiest", "of one", "if even");
    RankBenchState state;
    ThreadRanks world;
    world.ranks = static_cast<int>(R);
    run_thread_ranks(world, [&](Comm& comm) {
      Ranks ranks(comm, split);
      const std::shared_ptr<Runtime> runtime = rank_runtime(ranks.rank(), R, threads);
      ThreadPool& pool = runtime->pool();
      std::unique_ptr<ThreadPool> whole_pool;
      RankBenchLayer whole;
      if (ranks.leader()) {
        whole_pool = std::make_unique<ThreadPool>(R * threads);
        whole = make_layer(o, scheme, {}, 0, *whole_pool);
      }
      const RankBenchLayer part = make_layer(o, scheme, split, ranks.member(), pool);
      ranks.meet();
      for (const size_t tokens : o.tokens) {
        const RankBenchRow row = measure_rank(o, tokens, ranks, comm, whole.layer.get(),
                                              whole_pool.get(), *part.layer, pool, state);
        if (interrupt_seen()) return;
        if (!ranks.leader()) continue;
        print_row(o, split, scheme, row, threads, out);
        equal = equal && row.equal;
      }
    });
  }
  if (!equal) fail("ranks gave other bytes than one rank");
  return interrupt_seen() ? 130 : 0;
}

}  // namespace moebius
