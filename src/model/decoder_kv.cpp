// SPDX-License-Identifier: Apache-2.0
// Where a model keeps keys and values: kinds of layers, sequences with memory of their own, and the
// blocks of an engine.
#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "base/error.h"
#include "model/decoder_layer.h"
#include "model/state_block.h"

namespace moebius {
namespace {

// How far back a layer looks.
size_t reach_of(const LayerSpec& layer) {
  size_t reach = SIZE_MAX;
  if (layer.window != 0) reach = layer.window;
  if (layer.chunk != 0) reach = std::min(reach, layer.chunk);
  return reach;
}

// Of the layers that keep a state.
RecurrentShape recurrent_shape(const DecoderSpec& spec) {
  return std::visit(
      [](const auto& s) -> RecurrentShape {
        if constexpr (std::is_same_v<std::decay_t<decltype(s)>, std::monostate>)
          return {};
        else
          return s.shape();
      },
      spec.recurrent);
}

}  // namespace

KvPlan plan_kv(const Checkpoint& checkpoint, const DecoderSpec& spec, const ModelOptions& options,
               const Cpu& cpu, Range own) {
  KvPlan plan;
  const size_t state = round_up(recurrent_shape(spec).state * sizeof(float), 64);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const bool here = i >= own.begin && i < own.end;
    if (!spec.layers[i].attends) {
      plan.layers.push_back({SIZE_MAX, 0});
      continue;
    }
    if (spec.layers[i].recurrent) {
      size_t kind = 0;
      while (kind < plan.kinds.size() && plan.kinds[kind].cuttable) ++kind;
      if (kind == plan.kinds.size()) plan.kinds.push_back({"state", StateHeader::kBytes, 1, false});
      plan.layers.push_back({kind, (plan.kinds[kind].block_bytes - StateHeader::kBytes) / 2});
      if (here) plan.kinds[kind].block_bytes += 2 * state;  // two versions: state_header.h
      continue;
    }
    if (const size_t back = spec.layers[i].kv_from; back != 0) {
      plan.layers.push_back(plan.layers[i - back]);
      continue;
    }
    size_t bytes = 0;
    const KvStorage stored = storage_of(checkpoint, spec, i, options);
    if (!here) {
    } else if (spec.latent() && !absorbs(checkpoint, i, options)) {
      bytes = KvRowLayout{spec.kv_lora + spec.rope_dim, stored.type}.block_bytes();
    } else {
      bytes =
          plan_attention(attention_spec(spec, i, true), options.type, stored, cpu, options.policy)
              .kv.block_bytes();
    }
    if (const auto indexer = make_indexer(checkpoint, spec, i, options, cpu); here && indexer)
      bytes += indexer->keys().block_bytes();
    const size_t reach = reach_of(spec.layers[i]);
    size_t kind = 0;
    while (kind < plan.kinds.size() &&
           (plan.kinds[kind].reach != reach || !plan.kinds[kind].cuttable))
      ++kind;
    if (kind == plan.kinds.size())
      plan.kinds.push_back(
          {reach == SIZE_MAX ? "full" : fmt::format("window {}", reach), 0, reach, true});
    plan.layers.push_back({kind, plan.kinds[kind].block_bytes});
    plan.kinds[kind].block_bytes += bytes;
  }
  for (KvKind& k : plan.kinds)  // numbers of blocks are common, whoever has something in them
    if (k.block_bytes == 0) k.block_bytes = 64;
  return plan;
}

uint64_t KvPlan::bytes_per_token() const {
  uint64_t bytes = 0;
  for (const KvKind& k : kinds) bytes += k.cuttable ? k.block_bytes : 0;
  return (bytes + kBlockTokens - 1) / kBlockTokens;
}

uint64_t KvPlan::bytes_of(size_t tokens) const {
  uint64_t bytes = 0;
  if (tokens == 0) return 0;
  for (const KvKind& k : kinds) {
    const size_t last = (tokens - 1) / kBlockTokens;
    bytes += (last + 1 - first_block_needed(k, tokens - 1)) * k.block_bytes;
  }
  return bytes;
}

SequenceState::SequenceState(std::span<const KvKind> kinds)
    : kinds_(kinds), memory_(kinds, 1), tables_(kinds.size()), free_(kinds.size()) {}

void SequenceState::reserve(size_t tokens) {
  const size_t blocks = (length_ + tokens + kBlockTokens - 1) / kBlockTokens;
  for (size_t k = 0; k < kinds_.size(); ++k) {
    std::vector<BlockId>& table = tables_[k];
    while (table.size() < blocks) {
      if (!kinds_[k].cuttable && table.size() + 1 < blocks) {  // a state that nobody will ask for
        table.push_back(kNoBlock);
        continue;
      }
      BlockId id;
      if (!free_[k].empty()) {
        id = free_[k].back(), free_[k].pop_back();
      } else {  // every block that was ever made is in the table or free
        id = static_cast<BlockId>(
            table.size() - static_cast<size_t>(std::count(table.begin(), table.end(), kNoBlock)));
        memory_.commit(k, id + 1);
      }
      table.push_back(id);
    }
    free_[k].reserve(table.size());  // so that commit() cannot fail
  }
}

void SequenceState::commit(size_t tokens) noexcept {
  length_ += tokens;
  for (size_t k = 0; k < kinds_.size(); ++k) {
    const size_t first = first_block_needed(kinds_[k], length_);
    for (size_t i = std::min(first, tables_[k].size()); i-- > 0;) {
      if (tables_[k][i] == kNoBlock) {
        if (kinds_[k].cuttable) break;  // nor is there any before it
        continue;
      }
      free_[k].push_back(tables_[k][i]);
      tables_[k][i] = kNoBlock;
    }
  }
}

void DecoderModel::cut_memory(KvMemory& memory, size_t kind, BlockId id, size_t tokens) const {
  for (size_t i = own_.begin; i < own_.end; ++i) {
    const KvPlan::Place& place = kv_plan_.layers[i];
    if (place.kind == kind && layers_[i]->indexer != nullptr)
      layers_[i]->indexer->keys().cut(memory.block(kind, id) + place.offset + layers_[i]->index_at,
                                      tokens);
    // Rows that are not packed are never read behind the last one; states are for one length.
    if (place.kind != kind || layers_[i]->kv_up != nullptr || layers_[i]->recurrent != nullptr ||
        !layers_[i]->keys)
      continue;
    layers_[i]->attention->kv.cut(memory.block(kind, id) + place.offset, tokens);
  }
}

void DecoderModel::check(const BatchItem& item) const {
  if (item.tokens.empty()) fail("a step needs at least one token of every sequence");
  for (const int32_t t : item.tokens)
    if (t < 0 || static_cast<size_t>(t) >= vocab_)
      fail("token {} is not in the vocabulary of {} tokens", t, vocab_);
  const size_t last = (item.position + item.tokens.size() - 1) / kBlockTokens;
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

void DecoderModel::forward(std::span<const StepItem> items, std::vector<float>& logits) {
  const std::lock_guard lock(mutex_);
  std::vector<Work> work;
  for (const StepItem& item : items) {
    item.state->reserve(item.tokens.size());
    work.push_back({{&item.state->tables_, item.state->length_, item.tokens,
                     item.all_logits ? LogitsOf::kAll : LogitsOf::kLast, item.length},
                    &item.state->memory_,
                    item.state->id_ != nullptr ? *item.state->id_ : 0});
    check(work.back().item);
  }
  try {
    step(work, logits, last_step_);
  } catch (...) {
    for (const StepItem& item : items)  // what was written behind the end is no longer there
      if (const size_t tail = item.state->length_ % kBlockTokens; tail != 0)
        for (size_t k = 0; k < kv_plan_.kinds.size(); ++k)
          cut_memory(item.state->memory_, k,
                     item.state->tables_[k][item.state->length_ / kBlockTokens], tail);
    throw;
  }
  for (const StepItem& item : items) item.state->commit(item.tokens.size());
}

Backend::Ticket DecoderModel::submit(std::span<const BatchItem> items) {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < items.size(); ++i) {
    try {
      check(items[i]);
    } catch (const Error& e) {
      throw ItemError(e.what(), i);
    }
  }
  batches_.reserve(batches_.size() + 1);
  Batch batch{next_ticket_, {items.begin(), items.end()}, nullptr, {}};
  if (batches_in_flight() > 1) {
    const std::vector<Work> work = work_of(batch);
    batch.stats.items = work.size();
    for (const BatchItem& item : items) batch.stats.rows += item.tokens.size();
    batch.step = launch(work, batch.stats);
  }
  batches_.push_back(std::move(batch));
  return next_ticket_++;
}

std::vector<DecoderModel::Work> DecoderModel::work_of(const Batch& batch) {
  std::vector<Work> work;
  for (const BatchItem& item : batch.items) {
    work.push_back({item, kv_memory_.get(), 0});
    make_room(work.back());
  }
  return work;
}

void DecoderModel::make_room(const Work& work) {
  const BatchItem& item = work.item;
  const size_t last = (item.position + item.tokens.size() - 1) / kBlockTokens;
  for (size_t k = 0; k < kv_plan_.kinds.size(); ++k)
    for (size_t i = item.position / kBlockTokens; i <= last; ++i)
      if (const BlockId id = (*item.tables)[k][i]; id != kNoBlock)
        work.memory->commit(k, size_t{id} + 1);
}

// Batches run here, in the order in which they were submitted: one process has nothing to gain from
// running ahead. On several stages the first has run them already.
void DecoderModel::collect(Ticket ticket, StepOutput& out) {
  const std::lock_guard lock(mutex_);
  if (batches_.empty() || batches_.front().ticket != ticket)
    fail("batch {} is not the one to collect next", ticket);
  Batch batch = std::move(batches_.front());
  batches_.erase(batches_.begin());
  if (batch.step == nullptr) return step(work_of(batch), out.logits, out.stats);
  out.stats = std::move(batch.stats);
  land(*batch.step, out.logits, out.stats);
}

void DecoderModel::copy_block(size_t kind, BlockId from, BlockId to, size_t tokens) {
  const std::lock_guard lock(mutex_);
  if (leads()) tell_blocks(StepPlan::Kind::kCopy, kind, from, to, tokens);
  kv_memory_->commit(kind, size_t{std::max(from, to)} + 1);
  std::memcpy(kv_memory_->block(kind, to), kv_memory_->block(kind, from),
              kv_plan_.kinds[kind].block_bytes);
  if (tokens < kBlockTokens) cut_memory(*kv_memory_, kind, to, tokens);
}

void DecoderModel::cut_block(size_t kind, BlockId id, size_t tokens) {
  const std::lock_guard lock(mutex_);
  if (leads()) tell_blocks(StepPlan::Kind::kCut, kind, id, id, tokens);
  if (tokens < kBlockTokens) cut_memory(*kv_memory_, kind, id, tokens);
}

void DecoderModel::commit_blocks(size_t kind, size_t count) {
  const std::lock_guard lock(mutex_);
  kv_memory_->commit(kind, count);
  if (leads()) tell_blocks(StepPlan::Kind::kCommit, kind, 0, 0, count);
}

void DecoderModel::trim_blocks(size_t kind, size_t count) {
  const std::lock_guard lock(mutex_);
  kv_memory_->trim(kind, count);
  if (leads()) tell_blocks(StepPlan::Kind::kTrim, kind, 0, 0, count);
}

size_t DecoderModel::keys_change_beyond() const {
  size_t beyond = SIZE_MAX;
  const auto look = [&](const RopeSpec& r) {
    if (r.scaling == RopeScaling::kLongRope)
      beyond = std::min(beyond, static_cast<size_t>(r.original_length));
  };
  look(spec_.rope);
  for (const RopeSpec& r : spec_.other_ropes) look(r);
  return beyond;
}

}  // namespace moebius
