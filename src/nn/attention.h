// SPDX-License-Identifier: Apache-2.0
// Causal attention with an online softmax, written once on the kernel waist: a block of 128 keys is
// a dense matrix [128, key_dim], a block of 128 values is its transpose [value_dim, 128]; both are
// kept packed (kv_layout.h), so scores and sums are ordinary gemm calls and every instruction set
// runs attention with the kernels that it has for matrices.
//
// Keys are cut into segments of 1024 positions; each is a softmax of its own, and segments are
// merged in ascending order. One long sequence thus has work for every thread. A row's result
// depends on the row, its keys and their positions alone: not on threads, on the batch, or on how a
// prompt was cut.
//
// Entries are compressed keys of one kv head, each for `ratio` tokens, which serve as their own
// values (nn/compressor.h). A row sees the entries whose tokens are all computed, or the ones of
// these that an indexer selected for it. Entries are stored as rows, and only the seen ones are
// read: they are gathered into blocks of 128 in ascending order, 256 form a segment, and these
// segments are merged after the others.
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

inline constexpr size_t kSegmentBlocks = 8;  // segment of keys, in blocks of kKeyBlock keys
inline constexpr size_t kEntrySegment = 2 * kKeyBlock;

struct AttentionSpec {
  size_t heads = 0, kv_heads = 0, key_dim = 0, value_dim = 0;
  float scale = 1.0f;
  size_t window = 0;  // number of positions for which a key stays visible; 0: no limit
  size_t chunk = 0;   // a row sees only keys of its own chunk of positions; 0: all
  size_t first = 0;   // rows at this position or later do not see keys before it
  // [heads] a logit that takes part in the head's softmax without having a value; empty: none.
  std::vector<float> sinks;
  size_t ratio = 0;  // tokens per entry; 0: the layer has no entries
  // Logits that depend on the distance between key and query: a key `distance` positions before a
  // query gets (r relative)[distance] added, where r [relative_dims] belongs to the query's head; 0
  // from relative_extent on.
  size_t relative_dims = 0, relative_extent = 0;
  std::vector<float> relative = {};  // [relative_dims, relative_extent], greatest distance first
};

// Holds the kernels and layouts of one attention layer, made at load and shared by all sequences.
struct AttentionPlan {
  AttentionSpec spec;
  XType type = XType::kF32;  // type of q, of the probabilities and of the result
  KvLayout kv;
  KvRowLayout entries;
  KvLayout gathered;  // layout of gathered entries
  // Kernel that processes many rows of a block in one call; null: there is none, and products are
  // used.
  const AttendKernel* attend = nullptr;
};
// Chooses kernels for keys and values as for any matrix. Throws Error.
AttentionPlan plan_attention(AttentionSpec spec, XType type, const KvStorage& storage,
                             const Cpu& cpu, const Policy& policy);

// Views the new rows of one sequence. Their keys and values must be in the blocks already.
struct AttentionRows {
  // [blocks] block i holds positions [128 i, 128 i + 128); null if no row sees any of them.
  const uint8_t* const* blocks;
  size_t position;  // position of row 0
  const float* q;   // [T, heads * key_dim] queries
  float* out;       // [T, heads * value_dim], rounded to the plan's type
  size_t T;
  // Sparse attention: a row sees only keys whose bit is set, [T, selections, words]; null: all
  // keys.
  const uint64_t* selected = nullptr;
  size_t words = 0;
  // Number of selections: 1: all kv heads share one; else kv head 0 of this rank uses selection
  // first_choice, and so on.
  size_t selections = 1;
  size_t first_choice = 0;
  // Compressed keys. Block i holds the entries of positions [128 i, 128 i + 128). A row sees
  // entries whose bit in `chosen`, [T, entry_words], is set; null: all.
  const uint8_t* const* entries = nullptr;
  const uint64_t* chosen = nullptr;
  size_t entry_words = 0;
  const float* relative = nullptr;  // [T, heads * relative_dims] rows r of AttentionSpec::relative
};

// Scratch memory of one thread; grows with its uses. Not thread-safe.
class AttentionScratch {
 public:
  // Makes room for `heads` kv heads with `rows` rows each. Throws Error.
  void reserve(const AttentionPlan& plan, size_t rows, size_t heads);
  size_t key_panel_bytes = 0;  // bytes of the key panel of one head
  uint8_t *rows = nullptr, *key_panel = nullptr, *value_panel = nullptr, *scratch = nullptr;
  float *q = nullptr, *scores = nullptr, *sums = nullptr, *keep = nullptr;
  uint8_t* seen = nullptr;
  uint8_t *gathered = nullptr, *entry_panel = nullptr;
  float* entry = nullptr;
  // State of the running softmax, for the current segment and for all segments before it: sums
  // [heads * M, value_dim], then maxima and totals, [heads * M] each.
  float *out = nullptr, *best = nullptr, *total = nullptr;
  float *all_out = nullptr, *all_best = nullptr, *all_total = nullptr;

 private:
  Workspace memory_;
};

// Selects the order of tasks. kParallel: no order is needed. kSequential: each task has one
// segment, and all tasks of a segment run before those of the next, so that only the blocks of one
// segment must be in memory.
enum class Segments : uint8_t { kParallel, kSequential };

// Work that one thread does at once: some tokens of one sequence, some kv heads, and some segments.
struct AttentionTask {
  uint32_t sequence, head, heads;  // kv heads [head, head + heads)
  uint32_t begin, end;             // tokens [begin, end)
  uint32_t segment, segments;      // segments [segment, segments)
  size_t partial;  // offset in floats of its partial sums; kNoPartial: the result goes to `out`
};
inline constexpr size_t kNoPartial = SIZE_MAX;

// Merges the partial sums of `parts` segments for the rows of `task`, each `stride` floats after
// the one before.
struct AttentionMerge {
  AttentionTask task;
  size_t parts, stride;
};

struct AttentionWork {
  std::vector<AttentionTask> tasks;
  std::vector<AttentionMerge> merges;
  size_t partial_floats = 0;
};

// Divides the work of a call into tasks for `threads` threads (0: unknown). Rows are divided first.
// Keys are divided if there are few rows: the first task merges its segments, every other task has
// one segment, and partial sums take at most 16 MB, or as much as 8 rows per thread if that is
// more. Few rows are bound by reading memory: neighbouring heads, whose keys and values are
// adjacent, then share a task as long as there are enough tasks. Reads positions, lengths and
// chosen entries, but no keys.
AttentionWork cut_attention(const AttentionPlan& plan, std::span<const AttentionRows> sequences,
                            Segments order, size_t threads);

// Computes attention of several sequences in one layer. Tasks may run on any threads in any order;
// merges may run when all tasks are done.
class Attention {
 public:
  Attention(const AttentionPlan& plan, std::span<const AttentionRows> sequences,
            Segments segments = Segments::kParallel, size_t threads = 0);
  size_t tasks() const { return work_.tasks.size(); }
  // Returns the first segment of a task; with kSequential segments ascend with the tasks.
  size_t segment_of(size_t task) const { return work_.tasks[task].segment; }
  void run(size_t task, AttentionScratch& scratch);
  size_t merges() const { return work_.merges.size(); }
  void merge(size_t index);
  uint64_t bytes_read() const;  // bytes of keys and values that the tasks read

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
  std::unique_ptr<float[]> partials_;  // partial sums, written by tasks and read by merges
};

// Runs all tasks, then all merges, on the pool's threads; scratch: [threads].
void run_attention(Attention& attention, ThreadPool& pool, std::span<AttentionScratch> scratch);

}  // namespace moebius
