// SPDX-License-Identifier: Apache-2.0
// The operations that a device makes (device/device.h) and a graph calls. Operations of one queue
// run in the order of the calls; a call may return before its work is done, and Device::wait waits
// for it. Operations are made at load and run by the thread of the step.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/kv.h"
#include "device/rows.h"
#include "nn/candidates.h"

namespace moebius {

struct MoeBlockLayer;

// Multiplies rows by the matrices of one linear layer: y = x * w^T + bias.
class LinearOp {
 public:
  virtual ~LinearOp() = default;
  virtual size_t in_features() const = 0;
  virtual size_t out_features() const = 0;
  virtual uint64_t packed_bytes() const = 0;
  virtual void forward(Step& step, const RowSet& x, const RowSet& y) const = 0;
  // Writes to row i of y the outputs that wanted[i] lists, exactly, and others or -infinity
  // elsewhere. Returns false if it cannot, or not in less time: forward() then computes all.
  virtual bool forward_few(Step& step, const RowSet& x, const RowSet& y,
                           std::span<const ListTokens* const> wanted) const {
    (void)step, (void)x, (void)y, (void)wanted;
    return false;
  }
};

// Sizes of a mixture of experts, for a step's statistics and the planner. Set at load.
struct ExpertsFacts {
  size_t experts = 0;         // routed experts of all ranks; 0: a dense MLP
  size_t outputs = 0;         // columns of y
  uint64_t packed_bytes = 0;  // bytes of the layer's packed weights in this process
  uint64_t expert_bytes = 0;  // bytes of one packed expert
  // Bytes read for any row: shared experts and gates, or the dense MLP.
  uint64_t every_token_bytes = 0;
  size_t top_k = 0;
};

// Says which expert lies in which place of a layer whose experts are divided over two devices or
// several ranks, and moves experts between places. A place is room for one packed expert on one of
// them.
class DividedExperts {
 public:
  virtual ~DividedExperts() = default;
  virtual std::span<const uint32_t> expert_of() const = 0;  // [places] the expert in each place
  // Number of places on the layer's own device: the first ones.
  virtual size_t places_here() const = 0;
  // True if an expert computes the same bytes on both devices, so that moving it changes no answer.
  virtual bool may_move() const = 0;
  // Holds experts that are read and packed for new places, but not in use yet. stage() may be
  // called from any thread while steps run; it throws Error if the weights cannot be read.
  class Staged {
   public:
    virtual ~Staged() = default;
  };
  virtual std::unique_ptr<Staged> stage(std::vector<uint32_t> expert_of) const = 0;
  // Makes the staged places current. Call between steps. If it throws, the layer must not be run
  // again.
  virtual void change(std::unique_ptr<Staged> staged) = 0;
};

class ExpertsOp {
 public:
  virtual ~ExpertsOp() = default;
  virtual const ExpertsFacts& facts() const = 0;
  // Chooses experts for each row of x by `logits` [rows, experts] of the router, runs them and
  // writes their sum into y; a dense MLP ignores logits. counts: [experts], to which the number of
  // rows of each expert is added by the end of the step (Device::wait); empty: not counted. y
  // without rows: rows are counted only (CPU).
  virtual void forward(Step& step, const RowSet& x, const RowSet& logits, const RowSet& y,
                       std::span<uint32_t> counts) const = 0;
  // Returns the CPU layer of this process if its experts can be moved between ranks; else null.
  virtual MoeBlockLayer* movable() { return nullptr; }
  // Returns the places of the experts if several devices or ranks divide them; else null.
  virtual DividedExperts* divided() { return nullptr; }
};

// Computes attention of one layer: stores keys and values of the step's rows in the KV blocks, and
// lets each row attend to the tokens before it.
class AttentionOp {
 public:
  virtual ~AttentionOp() = default;
  // Computes `out` from queries q, keys k and values v. k and v without rows: the blocks already
  // hold them, written by another layer. relative: [rows, heads * relative_dims] if logits depend
  // on distances; else without rows. out without rows: keys and values are stored only.
  virtual void forward(Step& step, const RowSet& q, const RowSet& k, const RowSet& v,
                       const RowSet& relative, const RowSet& out) const = 0;
  // Discards the layer's keys and values of block `id` from its token number `tokens` on.
  virtual void cut(const KvPool& pool, BlockId id, size_t tokens) const = 0;
};

// Selects keys for sparse attention: those that each row attends to, in this layer and in the
// following layers that have no indexer of their own.
class IndexerOp {
 public:
  virtual ~IndexerOp() = default;
  // Stores the keys of the step's rows, then selects keys for each row. kw: [rows, head_dim +
  // heads], a key and a weight per head; q: [rows, heads * head_dim]. If keys are compressed, a
  // CompressorOp has stored them already and kw holds the weights alone.
  virtual void select(Step& step, const RowSet& q, const RowSet& kw) const = 0;
  virtual void cut(const KvPool& pool, BlockId id, size_t tokens) const = 0;
};

// Compresses the keys of several tokens into one (nn/compressor.h): each step stores the compressed
// keys that became complete, and the sources of the next one.
class CompressorOp {
 public:
  virtual ~CompressorOp() = default;
  virtual void forward(Step& step, const RowSet& sources) const = 0;
};

// Stores one row per token, and returns to each token the row of the token before it.
class RowStoreOp {
 public:
  virtual ~RowStoreOp() = default;
  virtual void write(Step& step, const RowSet& x) const = 0;
  // Writes into row i of y the stored row of the preceding token of the same sequence; zeros for a
  // sequence's first token.
  virtual void read_before(Step& step, const RowSet& y) const = 0;
};

// Runs a recurrent layer: each sequence has a state of constant size, in its KV blocks, instead of
// keys and values.
class RecurrentOp {
 public:
  virtual ~RecurrentOp() = default;
  virtual size_t out_features() const = 0;
  virtual void forward(Step& step, const RowSet& in, const RowSet& out) const = 0;
};

// Looks up table rows by a hash of each token and the tokens before it (nn/ngram_hash.h).
class NGramOp {
 public:
  virtual ~NGramOp() = default;
  // Starts reading the step's rows from disk, if the table is there, and returns at once. Optional.
  virtual void prefetch(Step& step) const = 0;
  // Writes the table rows of the step's tokens into y. Throws Error if the table's file was changed
  // since it was opened.
  virtual void forward(Step& step, const RowSet& y) const = 0;
};

class EmbeddingOp {
 public:
  virtual ~EmbeddingOp() = default;
  // Returns the bytes of the table itself; 0 if it shares the weights of another layer.
  virtual uint64_t table_bytes() const = 0;
  // Writes the embedding of each of the step's tokens into y.
  virtual void forward(Step& step, const RowSet& y) const = 0;
};

}  // namespace moebius
