// SPDX-License-Identifier: Apache-2.0
// WAIST 4 (ARCHITECTURE.md): the interface between an engine, which schedules requests, and a
// model. Rows of sequences go in, logits come out, and keys and values are stored in blocks that
// the engine names by number. An implementation may run in this process, on GPUs, or on the ranks
// of several machines.
//
// Block numbers belong to the engine, memory belongs to the backend. A backend keeps, for every
// kind of layer (KvKind), blocks of kBlockTokens tokens that hold all layers of the kind together.
// What a backend computes for a row depends on the row's tokens alone: not on block numbers, on the
// other items, or on how a prompt was cut into steps.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/step.h"
#include "moebius/error.h"
#include "nn/candidates.h"
#include "nn/expert_store.h"

namespace moebius {

// Length in tokens for which memory is planned if neither the caller nor the config names a longest
// sequence.
inline constexpr size_t kUsualContext = 4096;

// Thrown if one item makes a batch fail: the batch without this item can run.
class ItemError : public Error {
 public:
  ItemError(const std::string& what, size_t item) : Error(what), item_(item) {}
  size_t item() const noexcept { return item_; }  // index of the item in the batch

 private:
  size_t item_;
};

// Rows of an item for which logits are wanted.
enum class LogitsOf : uint8_t { kNone, kLast, kAll };

// Tokens of one sequence to run in a batch.
struct BatchItem {
  // blocks of the sequence, up to the item's last token; must live until collect()
  const BlockTables* tables = nullptr;
  // position of the item's first token in the sequence: the number of tokens before it, whose keys
  // the blocks already hold
  size_t position = 0;
  std::span<const int32_t> tokens;  // tokens to run, at least one; must live until collect()
  LogitsOf logits = LogitsOf::kLast;
  // Length in tokens that the sequence is known to reach, for rotations that depend on it
  // (longrope, dynamic scaling): the whole prompt while its pieces are read. 0: up to the end of
  // this step.
  size_t length = 0;
  // Number of further tokens that the backend shall draft and run itself (Backend::drafts). Then
  // `tokens` has one token, and `logits` is taken as kAll.
  size_t drafts = 0;
  // If set, the backend may return the candidates for sampling from the last row instead of that
  // row's logits (StepOutput::candidates).
  std::optional<CandidateNeed> need = std::nullopt;
  // If set, the backend may return -infinity for logits of the last row on which sampling does not
  // depend.
  ListTokens few = nullptr;
};

// Measurements of one step, filled by collect(): for the scheduler and for the log.
struct StepStats {
  size_t rows = 0, items = 0;
  uint64_t nanoseconds = 0;
  uint64_t draft_nanoseconds = 0;  // the part of `nanoseconds` spent on drafting
  Profile phases{};
  uint64_t weight_bytes = 0;  // bytes read: dense parts once, each expert that had a row once
  uint64_t kv_bytes = 0;      // bytes of the blocks that attention read
  // [layers with experts][experts] as one list: rows that each expert ran; empty: not counted.
  std::vector<uint32_t> expert_rows;
  // Figures of expert parallelism. rank_imbalance: rows of the busiest rank over the mean, averaged
  // over layers (0: not counted). layers_moved, moves_given_up: since the start, layers whose
  // experts were moved between ranks, and layers where that failed.
  double rank_imbalance = 0;
  uint64_t layers_moved = 0, moves_given_up = 0;
  // Figures of the store of experts that are not in memory, since the start; unset: there is none.
  std::optional<ExpertStoreStats> experts;
  size_t last_rows = 0;  // rows that the last layer's block ran; 0: not counted (ranks)
};

// Results of one step, filled by collect().
struct StepOutput {
  // [rows asked for, vocab] in the order of the items; rows that have candidates are left out.
  std::vector<float> logits;
  // One entry per row asked for: its candidates, or no value if `logits` has the row. Empty:
  // `logits` has all rows.
  std::vector<std::optional<Candidates>> candidates;
  std::vector<int32_t> drafts;  // tokens that the backend drafted, items in order
  StepStats stats;
};

class Backend {
 public:
  using Ticket = uint64_t;
  virtual ~Backend() = default;

  // Returns the number of logits per row.
  virtual size_t vocab() const = 0;
  virtual std::span<const KvKind> kv_kinds() const = 0;
  // Returns the free bytes that KV blocks could still take; 0: not known, for example if memory is
  // on other machines.
  virtual uint64_t memory_left() const { return 0; }
  // Returns true if steps read experts from disk, so that many rows cost little more than a few.
  virtual bool reads_experts() const { return false; }
  // Returns true if the stored keys depend on the length of their sequence (longrope, dynamic
  // scaling), so that sequences cannot share blocks.
  virtual bool keys_depend_on_length() const { return false; }
  // Returns the length in tokens beyond which all keys of a sequence change (longrope): a sequence
  // that grows beyond it has to compute its keys again. SIZE_MAX: never.
  virtual size_t keys_change_beyond() const { return SIZE_MAX; }

  // Returns true if items may ask for drafts (BatchItem::drafts).
  virtual bool drafts() const { return false; }
  // Returns how many batches may be submitted and not collected at the same time. With pipeline
  // stages, all stages have work only with that many.
  virtual size_t batches_in_flight() const { return 1; }
  // Queues a batch and returns its ticket; steps run in the order of submission. Batches in flight
  // share no sequence, except that pieces of one prompt may follow each other. No two items of a
  // batch may write the same block. Throws ItemError for an item that can never run (no token, a
  // token out of range, a table too short); when it throws, nothing was queued.
  virtual Ticket submit(std::span<const BatchItem> items) = 0;
  // Waits for a batch and moves its results to `out`. If it throws, the step failed: blocks then
  // hold for every item what they held before at positions below item.position, and undefined
  // values from there on (see cut_block()).
  virtual void collect(Ticket ticket, StepOutput& out) = 0;
  // Returns true after a failure that no step can follow, such as the loss of a rank.
  virtual bool lost() const { return false; }

  // Copy and cut blocks before the next batch that is submitted. copy_block copies the first
  // `tokens` tokens of block `from` to block `to`; the rest of `to` is empty. cut_block discards
  // the tokens of block `id` from number `tokens` on, after a failed step or to continue from a
  // shorter prefix. A block of a kind with state (recurrent layers) can only be cut at the end of
  // the step that wrote it last, or where that step began.
  virtual void copy_block(size_t kind, BlockId from, BlockId to, size_t tokens) = 0;
  virtual void cut_block(size_t kind, BlockId id, size_t tokens) = 0;
  // The next three functions save a block and restore it, maybe in another backend of the same
  // model and options. The block is full, or is the last one of a sequence of `length` tokens. Call
  // them only while no batch in flight writes the block; calls from several threads are allowed.
  // The format of the bytes is the backend's own; stored_bytes 0: saving is not supported.
  // write_block needs a committed block that no sequence uses; `fill` writes the bytes, and if it
  // returns false the block counts as empty.
  virtual size_t stored_bytes(size_t kind) const {
    (void)kind;
    return 0;
  }
  virtual void read_block(size_t kind, BlockId id, size_t length, std::span<uint8_t> out) {
    (void)kind, (void)id, (void)length, (void)out;
    throw Error("blocks of this backend cannot be read");
  }
  using Fill = DeviceBlocks::Fill;
  virtual bool write_block(size_t kind, BlockId id, size_t length, Fill fill) {
    (void)kind, (void)id, (void)length, (void)fill;
    throw Error("blocks of this backend cannot be written");
  }
  // Allocates memory for blocks [0, count) of a kind, or throws Error. Blocks that are not
  // committed get memory when they are first written.
  virtual void commit_blocks(size_t kind, size_t count) = 0;
  // Releases memory of blocks >= count, where that is possible.
  virtual void trim_blocks(size_t kind, size_t count) = 0;
};

}  // namespace moebius
