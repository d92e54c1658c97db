// SPDX-License-Identifier: Apache-2.0
// One forward call of a MoeLayer over one piece of its tokens, following its schedule (schedule.h).
// Internal to moe*.cpp.
//
// clang-format off
//   phase 0  prepare the rows of x (few tokens: by the caller, before the region)
//   phase 1  tasks (batch, columns of gate and up): products, activation; whoever finishes a batch prepares its
//            rows for down
//   phase 2  tasks (columns of down): all batches in order, combined into the outputs of these columns
// clang-format on
// A call is one region with at most two barriers; threads pass results to each other only through a
// barrier or through a batch's counter.
#pragma once
#include <atomic>
#include <cstdint>

#include <array>

#include "nn/call.h"
#include "nn/moe.h"

namespace moebius {

// Number of rows of x that are converted and prepared at a time.
inline constexpr size_t kPrepareRows = 16;

struct MoeLayer::Routing {
  const int32_t* ids;         // [T, slots] global expert ids, checked; -1: none
  const float* weights;       // [T, slots] weights of the experts
  const float* zero_weights;  // [T] weights of identity experts, or null
  size_t slots;
};

// Experts of a store that are multiplied together. A call with more experts than a part of the
// store's places runs one wave after the other, in ascending order of experts, so that sums have
// the order of one wave.
struct MoeLayer::Wave {
  ExpertStore::Call& call;
  float* sums = nullptr;  // [T, hidden] sums of the waves so far; null: there is one wave
  bool first = true, last = true;
};

// Computes where the three matrices of an expert lie in its memory, and its size if wanted.
std::array<size_t, 3> offsets_in_memory(const ExpertPlan& p, bool gated, size_t* bytes);

class MoeLayer::Forward {
 public:
  // wave: null if all experts are in the layer's memory.
  Forward(const MoeLayer& layer, const ConstRows& x, const Routing& routing, const Rows& y,
          ThreadPool& pool, const MoeOptions& options, const Wave* wave = nullptr);
  void run();

 private:
  struct Areas {  // scratch memory that all threads share
    Area<float> row_weight, row_scale, intermediate;
    Area<size_t> form_at;                    // [forms] offset of each form's prepared rows
    Area<size_t> panel_at;                   // [batches] offset of each batch's panel for down
    Area<std::atomic<uint32_t>> tasks_left;  // [batches] tasks of phase 1 that are not done
    Area<uint8_t> prepared, down_panels;
    // Areas of ranks that cut (MoeSplit). parts: intermediate rows of all ranks in order, including
    // this one's. The others: where each rank's part of a batch begins, and the bytes of each rank.
    Area<float> parts;
    Area<size_t> part_at, part_bytes;
    // Areas of ranks that spread. out: rows for the ranks that combine their columns; in: rows of
    // this rank's columns (its own last); shared_weight: weights of the shared expert's rows. The
    // others: where each item's row is among these, and bytes to and from each rank.
    Area<float> out, in, shared_weight;
    Area<size_t> item_at, out_bytes, in_bytes, out_at;
  };
  struct ThreadAreas {
    ThreadArea<float> rows, weighted, tile_gate, tile_up, intermediate, accumulators, sums, whole;
    ThreadArea<uint32_t> order;
    ThreadArea<uint8_t> panel_gate, panel_up, prepared, scratch;
  };
  struct Thread {  // scratch memory of one thread
    float *rows, *weighted, *tile_gate, *tile_up, *intermediate, *accumulators;
    uint8_t *panel_gate, *panel_up, *prepared, *scratch;
    size_t batch;  // batch whose panels this thread made last
  };

  // --- before threads start ---
  void lay_out();
  void lay_out_thread();
  void lay_out_split();
  void fill_weights();
  Thread thread_areas(size_t index) const;

  // --- phases ---
  void down_phase(const ThreadPool::Member& m, Thread& s) noexcept;
  void region(ThreadPool::Member& m, bool prepare, bool second_half);
  void prepare(size_t begin, size_t end, Thread& s) const noexcept;
  void prepare_tokens(size_t begin, size_t end, Thread& s) const noexcept;
  void prepare_jobs(size_t begin, size_t end, Thread& s) const noexcept;
  void make_panels(size_t batch, Thread& s) const noexcept;
  void gate_up(const Task& task, Thread& s) noexcept;
  void order_tasks();
  bool has(uint32_t expert) noexcept;  // waits for the expert; false: it could not be read
  void finish_batch(size_t batch, const float* intermediate, Thread& s) noexcept;
  void down_panel(size_t batch, const float* intermediate, Thread& s) noexcept;
  void scale_batch(size_t batch, Thread& s) noexcept;
  void down(size_t h0, size_t h1, Thread& s) const noexcept;
  void combine(const Batch& b, float* tile, size_t h0, size_t n, float* acc,
               size_t ld) const noexcept;
  // Physical experts that serve the ids; defined in moe_copies.cpp.
  std::span<const int32_t> physical_ids(size_t tokens);
  float* intermediate() const noexcept {  // intermediate rows of this rank's experts and outputs
    return layer_.plan_.split.cut == 1 ? arena_[areas_.intermediate] : own_parts_;
  }
  // --- several ranks (moe_split.cpp) ---
  void run_split();
  void plan_parts();
  void whole_rows(size_t batch, float* rows) const noexcept;
  void plan_items();
  void pass_rows();
  void give_columns(Range columns, WorkCounter& next, Thread& s, bool polls) const noexcept;
  void give_rows(size_t h0, size_t h1, Thread& s, bool polls) const noexcept;
  void combine_token(size_t t, size_t thread) const noexcept;
  size_t prepare_count() const {
    return layer_.shape_.uniform() ? x_.rows : schedule_->jobs.size();
  }

  const MoeLayer& layer_;
  const ConstRows x_;
  const Routing routing_;
  const Rows y_;
  ThreadPool& pool_;
  const AmaxReduce* amax_reduce_;
  MoeExchange* exchange_;
  const Wave* wave_;
  std::vector<uint32_t> task_order_;  // tasks of a wave: those of experts in memory come first
  std::atomic<bool> unread_{false};   // an expert of the wave could not be read
  Borrowed<MoeSchedule> schedule_;
  std::span<const int32_t> ids_;  // [T, slots] physical experts
  Arena arena_;
  // Beginning of this rank's rows in areas that hold all ranks' rows.
  float *own_parts_ = nullptr, *own_rows_ = nullptr;
  Areas areas_;
  ThreadAreas thread_;
  WorkCounter next_row_, next_batch_;
  NodeCounters tasks_, blocks_;
};

}  // namespace moebius
