// SPDX-License-Identifier: Apache-2.0
// The layers that a device makes. Operations of a queue run in the order in which they are given; a
// call may return before its work is done (Device::wait).
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/kv.h"
#include "device/rows.h"

namespace moebius {

struct MoeBlockLayer;

class LinearOp {
 public:
  virtual ~LinearOp() = default;
  virtual size_t in_features() const = 0;
  virtual size_t out_features() const = 0;
  virtual uint64_t packed_bytes() const = 0;
  virtual void forward(Step& step, const RowSet& x, const RowSet& y) const = 0;
};

// What a step reads of a mixture of experts.
struct ExpertsFacts {
  size_t experts = 0;              // routed ones, of all ranks; 0: a dense MLP
  size_t outputs = 0;              // columns of y
  uint64_t packed_bytes = 0;       // all that is here
  uint64_t expert_bytes = 0;       // of one expert
  uint64_t every_token_bytes = 0;  // shared experts and gates, or the dense MLP
  size_t top_k = 0;
};

// The places of experts that lie on several devices: on this one and then another, or rank by rank.
class DividedExperts {
 public:
  virtual ~DividedExperts() = default;
  virtual std::span<const uint32_t> expert_of() const = 0;  // [places]
  virtual size_t places_here() const = 0;                   // of the layer's device
  virtual bool may_move() const = 0;  // an expert gives the same bytes on both devices
  // What places are to hold instead: read from any thread, while steps run; throws Error.
  class Staged {
   public:
    virtual ~Staged() = default;
  };
  virtual std::unique_ptr<Staged> stage(std::vector<uint32_t> expert_of) const = 0;
  // Between steps. After a failure the layer is not to be run any more.
  virtual void change(std::unique_ptr<Staged> staged) = 0;
};

class ExpertsOp {
 public:
  virtual ~ExpertsOp() = default;
  virtual const ExpertsFacts& facts() const = 0;
  // logits: [rows, experts], of the router; unused by a dense MLP. counts: [experts] gets the rows of
  // each (added), once the step was waited for; empty: not wanted.
  virtual void forward(Step& step, const RowSet& x, const RowSet& logits, const RowSet& y,
                       std::span<uint32_t> counts) const = 0;
  // The layer in this process, where its experts can move between ranks; else null.
  virtual MoeBlockLayer* movable() { return nullptr; }
  // Where its experts lie on several devices; else null.
  virtual DividedExperts* divided() { return nullptr; }
};

// Keys and values of the step's rows go into the blocks; the rows see all of these that they may.
class AttentionOp {
 public:
  virtual ~AttentionOp() = default;
  // k and v without rows: they are another layer's, and in the blocks already.
  // relative: [rows, heads * relative_dims], where logits depend on distances; else no rows.
  // out without rows: keys and values are kept, nothing is attended to.
  virtual void forward(Step& step, const RowSet& q, const RowSet& k, const RowSet& v,
                       const RowSet& relative, const RowSet& out) const = 0;
  // Forgets what a block holds behind its first tokens.
  virtual void cut(const KvPool& pool, BlockId id, size_t tokens) const = 0;
};

// Which keys rows will see, for the sparse attention of this layer and of those behind it that have
// no indexer of their own.
class IndexerOp {
 public:
  virtual ~IndexerOp() = default;
  // kw: [rows, head_dim + heads], a key and the weights of the heads; q: [rows, heads * head_dim]. Where
  // keys are compressed ones, which are in the blocks already, kw has the weights alone.
  virtual void select(Step& step, const RowSet& q, const RowSet& kw) const = 0;
  virtual void cut(const KvPool& pool, BlockId id, size_t tokens) const = 0;
};

// Keys that stand for several tokens (nn/compressor.h): those that become whole in a step go into the
// blocks, and what is needed for the next one.
class CompressorOp {
 public:
  virtual ~CompressorOp() = default;
  virtual void forward(Step& step, const RowSet& sources) const = 0;
};

// Rows of tokens that are kept for the token behind them.
class RowStoreOp {
 public:
  virtual ~RowStoreOp() = default;
  virtual void write(Step& step, const RowSet& x) const = 0;
  // y: for each row of the step what was written for the token before it; zeros for the first.
  virtual void read_before(Step& step, const RowSet& y) const = 0;
};

// A layer that reads its sequences through a state.
class RecurrentOp {
 public:
  virtual ~RecurrentOp() = default;
  virtual size_t out_features() const = 0;
  virtual void forward(Step& step, const RowSet& in, const RowSet& out) const = 0;
};

// Rows of a table that the tokens before a row choose with it (nn/ngram_hash.h).
class NGramOp {
 public:
  virtual ~NGramOp() = default;
  virtual void prefetch(Step& step) const = 0;  // of a table that is not in memory
  // Throws where the table's file was changed since it was opened.
  virtual void forward(Step& step, const RowSet& y) const = 0;
};

class EmbeddingOp {
 public:
  virtual ~EmbeddingOp() = default;
  virtual uint64_t table_bytes() const = 0;  // beside the weights of other layers
  virtual void forward(Step& step, const RowSet& y) const = 0;  // of the step's tokens
};

}  // namespace moebius
