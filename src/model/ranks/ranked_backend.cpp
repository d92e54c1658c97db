// SPDX-License-Identifier: Apache-2.0
#include "model/ranks/ranked_backend.h"

#include <algorithm>

#include "base/error.h"
#include "model/ranks/ranked_parts.h"

namespace moebius {

RankedBackend::RankedBackend(const Checkpoint& checkpoint, const ModelOptions& options,
                             ModelPart part)
    : ranks_(*part.ranks),
      ended_(std::make_shared<Ended>()),
      figures_(std::make_shared<Figures>()) {
  // Experts are counted only if ranks each have some of them.
  std::unique_ptr<ExpertMoves> moves;
  ExpertsOf experts_of;
  if (ranks_.split().ep > 1) {
    moves = std::make_unique<ExpertMoves>(checkpoint, part, options,
                                          [this](StepPlan plan) { tell(std::move(plan)); });
    experts_of = [m = moves.get()](size_t layer) { return m->expert_of(layer); };
  }
  runner_ = std::make_unique<StepRunner>(checkpoint, options, std::move(part), experts_of);
  moves_ = std::move(moves);
  if (moves_ != nullptr) moves_->set_layers(runner_->layer_set());
  kinds_ = runner_->kv_plan().kinds;
  const ModelPart& mine = runner_->part();
  for (size_t m = 0; m < ranks_.members() && leads(); ++m)
    for (size_t s = 0; s + 1 < mine.stages.size(); ++s) {
      const KvPlan other =
          plan_kv(checkpoint, mine.spec_of(m), options.kv(), runner_->layer_set().devices,
                  {mine.stages[s], mine.stages[s + 1]});
      for (size_t k = 0; k < kinds_.size(); ++k)
        kinds_[k].block_bytes = std::max(kinds_[k].block_bytes, other.kinds[k].block_bytes);
    }
}

RankedBackend::~RankedBackend() {
  if (!leads()) return;
  beats_.reset();
  if (moves_ != nullptr) moves_->save_loads();
  try {
    std::vector<float> nobodys;
    for (Batch& batch : batches_)
      if (batch.step != nullptr) land(*batch.step, nobodys, batch.stats);
    if (moves_ != nullptr) moves_->drop();
    tell({.kind = StepPlan::Kind::kStop});
    if (moves_ != nullptr) moves_->finish();
    ranks_.settle(0);
  } catch (const std::exception&) {  // the other ranks have ended already
  }
}

SequenceState RankedBackend::new_sequence() const {
  if (!leads()) return runner_->sequence(nullptr);
  return runner_->sequence(std::shared_ptr<const uint64_t>(new uint64_t(next_sequence_++),
                                                           [ended = ended_](const uint64_t* id) {
                                                             ended->add(*id);
                                                             delete id;
                                                           }));
}

// --- a step ---

void RankedBackend::measured(StepStats& stats, FunctionRef<void()> fn) {
  const uint64_t before = stats.nanoseconds;
  const auto exchange = static_cast<size_t>(Phase::kExchange);
  const double passed = static_cast<double>(stats.phases[exchange]), waited = ranks_.wait_seconds(),
               exchanged = ranks_.exchange_seconds();
  runner_->measured(stats, fn);
  RankFigures& f = figures_->mine;
  f.step += static_cast<double>(stats.nanoseconds - before) * 1e-9;
  f.exchange += (static_cast<double>(stats.phases[exchange]) - passed) * 1e-9 +
                ranks_.exchange_seconds() - exchanged;
  f.wait += ranks_.wait_seconds() - waited;
}

// Runs the layers. The first layer's rows come from tokens, which rank 0 embeds, or from the stage
// before.
void RankedBackend::run_layers(Pass& pass) {
  Step& step = pass.step;
  const Graph& graph = runner_->graph();
  const ModelPart& part = runner_->part();
  if (part.embeds) graph.embed(step);
  const RowSet h = graph.hidden(step, graph.first_device());
  step.phase = Phase::kExchange;
  if (!part.first_stage())
    h.device->on_host(step, {}, h, [&](HostRows, HostRows y) { ranks_.take_over(type(), y.data); });
  else if (ranks_.members() > 1)
    h.device->on_host(step, h, h, [&](HostRows x, HostRows y) {
      if (x.data.data() != y.data.data()) std::copy(x.data.begin(), x.data.end(), y.data.begin());
      ranks_.share(type(), y.data);
    });
  graph.run(step, pass.counts, [this] { ranks_.poll(); });
}

void RankedBackend::end_pass(Pass& pass, StepStats& stats) {
  runner_->end(pass, stats);
  if (moves_ == nullptr) return;
  std::span<const uint32_t> counts = pass.counts;
  const LayerSet& layers = runner_->layer_set();
  for (size_t i = layers.own.begin; i < layers.own.end; ++i) {
    if (!layers.layers[i]->block) continue;
    const size_t n = layers.layers[i]->block->experts->facts().experts;
    if (n > 0) moves_->count(i, counts.first(n));
    counts = counts.subspan(n);
  }
}

void RankedBackend::step(std::span<const Work> work, std::vector<float>& logits, StepStats& stats) {
  stats = {};
  stats.items = work.size();
  stats.rows = StepRunner::rows_of(work);
  logits.clear();
  if (stats.rows == 0) return;
  if (staged()) return land(*launch(work, stats), logits, stats);
  try {
    if (leads()) tell_step(work);
    measured(stats, [&] {
      const std::unique_ptr<Pass> pass = runner_->begin({work.begin(), work.end()});
      try {
        run_layers(*pass);
        const Graph& graph = runner_->graph();
        runner_->logits(*pass, graph.hidden(pass->step, graph.last_device()), logits);
        end_pass(*pass, stats);
      } catch (...) {
        runner_->abandon(*pass);
        throw;
      }
    });
    ranks_.observe_step(static_cast<double>(stats.nanoseconds) * 1e-9);
    end_step(stats);
  } catch (const std::exception& e) {  // the other ranks wait in the middle of the step
    ranks_.abort(e.what());
    throw;
  }
}

// Cuts a prompt into pieces, so that stages work at the same time: each piece is passed on while
// the next is computed. Rows do not depend on the cut, so results stay equal. States are kept where
// sequences need them and not after every piece.
std::vector<std::vector<RankedBackend::Work>> RankedBackend::groups_of(
    std::span<const Work> work) const {
  constexpr size_t kGroupRows = 128, kGroupsPerStage = 4;
  size_t T = 0;
  for (const Work& w : work) T += w.item.tokens.size();
  const bool states = std::any_of(kv_plan().kinds.begin(), kv_plan().kinds.end(),
                                  [](const KvKind& k) { return !k.cuttable; });
  const size_t count =
      states ? 1 : std::clamp<size_t>(T / kGroupRows, 1, kGroupsPerStage * ranks_.split().pp);
  const size_t most = (T + count - 1) / count;
  std::vector<std::vector<Work>> groups(1);
  size_t rows = 0;  // rows of the last group
  for (const Work& w : work) {
    const BatchItem& item = w.item;
    const size_t n = item.tokens.size();
    for (size_t at = 0; at < n;) {
      if (rows == most) {
        groups.emplace_back();
        rows = 0;
      }
      const size_t take = std::min(n - at, most - rows);
      Work piece = w;
      piece.item.position += at;
      piece.item.tokens = item.tokens.subspan(at, take);
      piece.item.length = std::max(item.length, item.position + n);
      if (at + take < n && item.logits == LogitsOf::kLast) piece.item.logits = LogitsOf::kNone;
      groups.back().push_back(piece);
      at += take;
      rows += take;
    }
  }
  return groups;
}

// Runs the layers of this stage. On the first stage, it prepares to receive rows from the last one.
std::shared_ptr<RankedBackend::Staged> RankedBackend::begin_stages(std::span<const Work> work,
                                                                   StepStats& stats) {
  auto step = std::make_shared<Staged>();
  const Graph& graph = runner_->graph();
  measured(stats, [&] {
    for (std::vector<Work>& group : groups_of(work)) {
      step->passes.push_back(runner_->begin(std::move(group)));
      Pass& pass = *step->passes.back();
      try {
        run_layers(pass);
        const RowSet h = graph.hidden(pass.step, graph.last_device());
        pass.step.phase = Phase::kExchange;
        h.device->on_host(pass.step, h, {},
                          [&](HostRows x, HostRows) { ranks_.pass_on(type(), x.data); });
        if (ranks_.stage() == 0) step->arrivals.push_back(ranks_.expect(type(), h.rows * h.cols));
        end_pass(pass, stats);
      } catch (...) {
        runner_->abandon(pass);
        throw;
      }
    }
  });
  return step;
}

// Computes, in the first stage, logits of the rows that came back from the last.
void RankedBackend::end_stages(Staged& step, std::vector<float>& logits, StepStats& stats) {
  logits.clear();
  std::vector<float> some;
  Device& ends = runner_->layer_set().devices.ends();
  measured(stats, [&] {
    for (size_t g = 0; g < step.passes.size(); ++g) {
      // The pass through the layers has ended, so the rows that came back form a pass of their own.
      const std::unique_ptr<Pass> back = runner_->begin_behind(*step.passes[g]);
      try {
        const RowSet h = runner_->graph().hidden(back->step, ends);
        back->step.phase = Phase::kExchange;
        ends.on_host(back->step, {}, h,
                     [&](HostRows, HostRows y) { ranks_.take_over(*step.arrivals[g], y.data); });
        runner_->logits(*back, h, step.passes.size() == 1 ? logits : some);
        runner_->end_behind(*back, stats);
      } catch (...) {
        runner_->abandon(*back);
        throw;
      }
      if (step.passes.size() > 1) logits.insert(logits.end(), some.begin(), some.end());
    }
  });
}

// Rank 0 begins a step here and ends it later; other steps may begin in between.
std::shared_ptr<RankedBackend::Staged> RankedBackend::launch(std::span<const Work> work,
                                                             StepStats& stats) {
  try {
    tell_step(work);
    std::shared_ptr<Staged> step = begin_stages(work, stats);
    end_step(stats);
    return step;
  } catch (const std::exception& e) {  // the other ranks wait in the middle of the step
    ranks_.abort(e.what());
    throw;
  }
}

void RankedBackend::land(Staged& step, std::vector<float>& logits, StepStats& stats) {
  try {
    if (ranks_.members() > 1) tell_blocks(StepPlan::Kind::kFinish, 0, 0, 0, 0);
    end_stages(step, logits, stats);
    ranks_.observe_step(static_cast<double>(stats.nanoseconds) * 1e-9);
  } catch (const std::exception& e) {
    ranks_.abort(e.what());
    throw;
  }
}

// --- calls ---

void RankedBackend::forward(std::span<const StepItem> items, std::vector<float>& logits) {
  const std::lock_guard lock(runner_->mutex());
  runner_->forward_by(items, logits,
                      [&](std::span<const Work> work, std::vector<float>& out, StepStats& stats) {
                        step(work, out, stats);
                      });
}

Backend::Ticket RankedBackend::submit(std::span<const BatchItem> items) {
  const std::lock_guard lock(runner_->mutex());
  runner_->check(items);
  batches_.reserve(batches_.size() + 1);
  Batch batch{next_ticket_, {items.begin(), items.end()}, nullptr, {}};
  if (batches_in_flight() > 1) {
    const std::vector<Work> work = runner_->work_of(items);
    batch.stats.items = work.size();
    batch.stats.rows = StepRunner::rows_of(work);
    batch.step = launch(work, batch.stats);
  }
  batches_.push_back(std::move(batch));
  return next_ticket_++;
}

// Runs batches in the order in which they were submitted. With several stages, the first has run
// them already.
void RankedBackend::collect(Ticket ticket, StepOutput& out) {
  const std::lock_guard lock(runner_->mutex());
  if (batches_.empty() || batches_.front().ticket != ticket)
    fail("batch {} is not the one to collect next", ticket);
  Batch batch = std::move(batches_.front());
  batches_.erase(batches_.begin());
  if (batch.step == nullptr) return step(runner_->work_of(batch.items), out.logits, out.stats);
  out.stats = std::move(batch.stats);
  land(*batch.step, out.logits, out.stats);
}

void RankedBackend::copy_block(size_t kind, BlockId from, BlockId to, size_t tokens) {
  {
    const std::lock_guard lock(runner_->mutex());
    if (leads()) tell_blocks(StepPlan::Kind::kCopy, kind, from, to, tokens);
  }
  runner_->copy_block(kind, from, to, tokens);
}

void RankedBackend::cut_block(size_t kind, BlockId id, size_t tokens) {
  {
    const std::lock_guard lock(runner_->mutex());
    if (leads()) tell_blocks(StepPlan::Kind::kCut, kind, id, id, tokens);
  }
  runner_->cut_block(kind, id, tokens);
}

void RankedBackend::commit_blocks(size_t kind, size_t count) {
  runner_->commit_blocks(kind, count);
  const std::lock_guard lock(runner_->mutex());
  if (leads()) tell_blocks(StepPlan::Kind::kCommit, kind, /*from=*/0, /*to=*/0, count);
}

void RankedBackend::trim_blocks(size_t kind, size_t count) {
  runner_->trim_blocks(kind, count);
  const std::lock_guard lock(runner_->mutex());
  if (leads()) tell_blocks(StepPlan::Kind::kTrim, kind, /*from=*/0, /*to=*/0, count);
}

}  // namespace moebius
