// SPDX-License-Identifier: Apache-2.0
// The indexer of sparse attention (DeepSeek-V3.2, GLM-5): which keys a row attends to. It has heads
// of its own, one key per token for all of them, and a weight per head and row:
//
//   score(t) = sum over heads h, ascending, of  w_h / sqrt(heads) * max(0, q_h k_t / sqrt(head_dim))
//
// A row sees the top_k positions with the greatest scores among those up to its own, ties to the
// lower position; a NaN scores lowest. Rows that have no more than top_k positions see all of them.
//
// By head (MiniMax-M3): a head chooses for the kv head of its number, whole blocks of positions by
//
//   score(b) = max over positions t of the block, up to the row's own, of  q_h k_t
//
// The row's own block and some before it (`local` of them) come first, whatever their scores.
//
// Compressed (DeepSeek-V4): a key stands for `ratio` tokens (nn/compressor.h), and a row chooses among
// those whose tokens are all there; bits are those of keys, not of positions.
//
// Pooled (GLM-5.3, Qwen4): keys are compressed ones, too, but a row sees the tokens of those it chose, and
// always the tokens behind the last whole key; bits are those of positions.
//
// Keys are packed matrices of 128 tokens, as those of attention (kv_layout.h), so that scores are
// ordinary products and every row is a function of itself and of the keys alone.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/oracle.h"
#include "nn/kv_layout.h"

namespace moebius {

struct IndexerSpec {
  size_t heads = 0, head_dim = 0, top_k = 0;  // top_k: keys; 0: attention is not sparse
  bool by_head = false;
  size_t block = 1, local = 0;  // by head; top_k is a multiple of block
  size_t ratio = 0;             // tokens of a compressed key; 0: every token has its own
  size_t first = 0;             // not by head: keys before this position are not chosen
  bool pooled = false;          // with a ratio
  bool weighted = true;         // else w_h / sqrt(heads) is 1

  size_t tokens() const { return ratio != 0 ? ratio : 1; }  // of a key
  size_t block_keys() const { return kKeyBlock / tokens(); }

  size_t selections() const { return by_head ? heads : 1; }  // of a row
};

// Rows of one sequence; their keys are in the blocks already.
struct IndexRows {
  const uint8_t* const* blocks;  // block i holds keys of positions [128 i, 128 i + 128) ...
  size_t offset;                 // ... of this indexer so many bytes behind its begin
  size_t position;               // of row 0
  const float* q;                // [T, heads * head_dim]
  const float* weights;          // [T, heads], `weights_stride` apart, where the heads have weights
  size_t weights_stride;
  uint64_t* selected;  // [T, selections, words]: bit i is set where a row sees key (or token) i
  size_t words;
  size_t T;

  static size_t words_of(size_t positions) {  // two per block
    return (positions + kKeyBlock - 1) / kKeyBlock * (kKeyBlock / 64);
  }
};

// Scratch of one thread.
class IndexScratch {
 public:
  std::vector<float> scores, ordered, blocks;
  std::vector<uint64_t> chosen;
  Workspace memory;
};

class Indexer {
 public:
  Indexer(const IndexerSpec& spec, XType type, KvType storage, const Cpu& cpu,
          const Policy& policy);  // throws Error
  const IndexerSpec& spec() const { return spec_; }
  const KvLayout& keys() const { return keys_; }  // without values
  // Row t; rows may run on any threads.
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
