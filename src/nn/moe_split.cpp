// SPDX-License-Identifier: Apache-2.0
// Runs a forward call that ranks make together (moe_forward.h). Every element is computed by one
// rank in the order of a single one; between the phases numbers are copied:
//
// clang-format off
//   cut      gate and up for own intermediate columns | all gather rows | down for own outputs
//   spread   own experts | rows go to the owners of their columns, first those for others | combine own columns of y
// clang-format on
//
// Routing is the same on every rank, so who sends how much is known and never travels.
#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "nn/moe_forward.h"

namespace moebius {
namespace {

constexpr size_t kCombineTokens = 4;  // tokens that a thread takes at a time
constexpr size_t kNoRow = SIZE_MAX;

}  // namespace

void MoeLayer::Forward::lay_out_split() {
  const MoeSchedule& s = *schedule_;
  const MoeSplit& t = layer_.plan_.split;
  const size_t T = x_.rows;
  if (t.cut > 1) {
    size_t floats = 0, widest = 0;
    for (const Batch& b : s.batches) {
      const size_t I = layer_.experts_[b.group].down.problem().K;
      widest = std::max(widest, b.rows * I);
      for (size_t r = 0; r < t.cut; ++r) floats += b.rows * output_range(I, t.cut, r, {}).size();
    }
    areas_.parts = arena_.add<float>(floats);
    areas_.part_at = arena_.add<size_t>(t.cut * s.batches.size());
    areas_.part_bytes = arena_.add<size_t>(t.cut);
    thread_.whole = arena_.add_per_thread<float>(widest);
  }
  if (t.spread == 1) return;
  const size_t items = T * routing_.slots, own = t.columns[t.spread_place].size();
  areas_.out = arena_.add<float>(s.rows() * (t.outputs[t.cut_place].size() - own));
  areas_.in = arena_.add<float>((items + T) * own);
  areas_.item_at = arena_.add<size_t>(items + T);
  areas_.shared_weight = arena_.add<float>(T);
  areas_.out_bytes = arena_.add<size_t>(t.spread);
  areas_.in_bytes = arena_.add<size_t>(t.spread);
  areas_.out_at = arena_.add<size_t>(t.spread);
  thread_.sums = arena_.add_per_thread<float>(own);
  thread_.order = arena_.add_per_thread<uint32_t>(routing_.slots);
}

void MoeLayer::Forward::plan_parts() {
  const MoeSchedule& s = *schedule_;
  const MoeSplit& t = layer_.plan_.split;
  size_t at = 0;
  for (size_t r = 0; r < t.cut; ++r) {
    const size_t first = at;
    if (r == t.cut_place) own_parts_ = arena_[areas_.parts] + first;
    for (size_t b = 0; b < s.batches.size(); ++b) {
      const size_t I = layer_.experts_[s.batches[b].group].down.problem().K;
      arena_[areas_.part_at][r * s.batches.size() + b] = at;
      at += s.batches[b].rows * output_range(I, t.cut, r, {}).size();
    }
    arena_[areas_.part_bytes][r] = (at - first) * sizeof(float);
  }
}

void MoeLayer::Forward::run_split() {
  const MoeSchedule& s = *schedule_;
  const MoeSplit& t = layer_.plan_.split;
  if (t.cut > 1) plan_parts();
  if (t.spread > 1) plan_items();
  run_region(pool_, s.threads, [&](ThreadPool::Member& m) { region(m, !s.prepare_alone, false); });
  if (t.cut > 1) {
    exchange_->all_gather(own_parts_, {arena_[areas_.part_bytes], t.cut}, arena_[areas_.parts]);
    run_region(pool_, s.threads, [&](ThreadPool::Member& m) {
      Thread own = thread_areas(m.index());
      float* rows = arena_.of_thread(m.index(), thread_.whole);
      for (size_t b = next_batch_.take(); b < s.batches.size(); b = next_batch_.take()) {
        whole_rows(b, rows);
        down_panel(b, rows, own);
      }
      if (t.spread > 1) return;
      m.barrier();
      down_phase(m, own);
    });
  }
  if (t.spread > 1) pass_rows();
}

// Gathers the intermediate rows of a batch from the columns of every rank.
void MoeLayer::Forward::whole_rows(size_t batch, float* rows) const noexcept {
  const MoeSchedule& s = *schedule_;
  const size_t ranks = layer_.plan_.split.cut,
               I = layer_.experts_[s.batches[batch].group].down.problem().K,
               count = s.batches[batch].rows;
  for (size_t r = 0; r < ranks; ++r) {
    const float* from = arena_[areas_.parts] + arena_[areas_.part_at][r * s.batches.size() + batch];
    const Range cut = output_range(I, ranks, r, {});
    for (size_t m = 0; m < count; ++m, from += cut.size())
      std::memcpy(rows + m * I + cut.begin, from, cut.size() * sizeof(float));
  }
}

// --- ranks that spread experts ---

// Plans the rows that ranks send: rows of their experts in ascending physical number, then token,
// then slot; then rows of the shared expert, token by token. This rank's own rows come last.
void MoeLayer::Forward::plan_items() {
  const MoePlan& plan = layer_.plan_;
  const MoeSplit& t = plan.split;
  const size_t ranks = t.spread, T = x_.rows, items = T * routing_.slots,
               own = t.columns[t.spread_place].size(), sent = schedule_->rows();
  std::vector<size_t> rows(t.rank_of.size(), 0), at(t.rank_of.size(), 0), of_rank(ranks, 0);
  for (size_t i = 0; i < items; ++i)
    if (ids_[i] >= 0) ++rows[static_cast<size_t>(ids_[i])];
  for (size_t e = 0; e < rows.size(); ++e) {
    at[e] = of_rank[t.rank_of[e]];  // place among the rows of its rank
    of_rank[t.rank_of[e]] += rows[e];
  }
  std::vector<size_t> shared_at = of_rank, first(ranks, 0);
  if (plan.shared)
    for (size_t i = 0; i < T; ++i) ++of_rank[i % ranks];
  size_t in_rows = 0, out_floats = 0;
  for (size_t r = 0; r < ranks; ++r) {
    const bool here = r == t.spread_place;
    first[r] = in_rows;
    if (!here) in_rows += of_rank[r];
    arena_[areas_.out_at][r] = out_floats;
    if (!here) out_floats += sent * t.columns[r].size();
    arena_[areas_.in_bytes][r] = here ? 0 : of_rank[r] * own * sizeof(float);
    arena_[areas_.out_bytes][r] = here ? 0 : sent * t.columns[r].size() * sizeof(float);
  }
  first[t.spread_place] = in_rows;
  own_rows_ = arena_[areas_.in] + in_rows * own;
  size_t* item_at = arena_[areas_.item_at];
  for (size_t i = 0; i < items; ++i) {
    item_at[i] = kNoRow;
    if (ids_[i] < 0) continue;
    const auto e = static_cast<size_t>(ids_[i]);
    item_at[i] = (first[t.rank_of[e]] + at[e]++) * own;
  }
  for (size_t i = 0; i < T && plan.shared; ++i)
    item_at[items + i] = (first[i % ranks] + shared_at[i % ranks]++) * own;
}

// Computes rows for other ranks first: they travel while this rank computes its own.
void MoeLayer::Forward::pass_rows() {
  const MoeSplit& t = layer_.plan_.split;
  const size_t step = layer_.shape_.down.n_step, first = t.outputs[t.cut_place].begin,
               N = t.outputs[t.cut_place].size();
  const Range& mine = t.columns[t.spread_place];
  // Columns of down that this rank alone needs, at steps where kernels can cut; few or none if it
  // has few.
  Range own{round_up(mine.begin - first, step), (mine.end - first) / step * step};
  if (mine.end - first == N) own.end = N;
  own.end = std::max(own.begin, own.end);
  WorkCounter below, above, inside, tokens;
  const size_t threads = schedule_->threads;
  run_region(pool_, threads, [&](ThreadPool::Member& m) {
    Thread s = thread_areas(m.index());
    give_columns({0, std::min(own.begin, N)}, below, s, /*polls=*/false);
    give_columns({own.end, N}, above, s, /*polls=*/false);
  });
  exchange_->start_exchange(arena_[areas_.out], {arena_[areas_.out_bytes], t.spread},
                            arena_[areas_.in], {arena_[areas_.in_bytes], t.spread});
  run_region(pool_, threads, [&](ThreadPool::Member& m) {
    Thread s = thread_areas(m.index());
    give_columns(own, inside, s, m.index() == 0);
  });
  exchange_->finish_exchange();
  run_region(pool_, threads, [&](ThreadPool::Member& m) {
    for (size_t t0 = tokens.take(kCombineTokens); t0 < x_.rows; t0 = tokens.take(kCombineTokens))
      for (size_t i = t0; i < std::min(x_.rows, t0 + kCombineTokens); ++i)
        combine_token(i, m.index());
  });
}

void MoeLayer::Forward::give_columns(Range columns, WorkCounter& next, Thread& s,
                                     bool polls) const noexcept {
  const size_t block = schedule_->down_block;
  for (size_t h = columns.begin + next.take(block); h < columns.end;
       h = columns.begin + next.take(block))
    give_rows(h, std::min(columns.end, h + block), s, polls);
}

// Writes columns [h0, h1) of all rows to where their owners fetch them: for each rank its columns
// of row 0, then of row 1, ...
void MoeLayer::Forward::give_rows(size_t h0, size_t h1, Thread& s, bool polls) const noexcept {
  const MoeSplit& t = layer_.plan_.split;
  const size_t tile = schedule_->down_tile, first = t.outputs[t.cut_place].begin;
  for (size_t i = 0; i < schedule_->batches.size(); ++i) {
    const Batch& b = schedule_->batches[i];
    const PackedSlot& slot = layer_.experts_[b.group].down;
    const uint8_t* panel = arena_[areas_.down_panels] + arena_[areas_.panel_at][i];
    if (polls) exchange_->poll();
    for (size_t c = h0; c < h1; c += tile) {
      const size_t width = std::min(h1 - c, tile), ld = tile_stride(width);
      slot.kernel().gemm({&slot.view(), panel, b.rows, c, c + width, s.tile_up, ld, s.scratch});
      for (size_t m = 0; m < b.rows; ++m) slot.finish_row(s.tile_up + m * ld, c, width);
      for (size_t r = 0; r < t.spread; ++r) {
        const Range own{t.columns[r].begin - first, t.columns[r].end - first};
        const size_t from = std::max(c, own.begin), to = std::min(c + width, own.end);
        if (from >= to) continue;
        float* base =
            r == t.spread_place ? own_rows_ : arena_[areas_.out] + arena_[areas_.out_at][r];
        for (size_t m = 0; m < b.rows; ++m)
          std::memcpy(base + (b.row0 + m) * own.size() + (from - own.begin),
                      s.tile_up + m * ld + (from - c), (to - from) * sizeof(float));
      }
    }
  }
}

// Adds up a token in the order of a single rank: ascending expert, then slot, then the shared
// expert, then identity experts.
void MoeLayer::Forward::combine_token(size_t t, size_t thread) const noexcept {
  float* sums = arena_.of_thread(thread, thread_.sums);
  uint32_t* order = arena_.of_thread(thread, thread_.order);
  const MoePlan& plan = layer_.plan_;
  const size_t slots = routing_.slots;
  const Range& own = plan.split.columns[plan.split.spread_place];
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
