// SPDX-License-Identifier: Apache-2.0
// Attends over entries (attention.h): they are gathered into blocks and multiplied like any block
// of keys. Rows of a task that see all entries share a block; where entries were chosen, every
// token has its own block.
#include <bit>
#include <cstring>

#include "base/checked.h"
#include "kernels/packed_matrix.h"
#include "nn/attention_job.h"

namespace moebius {
namespace {

// Returns the number of entries whose tokens all precede or equal a query's `position`.
size_t whole_entries(const AttentionSpec& spec, size_t position) {
  return spec.ratio == 0 ? 0 : (position + 1) / spec.ratio;
}

// Calls f(entry, place among the chosen ones) for each chosen entry of [begin, end).
template <class F>
void each_chosen(const uint64_t* bits, size_t words, size_t begin, size_t end, F f) {
  size_t at = 0;
  for (size_t i = 0; i < words && at < end; ++i) {
    const auto here = static_cast<size_t>(std::popcount(bits[i]));
    if (at + here <= begin) {
      at += here;
      continue;
    }
    for (uint64_t left = bits[i]; left != 0 && at < end; left &= left - 1, ++at)
      if (at >= begin) f(i * 64 + static_cast<size_t>(std::countr_zero(left)), at - begin);
  }
}

// Returns how many entries the query of a token sees.
size_t entries_seen(const AttentionSpec& spec, const AttentionRows& rows, size_t token) {
  if (rows.entries == nullptr) return 0;
  if (rows.chosen == nullptr) return whole_entries(spec, rows.position + token);
  size_t n = 0;
  for (size_t i = 0; i < rows.entry_words; ++i)
    n += static_cast<size_t>(std::popcount(rows.chosen[token * rows.entry_words + i]));
  return n;
}

}  // namespace

size_t entry_segments(const AttentionSpec& spec, const AttentionRows& rows, size_t begin,
                      size_t end) {
  if (rows.entries == nullptr) return 0;
  size_t most = 0;
  for (size_t t = begin; t < end; ++t) most = std::max(most, entries_seen(spec, rows, t));
  return ceil_div(most, kEntrySegment);
}

void Attention::run_entries(const Job& job, size_t segment, AttentionScratch& s) const {
  const AttentionRows& rows = job.rows;
  const size_t each = kKeyBlock / plan_.spec.ratio, dk = plan_.spec.key_dim;
  const auto gather = [&](size_t entry, size_t to) {
    plan_.entries.get(rows.entries[entry / each], entry % each, s.entry);
    plan_.gathered.put(s.gathered, 0, to, 1, s.entry, dk, s.entry, dk);
  };
  for (size_t begin = segment * kEntrySegment; begin < (segment + 1) * kEntrySegment;
       begin += kKeyBlock) {
    if (rows.chosen == nullptr) {
      const size_t seen = entries_seen(plan_.spec, rows, job.task.end - 1);
      if (seen <= begin) return;
      const size_t count = std::min(seen - begin, kKeyBlock);
      for (size_t i = 0; i < count; ++i) gather(begin + i, i);
      run_gathered(job, 0, job.M, begin, count, s);
      continue;
    }
    for (size_t t = 0; t < job.tokens; ++t) {
      size_t count = 0;
      each_chosen(rows.chosen + (job.task.begin + t) * rows.entry_words, rows.entry_words, begin,
                  begin + kKeyBlock, [&](size_t entry, size_t to) {
                    gather(entry, to);
                    count = to + 1;
                  });
      if (count > 0) run_gathered(job, t * job.rep, job.rep, begin, count, s);
    }
  }
}

// Attends rows [first_row, first_row + M) of the task over the gathered entries; when rows share
// entries, each sees those that are complete for it.
void Attention::run_gathered(const Job& job, size_t first_row, size_t M, size_t first_entry,
                             size_t count, AttentionScratch& s) const {
  const AttentionSpec& spec = plan_.spec;
  const KvMatrix &keys = plan_.gathered.keys(), &values = plan_.gathered.values();
  const Kernel &kk = *keys.kernel, &vk = *values.kernel;
  const RowFunctions& f = row_functions();
  const size_t dk = spec.key_dim, dv = spec.value_dim,
               columns = std::min<size_t>(kKeyBlock, round_up(count, kk.n_step));
  const ActParams none;
  PackedMatrix w;
  w.problem = &keys.problem;
  w.data = plan_.gathered.keys_of(s.gathered, 0);
  kk.prepare_rows({&keys.problem, &none, s.q + first_row * dk, dk, M, s.rows});
  kk.make_row_panel({&keys.problem, &w, s.rows, nullptr, M, s.entry_panel});
  kk.gemm({&w, s.entry_panel, M, 0, columns, s.scores, kKeyBlock, s.scratch});
  for (size_t m = 0; m < M; ++m) {
    const size_t row = first_row + m, whole = whole_entries(spec, job.position + row / job.rep),
                 last = job.rows.chosen != nullptr
                            ? count
                            : std::min(count, whole - std::min(whole, first_entry));
    s.keep[m] = softmax_seen(f, s.scores + m * kKeyBlock, spec.scale, {0, last}, nullptr,
                             plan_.type, s.best[row], s.total[row]);
  }
  w.problem = &values.problem;
  w.data = plan_.gathered.values_of(s.gathered, 0);
  vk.prepare_rows({&values.problem, &none, s.scores, kKeyBlock, M, s.rows});
  vk.make_row_panel({&values.problem, &w, s.rows, nullptr, M, s.value_panel});
  vk.gemm({&w, s.value_panel, M, 0, dv, s.sums, dv, s.scratch});
  for (size_t m = 0; m < M; ++m)
    f.scale_and_add(s.out + (first_row + m) * dv, s.keep[m], s.sums + m * dv, dv);
}

uint64_t Attention::entry_bytes(const Task& task) const {
  const AttentionRows& rows = sequences_[task.sequence];
  if (rows.entries == nullptr) return 0;
  const size_t behind = first_segment(plan_.spec, rows, task.begin) +
                        key_segments(plan_.spec, rows, task.begin, task.end);
  const size_t begin = (std::max<size_t>(task.segment, behind) - behind) * kEntrySegment,
               end = task.segments > behind ? (task.segments - behind) * kEntrySegment : 0;
  const auto within = [&](size_t token) {
    const size_t seen = std::min(entries_seen(plan_.spec, rows, token), end);
    return seen - std::min(seen, begin);
  };
  uint64_t read = 0;
  if (rows.chosen == nullptr) read = within(task.end - 1);
  for (size_t t = task.begin; rows.chosen != nullptr && t < task.end; ++t) read += within(t);
  return read * plan_.entries.row_bytes();
}

}  // namespace moebius
