// SPDX-License-Identifier: Apache-2.0
// Chooses kernels, tasks and scratch memory of an attention layer (attention.h).
#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "kernels/oracle.h"
#include "nn/attention_job.h"

namespace moebius {
namespace {

// Scores, sums and panels of so many rows stay in the nearest caches.
constexpr size_t kTaskRows = 128;
constexpr size_t kLeastRows = 32;      // smaller tasks would read the same keys too often
constexpr size_t kTasksPerThread = 4;  // so that all threads finish at about the same time
constexpr size_t kUnknownThreads = 32;
constexpr size_t kPartialBytes = 16'000'000, kPartialRows = 8;  // limits per call and per thread

// Cuts a call into tasks. The unit of cost is one row of one kv head times one segment.
class WorkCutter {
 public:
  WorkCutter(const AttentionPlan& plan, std::span<const AttentionRows> sequences, Segments order,
             size_t threads)
      : plan_(plan),
        sequences_(sequences),
        in_turn_(order == Segments::kSequential),
        threads_(threads == 0 ? kUnknownThreads : threads),
        rep_(plan.spec.heads / plan.spec.kv_heads),
        m_tile_(plan.kv.keys().kernel->m_tile) {
    size_t rows = most_rows(threads != 0);
    set_rows(rows);
    if (in_turn_) return;
    const size_t least = tiles_of(kLeastRows);
    while (rows > least && (rows > most_ || partial_floats() > limit_))
      set_rows(rows = std::max(least, rows / 2 / m_tile_ * m_tile_));
    while (partial_floats() > limit_) most_ += most_ / 4 + 1;
  }

  AttentionWork work() const {
    AttentionWork work;
    for (const Piece& piece : pieces_)
      for (size_t h = 0, n; h < plan_.spec.kv_heads; h += n) {
        n = std::min(heads_together(piece), plan_.spec.kv_heads - h);
        add(work, piece, h, n);
      }
    // The last tokens of a prompt see the most keys: their tasks start first.
    std::reverse(work.tasks.begin(), work.tasks.end());
    std::stable_sort(work.tasks.begin(), work.tasks.end(), [&](const auto& a, const auto& b) {
      return in_turn_ ? a.segment < b.segment : cost_of(a) > cost_of(b);
    });
    return work;
  }

 private:
  // Tokens [begin, end) of a sequence whose rows form one task.
  struct Piece {
    size_t sequence, begin, end, rows, first, segments;
  };

  size_t tiles_of(size_t rows) const { return std::max(m_tile_, rows / m_tile_ * m_tile_); }

  // Returns the rows of the largest task: larger tasks read keys and values less often, so they
  // grow as long as every thread of a large call has some.
  size_t most_rows(bool threads_known) const {
    size_t all = 0, longest = 1;
    bool many = plan_.attend != nullptr && threads_known;
    for (const AttentionRows& r : sequences_) {
      all += r.T * plan_.spec.heads;
      longest = std::max(longest, r.T * rep_);
      many = many && r.selected == nullptr && r.relative == nullptr;
    }
    const size_t least = tiles_of(kTaskRows);
    size_t rows = many ? plan_.attend->best_rows : least;
    while (rows / 2 >= least && all / rows < threads_ * kTasksPerThread) rows /= 2;
    return std::min(rows, longest);
  }

  void set_rows(size_t rows) {
    const AttentionSpec& spec = plan_.spec;
    const size_t tokens = std::max<size_t>(1, rows / rep_);
    size_t cost = 0, longest = 1;
    pieces_.clear();
    for (size_t s = 0; s < sequences_.size(); ++s)
      for (size_t begin = 0; begin < sequences_[s].T; begin += tokens) {
        const AttentionRows& r = sequences_[s];
        const size_t end = std::min(begin + tokens, r.T);
        pieces_.push_back(
            {s, begin, end, (end - begin) * rep_, first_segment(spec, r, begin),
             key_segments(spec, r, begin, end) + entry_segments(spec, r, begin, end)});
        cost += pieces_.back().rows * pieces_.back().segments * spec.kv_heads;
        longest = std::max(longest, pieces_.back().segments);
      }
    most_ = threads_ == 1 ? cost : cost / (threads_ * kTasksPerThread / 2);
    few_ = threads_ == 1 ? cost : cost / (threads_ * kTasksPerThread);
    limit_ = std::max(kPartialBytes / sizeof(float),
                      kPartialRows * threads_ * longest * (spec.value_dim + 2));
  }

  size_t heads_together(const Piece& p) const {
    if (in_turn_ || p.rows > kFewRows) return 1;
    return std::clamp<size_t>(few_ / p.rows, 1, plan_.spec.kv_heads);
  }

  // Returns the number of partial sums of a row: its first task covers as many segments as a task
  // may cost.
  size_t parts_of(const Piece& p) const {
    const size_t first = most_ / (p.rows * heads_together(p));
    return p.segments - std::clamp<size_t>(first, 1, p.segments) + 1;
  }

  size_t partial_floats() const {
    size_t rows = 0;
    for (const Piece& p : pieces_)
      if (const size_t parts = parts_of(p); parts > 1) rows += p.rows * parts;
    return rows * plan_.spec.kv_heads * (plan_.spec.value_dim + 2);
  }

  size_t cost_of(const AttentionTask& t) const {
    return size_t{t.end - t.begin} * t.heads * (t.segments - t.segment);
  }

  void add(AttentionWork& work, const Piece& p, size_t head, size_t heads) const {
    const size_t parts = in_turn_ ? p.segments : parts_of(p),
                 floats = heads * p.rows * (plan_.spec.value_dim + 2);
    AttentionTask task{};
    task.sequence = static_cast<uint32_t>(p.sequence);
    task.head = static_cast<uint32_t>(head);
    task.heads = static_cast<uint32_t>(heads);
    task.begin = static_cast<uint32_t>(p.begin);
    task.end = static_cast<uint32_t>(p.end);
    task.segment = static_cast<uint32_t>(p.first);
    task.segments = static_cast<uint32_t>(p.first + p.segments - parts + 1);
    task.partial = work.partial_floats;
    if (!in_turn_ && parts == 1) {
      task.partial = kNoPartial;
      work.tasks.push_back(task);
      return;
    }
    // In sequential mode, all tasks of a row continue the same partial sums.
    const AttentionMerge merge{task, in_turn_ ? 1 : parts, in_turn_ ? 0 : floats};
    work.merges.push_back(merge);
    work.partial_floats += floats * merge.parts;
    for (size_t i = 0; i < parts; ++i) {
      work.tasks.push_back(task);
      task.partial += merge.stride;
      task.segment = task.segments++;
    }
  }

  const AttentionPlan& plan_;
  const std::span<const AttentionRows> sequences_;
  const bool in_turn_;
  const size_t threads_, rep_, m_tile_;
  std::vector<Piece> pieces_;
  // Highest cost of a task, highest cost of a segment in a task of few rows, and the limit of
  // floats for partial sums.
  size_t most_ = 0, few_ = 0, limit_ = 0;
};

}  // namespace

size_t oldest_seen(const AttentionSpec& spec, size_t position) {
  size_t from = 0;
  if (spec.window != 0 && position + 1 > spec.window) from = position + 1 - spec.window;
  if (spec.chunk != 0) from = std::max(from, position / spec.chunk * spec.chunk);
  from = std::max(from, std::min(spec.first, position));
  return from;
}

size_t first_segment(const AttentionSpec& spec, const AttentionRows& rows, size_t token) {
  return oldest_seen(spec, rows.position + token) / (kSegmentBlocks * kKeyBlock);
}

size_t key_segments(const AttentionSpec& spec, const AttentionRows& rows, size_t begin,
                    size_t end) {
  return (rows.position + end - 1) / (kSegmentBlocks * kKeyBlock) -
         first_segment(spec, rows, begin) + 1;
}

AttentionWork cut_attention(const AttentionPlan& plan, std::span<const AttentionRows> sequences,
                            Segments order, size_t threads) {
  return WorkCutter(plan, sequences, order, threads).work();
}

AttentionPlan plan_attention(AttentionSpec spec, XType type, const KvStorage& storage,
                             const Cpu& cpu, const Policy& policy) {
  const auto choose = [&](const Problem& p) {
    return choose_kernel(p, cpu, request_for(p, policy)).chosen;
  };
  AttentionPlan plan;
  plan.type = type;
  plan.kv = KvLayout(spec.kv_heads, spec.key_dim, spec.value_dim, storage, type, choose);
  if (spec.ratio != 0) {
    if (spec.kv_heads != 1 || spec.key_dim != spec.value_dim || kKeyBlock % spec.ratio != 0)
      fail("entries of {} tokens for {} kv heads with keys of {} and values of {} features",
           spec.ratio, spec.kv_heads, spec.key_dim, spec.value_dim);
    plan.entries = {spec.key_dim, storage.type, kKeyBlock / spec.ratio};
    plan.gathered = KvLayout(1, spec.key_dim, spec.key_dim, {kv_type_of(type)}, type, choose);
  }
  const KvMatrix &keys = plan.kv.keys(), &values = plan.kv.values();
  if (keys.kernel == values.kernel)
    plan.attend = attend_kernel(*keys.kernel, keys.problem, values.problem);
  plan.spec = std::move(spec);
  return plan;
}

void AttentionScratch::reserve(const AttentionPlan& plan, size_t M, size_t heads) {
  const KvMatrix &keys = plan.kv.keys(), &values = plan.kv.values();
  const Kernel &kk = *keys.kernel, &vk = *values.kernel;
  const size_t dv = plan.spec.value_dim, all_rows = M * heads;
  size_t row_bytes = std::max(kk.row_bytes(keys.problem), vk.row_bytes(values.problem)),
         values_bytes = vk.row_panel_bytes(values.problem, M), gathered_bytes = 0, panel_bytes = 0,
         scratch_bytes =
             std::max(kk.scratch_bytes(keys.problem, M), vk.scratch_bytes(values.problem, M));
  if (plan.attend != nullptr) scratch_bytes = std::max(scratch_bytes, plan.attend->scratch_bytes);
  key_panel_bytes = round_up(kk.row_panel_bytes(keys.problem, M), 64);
  if (plan.spec.ratio != 0) {
    const KvMatrix &ek = plan.gathered.keys(), &ev = plan.gathered.values();
    row_bytes =
        std::max({row_bytes, ek.kernel->row_bytes(ek.problem), ev.kernel->row_bytes(ev.problem)});
    values_bytes = std::max(values_bytes, ev.kernel->row_panel_bytes(ev.problem, M));
    scratch_bytes = std::max({scratch_bytes, ek.kernel->scratch_bytes(ek.problem, M),
                              ev.kernel->scratch_bytes(ev.problem, M)});
    gathered_bytes = plan.gathered.block_bytes();
    panel_bytes = ek.kernel->row_panel_bytes(ek.problem, M);
  }
  ScratchLayout layout;
  const size_t at_rows = layout.add(M * row_bytes), at_keys = layout.add(heads * key_panel_bytes),
               at_values = layout.add(values_bytes), at_scratch = layout.add(scratch_bytes),
               at_gathered = layout.add(gathered_bytes), at_panel = layout.add(panel_bytes),
               at_seen = layout.add(2 * M);
  struct Floats {
    float** to;
    size_t count, at = 0;
  };
  Floats all[] = {{&q, M * plan.spec.key_dim},
                  {&scores, M * kKeyBlock},
                  {&sums, M * dv},
                  {&keep, M},
                  {&entry, plan.spec.ratio != 0 ? plan.spec.key_dim : 0},
                  {&out, all_rows * dv},
                  {&best, all_rows},
                  {&total, all_rows},
                  {&all_out, all_rows * dv},
                  {&all_best, all_rows},
                  {&all_total, all_rows}};
  for (Floats& a : all) a.at = layout.add_array<float>(a.count);
  uint8_t* base = memory_.reserve(layout.bytes());
  rows = base + at_rows;
  key_panel = base + at_keys;
  value_panel = base + at_values;
  scratch = base + at_scratch;
  gathered = base + at_gathered;
  entry_panel = base + at_panel;
  seen = base + at_seen;
  for (const Floats& a : all) *a.to = reinterpret_cast<float*>(base + a.at);
}

}  // namespace moebius
