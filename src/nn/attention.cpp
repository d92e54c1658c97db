// SPDX-License-Identifier: Apache-2.0
// Runs the tasks of attention. A task is the queries of some tokens for the heads that share a kv
// head, M = tokens * heads per kv head rows (row = token-major); of several kv heads one after the
// other in each block.
// Blocks of keys in ascending order:   s = scale * q k^T, masked;   m' = max(m, max s);   p = exp(s - m');
//   l = l * exp(m - m') + sum p;   o = o * exp(m - m') + p v, with p rounded to the activation type.   A block that a row does not see changes nothing of it, bit for bit.
// Segments are merged with m' = max(m, m_s):   l = l * exp(m - m') + l_s * exp(m_s - m'), o likewise.
#include "nn/attention.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "kernels/packed_matrix.h"
#include "nn/attention_job.h"

namespace moebius {
namespace {

Seen seen_keys(const AttentionSpec& spec, size_t position, size_t block) {
  const size_t from = oldest_seen(spec, position), begin = block * kKeyBlock;
  const size_t first = from > begin ? std::min(from - begin, kKeyBlock) : 0;
  const size_t last = position + 1 > begin ? std::min(position + 1 - begin, kKeyBlock) : 0;
  return {std::min(first, last), last};
}

// Requests the memory of the next keys while a row's softmax computes and leaves memory idle.
constexpr size_t kLead = 1024;  // bytes per row
void ask_for(const uint8_t* p, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 0, 2);
}

void multiply_rows(float* s, size_t M, size_t columns, const float* by) {
  const RowFunctions& f = row_functions();
  for (size_t m = 0; m < M; ++m) f.multiply(s + m * kKeyBlock, by, columns);
}

}  // namespace

// Holds the state of a softmax over some of the keys.
struct Attention::State {
  float *out, *best, *total;  // [M, value_dim], [M], [M]

  void clear(size_t M, size_t dv) const {
    std::fill_n(best, M, kMasked), std::fill_n(total, M, 0.0f);
    std::fill_n(out, M * dv, 0.0f);
  }
  void copy_from(const State& s, size_t M, size_t dv) const {
    std::memcpy(out, s.out, M * dv * sizeof(float));
    std::memcpy(best, s.best, M * sizeof(float));
    std::memcpy(total, s.total, M * sizeof(float));
  }
  void merge(const State& part, size_t m, size_t dv) const;
};

// Adds the state of later keys to this one, for row m. A part in which the row sees no key changes
// nothing.
void Attention::State::merge(const State& part, size_t m, size_t dv) const {
  const RowFunctions& f = row_functions();
  if (part.best[m] == kMasked && part.total[m] == 0.0f) return;
  if (best[m] == kMasked && total[m] == 0.0f) {
    best[m] = part.best[m];
    total[m] = part.total[m];
    std::memcpy(out + m * dv, part.out + m * dv, dv * sizeof(float));
    return;
  }
  const float top = std::max(best[m], part.best[m]);
  float before, now;
  f.exp_minus(&best[m], top, &before, 1);
  f.exp_minus(&part.best[m], top, &now, 1);
  best[m] = top;
  total[m] = total[m] * before + part.total[m] * now;
  f.scale(part.out + m * dv, now, dv);
  f.scale_and_add(out + m * dv, before, part.out + m * dv, dv);
}

Attention::Attention(const AttentionPlan& plan, std::span<const AttentionRows> sequences,
                     Segments segments, size_t threads)
    : plan_(plan),
      sequences_(sequences),
      segments_(segments),
      work_(cut_attention(plan, sequences, segments, threads)),
      partials_(std::make_unique_for_overwrite<float[]>(work_.partial_floats)) {}

Attention::State Attention::partial_at(const Task& task, size_t at) const {
  const size_t M = task.heads * (task.end - task.begin) * heads_per_kv(), dv = plan_.spec.value_dim;
  float* begin = partials_.get() + at;
  return {begin, begin + M * dv, begin + M * (dv + 1)};
}

void Attention::run(size_t index, AttentionScratch& s) {
  const Task task = work_.tasks[index];
  const AttentionRows& rows = sequences_[task.sequence];
  const AttentionSpec& spec = plan_.spec;
  const KvMatrix& keys = plan_.kv.keys();
  const size_t rep = heads_per_kv(), dk = spec.key_dim, dv = spec.value_dim,
               tokens = task.end - task.begin, M = tokens * rep, all_rows = task.heads * M;
  const Job job{task, rows, rep, tokens, M, rows.position + task.begin};
  s.reserve(plan_, M, task.heads);
  PackedMatrix w;
  w.problem = &keys.problem;
  const ActParams none;
  for (size_t h = 0; h < task.heads; ++h) {
    for (size_t t = 0; t < tokens; ++t)
      std::memcpy(s.q + t * rep * dk,
                  rows.q + ((task.begin + t) * spec.heads + (task.head + h) * rep) * dk,
                  rep * dk * sizeof(float));
    keys.kernel->prepare_rows({&keys.problem, &none, s.q, dk, M, s.rows});
    keys.kernel->make_row_panel(
        {&keys.problem, &w, s.rows, nullptr, M, s.key_panel + h * s.key_panel_bytes});
  }
  const State all{s.all_out, s.all_best, s.all_total}, one{s.out, s.best, s.total};
  const bool goes_on =
      segments_ == Segments::kSequential && task.segment > first_segment(spec, rows, task.begin);
  if (goes_on)
    all.copy_from(partial_at(task, task.partial), all_rows, dv);
  else
    all.clear(all_rows, dv);
  for (size_t segment = task.segment; segment < task.segments; ++segment) {
    run_segment(job, segment, s);
    for (size_t m = 0; m < all_rows; ++m) all.merge(one, m, dv);
  }
  if (task.partial == kNoPartial) return finish(task, all.out, all.total);
  partial_at(task, task.partial).copy_from(all, all_rows, dv);
}

void Attention::run_segment(const Job& job, size_t segment, AttentionScratch& s) const {
  const AttentionSpec& spec = plan_.spec;
  const size_t all_rows = job.task.heads * job.M;
  // The sink counts once, with the first segment that a row sees.
  for (size_t i = 0; i < all_rows; ++i) {
    const size_t head = job.task.head + i / job.M, m = i % job.M;
    const bool sink = !spec.sinks.empty() &&
                      first_segment(spec, job.rows, job.task.begin + m / job.rep) == segment;
    s.best[i] = sink ? spec.sinks[head * job.rep + m % job.rep] : kMasked;
    s.total[i] = sink ? 1.0f : 0.0f;
  }
  std::fill_n(s.out, all_rows * spec.value_dim, 0.0f);
  const size_t behind = first_segment(spec, job.rows, job.task.begin) +
                        key_segments(spec, job.rows, job.task.begin, job.task.end);
  if (segment >= behind) return run_entries(job, segment - behind, s);
  const size_t newest = (job.position + job.tokens - 1) / kKeyBlock,
               oldest = oldest_seen(spec, job.position) / kKeyBlock;
  const size_t begin = std::max(segment * kSegmentBlocks, oldest),
               end = std::min((segment + 1) * kSegmentBlocks, newest + 1);
  const auto run = attends(job) ? &Attention::attend_block : &Attention::run_block;
  for (size_t block = begin; block < end; ++block)
    for (size_t h = 0; h < job.task.heads; ++h)
      if (any_selected(job, block, job.task.head + h))
        (this->*run)(job, block, h, keys_after(job, block, h, end), s);
}

// Returns the keys or values that are probably multiplied after head `index` of this block; for the
// last one, the block's own.
const uint8_t* Attention::keys_after(const Job& job, size_t block, size_t index, size_t end) const {
  const bool last = index + 1 == job.task.heads;
  if (last && block + 1 == end) return plan_.kv.keys_of(job.rows.blocks[block], job.task.head);
  return last ? plan_.kv.keys_of(job.rows.blocks[block + 1], job.task.head)
              : plan_.kv.keys_of(job.rows.blocks[block], job.task.head + index + 1);
}

// Returns whether a row of the task sees a key of the block; a block without such a key is skipped.
bool Attention::any_selected(const Job& job, size_t block, size_t head) {
  if (job.rows.selected == nullptr) return true;
  for (size_t t = 0; t < job.tokens; ++t)
    if (const uint64_t* bits = selected_of(job, t, block, head); (bits[0] | bits[1]) != 0)
      return true;
  return false;
}

const uint64_t* Attention::selected_of(const Job& job, size_t token, size_t block, size_t head) {
  const AttentionRows& r = job.rows;
  if (r.selected == nullptr) return nullptr;
  const size_t choice = r.selections == 1 ? 0 : r.first_choice + head;
  return r.selected + ((job.task.begin + token) * r.selections + choice) * r.words +
         block * (kKeyBlock / 64);
}

// Adds the relative position terms to the scores. Both are multiplied by the scale afterwards.
void Attention::add_relative(const Job& job, size_t block, size_t index, float* scores) const {
  const AttentionSpec& spec = plan_.spec;
  const size_t dims = spec.relative_dims, extent = spec.relative_extent, begin = block * kKeyBlock;
  for (size_t m = 0; m < job.M; ++m) {
    const size_t token = m / job.rep, position = job.position + token,
                 head = (job.task.head + index) * job.rep + m % job.rep;
    const size_t from = position + 1 > extent ? position + 1 - extent : 0,
                 first = std::max(from, begin), last = std::min(position + 1, begin + kKeyBlock);
    if (first >= last) continue;
    const float* r = job.rows.relative + ((job.task.begin + token) * spec.heads + head) * dims;
    const float* column = spec.relative.data() + extent - 1 - (position - first);
    for (size_t d = 0; d < dims; ++d)
      row_functions().fma(scores + m * kKeyBlock + first - begin, r[d] / spec.scale,
                          column + d * extent, last - first);
  }
}

bool Attention::attends(const Job& job) const {
  return plan_.attend != nullptr && job.M >= plan_.attend->least_rows &&
         job.rows.selected == nullptr && job.rows.relative == nullptr && plan_.spec.scale > 0.0f;
}

// Does the work of run_block in a single call of the kernel.
void Attention::attend_block(const Job& job, size_t block, size_t index, const uint8_t* next,
                             AttentionScratch& s) const {
  const AttentionSpec& spec = plan_.spec;
  const uint8_t* data = job.rows.blocks[block];
  const size_t head = job.task.head + index, first = index * job.M;
  const Seen oldest = seen_keys(spec, job.position, block),
             newest = seen_keys(spec, job.position + job.tokens - 1, block);
  // Every row sees the whole block.
  const bool whole = oldest.last == kKeyBlock && newest.first == 0;
  for (size_t m = 0; m < job.M && !whole; ++m) {
    const Seen seen = seen_keys(spec, job.position + m / job.rep, block);
    s.seen[2 * m] = static_cast<uint8_t>(seen.first);
    s.seen[2 * m + 1] = static_cast<uint8_t>(seen.last);
  }
  plan_.attend->run({&plan_.kv.keys().problem, &plan_.kv.values().problem,
                     plan_.kv.keys_of(data, head), plan_.kv.values_of(data, head), next,
                     s.key_panel + index * s.key_panel_bytes, job.M, columns_of(job, block),
                     whole ? nullptr : s.seen, spec.scale, plan_.kv.key_scales(data, head),
                     plan_.kv.value_scales(data, head), s.best + first, s.total + first,
                     s.out + first * spec.value_dim, s.scratch, row_functions().softmax_step});
}

// Returns the number of leading keys of a block that at least one row may see.
size_t Attention::columns_of(const Job& job, size_t block) const {
  return std::min<size_t>(kKeyBlock, round_up(job.position + job.tokens - block * kKeyBlock,
                                              plan_.kv.keys().kernel->n_step));
}

void Attention::run_block(const Job& job, size_t block, size_t index, const uint8_t* next,
                          AttentionScratch& s) const {
  const AttentionSpec& spec = plan_.spec;
  const KvMatrix &keys = plan_.kv.keys(), &values = plan_.kv.values();
  const Kernel &kk = *keys.kernel, &vk = *values.kernel;
  const RowFunctions& f = row_functions();
  const size_t M = job.M, dv = spec.value_dim, head = job.task.head + index;
  const uint8_t *data = job.rows.blocks[block], *values_at = plan_.kv.values_of(data, head);
  const ActParams none;
  PackedMatrix w, after;  // the matrix to multiply and the one to prefetch
  w.problem = &keys.problem, w.data = plan_.kv.keys_of(data, head);
  after.problem = &values.problem;
  after.data = values_at;
  const PackedMatrix* then = &kk == &vk ? &after : nullptr;
  const size_t columns = columns_of(job, block);
  kk.gemm({&w, s.key_panel + index * s.key_panel_bytes, M, 0, columns, s.scores, kKeyBlock,
           s.scratch, then});
  const Seen oldest = seen_keys(spec, job.position, block),
             newest = seen_keys(spec, job.position + job.tokens - 1, block);
  // Every row sees the whole block.
  const bool whole = oldest.last == kKeyBlock && newest.first == 0;
  const float *key_scales = plan_.kv.key_scales(data, head),
              *value_scales = plan_.kv.value_scales(data, head);
  if (key_scales != nullptr) multiply_rows(s.scores, M, columns, key_scales);
  if (job.rows.relative != nullptr) add_relative(job, block, index, s.scores);
  float *best = s.best + index * M, *total = s.total + index * M, *out = s.out + index * M * dv;
  const size_t lead = M <= kFewRows ? M * kLead : 0;
  for (size_t m = 0; m < M; ++m) {
    if (lead != 0) ask_for(next + m * kLead, kLead);
    s.keep[m] =
        softmax_seen(f, s.scores + m * kKeyBlock, spec.scale,
                     whole ? newest : seen_keys(spec, job.position + m / job.rep, block),
                     selected_of(job, m / job.rep, block, head), plan_.type, best[m], total[m]);
  }
  w.problem = &values.problem;
  w.data = values_at;
  if (value_scales != nullptr) multiply_rows(s.scores, M, kKeyBlock, value_scales);
  vk.prepare_rows({&values.problem, &none, s.scores, kKeyBlock, M, s.rows});
  vk.make_row_panel({&values.problem, &w, s.rows, nullptr, M, s.value_panel});
  after.problem = &keys.problem;
  after.data = next + lead;
  vk.gemm({&w, s.value_panel, M, 0, dv, s.sums, dv, s.scratch, then});
  for (size_t m = 0; m < M; ++m) f.scale_and_add(out + m * dv, s.keep[m], s.sums + m * dv, dv);
}

void Attention::merge(size_t index) {
  const auto& [task, parts, stride] = work_.merges[index];
  const size_t dv = plan_.spec.value_dim, M = task.heads * (task.end - task.begin) * heads_per_kv();
  const State all = partial_at(task, task.partial);
  for (size_t i = 1; i < parts; ++i)
    for (size_t m = 0; m < M; ++m) all.merge(partial_at(task, task.partial + i * stride), m, dv);
  finish(task, all.out, all.total);
}

void Attention::finish(const Task& task, float* out, const float* total) const {
  const RowFunctions& f = row_functions();
  const AttentionSpec& spec = plan_.spec;
  const size_t rep = heads_per_kv(), dv = spec.value_dim, M = (task.end - task.begin) * rep;
  for (size_t h = 0; h < task.heads; ++h)
    for (size_t m = 0; m < M; ++m, out += dv, ++total) {
      float* to = sequences_[task.sequence].out +
                  ((task.begin + m / rep) * spec.heads + (task.head + h) * rep + m % rep) * dv;
      f.divide(out, *total, to, dv);
      f.round(plan_.type, to, dv);
    }
}

void run_attention(Attention& attention, ThreadPool& pool, std::span<AttentionScratch> scratch) {
  WorkCounter next, next_merge;
  pool.run([&](ThreadPool::Member& me) {
    for (size_t i = next.take(); i < attention.tasks(); i = next.take())
      attention.run(i, scratch[me.index()]);
    if (attention.merges() == 0) return;
    me.barrier();
    for (size_t i = next_merge.take(); i < attention.merges(); i = next_merge.take())
      attention.merge(i);
  });
}

uint64_t Attention::bytes_read() const {
  const uint64_t head_bytes = plan_.kv.block_bytes() / plan_.spec.kv_heads;
  uint64_t bytes = 0;
  for (const Task& t : work_.tasks) {
    const AttentionRows& rows = sequences_[t.sequence];
    bytes += entry_bytes(t);
    const size_t first = std::max(oldest_seen(plan_.spec, rows.position + t.begin) / kKeyBlock,
                                  static_cast<size_t>(t.segment) * kSegmentBlocks);
    const size_t end = std::min((rows.position + t.end - 1) / kKeyBlock + 1,
                                static_cast<size_t>(t.segments) * kSegmentBlocks);
    if (first >= end) continue;  // only entries are seen
    if (rows.selected == nullptr) {
      bytes += (end - first) * head_bytes * t.heads;
      continue;
    }
    const Job job{t, rows, heads_per_kv(), t.end - t.begin, 0, 0};
    for (size_t block = first; block < end; ++block)
      for (size_t h = t.head; h < t.head + t.heads; ++h)
        if (any_selected(job, block, h)) bytes += head_bytes;
  }
  return bytes;
}

}  // namespace moebius
