// SPDX-License-Identifier: Apache-2.0
// What an engine needs of a model, and all it knows of one: rows of sequences go in, logits come
// out, and keys and values lie in blocks that the engine names by number. A model in this process
// stands behind it today; a GPU or the ranks of several machines can, without a change above.
//
// Block numbers belong to the engine, memory belongs to the backend. A backend keeps, for every
// kind of layer, blocks of kBlockTokens tokens (all layers of the kind together). What it computes
// for a row depends on the row's tokens alone: not on block numbers, on the other items, or on how
// a prompt was cut into steps.
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

namespace moebius {

// The longest sequence, in tokens, that is planned for where neither the caller nor the config names one.
inline constexpr size_t kUsualContext = 4096;

// One item of a batch is to blame: without it the others run.
class ItemError : public Error {
 public:
  ItemError(const std::string& what, size_t item) : Error(what), item_(item) {}
  size_t item() const noexcept { return item_; }  // of the batch

 private:
  size_t item_;
};

enum class LogitsOf : uint8_t { kNone, kLast, kAll };

struct BatchItem {
  const BlockTables* tables = nullptr;  // with blocks for all its tokens; lives until collect
  size_t position = 0;                  // of the first token: how many are in the blocks already
  std::span<const int32_t> tokens;      // at least one; lives until collect
  LogitsOf logits = LogitsOf::kLast;
  // Tokens of the sequence as far as they are known, where rotation depends on it (longrope, dynamic
  // scaling): the whole prompt while it is read in parts. 0: up to the end of this step.
  size_t length = 0;
  // Tokens behind these that the backend drafts itself and runs, too (Backend::drafts): then there is one
  // token, and logits count for all rows.
  size_t drafts = 0;
  // Where the draw from the last row's logits needs less than all of them.
  std::optional<CandidateNeed> need = std::nullopt;
};

// What one step did, for the scheduler and for people.
struct StepStats {
  size_t rows = 0, items = 0;
  uint64_t nanoseconds = 0;
  uint64_t draft_nanoseconds = 0;  // of these
  Profile phases{};
  uint64_t weight_bytes = 0;  // read: dense parts once, every expert that had a row once
  uint64_t kv_bytes = 0;      // of the blocks that attention read
  // Rows of every expert: [layers with experts][experts], as one list; empty when not counted.
  std::vector<uint32_t> expert_rows;
  // Ranks that have some of the experts each: rows of the busiest rank over the mean, mean over layers
  // (0: not counted); layers whose experts moved, and that could not, since the start.
  double rank_imbalance = 0;
  uint64_t layers_moved = 0, moves_given_up = 0;
};

struct StepOutput {
  std::vector<float>
      logits;  // [rows asked for, vocab], items in order, but for rows that have candidates
  // By row asked for, where items needed no more; empty: all rows are in `logits`.
  std::vector<std::optional<Candidates>> candidates;
  std::vector<int32_t> drafts;  // what was drafted, items in order
  StepStats stats;
};

class Backend {
 public:
  using Ticket = uint64_t;
  virtual ~Backend() = default;

  virtual size_t vocab() const = 0;
  virtual std::span<const KvKind> kv_kinds() const = 0;
  // Bytes that blocks could take; 0: not known, what is free here.
  virtual uint64_t memory_left() const { return 0; }
  // Whether keys depend on how long their sequence is (longrope, dynamic scaling): then those of one
  // sequence are of no use to another.
  virtual bool keys_depend_on_length() const { return false; }
  // Sequences of more tokens than this have other keys from the first one on (longrope): those of a
  // sequence that grows beyond it are made anew. SIZE_MAX: never.
  virtual size_t keys_change_beyond() const { return SIZE_MAX; }

  // Whether items may ask for drafts (BatchItem::drafts).
  virtual bool drafts() const { return false; }
  // How many batches may be under way, submitted and not collected: where parts of the model run one
  // behind the other, all have work only with as many.
  virtual size_t batches_in_flight() const { return 1; }
  // Takes a batch; steps run in the order they were submitted. Batches that are under way share no
  // sequence, but for a prompt whose pieces follow each other. Throws ItemError in words for an
  // item that can never run (no token, a token out of range, a table too short); when it throws,
  // nothing was taken. No two items of one batch may write the same block.
  virtual Ticket submit(std::span<const BatchItem> items) = 0;
  // Waits for a batch and takes its results. Throws when the step failed: then blocks hold for
  // every item what they held before at positions below item.position, and anything behind (see
  // cut()).
  virtual void collect(Ticket ticket, StepOutput& out) = 0;
  // After a failure: no step can run any more (a rank is gone).
  virtual bool lost() const { return false; }

  // Takes effect before the next batch that is submitted. copy: block `to` becomes block `from`,
  // its first `tokens` tokens, the rest empty. cut: what block `id` holds behind its first `tokens`
  // tokens is forgotten (after a failed step, or to go on from a shorter prefix). Of a kind that cannot
  // be cut: at the end of the step that wrote it last, or where that one began.
  virtual void copy_block(size_t kind, BlockId from, BlockId to, size_t tokens) = 0;
  virtual void cut_block(size_t kind, BlockId id, size_t tokens) = 0;
  // A block's bytes, to be kept elsewhere: full, or as it was when its sequence ended. `length`: tokens
  // of the sequence up to there. Only while no batch under way writes it. What they mean is the
  // backend's business; they fit another backend of the same model and options. 0 bytes: they cannot
  // be had. A block that is written was committed (below), and nobody uses it; calls may come from
  // several threads. `fill` puts the bytes there; where it says false the block is as good as new.
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
  // Makes blocks [0, count) of a kind usable now, or throws Error; without it memory comes as
  // blocks are written.
  virtual void commit_blocks(size_t kind, size_t count) = 0;
  // Gives memory of blocks >= count back where that is possible.
  virtual void trim_blocks(size_t kind, size_t count) = 0;
};

}  // namespace moebius
