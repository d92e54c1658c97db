// SPDX-License-Identifier: Apache-2.0
// Runs batches of an engine; with several queues, several batches are in flight.
#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "model/run/step_runner.h"

namespace moebius {

// Returns whether one of `items` uses a block that one of `writers` writes.
bool StepRunner::needs(std::span<const BatchItem> items, std::span<const BatchItem> writers) const {
  bool found = false;
  for (const BatchItem& writer : writers)
    each_block(writer, [&](size_t block, size_t, size_t) {
      for (size_t k = 0; k < kv_plan_.kinds.size(); ++k) {
        const BlockId id = (*writer.tables)[k][block];
        if (id == kNoBlock) continue;
        for (const BatchItem& item : items) {
          const std::vector<BlockId>& table = (*item.tables)[k];
          found = found || std::count(table.begin(), table.end(), id) > 0;
        }
      }
    });
  return found;
}

// Returns whether the batch's queue is free, and no earlier batch conflicts with a block that it
// reads or writes.
bool StepRunner::may_launch(const Batch& batch) const {
  if (queues_ == 1) return false;
  return std::none_of(batches_.begin(), batches_.end(), [&](const auto& other) {
    return !other->complete &&
           ((other->pass != nullptr && other->queue == batch.queue) ||
            needs(batch.items, other->items) || needs(other->items, batch.items));
  });
}

// Launches a batch on a queue of its own: one device's work for it overlaps with another's for the
// batch before.
void StepRunner::launch(Batch& batch) {
  batch.out.stats.items = batch.items.size();
  batch.pass = begin(work_of(batch.items), batch.queue);
  batch.out.stats.rows = batch.pass->step.rows;
  batch.done = std::async(std::launch::async, [this, &batch] {
    const auto start = std::chrono::steady_clock::now();
    run(*batch.pass, batch.out);
    batch.out.stats.nanoseconds = static_cast<uint64_t>(
        std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count());
  });
}

void StepRunner::complete(Batch& batch) noexcept {
  if (batch.complete) return;
  batch.complete = true;
  try {
    if (batch.pass == nullptr) return step(work_of(batch.items), batch.queue, batch.out);
    batch.done.get();
    finish(*batch.pass, batch.out.stats);
  } catch (...) {
    batch.error = std::current_exception();
    if (batch.pass != nullptr) abandon(*batch.pass);
  }
}

void StepRunner::complete_all() noexcept {
  for (const auto& batch : batches_) complete(*batch);
}

void StepRunner::look_after_places() {
  if (places_ == nullptr || !places_->end_step()) return;
  for (const auto& batch : batches_)
    if (batch->pass != nullptr) complete(*batch);
  places_->change();
}

Backend::Ticket StepRunner::submit(std::span<const BatchItem> items) {
  const std::lock_guard lock(mutex_);
  check(items);
  batches_.reserve(batches_.size() + 1);
  auto batch = std::make_unique<Batch>();
  batch->ticket = next_ticket_;
  batch->queue = next_ticket_ % queues_;
  batch->items.assign(items.begin(), items.end());
  if (queues_ > 1)
    for (BatchItem& item : batch->items) item.tables = &batch->tables.emplace_back(*item.tables);
  if (may_launch(*batch)) launch(*batch);
  batches_.push_back(std::move(batch));
  return next_ticket_++;
}

// Collects batches in the order of submission; runs those here that were not launched.
void StepRunner::collect(Ticket ticket, StepOutput& out) {
  const std::lock_guard lock(mutex_);
  if (batches_.empty() || batches_.front()->ticket != ticket)
    fail("batch {} is not the one to collect next", ticket);
  const std::unique_ptr<Batch> batch = std::move(batches_.front());
  batches_.erase(batches_.begin());
  complete(*batch);
  if (batch->error != nullptr) std::rethrow_exception(batch->error);
  out = std::move(batch->out);
  look_after_places();
}

void StepRunner::copy_block(size_t kind, BlockId from, BlockId to, size_t tokens) {
  const std::lock_guard lock(mutex_);
  if (queues_ > 1) complete_all();
  pool_.commit(kind, size_t{std::max(from, to)} + 1);
  pool_.copy(kind, from, to);
  if (kind == state_kind_) {
    pool_.reserve_lengths(to);
    pool_.set_lengths(to, pool_.lengths(from));
  }
  if (tokens < kBlockTokens) cut(pool_, kind, to, tokens);
}

void StepRunner::cut_block(size_t kind, BlockId id, size_t tokens) {
  const std::lock_guard lock(mutex_);
  if (queues_ > 1) complete_all();
  if (tokens < kBlockTokens) cut(pool_, kind, id, tokens);
}

size_t StepRunner::stored_bytes(size_t kind) const {
  return pool_.stored_bytes(kind, versions(kind));
}

void StepRunner::read_block(size_t kind, BlockId id, size_t length, std::span<uint8_t> out) {
  const std::lock_guard lock(mutex_);
  size_t version = 0;
  if (kind == state_kind_) {
    const KvPool::Lengths lengths = pool_.lengths(id);
    while (version < 2 && lengths[version] != length) ++version;
    if (version == 2) fail("block {} has no state for a sequence of {} tokens", id, length);
  }
  pool_.read(kind, id, versions(kind), version, out);
}

// Does not lock the mutex: it is called inside regions of the pool, for which the mutex's holder
// may be waiting. The block was committed, so its length has memory, and no other thread uses it.
bool StepRunner::write_block(size_t kind, BlockId id, size_t length, Fill fill) {
  if (!pool_.write(kind, id, versions(kind), 0, fill)) return false;
  if (kind == state_kind_) pool_.set_lengths(id, {length, KvPool::kNoState});
  return true;
}

void StepRunner::commit_blocks(size_t kind, size_t count) {
  const std::lock_guard lock(mutex_);
  pool_.commit(kind, count);
  if (kind == state_kind_ && count > 0) pool_.reserve_lengths(static_cast<BlockId>(count - 1));
}

void StepRunner::trim_blocks(size_t kind, size_t count) {
  const std::lock_guard lock(mutex_);
  if (queues_ > 1) complete_all();
  pool_.trim(kind, count);
}

}  // namespace moebius
