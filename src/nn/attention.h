// SPDX-License-Identifier: Apache-2.0
// Causal attention with an online softmax, written once on the kernel waist: a block of 128 keys is
// a dense matrix [128, key_dim], a block of 128 values is its transpose [value_dim, 128]; both are
// kept packed (kv_layout.h), so scores and sums are ordinary gemm calls and every instruction set
// serves attention with the kernels it already has.
//
// Keys are cut into segments of 1024 positions; each is a softmax of its own, and segments are
// merged in ascending order. One long sequence thus has work for every thread. A row's result
// depends on the row, its keys and their positions alone: not on threads, on the batch, or on how a
// prompt was cut.
//
// Entries are further keys, of one kv head, that are their own values and stand for `ratio` tokens each
// (nn/compressor.h). A row sees those whose tokens are all there, or of these the ones that were chosen for
// it. They are kept as rows, of which only the seen ones are read: entries are gathered into blocks of 128
// in ascending order, 256 are a segment, and their segments are merged behind the others.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/attend.h"
#include "kernels/oracle.h"
#include "nn/kv_layout.h"

namespace moebius {

inline constexpr size_t kSegmentBlocks = 8;  // of kKeyBlock keys
inline constexpr size_t kEntrySegment = 2 * kKeyBlock;

struct AttentionSpec {
  size_t heads = 0, kv_heads = 0, key_dim = 0, value_dim = 0;
  float scale = 1.0f;
  size_t window = 0;         // a key is seen for `window` positions; 0: forever
  size_t chunk = 0;          // keys of the same chunk of positions only; 0: all
  size_t first = 0;          // keys before this position are seen by no row behind it
  std::vector<float> sinks;  // [heads] an extra logit without a value; empty: none
  size_t ratio = 0;          // tokens of an entry; 0: there are none
  // Logits by distance: a key `distance` before a query has (r relative)[distance] more, with r
  // [relative_dims] of the query's head; none from relative_extent on.
  size_t relative_dims = 0, relative_extent = 0;
  std::vector<float> relative =
      {};  // [relative_dims, relative_extent], the greatest distance first
};

// A layer's attention: its two products, shared by all its sequences.
struct AttentionPlan {
  AttentionSpec spec;
  XType type = XType::kF32;  // of q, of the probabilities and of the result
  KvLayout kv;
  KvRowLayout entries;
  KvLayout gathered;                     // entries as they are multiplied
  const AttendKernel* attend = nullptr;  // many rows through a block in one call; null: by products
};
// Kernels are chosen as for any matrix.
AttentionPlan plan_attention(AttentionSpec spec, XType type, const KvStorage& storage,
                             const Cpu& cpu, const Policy& policy);

// New rows of one sequence; their keys and values are in the blocks already.
struct AttentionRows {
  // Block i holds positions [128 i, 128 i + 128); null where no row looks.
  const uint8_t* const* blocks;
  size_t position;  // of row 0
  const float* q;   // [T, heads * key_dim]
  float* out;       // [T, heads * value_dim], rounded to the plan's type
  size_t T;
  // Sparse attention: of the keys that it may see, a row sees those whose bit is set,
  // [T, selections, words]; null: all.
  const uint64_t* selected = nullptr;
  size_t words = 0;
  size_t selections = 1;    // 1: of all kv heads; else of one each ...
  size_t first_choice = 0;  // ... kv head 0 has this one
  // Entries of positions [128 i, 128 i + 128) are in block i; the row sees those whose bit is set,
  // [T, entry_words]; chosen null: all.
  const uint8_t* const* entries = nullptr;
  const uint64_t* chosen = nullptr;
  size_t entry_words = 0;
  const float* relative = nullptr;  // [T, heads * relative_dims]
};

// Scratch of one thread.
class AttentionScratch {
 public:
  // For `heads` kv heads with so many rows each.
  void reserve(const AttentionPlan& plan, size_t rows, size_t heads);
  size_t key_panel_bytes = 0;  // of one head
  uint8_t *rows = nullptr, *key_panel = nullptr, *value_panel = nullptr, *scratch = nullptr;
  float *q = nullptr, *scores = nullptr, *sums = nullptr, *keep = nullptr;
  uint8_t* seen = nullptr;
  uint8_t *gathered = nullptr, *entry_panel = nullptr;
  float* entry = nullptr;
  // The softmax of a segment, and of all before it: [heads * M, value_dim], [heads * M] twice.
  float *out = nullptr, *best = nullptr, *total = nullptr;
  float *all_out = nullptr, *all_best = nullptr, *all_total = nullptr;

 private:
  Workspace memory_;
};

// In turn: every task has one segment, and segments are run in ascending order, all tasks of one
// before any of the next. Then only the blocks of one segment have to be there at a time.
enum class Segments : uint8_t { kParallel, kSequential };

// Some tokens of a sequence, the rows of some kv heads, and some segments.
struct AttentionTask {
  uint32_t sequence, head, heads;  // kv heads [head, head + heads)
  uint32_t begin, end;             // tokens
  uint32_t segment, segments;      // [segment, segments)
  size_t partial;                  // float at which its partial sums begin; kNoPartial: to `out`
};
inline constexpr size_t kNoPartial = SIZE_MAX;

// Partial sums of the same rows: those of `task`, then of parts - 1 segments, each `stride` floats
// behind the one before.
struct AttentionMerge {
  AttentionTask task;
  size_t parts, stride;
};

struct AttentionWork {
  std::vector<AttentionTask> tasks;
  std::vector<AttentionMerge> merges;
  size_t partial_floats = 0;
};

// Cuts the work of a call for `threads` threads (0: unknown). Rows are cut first. Keys are cut where
// rows are few: the first task folds its segments, every other has one, and partial sums take at most
// 16 MB, or what 8 rows of every thread take, whichever is more. A few rows are bound by reading:
// then heads go together, whose keys and values lie one behind the other, as far as there are enough
// tasks. The function reads positions, lengths and chosen entries, and no key.
AttentionWork cut_attention(const AttentionPlan& plan, std::span<const AttentionRows> sequences,
                            Segments order, size_t threads);

// Tasks may run on any thread; when all are done, so may the merges.
class Attention {
 public:
  Attention(const AttentionPlan& plan, std::span<const AttentionRows> sequences,
            Segments segments = Segments::kParallel, size_t threads = 0);
  size_t tasks() const { return work_.tasks.size(); }
  size_t segment_of(size_t task) const { return work_.tasks[task].segment; }  // in turn: ascending
  void run(size_t task, AttentionScratch& scratch);
  size_t merges() const { return work_.merges.size(); }
  void merge(size_t index);
  uint64_t bytes_read() const;  // keys and values that the tasks read

 private:
  using Task = AttentionTask;
  struct Job;
  struct State;
  size_t heads_per_kv() const { return plan_.spec.heads / plan_.spec.kv_heads; }
  State partial_at(const Task& task, size_t at) const;
  void run_entries(const Job& job, size_t segment, AttentionScratch& s) const;
  void run_gathered(const Job& job, size_t first_row, size_t M, size_t first_entry, size_t count,
                    AttentionScratch& s) const;
  uint64_t entry_bytes(const Task& task) const;
  void run_segment(const Job& job, size_t segment, AttentionScratch& s) const;
  static bool any_selected(const Job& job, size_t block, size_t head);
  static const uint64_t* selected_of(const Job& job, size_t token, size_t block, size_t head);
  const uint8_t* keys_after(const Job& job, size_t block, size_t index, size_t end) const;
  void add_relative(const Job& job, size_t block, size_t index, float* scores) const;
  size_t columns_of(const Job& job, size_t block) const;
  bool attends(const Job& job) const;
  void attend_block(const Job& job, size_t block, size_t index, const uint8_t* next,
                    AttentionScratch& s) const;
  void run_block(const Job& job, size_t block, size_t index, const uint8_t* next,
                 AttentionScratch& s) const;
  void finish(const Task& task, float* out, const float* total) const;

  const AttentionPlan& plan_;
  std::span<const AttentionRows> sequences_;
  Segments segments_;
  AttentionWork work_;
  std::unique_ptr<float[]> partials_;  // written by tasks before merges read them
};

// All tasks, then all merges, on the pool's threads; scratch [threads].
void run_attention(Attention& attention, ThreadPool& pool, std::span<AttentionScratch> scratch);

}  // namespace moebius
