// SPDX-License-Identifier: Apache-2.0
// Announces rank 0's plans, and executes them on the other ranks.
#include "base/error.h"
#include "model/ranks/ranked_parts.h"

namespace moebius {

void RankedBackend::start_beats() {
  const double pause = ranks_.beat_seconds();
  beats_ = std::make_unique<Beats>(pause / 2, [this, pause] {
    const std::lock_guard lock(runner_->mutex());
    const auto now = std::chrono::steady_clock::now();
    const std::chrono::duration<double> idle = now - told_, old = now - beaten_;
    if (idle.count() >= pause / 2 || old.count() >= pause) beat();
  });
}

void RankedBackend::beat() {
  try {
    tell({});
    std::vector<RankFigures> all = ranks_.answer_beat(figures_->mine);
    beaten_ = told_;
    const std::lock_guard lock(figures_->mutex);
    figures_->all = std::move(all);
  } catch (const std::exception& e) {
    ranks_.abort(e.what());
  }
}

std::vector<RankFigures> RankedBackend::rank_figures(bool now) {
  if (!leads()) return {};
  if (now) {
    const std::lock_guard lock(runner_->mutex());
    beat();
  }
  const std::lock_guard lock(figures_->mutex);
  return figures_->all;
}

void RankedBackend::tell(StepPlan plan) {
  told_ = std::chrono::steady_clock::now();
  plan.serial = ++serial_;
  try {
    ranks_.announce(encode(plan), plan.serial);
  } catch (const std::exception& e) {  // it is unknown how much of the plan the others received
    ranks_.abort(e.what());
    throw;
  }
}

void RankedBackend::tell_step(std::span<const Work> work) {
  StepPlan plan{.kind = StepPlan::Kind::kStep, .ended = ended_->take()};
  for (const auto& [item, pool, sequence] : work)
    plan.items.push_back({sequence,
                          item.position,
                          item.length,
                          item.logits,
                          {item.tokens.begin(), item.tokens.end()},
                          *item.tables});
  tell(std::move(plan));
}

void RankedBackend::tell_blocks(StepPlan::Kind kind, size_t block_kind, uint64_t from, uint64_t to,
                                uint64_t count) {
  tell({.kind = kind, .block_kind = block_kind, .from = from, .to = to, .count = count});
}

void RankedBackend::run_plan(StepPlan plan) {
  const auto id = [](uint64_t v) { return static_cast<BlockId>(v); };
  if (plan.serial != ++serial_) fail("step plan {}; expected number {}", plan.serial, serial_);
  ranks_.begin_step(plan.serial);
  if (moves_ != nullptr && moves_->run_plan(plan)) return;
  const bool of_blocks = plan.kind >= StepPlan::Kind::kCopy && plan.kind <= StepPlan::Kind::kTrim;
  if (of_blocks && plan.block_kind >= kv_plan().kinds.size())
    fail("step plan {}: blocks of kind {} of {}", plan.serial, plan.block_kind,
         kv_plan().kinds.size());
  switch (plan.kind) {
    case StepPlan::Kind::kCopy:
      return copy_block(plan.block_kind, id(plan.from), id(plan.to), plan.count);
    case StepPlan::Kind::kCut:
      return cut_block(plan.block_kind, id(plan.from), plan.count);
    case StepPlan::Kind::kCommit:
      return commit_blocks(plan.block_kind, plan.count);
    case StepPlan::Kind::kTrim:
      return trim_blocks(plan.block_kind, plan.count);
    case StepPlan::Kind::kBeat:
      ranks_.answer_beat(figures_->mine);
      return;
    case StepPlan::Kind::kStop:
    case StepPlan::Kind::kLoads:
    case StepPlan::Kind::kMove:
    case StepPlan::Kind::kSwitch:
    case StepPlan::Kind::kDrop:
      return;
    case StepPlan::Kind::kStep:
      return run_plan_step(std::make_shared<StepPlan>(std::move(plan)));
    case StepPlan::Kind::kFinish:
      break;
  }
  if (ranks_.stage() != 0) return;
  if (begun_.empty()) fail("step plan {}: ends a step, and none has begun", plan.serial);
  const std::shared_ptr<Staged> step = std::move(begun_.front());
  begun_.pop_front();
  std::vector<float> logits;
  StepStats stats;
  end_stages(*step, logits, stats);
}

void RankedBackend::run_plan_step(std::shared_ptr<const StepPlan> plan) {
  const std::lock_guard lock(runner_->mutex());
  for (const uint64_t gone : plan->ended) sequences_.erase(gone);
  std::vector<Work> work;
  for (const StepPlan::Item& item : plan->items) {
    std::unique_ptr<KvPool>& own = sequences_[item.sequence];
    if (own == nullptr && item.sequence != 0)
      own = std::make_unique<KvPool>(runner_->kv_plan().devices, 1);
    KvPool* pool = item.sequence == 0 ? &runner_->engine_pool() : own.get();
    work.push_back({{&item.tables, item.position, item.tokens, item.logits, item.length},
                    pool,
                    item.sequence});
    runner_->check(work.back().item);
    runner_->make_room(work.back());
  }
  std::vector<float> logits;
  StepStats stats;
  if (!staged()) return step(work, logits, stats);
  std::shared_ptr<Staged> step = begin_stages(work, stats);
  ranks_.observe_step(static_cast<double>(stats.nanoseconds) * 1e-9);
  end_step(stats);
  if (ranks_.stage() != 0) return;
  step->plan = std::move(plan);
  begun_.push_back(std::move(step));
}

void RankedBackend::follow() {
  for (;;) {
    StepPlan plan = decode_step_plan(ranks_.next_plan());
    if (plan.kind == StepPlan::Kind::kStop) break;
    run_plan(std::move(plan));
  }
  if (moves_ != nullptr) moves_->finish();
  ranks_.settle(0);
}

}  // namespace moebius
