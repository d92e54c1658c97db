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

}  // namespace

StepRunner::StepRunner(const Checkpoint& checkpoint, const ModelOptions& options, ModelPart part,
                       ExpertsOf experts_of)
    : PassRunner(checkpoint, options, std::move(part), std::move(experts_of)),
      queues_(options.placement.one_device() || options.ranks != nullptr ? 1 : 2),
      pool_(kv_plan_.devices, kEngineSlab) {
  const DevicePlacement& placed = options.placement;
  if (options.ranks == nullptr &&
      (!placed.divided.empty() || (!placed.gpu().empty() && !options.loads_file.empty())))
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

std::vector<StepRunner::Work> StepRunner::work_of(std::span<const BatchItem> items) {
  std::vector<Work> work;
  for (const BatchItem& item : items) {
    work.push_back({item, &pool_, 0});
    make_room(work.back());
  }
  return work;
}

void StepRunner::finish(Pass& pass, StepStats& stats) {
  end(pass, stats);
  if (places_ != nullptr) places_->count(pass.counts);
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
      finish(*pass, stats);
    } catch (...) {
      abandon(*pass);
      throw;
    }
  });
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
