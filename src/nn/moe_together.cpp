// SPDX-License-Identifier: Apache-2.0
// A forward call that ranks make together (moe_forward.h). Every element is computed by one rank in
// the order of a single one; between the phases numbers are copied:
//
// clang-format off
//   kOutputs   gate and up for own intermediate columns | all gather rows | down and combine for own columns of y
//   kExperts   own experts whole | rows go to the owners of their columns | combine own columns of y
// clang-format on
//
// Routing is the same on every rank, so who sends how much is known and never travels.
#include <algorithm>
#include <cstring>

#include "nn/moe_forward.h"

namespace moebius {
namespace {

constexpr size_t kCombineTokens = 4;  // that a thread takes at a time
constexpr size_t kNoRow = SIZE_MAX;

}  // namespace

void MoeLayer::Forward::lay_out_together() {
  const MoeSchedule& s = *schedule_;
  const MoePlan& plan = layer_.plan_;
  const size_t ranks = plan.columns.size(), H = layer_.shape_.hidden, T = x_.rows;
  areas_.out_floats = arena_.add<size_t>(ranks);
  areas_.in_floats = arena_.add<size_t>(ranks);
  if (plan.together == MoeTogether::kOutputs) {
    size_t mine = 0, whole = 0, widest = 0;
    for (const Batch& b : s.batches) {
      widest = std::max(widest, b.rows * layer_.experts_[b.group].down.problem().K);
      mine += b.rows * layer_.experts_[b.group].up.problem().N;
      whole += b.rows * layer_.experts_[b.group].down.problem().K;
    }
    areas_.out = arena_.add<float>(mine);
    areas_.in = arena_.add<float>(whole);
    thread_.whole = arena_.add_per_thread<float>(widest);
    return;
  }
  const size_t items = T * routing_.slots, own = plan.columns[plan.place].size();
  areas_.out = arena_.add<float>(s.rows() * H);
  areas_.in = arena_.add<float>((items + T) * own);
  areas_.item_at = arena_.add<size_t>(items + T);
  areas_.shared_weight = arena_.add<float>(T);
  thread_.sums = arena_.add_per_thread<float>(own);
  thread_.order = arena_.add_per_thread<uint32_t>(routing_.slots);
}

// --- some outputs of every matrix ---

void MoeLayer::Forward::run_outputs() {
  const MoeSchedule& s = *schedule_;
  run_region(pool_, s.threads, [&](ThreadPool::Member& m) { region(m, !s.prepare_alone, false); });
  gather_intermediate();
  run_region(pool_, s.threads, [&](ThreadPool::Member& m) {
    Thread t = thread_areas(m.index());
    float* rows = arena_.of_thread(m.index(), thread_.whole);
    for (size_t b = next_batch_.take(); b < s.batches.size(); b = next_batch_.take()) {
      whole_rows(b, rows);
      down_panel(b, rows, t);
    }
    m.barrier();
    down_phase(m, t);
  });
}

void MoeLayer::Forward::gather_intermediate() {
  const MoeSchedule& s = *schedule_;
  const MoePlan& plan = layer_.plan_;
  const size_t ranks = plan.columns.size();
  size_t* floats = arena_[areas_.in_floats];
  std::fill_n(floats, ranks, 0);
  float* mine = arena_[areas_.out];
  for (const Batch& b : s.batches) {
    const Expert& e = layer_.experts_[b.group];
    const size_t n = b.rows * e.up.problem().N;
    std::copy_n(arena_[areas_.intermediate] + b.intermediate, n, mine);
    mine += n;
    for (size_t r = 0; r < ranks; ++r)
      floats[r] += b.rows * output_range(e.down.problem().K, ranks, r, plan.name).size();
  }
  exchange_->all_gather(arena_[areas_.out], {floats, ranks}, arena_[areas_.in]);
}

// The intermediate rows of a batch, out of every rank's columns of them.
void MoeLayer::Forward::whole_rows(size_t batch, float* rows) const noexcept {
  const MoeSchedule& s = *schedule_;
  const size_t ranks = layer_.plan_.columns.size();
  const auto inputs = [&](size_t b) {
    return layer_.experts_[s.batches[b].group].down.problem().K;
  };
  const size_t I = inputs(batch), count = s.batches[batch].rows;
  const float* part = arena_[areas_.in];
  for (size_t r = 0; r < ranks; part += arena_[areas_.in_floats][r], ++r) {
    const float* from = part;
    for (size_t b = 0; b < batch; ++b)
      from += s.batches[b].rows * output_range(inputs(b), ranks, r, {}).size();
    const Range cut = output_range(I, ranks, r, {});
    for (size_t m = 0; m < count; ++m, from += cut.size())
      std::memcpy(rows + m * I + cut.begin, from, cut.size() * sizeof(float));
  }
}

// --- whole experts ---

void MoeLayer::Forward::run_experts() {
  const MoeSchedule& s = *schedule_;
  const MoePlan& plan = layer_.plan_;
  const size_t ranks = plan.columns.size(), T = x_.rows;
  const MoeShape& shape = layer_.shape_;
  run_region(pool_, s.threads, [&](ThreadPool::Member& m) {
    region(m, !s.prepare_alone, false);
    Thread t = thread_areas(m.index());
    m.barrier();
    blocks_.share(
        shape.nodes, m.node(), s.down_block, [&](size_t node) { return shape.down_begin(node); },
        [&](size_t h0, size_t h1) { give_rows(h0, h1, t); });
  });
  for (size_t r = 0; r < ranks; ++r)
    arena_[areas_.out_floats][r] = s.rows() * plan.columns[r].size();
  plan_items();
  exchange_->all_to_all(arena_[areas_.out], {arena_[areas_.out_floats], ranks}, arena_[areas_.in],
                        {arena_[areas_.in_floats], ranks});
  WorkCounter next;
  run_region(pool_, s.threads, [&](ThreadPool::Member& m) {
    for (size_t t0 = next.take(kCombineTokens); t0 < T; t0 = next.take(kCombineTokens))
      for (size_t t = t0; t < std::min(T, t0 + kCombineTokens); ++t) combine_token(t, m.index());
  });
}

// Columns [h0, h1) of all rows, each where the owner of the column will get it from: for every rank
// its columns of row 0, of row 1, ...
void MoeLayer::Forward::give_rows(size_t h0, size_t h1, Thread& s) const noexcept {
  const size_t tile = schedule_->down_tile, rows = schedule_->rows();
  for (size_t i = 0; i < schedule_->batches.size(); ++i) {
    const Batch& b = schedule_->batches[i];
    const PackedSlot& slot = layer_.experts_[b.group].down;
    const uint8_t* panel = arena_[areas_.down_panels] + arena_[areas_.panel_at][i];
    for (size_t c = h0; c < h1; c += tile) {
      const size_t width = std::min(h1 - c, tile), ld = tile_stride(width);
      slot.kernel().gemm({&slot.view(), panel, b.rows, c, c + width, s.tile_up, ld, s.scratch});
      for (size_t m = 0; m < b.rows; ++m) {
        float* y = s.tile_up + m * ld;
        slot.finish_row(y, c, width);
        for (const Range& own : layer_.plan_.columns) {
          const size_t from = std::max(c, own.begin), to = std::min(c + width, own.end);
          if (from < to)
            std::memcpy(arena_[areas_.out] + rows * own.begin + (b.row0 + m) * own.size() +
                            (from - own.begin),
                        y + (from - c), (to - from) * sizeof(float));
        }
      }
    }
  }
}

// Rows that ranks send: of their experts in ascending id, then token, then slot; then those of the
// shared expert, token by token.
void MoeLayer::Forward::plan_items() {
  const MoePlan& plan = layer_.plan_;
  const size_t ranks = plan.columns.size(), T = x_.rows, items = T * routing_.slots,
               own = plan.columns[plan.place].size();
  std::vector<size_t> rows(plan.rank_of.size(), 0), at(plan.rank_of.size(), 0), of_rank(ranks, 0);
  for (size_t i = 0; i < items; ++i)
    if (routing_.ids[i] >= 0) ++rows[static_cast<size_t>(routing_.ids[i])];
  for (size_t e = 0; e < rows.size(); ++e) {
    at[e] = of_rank[plan.rank_of[e]];  // among the rows of its rank
    of_rank[plan.rank_of[e]] += rows[e];
  }
  std::vector<size_t> shared_at = of_rank;
  if (plan.shared)
    for (size_t t = 0; t < T; ++t) ++of_rank[t % ranks];
  std::vector<size_t> first(ranks, 0);
  for (size_t r = 0; r < ranks; ++r) {
    arena_[areas_.in_floats][r] = of_rank[r] * own;
    if (r + 1 < ranks) first[r + 1] = first[r] + of_rank[r];
  }
  size_t* item_at = arena_[areas_.item_at];
  for (size_t i = 0; i < items; ++i) {
    const int32_t id = routing_.ids[i];
    item_at[i] = kNoRow;
    if (id < 0) continue;
    const auto e = static_cast<size_t>(id);
    item_at[i] = (first[plan.rank_of[e]] + at[e]++) * own;
  }
  for (size_t t = 0; t < T && plan.shared; ++t)
    item_at[items + t] = (first[t % ranks] + shared_at[t % ranks]++) * own;
}

// The sum of a token in the order of a single rank: ascending expert, then slot, then the shared
// expert, then identity experts.
void MoeLayer::Forward::combine_token(size_t t, size_t thread) const noexcept {
  float* sums = arena_.of_thread(thread, thread_.sums);
  uint32_t* order = arena_.of_thread(thread, thread_.order);
  const MoePlan& plan = layer_.plan_;
  const size_t slots = routing_.slots;
  const Range& own = plan.columns[plan.place];
  const int32_t* ids = routing_.ids + t * slots;
  const size_t* item_at = arena_[areas_.item_at];
  const float* in = arena_[areas_.in];
  for (uint32_t k = 0; k < slots; ++k) {
    size_t at = k;
    for (; at > 0 && ids[order[at - 1]] > ids[k]; --at) order[at] = order[at - 1];
    order[at] = k;
  }
  std::fill_n(sums, own.size(), 0.0f);
  for (size_t k = 0; k < slots; ++k) {
    const size_t item = t * slots + order[k];
    if (item_at[item] == kNoRow) continue;
    const float weight = layer_.shape_.weighted_input ? 1.0f : routing_.weights[item];
    fma_row(sums, weight, in + item_at[item], own.size());
  }
  if (plan.shared)
    add_scaled_row(sums, arena_[areas_.shared_weight][t], in + item_at[x_.rows * slots + t],
                   own.size());
  if (routing_.zero_weights != nullptr && routing_.zero_weights[t] != 0.0f) {
    float* x = arena_.of_thread(thread, thread_.rows);
    load_row(x_, t, own.begin, own.size(), x);
    add_scaled_row(sums, routing_.zero_weights[t], x, own.size());
  }
  store_row(y_, t, 0, own.size(), sums);
}

}  // namespace moebius
