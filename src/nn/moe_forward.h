// SPDX-License-Identifier: Apache-2.0
// One forward call of a MoeLayer over at most a few thousand tokens. Internal to moe*.cpp.
//
//   rows     one per (token, slot) that has an expert here, sorted by expert, then token, then
//   slot; shared-expert rows last unit     up to unit_rows rows of one expert: they meet its
//   matrices together phase 0  prepare the rows of x (few tokens: by the caller, before the region)
//   phase 1  tasks (unit, columns of gate and up): products, activation; whoever finishes a unit
//   prepares its rows for down phase 2  tasks (columns of down): all units in order, combined into
//   the outputs of these columns
// so a call is one region with at most two barriers, and no result crosses threads but through a
// barrier or a unit's count.
#pragma once
#include <atomic>
#include <cstdint>

#include "nn/moe.h"

namespace moebius {

inline constexpr size_t kPrepareRows = 16;  // rows of x that are converted and prepared at a time

struct MoeLayer::Routing {
  const int32_t* ids;         // [T, slots] global expert ids, checked; -1: none
  const float* weights;       // [T, slots]
  const float* zero_weights;  // [T] or null
  size_t slots;
};

class MoeLayer::Forward {
 public:
  Forward(const MoeLayer& layer, const ConstRows& x, const Routing& routing, const Rows& y,
          ThreadPool& pool, const AmaxReduce* amax_reduce);
  void run();

 private:
  struct Unit {
    uint32_t expert, row0, rows, parts;
    size_t intermediate;  // offset in floats into intermediate_, for units cut into parts
    size_t panel;         // offset into down_panels_
  };
  struct Task {
    uint32_t unit, n0, n1;
  };
  struct Job {  // one row of x to prepare
    uint32_t token, way;
    int32_t row;   // its place among the rows of its class
    int32_t item;  // whose router weight multiplies it, or -1
  };
  struct Thread {  // areas of one thread's scratch
    float *rows, *weighted, *tile_gate, *tile_up, *intermediate, *accumulators;
    uint8_t *panel_gate, *panel_up, *prepared, *gemm;
    size_t unit;  // whose panels are made
  };

  // scheduling: moe_schedule.cpp
  void lay_out_schedule();
  void group_rows();
  void group_shared();
  void make_units();
  void add_units(uint32_t expert, size_t row0, size_t row1);
  void assign_rows();
  int32_t assign_row(size_t first_job, uint32_t token, uint32_t way, int32_t item);
  void make_tasks();
  void choose_blocks();
  void lay_out_data();
  Thread thread_areas(size_t index) const;

  // phases: moe_forward.cpp
  void region(ThreadPool::Member& m, bool prepare, bool second_half);
  void prepare_jobs(size_t begin, size_t end, Thread& s) const noexcept;
  void prepare_tokens(size_t begin, size_t end, Thread& s) const noexcept;
  void make_panels(size_t unit, Thread& s) const noexcept;
  void gate_up(const Task& task, Thread& s) noexcept;
  void finish_unit(size_t unit, const float* intermediate, Thread& s) noexcept;
  void down_panel(const Unit& u, const float* intermediate, Thread& s) noexcept;
  void scale_unit(size_t unit, Thread& s) noexcept;
  void down(size_t h0, size_t h1, Thread& s) const noexcept;
  void combine(const Unit& u, float* tile, size_t h0, size_t n, float* acc,
               size_t ld) const noexcept;
  void run_body(FunctionRef<void(ThreadPool::Member&)> body);

  const MoeLayer& layer_;
  ConstRows x_;
  Routing routing_;
  Rows y_;
  ThreadPool& pool_;
  const AmaxReduce* amax_reduce_;
  size_t T_, S_, H_, threads_;
  bool weighted_input_, uniform_, keep_intermediate_;

  WorkspaceLease schedule_, data_;
  // schedule
  size_t routed_ = 0, rows_ = 0;  // rows of routed experts; with those of the shared expert
  uint32_t *row_expert_ = nullptr, *row_token_ = nullptr;
  int32_t *row_item_ = nullptr, *item_row_ = nullptr, *gate_rows_ = nullptr, *up_rows_ = nullptr;
  float *row_weight_ = nullptr, *row_scale_ = nullptr;
  uint32_t* counts_ = nullptr;
  Unit* units_ = nullptr;
  std::atomic<uint32_t>* unit_left_ = nullptr;
  Task* tasks_ = nullptr;
  Job* jobs_ = nullptr;
  size_t *class_rows_ = nullptr, *class_offset_ = nullptr;
  size_t n_units_ = 0, n_tasks_ = 0, n_jobs_ = 0, task_limit_ = 0;
  size_t largest_unit_ = 0, tile_floats_ = 0, down_block_ = 0, down_tile_ = 0;
  // data
  uint8_t *prepared_ = nullptr, *down_panels_ = nullptr, *thread_base_ = nullptr;
  float* intermediate_ = nullptr;
  size_t intermediate_floats_ = 0, panel_bytes_ = 0, thread_bytes_ = 0;
  size_t at_rows_ = 0, at_weighted_ = 0, at_tile_gate_ = 0, at_tile_up_ = 0, at_intermediate_ = 0,
         at_accumulators_ = 0, at_panel_gate_ = 0, at_panel_up_ = 0, at_prepared_ = 0, at_gemm_ = 0;
  WorkCounter next_job_, next_task_, next_unit_, next_block_;
};

}  // namespace moebius
