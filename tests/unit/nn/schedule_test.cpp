// SPDX-License-Identifier: Apache-2.0
// The schedule as a value: which rows, batches and tasks a routing becomes, and what kernels and
// caches ask of the cut.
#include "nn/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

namespace moebius::schedule_test {
namespace {

Caches caches_of(size_t l2 = size_t{1} << 20) {
  Caches c;
  c.l2 = l2;
  return c;
}

CallWidths widths(size_t n_step, size_t n_tile, size_t m_tile) { return {n_step, n_tile, m_tile}; }

LinearShape linear_shape(size_t K, std::vector<size_t> outputs, CallWidths call = {8, 48, 8}) {
  LinearShape s;
  s.inputs = K;
  s.outputs = std::accumulate(outputs.begin(), outputs.end(), size_t{0});
  s.widths = std::move(outputs);
  s.row_bytes = K;
  s.call = call;
  return s;
}

Schedule linear(const LinearShape& shape, size_t rows, size_t threads,
                const Caches& caches = caches_of()) {
  Schedule s;
  schedule_linear(shape, rows, threads, caches, s);
  return s;
}

MoeShape moe_shape(size_t hidden, size_t intermediate, size_t experts, bool shared = false) {
  MoeShape s;
  s.hidden = hidden;
  s.shared = shared;
  s.experts.assign(experts + (shared ? 1 : 0), {intermediate, 0, 0});
  s.form_of = {0};
  s.row_bytes = hidden;
  s.up = s.down = {8, 48, 8};
  return s;
}

MoeSchedule moe(const MoeShape& shape, const std::vector<int32_t>& ids, size_t tokens,
                size_t threads, const Caches& caches = caches_of()) {
  MoeSchedule s;
  schedule_moe(shape, ids, tokens, threads, caches, s);
  return s;
}

// Every row is in one batch, every column of every batch in one task of its matrix.
void expect_complete(const Schedule& s, size_t rows, const std::vector<size_t>& matrices) {
  size_t next = 0;
  for (const Batch& b : s.batches) {
    EXPECT_EQ(b.row0, next);
    EXPECT_GT(b.rows, 0u);
    next += b.rows;
  }
  EXPECT_EQ(next, rows);
  for (uint32_t batch = 0; batch < s.batches.size(); ++batch) {
    size_t tasks = 0;
    for (uint32_t m = 0; m < matrices.size(); ++m) {
      std::vector<std::pair<uint32_t, uint32_t>> ranges;
      for (const Task& t : s.tasks)
        if (t.batch == batch && t.matrix == m) ranges.emplace_back(t.n0, t.n1);
      std::sort(ranges.begin(), ranges.end());
      uint32_t column = 0;
      for (const auto& [n0, n1] : ranges) {
        EXPECT_EQ(n0, column);
        EXPECT_LT(n0, n1);
        column = n1;
      }
      EXPECT_EQ(column, matrices[m]);
      tasks += ranges.size();
    }
    EXPECT_EQ(s.batches[batch].tasks, tasks);
  }
}

TEST(Schedule, ALinearIsOneGroupAndOnePhase) {
  const LinearShape shape = linear_shape(2048, {2048, 512, 512});
  const Schedule s = linear(shape, 300, 2);
  EXPECT_EQ(s.threads, 2u);
  EXPECT_FALSE(s.prepare_alone);
  EXPECT_EQ(s.batches, (std::vector<Batch>{{0, 0, 152, s.batches[0].tasks, 0},
                                           {0, 152, 148, s.batches[0].tasks, 0}}));
  expect_complete(s, 300, {2048, 512, 512});
  // Batches run fastest: a block of weights meets all rows before the next one is read.
  for (size_t i = 0; i + 1 < s.tasks.size(); i += 2) {
    EXPECT_EQ(s.tasks[i].batch, 0u);
    EXPECT_EQ(s.tasks[i + 1], (Task{1, s.tasks[i].matrix, s.tasks[i].n0, s.tasks[i].n1}));
  }
}

TEST(Schedule, OneTokenIsPreparedByTheCallerAndReadInLongStreams) {
  const Schedule s = linear(linear_shape(1024, {4096}), 1, 2);
  EXPECT_TRUE(s.prepare_alone);
  EXPECT_EQ(s.tasks, (std::vector<Task>{{0, 0, 0, 2064}, {0, 0, 2064, 4096}}));
  // Streams of at most 2^22 weights would be five, three of them one thread's.
  const Schedule uneven = linear(linear_shape(2048, {9496}, {8, 8, 8}), 1, 2);
  EXPECT_EQ(uneven.tasks.size(), 6u);
  EXPECT_EQ(uneven.tasks[0].n1, 1584u);
  const Schedule tiny = linear(linear_shape(64, {64}), 1, 8);
  EXPECT_EQ(tiny.threads, 1u);  // less work than waking somebody
  EXPECT_EQ(tiny.tasks, (std::vector<Task>{{0, 0, 0, 64}}));
}

// A rank without rows, tokens, columns or experts of its own has nothing to do.
TEST(Schedule, NothingIsNoTask) {
  for (const size_t threads : {1u, 8u}) {
    for (const auto& [rows, outputs] : {std::pair<size_t, size_t>{0, 4096}, {7, 0}, {0, 0}}) {
      const Schedule s = linear(linear_shape(1024, {outputs}), rows, threads);
      EXPECT_TRUE(s.tasks.empty());
      EXPECT_EQ(s.largest_batch, 0u);
    }
    EXPECT_TRUE(moe(moe_shape(64, 32, 4, true), {}, 0, threads).tasks.empty());
    const MoeSchedule idle = moe(moe_shape(64, 32, 4), {-1, -1, -1, -1}, 2, threads);
    EXPECT_TRUE(idle.tasks.empty());
    EXPECT_EQ(idle.largest_batch, 0u);
    EXPECT_EQ(idle.down_block, 64u);  // its rows of y are zeros, written all the same
    MoeShape none = moe_shape(64, 32, 0);
    none.expert_map = {-1, -1}, none.nodes = 2;
    EXPECT_TRUE(moe(none, {0, 1}, 1, threads).tasks.empty());
  }
}

TEST(Schedule, RowsOfAMixtureAreSortedByExpertThenTokenThenSlot) {
  // token 0 -> 2, 0; token 1 -> 0, none; token 2 -> 2, 3
  const MoeSchedule s = moe(moe_shape(64, 32, 4, true), {2, 0, 0, -1, 2, 3}, 3, 1);
  EXPECT_EQ(s.routed, 5u);
  EXPECT_EQ(s.row_expert, (std::vector<uint32_t>{0, 0, 2, 2, 3, 4, 4, 4}));
  EXPECT_EQ(s.row_token, (std::vector<uint32_t>{0, 1, 0, 2, 2, 0, 1, 2}));
  EXPECT_EQ(s.row_item, (std::vector<int32_t>{1, 2, 0, 4, 5, -1, -1, -1}));
  EXPECT_EQ(s.batches, (std::vector<Batch>{
                           {0, 0, 2, 1, 0}, {2, 2, 2, 1, 0}, {3, 4, 1, 1, 0}, {4, 5, 3, 1, 0}}));
  EXPECT_EQ(s.tasks,
            (std::vector<Task>{{0, 0, 0, 32}, {1, 0, 0, 32}, {2, 0, 0, 32}, {3, 0, 0, 32}}));
  EXPECT_TRUE(s.jobs.empty());  // all experts prepare x alike
  EXPECT_EQ(s.up_rows, (std::vector<int32_t>{0, 1, 0, 2, 2, 0, 1, 2}));
  EXPECT_EQ(s.form_rows, (std::vector<size_t>{3}));
  EXPECT_EQ(s.down_block, 64u);
}

TEST(Schedule, BothSortsAgree) {
  std::mt19937 rng(3);
  const size_t experts = 6, slots = 4;
  // 64 items are sorted by insertion, more by counting.
  for (const size_t tokens : {16u, 17u, 40u}) {
    std::vector<int32_t> ids(tokens * slots);
    for (int32_t& id : ids) id = static_cast<int32_t>(rng() % (experts + 1)) - 1;
    const MoeSchedule s = moe(moe_shape(64, 32, experts), ids, tokens, 1);
    std::vector<int32_t> items;
    for (int32_t e = 0; e < static_cast<int32_t>(experts); ++e)
      for (size_t i = 0; i < ids.size(); ++i)
        if (ids[i] == e) items.push_back(static_cast<int32_t>(i));
    EXPECT_EQ(s.row_item, items) << tokens;
  }
}

TEST(Schedule, RanksKeepTheRowsOfTheirOwnExperts) {
  MoeShape shape = moe_shape(64, 32, 2);
  shape.expert_map = {-1, 1, -1, 0};
  const MoeSchedule s = moe(shape, {3, 0, 1, 2, 1, 3}, 3, 1);
  EXPECT_EQ(s.row_expert, (std::vector<uint32_t>{0, 0, 1, 1}));
  EXPECT_EQ(s.row_token, (std::vector<uint32_t>{0, 2, 1, 2}));
  EXPECT_EQ(moe(shape, {0, 2, 0, 2}, 2, 4).batches.size(), 0u);  // nothing is here
}

TEST(Schedule, ATokenIsPreparedOncePerDistinctPreparation) {
  MoeShape shape = moe_shape(64, 32, 3);
  shape.form_of = {0, 0, 1};  // three scales, two kinds of row
  shape.forms = 2;
  shape.experts = {{32, 0, 0}, {32, 0, 1}, {32, 2, 2}};
  const MoeSchedule s = moe(shape, {0, 1, 2, 1}, 2, 1);
  EXPECT_EQ(s.jobs,
            (std::vector<PrepareJob>{
                {0, 0, 0, -1}, {0, 1, 1, -1}, {1, 2, 0, -1}, {1, 0, 2, -1}, {1, 1, 3, -1}}));
  EXPECT_EQ(s.form_rows, (std::vector<size_t>{4, 1}));
  // rows: expert 0 token 0, expert 1 tokens 0 and 1, expert 2 token 1
  EXPECT_EQ(s.gate_rows, (std::vector<int32_t>{0, 0, 2, 0}));
  EXPECT_EQ(s.up_rows, (std::vector<int32_t>{0, 1, 3, 0}));
  shape.weighted_input = true;  // the weight of the slot multiplies the row: nothing is shared
  EXPECT_EQ(moe(shape, {0, 0, 2, 2}, 2, 1).jobs,
            (std::vector<PrepareJob>{{0, 0, 0, 0}, {0, 0, 1, 1}, {1, 2, 0, 2}, {1, 2, 1, 3}}));
}

TEST(Schedule, ManyRowsOfOneExpertAreCutEvenlyInMultiplesOfWhatKernelsLike) {
  MoeShape shape = moe_shape(2048, 768, 2);
  shape.up.m_tile = 32;
  std::vector<int32_t> ids(600, 0);
  ids[7] = 1;
  const MoeSchedule s = moe(shape, ids, 600, 2);
  std::vector<uint32_t> rows;
  for (const Batch& b : s.batches) rows.push_back(b.rows);
  EXPECT_EQ(rows, (std::vector<uint32_t>{224, 224, 151, 1}));
  expect_complete(s, 600, {768});
  // Long tasks first; those of a batch that several tasks fill share an intermediate.
  EXPECT_GT(s.batches[0].tasks, 1u);
  EXPECT_GT(s.intermediate_floats, 0u);
  EXPECT_EQ(s.batches[s.tasks.front().batch].rows, 224u);
  EXPECT_EQ(s.batches[s.tasks.back().batch].rows, 1u);
}

// Whatever kernels ask for, every cut falls on a step, and wide blocks on n_tile.
TEST(Schedule, CutsFollowTheKernels) {
  std::mt19937 rng(5);
  for (const CallWidths& w : {widths(4, 4, 1), widths(8, 48, 8), widths(16, 32, 16),
                              widths(16, 64, 32), widths(32, 32, 32)}) {
    for (const size_t T : {1u, 3u, 17u, 64u, 300u, 1000u}) {
      for (const size_t threads : {1u, 2u, 5u, 16u}) {
        const size_t N = 16 + rng() % 3000, K = 64 + rng() % 4000;
        const LinearShape shape = linear_shape(K, {N, 200}, w);
        const Schedule s = linear(shape, T, threads);
        expect_complete(s, T, {N, 200});
        for (const Task& t : s.tasks) {
          EXPECT_EQ(t.n0 % w.n_step, 0u);
          EXPECT_TRUE(t.n1 % w.n_step == 0 || t.n1 == shape.widths[t.matrix]);
        }
        for (size_t b = 0; b + 1 < s.batches.size(); ++b)
          EXPECT_EQ(s.batches[b].rows % w.m_tile, 0u);
        MoeShape m = moe_shape(K, N, 4, true);
        m.up = m.down = w;
        std::vector<int32_t> ids(T * 2);
        for (int32_t& id : ids) id = static_cast<int32_t>(rng() % 4);
        const MoeSchedule e = moe(m, ids, T, threads);
        expect_complete(e, 3 * T, {N});
        EXPECT_EQ(e.down_block % w.n_step, 0u);
        EXPECT_EQ(e.down_tile % w.n_step, 0u);
        for (const Task& t : e.tasks) EXPECT_EQ(t.n0 % w.n_step, 0u);
      }
    }
  }
  EXPECT_EQ(widths(16, 64, 32).at_most(200), 192u);
  EXPECT_EQ(widths(16, 64, 32).at_most(100), 96u);  // not wide: a step is enough
  EXPECT_EQ(widths(16, 64, 32).at_most(3), 16u);
  EXPECT_EQ(widths(16, 64, 32).at_least(4090), 4096u);
  EXPECT_EQ(widths(16, 64, 32).at_least(1030), 1040u);  // 58 more would unbalance threads
}

TEST(Schedule, ASmallCacheMakesSmallBatchesAndTiles) {
  std::vector<int32_t> ids(2000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i % 2);
  const MoeShape shape = moe_shape(8192, 768, 2);
  const MoeSchedule small = moe(shape, ids, 1000, 2, caches_of(size_t{1} << 19)),
                    large = moe(shape, ids, 1000, 2);
  EXPECT_LT(small.largest_batch, large.largest_batch);
  EXPECT_LT(small.tile_floats, large.tile_floats);
  EXPECT_LT(small.down_block, large.down_block);
}

// Two nodes: tasks stand node by node, the tasks are the same, and columns of down are halved.
TEST(Schedule, TasksOfANodeStandTogether) {
  MoeShape one = moe_shape(512, 256, 8, true), two = one;
  two.nodes = 2;
  std::mt19937 rng(3);
  for (const size_t T : {1u, 5u, 200u}) {
    std::vector<int32_t> ids(T * 2);
    for (int32_t& id : ids) id = static_cast<int32_t>(rng() % 8);
    const MoeSchedule a = moe(one, ids, T, 4), b = moe(two, ids, T, 4);
    EXPECT_EQ(a.node_tasks, (std::vector<size_t>{0, a.tasks.size()}));
    ASSERT_EQ(b.node_tasks.size(), 3u);
    EXPECT_EQ(b.node_tasks[2], b.tasks.size());
    EXPECT_TRUE(
        std::is_permutation(a.tasks.begin(), a.tasks.end(), b.tasks.begin(), b.tasks.end()));
    for (size_t i = 0; i < b.tasks.size(); ++i) {
      const size_t group = b.batches[b.tasks[i].batch].group, n0 = b.tasks[i].n0;
      const size_t node = group < 8 ? group / 4 : n0 / 128;
      EXPECT_EQ(i >= b.node_tasks[1] ? 1u : 0u, node) << i;
    }
  }
  EXPECT_EQ(two.down_begin(0), 0u);
  EXPECT_EQ(two.down_begin(1), 256u);
  EXPECT_EQ(two.down_begin(2), 512u);
  EXPECT_EQ(node_begin(100, 8, 1, 2), 0u);  // too narrow to be halved: all on the last node
  EXPECT_EQ(node_begin(100, 8, 2, 2), 100u);
}

TEST(Schedule, AMemberTakesItsOwnNodeFirst) {
  const auto begin = [](size_t node) { return node * 10; };
  NodeCounters counters;
  std::vector<size_t> taken;
  size_t calls = 0;
  const auto work = [&](size_t i, size_t end) {
    for (++calls; i < end; ++i) taken.push_back(i);
  };
  counters.share(3, 1, 4, begin, work);
  EXPECT_EQ(calls, 9u);
  ASSERT_EQ(taken.size(), 30u);
  for (size_t i = 0; i < 30; ++i) EXPECT_EQ(taken[i], (10 + i) % 30);
  counters.share(3, 2, 4, begin, work);  // nothing is left
  EXPECT_EQ(taken.size(), 30u);
}

// A schedule that is used again is the same as a fresh one.
TEST(Schedule, NothingIsLeftOfAnEarlierCall) {
  MoeShape shape = moe_shape(256, 96, 4, true);
  shape.form_of = {0, 0};
  shape.experts[1].up_preparation = 1;
  MoeSchedule used;
  for (const size_t T : {50u, 3u, 20u}) {
    std::vector<int32_t> ids(T * 2);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7 % 4);
    schedule_moe(shape, ids, T, 2, caches_of(), used);
    MoeSchedule fresh = moe(shape, ids, T, 2);
    fresh.counts = used.counts;  // working memory
    EXPECT_TRUE(used == fresh) << T;
  }
}

TEST(Schedule, NestedCallsBorrowDifferentOnes) {
  const Schedule* first = nullptr;
  {
    const Borrowed<Schedule> a, b;
    EXPECT_NE(&*a, &*b);
    first = &*a;
  }
  const Borrowed<Schedule> again, other;
  EXPECT_TRUE(&*again == first || &*other == first);
}

}  // namespace
}  // namespace moebius::schedule_test
