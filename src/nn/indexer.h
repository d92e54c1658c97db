// SPDX-License-Identifier: Apache-2.0
// The indexer of sparse attention (DeepSeek-V3.2, GLM-5): selects the keys that each row attends
// to. It has heads of its own, one key per token for all heads, and a weight per head and row:
//
//   score(t) = sum over heads h, ascending, of  w_h / sqrt(heads) * max(0, q_h k_t / sqrt(head_dim))
//
// A row sees the top_k positions with the greatest scores among those up to its own, ties to the
// lower position; a NaN scores lowest. Rows that have no more than top_k positions see all of them.
//
// By head (MiniMax-M3): head h selects for kv head h, whole blocks of positions by
//
//   score(b) = max over positions t of the block, up to the row's own, of  q_h k_t
//
// The row's own block and the `local` blocks before it are always selected first.
//
// Compressed (DeepSeek-V4): one key for `ratio` tokens (nn/compressor.h); a row selects among the
// keys whose tokens are all computed. Bits count keys, not positions.
//
// Pooled (GLM-5.3, Qwen4): keys are compressed, too, but a row attends to the tokens of the
// selected keys, and always to the tokens after the last whole key. Bits count positions.
//
// Keys are packed matrices of 128 tokens, like those of attention (kv_layout.h), so that scores are
// ordinary products and a row's result depends on the row and the keys alone.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/oracle.h"
#include "nn/kv_layout.h"

namespace moebius {

struct IndexerSpec {
  size_t heads = 0, head_dim = 0, top_k = 0;  // top_k: number of keys; 0: attention is not sparse
  bool by_head = false;
  // block: positions per block, with by_head (top_k is a multiple of it); local: blocks before the
  // row's own that are always selected.
  size_t block = 1, local = 0;
  size_t ratio = 0;  // tokens per compressed key; 0: every token has its own key
  size_t first = 0;  // without by_head: keys before this position are never selected
  // true: rows attend to the tokens of selected keys ("Pooled"); needs a ratio.
  bool pooled = false;
  bool weighted = true;  // false: w_h / sqrt(heads) is replaced by 1

  size_t tokens() const { return ratio != 0 ? ratio : 1; }  // tokens per key
  size_t block_keys() const { return kKeyBlock / tokens(); }

  size_t selections() const { return by_head ? heads : 1; }  // selections per row
};

// Views the new rows of one sequence. Their keys must be in the blocks already.
struct IndexRows {
  // Block i holds the keys of positions [128 i, 128 i + 128), `offset` bytes after its begin.
  const uint8_t* const* blocks;
  size_t offset;
  size_t position;       // position of row 0
  const float* q;        // [T, heads * head_dim] queries
  const float* weights;  // [T, heads], rows `weights_stride` apart; unused if heads have no weights
  size_t weights_stride;
  uint64_t* selected;  // [T, selections, words]: bit i is set if the row sees key (or position) i
  size_t words;
  size_t T;

  static size_t words_of(size_t positions) {  // returns the 64-bit words of a row's bits
    return (positions + kKeyBlock - 1) / kKeyBlock * (kKeyBlock / 64);
  }
};

// Scratch memory of one thread. Not thread-safe.
class IndexScratch {
 public:
  std::vector<float> scores, ordered, blocks;
  std::vector<uint64_t> chosen;
  Workspace memory;
};

class Indexer {
 public:
  // Throws Error for sizes that cannot be run.
  Indexer(const IndexerSpec& spec, XType type, KvType storage, const Cpu& cpu,
          const Policy& policy);
  const IndexerSpec& spec() const { return spec_; }
  // Returns the layout of blocks, which hold keys alone.
  const KvLayout& keys() const { return keys_; }
  // Selects keys for row t. Thread-safe: rows may run on any threads.
  void select(const IndexRows& rows, size_t t, IndexScratch& scratch) const;

 private:
  void score_blocks(const IndexRows& rows, size_t t, size_t positions, IndexScratch& s) const;
  void choose(size_t positions, size_t count, uint64_t* bits, IndexScratch& s) const;
  void select_pooled(const IndexRows& rows, size_t t, IndexScratch& s) const;
  void select_blocks(const IndexRows& rows, size_t t, size_t head, IndexScratch& s) const;
  IndexerSpec spec_;
  KvLayout keys_;
};

}  // namespace moebius
