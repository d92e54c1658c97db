// SPDX-License-Identifier: Apache-2.0
// The indexer of sparse attention (DeepSeek-V3.2, GLM-5): which keys a row attends to. It has heads
// of its own, one key per token for all of them, and a weight per head and row:
//
//   score(t) = sum over heads h, ascending, of  w_h / sqrt(heads) * max(0, q_h k_t / sqrt(head_dim))
//
// A row sees the top_k positions with the greatest scores among those up to its own, ties to the
// lower position; a NaN scores lowest. Rows that have no more than top_k positions see all of them.
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
  size_t heads = 0, head_dim = 0, top_k = 0;  // top_k 0: attention is not sparse
};

// Rows of one sequence; their keys are in the blocks already.
struct IndexRows {
  const uint8_t* const* blocks;  // block i holds positions [128 i, 128 i + 128) ...
  size_t offset;                 // ... of this indexer so many bytes behind its begin
  size_t position;               // of row 0
  const float* q;                // [T, heads * head_dim]
  const float* weights;          // [T, heads], `weights_stride` apart
  size_t weights_stride;
  uint64_t* selected;  // [T, words]: bit i of a row is set where it sees position i
  size_t words;
  size_t T;

  static size_t words_of(size_t positions) {  // two per block
    return (positions + kKeyBlock - 1) / kKeyBlock * (kKeyBlock / 64);
  }
};

// Scratch of one thread.
class IndexScratch {
 public:
  std::vector<float> scores, ordered;
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
  IndexerSpec spec_;
  KvLayout keys_;
};

}  // namespace moebius
