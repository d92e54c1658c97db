// SPDX-License-Identifier: Apache-2.0
#include "model/run/pass_runner.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "base/error.h"
#include "base/file.h"

namespace moebius {
namespace {

size_t rows_asked(const BatchItem& item) {
  return item.logits == LogitsOf::kAll ? item.tokens.size() : item.logits == LogitsOf::kLast;
}

}  // namespace

PassRunner::PassRunner(const Checkpoint& checkpoint, const ModelOptions& options, ModelPart part,
                       ExpertsOf experts_of)
    : options_(options),
      part_(std::move(part)),
      packed_(open_packed(checkpoint, options)),
      experts_(options.expert_bytes.value_or(0) == 0
                   ? nullptr
                   : std::make_shared<ExpertStore>(*options.expert_bytes, options.expects_experts)),
      layers_(DeviceSet(options.placement, options.pool, host_cpu(),
                        {options.type, options.policy, options.gpu, true, packed_, experts_})),
      kv_plan_(plan_kv(checkpoint, part_.spec, options.kv(), layers_.devices, part_.own)),
      graph_(layers_) {
  std::unique_ptr<PredictorPlan> plan;  // it changes the plan of blocks, by which layers are loaded
  if (options.predictor)
    plan = std::make_unique<PredictorPlan>(
        plan_predictor(checkpoint, options.kv(), layers_.devices, kv_plan_));
  for (size_t k = 0; k < kv_plan_.kinds.size(); ++k)
    if (!kv_plan_.kinds[k].cuttable) state_kind_ = k;
  LayerLoadOptions load;
  load.policy = options.policy;
  load.act = options.act;
  load.x_type = options.type;
  load.progress = options.progress;
  load.tap = options.tap;
  load.shortlist = options.shortlist.value_or(false);
  LayerSetLoader(checkpoint, part_, kv_plan_, options.kv(), load, std::move(experts_of))
      .load(layers_);
  load.shortlist = false;
  if (plan != nullptr)
    predictor_ =
        std::make_unique<Predictor>(std::move(*plan), layers_, options.kv(), std::move(load));
  if (packed_ != nullptr) packed_->finish();
  if (experts_ != nullptr) experts_->open(packed_ != nullptr ? packed_->bytes() : 0);
  for (const SafetensorsFile& f : checkpoint.store().files())  // headers and weights of one file
    if (f.file() != nullptr && path_exists(f.path())) f.file()->check_unchanged();
}

size_t PassRunner::rows_of(std::span<const Work> work) {
  size_t rows = 0;
  for (const Work& w : work) rows += w.item.tokens.size();
  return rows;
}

void PassRunner::make_room(const Work& work) {
  each_block(work.item, [&](size_t block, size_t, size_t) {
    for (size_t k = 0; k < kv_plan_.kinds.size(); ++k)
      if (const BlockId id = (*work.item.tables)[k][block]; id != kNoBlock)
        work.pool->commit(k, size_t{id} + 1);
  });
}

std::vector<StateRun> PassRunner::states_of(const Work& work, size_t kind) const {
  const BatchItem& item = work.item;
  const std::vector<BlockId>& table = (*item.tables)[kind];
  const size_t source = item.position > 0 ? (item.position - 1) / kBlockTokens : SIZE_MAX;
  BlockId from = kNoBlock;
  size_t version = 0;
  if (item.position > 0) {
    from = table[source];
    const KvPool::Lengths lengths = work.pool->lengths(from);
    while (version < 2 && lengths[version] != item.position) ++version;
    if (version == 2)
      fail("block {} has no state for a sequence of {} tokens", source, item.position);
  }
  std::vector<StateRun> runs;
  each_block(item, [&](size_t block, size_t begin, size_t end) {
    const size_t written = block == source ? 1 - version : 0;
    if (table[block] != kNoBlock) work.pool->reserve_lengths(table[block]);
    runs.push_back(
        {begin - item.position, end - item.position, from, table[block], version, written});
  });
  return runs;
}

void PassRunner::keep_states(const Pass& pass) noexcept {
  if (state_kind_ == SIZE_MAX) return;
  for (size_t i = 0; i < pass.work.size(); ++i) {
    const Work& work = pass.work[i];
    for (const StateRun& run : pass.step.sequences[i].states) {
      if (run.to == kNoBlock) continue;
      const bool beside = run.to == run.from;  // the state that was read stays there
      KvPool::Lengths lengths{KvPool::kNoState, KvPool::kNoState};
      if (beside) lengths[run.from_version] = work.item.position;
      lengths[run.to_version] = work.item.position + run.end;
      work.pool->set_lengths(run.to, lengths);
    }
  }
}

std::unique_ptr<PassRunner::Pass> PassRunner::begin(std::vector<Work> work, size_t queue) {
  auto pass = std::make_unique<Pass>();
  Step& step = pass->step;
  step.queue = queue;
  for (const Work& w : work) {
    const BatchItem& item = w.item;
    const size_t end = item.position + item.tokens.size();
    StepSequence s{item.tables, w.pool, item.position, item.tokens.size(), step.rows, {}};
    if (state_kind_ != SIZE_MAX) s.states = states_of(w, state_kind_);
    step.sequences.push_back(std::move(s));
    step.rows += item.tokens.size();
    step.longest = std::max(step.longest, end);
    for (size_t i = 0; i < item.tokens.size(); ++i) {
      step.tokens.push_back(item.tokens[i]);
      step.positions.push_back(item.position + i);
      step.lengths.push_back(std::max(item.length, end));
    }
  }
  pass->work = std::move(work);
  pass->counts.assign(graph_.counted_experts(), 0);
  if (packed_ != nullptr) pass->unread = packed_->begin_step();
  for (Device* d : layers_.devices.all()) d->begin(step);
  return pass;
}

std::vector<uint32_t> PassRunner::rows_for_logits(Pass& pass) const {
  std::vector<uint32_t> rows;
  for (size_t i = 0; i < pass.work.size(); ++i) {
    const StepSequence& s = pass.step.sequences[i];
    for (size_t n = rows_asked(pass.work[i].item); n-- > 0;)
      rows.push_back(static_cast<uint32_t>(s.first_row + s.tokens - 1 - n));
  }
  pass.projected = !rows.empty();
  return rows;
}

void PassRunner::logits(Pass& pass, const RowSet& h, std::vector<float>& out) {
  graph_.logits(pass.step, h, rows_for_logits(pass), out);
}

Step& PassRunner::last_step_of(Pass& pass, const std::vector<uint32_t>& asked) const {
  Step &step = pass.step, &last = pass.last;
  if (asked.size() == step.rows || predictor_ != nullptr || options_.tap != nullptr ||
      !options_.placement.gpu().empty() || !graph_.cuts_last_block())
    return step;
  last.queue = step.queue;
  last.rows = asked.size();
  for (const uint32_t r : asked) {
    last.tokens.push_back(step.tokens[r]);
    last.positions.push_back(step.positions[r]);
    last.lengths.push_back(step.lengths[r]);
  }
  return last;
}

void PassRunner::run(Pass& pass, StepOutput& out) {
  Step& step = pass.step;
  std::vector<uint32_t> asked = rows_for_logits(pass);
  Step& last = last_step_of(pass, asked);
  out.stats.last_rows = last.rows;
  graph_.embed(step);
  graph_.run(step, pass.counts, nullptr, &last == &step ? nullptr : &last, asked);
  if (&last != &step) std::iota(asked.begin(), asked.end(), 0u);
  std::vector<CandidateNeed> needs;
  std::vector<const ListTokens*> few;
  bool some = false;
  for (const Work& w : pass.work) {
    const size_t rows = rows_asked(w.item);
    needs.resize(needs.size() + rows);  // rows that ask for nothing
    if (rows > 0 && w.item.need) needs.back() = *w.item.need, some = true;
    if (rows == 1 && w.item.few) few.push_back(&w.item.few);
  }
  if (!some) needs.clear();
  if (few.size() != asked.size()) few.clear();  // a row needs all logits
  graph_.logits(last, graph_.hidden(last, graph_.last_device()), std::move(asked), needs, few,
                out.logits, out.candidates);
  if (predictor_ != nullptr) predictor_->keep(step, graph_.normalized(step));
  layers_.wait(step);
}

void PassRunner::abandon(Pass& pass) noexcept { layers_.abandon(pass.step); }

void PassRunner::add_times(const Pass& pass, StepStats& stats) {
  for (size_t i = 0; i < profile_.size(); ++i) {
    const uint64_t time = pass.step.times[i] + pass.last.times[i];
    stats.phases[i] += time;
    profile_[i] += time;
  }
}

std::unique_ptr<PassRunner::Pass> PassRunner::begin_behind(const Pass& pass) {
  auto behind = std::make_unique<Pass>();
  behind->work = pass.work;
  behind->unread = pass.unread;
  behind->step.rows = pass.step.rows;
  behind->step.sequences = pass.step.sequences;
  return behind;
}

void PassRunner::wait(Pass& pass) {
  layers_.wait(pass.step);
  if (packed_ != nullptr) packed_->end_step(pass.unread);
}

void PassRunner::end_behind(Pass& pass, StepStats& stats) {
  wait(pass);
  add_times(pass, stats);
  if (pass.projected && layers_.output != nullptr)
    stats.weight_bytes += layers_.output->packed_bytes();
}

void PassRunner::end(Pass& pass, StepStats& stats) {
  wait(pass);
  keep_states(pass);
  stats.kv_bytes += pass.step.kv_bytes;
  if (experts_ != nullptr) stats.experts = experts_->stats();
  add_times(pass, stats);
  stats.expert_rows.resize(pass.counts.size());
  size_t at = 0;
  for (size_t i = part_.own.begin; i < part_.own.end; ++i) {
    const GraphLayer& layer = *layers_.layers[i];
    size_t used = 0;
    for (const size_t until = at + layer.experts(); at < until; ++at) {
      used += pass.counts[at] > 0;
      stats.expert_rows[at] += pass.counts[at];
    }
    stats.weight_bytes += layer.read_bytes(used);
  }
  if (pass.projected && layers_.output != nullptr)
    stats.weight_bytes += layers_.output->packed_bytes();
}

void PassRunner::measured(StepStats& stats, FunctionRef<void()> fn) {
  const auto start = std::chrono::steady_clock::now();
  // Keeps the pool's threads awake, because a step is many short operations.
  std::vector<std::shared_ptr<void>> stays;
  for (Device* d : layers_.devices.all()) stays.push_back(d->stay());
  fn();
  stats.nanoseconds += static_cast<uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count());
}

void PassRunner::draft(std::span<Work> work, size_t queue, std::vector<Predictor::Sequence>& rows,
                       StepOutput& out) const {
  for (const Work& w : work)
    if (w.item.drafts > 0)
      rows.push_back({w.item.tables,
                      w.pool,
                      w.item.position,
                      w.item.length,
                      w.item.drafts,
                      {w.item.tokens[0]}});
  if (rows.empty()) return;
  const auto start = std::chrono::steady_clock::now();
  out.stats.weight_bytes += predictor_->draft(rows, queue);
  size_t next = 0;
  for (Work& w : work) {
    if (w.item.drafts == 0) continue;
    const std::vector<int32_t>& tokens = rows[next++].tokens;
    out.drafts.insert(out.drafts.end(), tokens.begin() + 1, tokens.end());
    w.item.tokens = tokens;
    w.item.drafts = 0;
  }
  out.stats.draft_nanoseconds = static_cast<uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count());
}

void PassRunner::cut(const KvPool& pool, size_t kind, BlockId id, size_t tokens) const {
  layers_.cut(pool, kind, id, tokens);
  if (predictor_ != nullptr) predictor_->layers().cut(pool, kind, id, tokens);
}

}  // namespace moebius
