// SPDX-License-Identifier: Apache-2.0
// Causal attention with an online softmax, written once on the kernel waist: a block of 128 keys is
// a dense matrix [128, key_dim], a block of 128 values is its transpose [value_dim, 128]; both are
// kept packed in the cache, so scores and sums are ordinary gemm calls and every instruction set
// serves attention with the kernels it already has.
//
// A row's result depends on the row, its keys and their positions alone: not on threads, on the
// batch, or on how a prompt was cut.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/oracle.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace moebius {

inline constexpr size_t kKeyBlock = 128;  // keys per block

struct AttentionSpec {
  size_t heads = 0, kv_heads = 0, key_dim = 0, value_dim = 0;
  float scale = 1.0f;
  size_t window = 0;         // a key is seen for `window` positions; 0: forever
  size_t chunk = 0;          // keys of the same chunk of positions only; 0: all
  std::vector<float> sinks;  // [heads] an extra logit without a value; empty: none
};

// The two products of a layer: problems and kernels, shared by all its sequences.
struct AttentionPlan {
  AttentionSpec spec;
  XType type = XType::kF32;  // of q, k, v and the probabilities
  Problem keys, values;      // [128, key_dim], [value_dim, 128]
  const Kernel* key_kernel = nullptr;
  const Kernel* value_kernel = nullptr;
};
// Chooses kernels as for any dense matrix (request_for).
AttentionPlan plan_attention(AttentionSpec spec, XType type, const Cpu& cpu, const Policy& policy);

// Keys and values of one layer of one sequence.
class KvCache {
 public:
  explicit KvCache(const AttentionPlan& plan);
  static size_t block_bytes(const AttentionPlan& plan);  // of kKeyBlock tokens, all kv heads
  size_t length() const { return length_; }
  size_t bytes() const;
  // Room for T more tokens; serial. Then append_head for every kv head (any threads), then commit.
  void reserve(size_t T);
  void append_head(size_t head, const float* k, size_t ldk, const float* v, size_t ldv, size_t T);
  void commit(size_t T) { length_ += T; }
  void truncate(size_t length);  // forgets the newest tokens
  const uint8_t* key_block(size_t head, size_t block) const {
    return blocks_[block].data() + head * head_bytes_;
  }
  const uint8_t* value_block(size_t head, size_t block) const {
    return key_block(head, block) + key_bytes_;
  }

 private:
  void pack_tail(size_t head, size_t block, size_t first, size_t count);
  const AttentionPlan* plan_;
  size_t element_, key_bytes_, head_bytes_, length_ = 0;
  std::vector<AlignedBuffer> blocks_;
  std::vector<uint8_t> tail_keys_,
      tail_values_;  // the unfinished block of every head: [kv_heads][128, key_dim], [kv_heads][value_dim, 128]
};

// New rows of one sequence, their keys already appended: row t has position cache->length() - T +
// t.
struct AttentionRows {
  const KvCache* cache;
  const float* q;  // [T, heads * key_dim]
  float* out;      // [T, heads * value_dim], rounded to the plan's type
  size_t T;
};

// Scratch of one thread.
class AttentionScratch {
 public:
  void reserve(const AttentionPlan& plan, size_t rows);
  uint8_t *rows = nullptr, *key_panel = nullptr, *value_panel = nullptr, *scratch = nullptr;
  float *q = nullptr, *scores = nullptr, *sums = nullptr, *out = nullptr, *best = nullptr,
        *total = nullptr, *keep = nullptr;

 private:
  Workspace memory_;
};

// Work is cut into tasks of one kv head and some tokens; task i of tasks() may run on any thread.
class Attention {
 public:
  Attention(const AttentionPlan& plan, std::span<const AttentionRows> sequences);
  size_t tasks() const { return tasks_.size(); }
  void run(size_t task, AttentionScratch& scratch) const;

 private:
  struct Task {
    uint32_t sequence, head, begin, end;
  };
  const AttentionPlan& plan_;
  std::span<const AttentionRows> sequences_;
  std::vector<Task> tasks_;
};

}  // namespace moebius
