// SPDX-License-Identifier: Apache-2.0
#include "model/run/step_runner.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "model/ranks.h"

namespace moebius {
namespace {

// Bytes that are allocated at a time for an engine's blocks.
constexpr size_t kEngineSlab = size_t{32} << 20;

size_t rows_asked(const BatchItem& item) {
  return item.logits == LogitsOf::kAll ? item.tokens.size() : item.logits == LogitsOf::kLast;
}

}  // namespace

StepRunner::StepRunner(const Checkpoint& checkpoint, const ModelOptions& options, ModelPart part,
                       ExpertsOf experts_of)
    : options_(options),
      part_(std::move(part)),
      packed_(open_packed(checkpoint, options)),
      layers_(DeviceSet(options.placement, options.pool, host_cpu(),
                        {options.type, options.policy, options.cuda, true, packed_})),
      kv_plan_(plan_kv(checkpoint, part_.spec, options.kv(), layers_.devices, part_.own)),
      predictor_plan_(options.predictor ? std::make_unique<PredictorPlan>(plan_predictor(
                                              checkpoint, options.kv(), layers_.devices, kv_plan_))
                                        : nullptr),
      graph_(layers_),
      queues_(options.placement.one_device() || options.ranks != nullptr ? 1 : 2),
      pool_(kv_plan_.devices, kEngineSlab) {
  for (size_t k = 0; k < kv_plan_.kinds.size(); ++k)
    if (!kv_plan_.kinds[k].cuttable) state_kind_ = k;
  LoadOptions load;
  load.policy = options.policy;
  load.act = options.act;
  load.x_type = options.type;
  load.progress = options.progress;
  load.tap = options.tap;
  LayerSetLoader(checkpoint, part_, kv_plan_, options.kv(), load, std::move(experts_of))
      .load(layers_);
  if (predictor_plan_ != nullptr)
    predictor_ = std::make_unique<Predictor>(std::move(*predictor_plan_), layers_, options.kv(),
                                             std::move(load));
  predictor_plan_ = nullptr;
  if (packed_ != nullptr) packed_->finish();
  const DevicePlacement& placed = options.placement;
  if (options.ranks == nullptr &&
      (!placed.divided.empty() || (!placed.cuda().empty() && !options.loads_file.empty())))
    places_ = std::make_unique<ExpertPlaces>(layers_, options);
}

StepRunner::~StepRunner() {
  for (const auto& b : batches_)
    if (b->done.valid()) b->done.wait();
  for (const auto& b : batches_)
    if (b->pass != nullptr) abandon(*b->pass);
}

std::vector<RankFigures> StepRunner::rank_figures(bool) { return {}; }

uint64_t StepRunner::loaded_bytes() const {
  return layers_.file_bytes + (predictor_ != nullptr ? predictor_->layers().file_bytes : 0);
}

uint64_t StepRunner::packed_bytes() const {
  return layers_.packed_bytes() + (predictor_ != nullptr ? predictor_->packed_bytes() : 0);
}

uint64_t StepRunner::embedding_bytes() const {
  return layers_.embedding != nullptr ? layers_.embedding->table_bytes() : 0;
}

bool StepRunner::keys_depend_on_length() const {
  const auto depends = [](const RopeSpec& r) {
    return r.scaling == RopeScaling::kLongRope || r.scaling == RopeScaling::kDynamic;
  };
  const DecoderSpec& s = part_.spec;
  return depends(s.rope) || std::any_of(s.other_ropes.begin(), s.other_ropes.end(), depends);
}

size_t StepRunner::keys_change_beyond() const {
  size_t beyond = SIZE_MAX;
  const auto look = [&](const RopeSpec& r) {
    if (r.scaling == RopeScaling::kLongRope)
      beyond = std::min(beyond, static_cast<size_t>(r.original_length));
  };
  look(part_.spec.rope);
  for (const RopeSpec& r : part_.spec.other_ropes) look(r);
  return beyond;
}

bool StepRunner::lost() const {
  if (places_ != nullptr && places_->broken()) return true;
  const std::vector<Device*>& all = layers_.devices.all();
  return std::any_of(all.begin(), all.end(), [](const Device* d) { return d->lost(); });
}

SequenceState StepRunner::sequence(std::shared_ptr<const uint64_t> id) const {
  return {kv_plan_.kinds, kv_plan_.devices, std::move(id)};
}

size_t StepRunner::rows_of(std::span<const Work> work) {
  size_t rows = 0;
  for (const Work& w : work) rows += w.item.tokens.size();
  return rows;
}

void StepRunner::check(std::span<const BatchItem> items) const {
  for (size_t i = 0; i < items.size(); ++i) {
    try {
      check(items[i]);
    } catch (const Error& e) {
      throw ItemError(e.what(), i);
    }
  }
}

void StepRunner::check(const BatchItem& item) const {
  if (item.tokens.empty()) fail("a step needs at least one token of every sequence");
  for (const int32_t t : item.tokens)
    if (t < 0 || static_cast<size_t>(t) >= layers_.vocab)
      fail("token {} is not in the vocabulary of {} tokens", t, layers_.vocab);
  if (item.drafts > 0 && (!drafts() || item.tokens.size() != 1 || item.logits != LogitsOf::kAll))
    fail("drafts follow one token of a model that makes them, with all logits");
  const size_t last = (item.position + item.tokens.size() + item.drafts - 1) / kBlockTokens;
  for (size_t k = 0; k < kv_plan_.kinds.size(); ++k) {
    const KvKind& kind = kv_plan_.kinds[k];
    const std::vector<BlockId>& table = item.tables->at(k);
    const size_t first = first_block_needed(kind, item.position);
    for (size_t i = first; i <= last; ++i)
      if (i >= table.size() || (table[i] == kNoBlock &&
                                (kind.cuttable || i == last || (i == first && item.position > 0))))
        fail("block {} of kind {} is missing for tokens {} to {}", i, kind.name, item.position,
             item.position + item.tokens.size() - 1);
  }
}

void StepRunner::make_room(const Work& work) {
  each_block(work.item, [&](size_t block, size_t, size_t) {
    for (size_t k = 0; k < kv_plan_.kinds.size(); ++k)
      if (const BlockId id = (*work.item.tables)[k][block]; id != kNoBlock)
        work.pool->commit(k, size_t{id} + 1);
  });
}

std::vector<StepRunner::Work> StepRunner::work_of(std::span<const BatchItem> items) {
  std::vector<Work> work;
  for (const BatchItem& item : items) {
    work.push_back({item, &pool_, 0});
    make_room(work.back());
  }
  return work;
}

// --- one step ---

std::vector<StateRun> StepRunner::states_of(const Work& work, size_t kind) const {
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

void StepRunner::keep_states(const Pass& pass) noexcept {
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

std::unique_ptr<StepRunner::Pass> StepRunner::begin(std::vector<Work> work, size_t queue) {
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

std::vector<uint32_t> StepRunner::rows_for_logits(Pass& pass) const {
  std::vector<uint32_t> rows;
  for (size_t i = 0; i < pass.work.size(); ++i) {
    const StepSequence& s = pass.step.sequences[i];
    for (size_t n = rows_asked(pass.work[i].item); n-- > 0;)
      rows.push_back(static_cast<uint32_t>(s.first_row + s.tokens - 1 - n));
  }
  pass.projected = !rows.empty();
  return rows;
}

void StepRunner::logits(Pass& pass, const RowSet& h, std::vector<float>& out) {
  graph_.logits(pass.step, h, rows_for_logits(pass), out);
}

void StepRunner::run(Pass& pass, StepOutput& out) {
  Step& step = pass.step;
  graph_.embed(step);
  graph_.run(step, pass.counts, nullptr);
  std::vector<CandidateNeed> needs;
  bool some = false;
  for (const Work& w : pass.work) {
    const size_t rows = rows_asked(w.item);
    needs.resize(needs.size() + rows);  // rows that ask for nothing
    if (rows > 0 && w.item.need) needs.back() = *w.item.need, some = true;
  }
  if (!some) needs.clear();
  graph_.logits(step, graph_.hidden(step, graph_.last_device()), rows_for_logits(pass), needs,
                out.logits, out.candidates);
  if (predictor_ != nullptr) predictor_->keep(step, graph_.normalized(step));
  layers_.wait(step);
}

void StepRunner::abandon(Pass& pass) noexcept { layers_.abandon(pass.step); }

void StepRunner::add_times(const Pass& pass, StepStats& stats) {
  for (size_t i = 0; i < profile_.size(); ++i) {
    stats.phases[i] += pass.step.times[i];
    profile_[i] += pass.step.times[i];
  }
}

std::unique_ptr<StepRunner::Pass> StepRunner::begin_behind(const Pass& pass) {
  auto behind = std::make_unique<Pass>();
  behind->work = pass.work;
  behind->unread = pass.unread;
  behind->step.rows = pass.step.rows;
  behind->step.sequences = pass.step.sequences;
  return behind;
}

void StepRunner::wait(Pass& pass) {
  layers_.wait(pass.step);
  if (packed_ != nullptr) packed_->end_step(pass.unread);
}

void StepRunner::end_behind(Pass& pass, StepStats& stats) {
  wait(pass);
  add_times(pass, stats);
  if (pass.projected && layers_.output != nullptr)
    stats.weight_bytes += layers_.output->packed_bytes();
}

void StepRunner::end(Pass& pass, StepStats& stats) {
  wait(pass);
  keep_states(pass);
  if (places_ != nullptr) places_->count(pass.counts);
  stats.kv_bytes += pass.step.kv_bytes;
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

void StepRunner::measured(StepStats& stats, FunctionRef<void()> fn) {
  const auto start = std::chrono::steady_clock::now();
  // Keeps the pool's threads awake, because a step is many short operations.
  std::vector<std::shared_ptr<void>> stays;
  for (Device* d : layers_.devices.all()) stays.push_back(d->stay());
  fn();
  stats.nanoseconds += static_cast<uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count());
}

void StepRunner::draft(std::span<Work> work, size_t queue, std::vector<Predictor::Sequence>& rows,
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

void StepRunner::step(std::vector<Work> work, size_t queue, StepOutput& out) {
  StepStats& stats = out.stats;
  stats = {};
  out.logits.clear(), out.candidates.clear(), out.drafts.clear();
  if (rows_of(work) == 0) return;
  std::vector<Predictor::Sequence> drafted;
  measured(stats, [&] {
    draft(work, queue, drafted, out);
    stats.items = work.size();
    stats.rows = rows_of(work);
    const std::unique_ptr<Pass> pass = begin(std::move(work), queue);
    try {
      run(*pass, out);
      end(*pass, stats);
    } catch (...) {
      abandon(*pass);
      throw;
    }
  });
}

void StepRunner::cut(const KvPool& pool, size_t kind, BlockId id, size_t tokens) const {
  layers_.cut(pool, kind, id, tokens);
  if (predictor_ != nullptr) predictor_->layers().cut(pool, kind, id, tokens);
}

void StepRunner::forward_by(std::span<const StepItem> items, std::vector<float>& logits,
                            RunStep run) {
  std::vector<Work> work;
  for (const StepItem& item : items) {
    item.state->reserve(item.tokens.size());
    work.push_back({{&item.state->tables_, item.state->length_, item.tokens,
                     item.all_logits ? LogitsOf::kAll : LogitsOf::kLast, item.length},
                    item.state->pool_.get(),
                    item.state->id_ != nullptr ? *item.state->id_ : 0});
    check(work.back().item);
  }
  try {
    run(work, logits, last_step_);
  } catch (...) {
    for (const StepItem& item : items)  // blocks after the new end are gone
      if (const size_t tail = item.state->length_ % kBlockTokens; tail != 0 && !lost())
        for (size_t k = 0; k < kv_plan_.kinds.size(); ++k)
          cut(*item.state->pool_, k, item.state->tables_[k][item.state->length_ / kBlockTokens],
              tail);
    throw;
  }
  for (const StepItem& item : items) item.state->commit(item.tokens.size());
}

void StepRunner::forward(std::span<const StepItem> items, std::vector<float>& logits) {
  const std::lock_guard lock(mutex_);
  if (queues_ > 1) complete_all();
  forward_by(items, logits,
             [&](std::span<const Work> work, std::vector<float>& out, StepStats& stats) {
               StepOutput made;
               step({work.begin(), work.end()}, 0, made);
               out = std::move(made.logits);
               stats = std::move(made.stats);
             });
  look_after_places();
}

}  // namespace moebius
