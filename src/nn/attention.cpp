// SPDX-License-Identifier: Apache-2.0
// One task: the queries of some tokens for the heads that share a kv head, M = tokens * heads per
// kv head rows (row = token-major).
// Blocks of keys in ascending order:   s = scale * q k^T, masked;   m' = max(m, max s);   p = exp(s - m');
//   l = l * exp(m - m') + sum p;   o = o * exp(m - m') + p v, with p rounded to the activation type.   A block that a row does not see changes nothing of it, bit for bit.
// Segments are merged with m' = max(m, m_s):   l = l * exp(m - m') + l_s * exp(m_s - m'), o likewise.
#include "nn/attention.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/checked.h"
#include "kernels/packed_matrix.h"
#include "kernels/row_functions.h"

namespace moebius {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();
constexpr size_t kTaskRows = 128;  // scores, sums and panels of a task stay near
constexpr size_t kManyTasks = 128;
constexpr size_t kWhole = SIZE_MAX;

// The oldest position that a query at `position` sees.
size_t oldest_seen(const AttentionSpec& spec, size_t position) {
  size_t from = 0;
  if (spec.window != 0 && position + 1 > spec.window) from = position + 1 - spec.window;
  if (spec.chunk != 0) from = std::max(from, position / spec.chunk * spec.chunk);
  return from;
}

// Which keys of a block a query at `position` sees: [first, last).
struct Seen {
  size_t first, last;
};
Seen seen_keys(const AttentionSpec& spec, size_t position, size_t block) {
  const size_t from = oldest_seen(spec, position), begin = block * kKeyBlock;
  const size_t first = from > begin ? std::min(from - begin, kKeyBlock) : 0;
  const size_t last = position + 1 > begin ? std::min(position + 1 - begin, kKeyBlock) : 0;
  return {std::min(first, last), last};
}

void multiply_rows(float* s, size_t M, size_t columns, const float* by) {
  for (size_t m = 0; m < M; ++m)
    for (size_t i = 0; i < columns; ++i) s[m * kKeyBlock + i] *= by[i];
}

// p = exp(scale * s - m') over the seen keys, 0 elsewhere; updates m and l; returns exp(m - m').
float softmax_seen(float* s, float scale, Seen seen, const uint64_t* selected, XType type,
                   float& best, float& total) {
  if (!(scale > 0.0f)) {  // a positive one does not change which score is the largest
    for (size_t i = 0; i < kKeyBlock; ++i) s[i] *= scale;
    scale = 1.0f;
  }
  std::fill_n(s, seen.first, kMasked);
  std::fill(s + seen.last, s + kKeyBlock, kMasked);
  for (size_t i = 0; selected != nullptr && i < kKeyBlock; ++i)
    if ((selected[i / 64] >> (i % 64) & 1) == 0) s[i] = kMasked;
  return row_functions().softmax_step(s, kKeyBlock, scale, type == XType::kBf16, &best, &total);
}

}  // namespace

// What a softmax over some of the keys came to.
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

// This, and then part. A part without any key of a row changes nothing of it.
void Attention::State::merge(const State& part, size_t m, size_t dv) const {
  const RowFunctions& f = row_functions();
  if (part.best[m] == kMasked && part.total[m] == 0.0f) return;
  if (best[m] == kMasked && total[m] == 0.0f) {
    best[m] = part.best[m], total[m] = part.total[m];
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

AttentionPlan plan_attention(AttentionSpec spec, XType type, const KvStorage& storage,
                             const Cpu& cpu, const Policy& policy) {
  KvLayout kv(spec.kv_heads, spec.key_dim, spec.value_dim, storage, type, [&](const Problem& p) {
    return choose_kernel(p, cpu, request_for(p, policy)).chosen;
  });
  return {std::move(spec), type, std::move(kv)};
}

void AttentionScratch::reserve(const AttentionPlan& plan, size_t M) {
  const KvMatrix &keys = plan.kv.keys(), &values = plan.kv.values();
  const Kernel &kk = *keys.kernel, &vk = *values.kernel;
  const size_t dv = plan.spec.value_dim;
  ScratchLayout layout;
  const size_t at_rows =
      layout.add(M * std::max(kk.row_bytes(keys.problem), vk.row_bytes(values.problem)));
  const size_t at_keys = layout.add(kk.panel_bytes(keys.problem, M)),
               at_values = layout.add(vk.panel_bytes(values.problem, M));
  const size_t at_scratch =
      layout.add(std::max(kk.scratch_bytes(keys.problem, M), vk.scratch_bytes(values.problem, M)));
  struct Floats {
    float** to;
    size_t count, at = 0;
  };
  Floats all[] = {{&q, M * plan.spec.key_dim},
                  {&scores, M * kKeyBlock},
                  {&sums, M * dv},
                  {&keep, M},
                  {&out, M * dv},
                  {&best, M},
                  {&total, M},
                  {&all_out, M * dv},
                  {&all_best, M},
                  {&all_total, M}};
  for (Floats& a : all) a.at = layout.add_array<float>(a.count);
  uint8_t* base = memory_.reserve(layout.bytes());
  rows = base + at_rows, key_panel = base + at_keys, value_panel = base + at_values,
  scratch = base + at_scratch;
  for (const Floats& a : all) *a.to = reinterpret_cast<float*>(base + a.at);
}

Attention::Attention(const AttentionPlan& plan, std::span<const AttentionRows> sequences,
                     Segments segments)
    : plan_(plan), sequences_(sequences), segments_(segments) {
  const size_t tokens = std::max<size_t>(1, kTaskRows / heads_per_kv());
  size_t ranges = 0;
  for (const AttentionRows& s : sequences) ranges += (s.T + tokens - 1) / tokens;
  const bool split = ranges * plan.spec.kv_heads < kManyTasks;
  for (uint32_t s = 0; s < sequences.size(); ++s)
    for (size_t begin = 0; begin < sequences[s].T; begin += tokens)
      for (uint32_t h = 0; h < plan.spec.kv_heads; ++h)
        add_tasks(s, h, static_cast<uint32_t>(begin),
                  static_cast<uint32_t>(std::min(begin + tokens, sequences[s].T)), split);
  // The last tokens of a prompt see the most keys: start with them.
  std::reverse(tasks_.begin(), tasks_.end());
  if (segments == Segments::kInTurn)
    std::stable_sort(tasks_.begin(), tasks_.end(),
                     [](const Task& a, const Task& b) { return a.segment < b.segment; });
}

size_t Attention::first_segment(const AttentionRows& rows, size_t token) const {
  return oldest_seen(plan_.spec, rows.position + token) / (kSegmentBlocks * kKeyBlock);
}

void Attention::add_tasks(uint32_t sequence, uint32_t head, uint32_t begin, uint32_t end,
                          bool split) {
  const AttentionRows& rows = sequences_[sequence];
  const auto first = static_cast<uint32_t>(first_segment(rows, begin)),
             last = static_cast<uint32_t>((rows.position + end - 1) / (kSegmentBlocks * kKeyBlock));
  Task task{sequence, head, begin, end, first, last + 1, kWhole};
  const bool in_turn = segments_ == Segments::kInTurn;
  if (!in_turn && (!split || first == last)) {
    tasks_.push_back(task);
    return;
  }
  const size_t floats = (end - begin) * heads_per_kv() * (plan_.spec.value_dim + 2),
               stride = in_turn ? 0 : floats;
  task.partial = partials_.size();
  partials_.resize(partials_.size() + floats * (in_turn ? 1 : last + 1 - first));
  merges_.push_back({task, stride});
  for (uint32_t s = first; s <= last; ++s, task.partial += stride) {
    task.segment = s, task.segments = s + 1;
    tasks_.push_back(task);
  }
}

Attention::State Attention::partial_at(const Task& task, size_t at) const {
  const size_t M = (task.end - task.begin) * heads_per_kv(), dv = plan_.spec.value_dim;
  float* begin = partials_.data() + at;
  return {begin, begin + M * dv, begin + M * (dv + 1)};
}

// What a task knows while it runs.
struct Attention::Job {
  Task task;
  const AttentionRows& rows;
  size_t rep, tokens, M, position;  // of its first token
};

void Attention::run(size_t index, AttentionScratch& s) {
  const Task task = tasks_[index];
  const AttentionRows& rows = sequences_[task.sequence];
  const AttentionSpec& spec = plan_.spec;
  const KvMatrix& keys = plan_.kv.keys();
  const size_t rep = heads_per_kv(), dk = spec.key_dim, dv = spec.value_dim,
               tokens = task.end - task.begin, M = tokens * rep;
  const Job job{task, rows, rep, tokens, M, rows.position + task.begin};
  s.reserve(plan_, M);
  for (size_t t = 0; t < tokens; ++t)
    std::memcpy(s.q + t * rep * dk, rows.q + ((task.begin + t) * spec.heads + task.head * rep) * dk,
                rep * dk * sizeof(float));
  PackedMatrix w;
  w.problem = &keys.problem;
  const ActParams none;
  keys.kernel->prepare_rows({&keys.problem, &none, s.q, dk, M, s.rows});
  keys.kernel->make_panel({&keys.problem, &w, s.rows, nullptr, M, s.key_panel});
  const State all{s.all_out, s.all_best, s.all_total}, one{s.out, s.best, s.total};
  const bool goes_on =
      segments_ == Segments::kInTurn && task.segment > first_segment(rows, task.begin);
  if (goes_on)
    all.copy_from(partial_at(task, task.partial), M, dv);
  else
    all.clear(M, dv);
  for (size_t segment = task.segment; segment < task.segments; ++segment) {
    run_segment(job, segment, s);
    for (size_t m = 0; m < M; ++m) all.merge(one, m, dv);
  }
  if (task.partial == kWhole) return finish(task, all.out, all.total);
  partial_at(task, task.partial).copy_from(all, M, dv);
}

void Attention::run_segment(const Job& job, size_t segment, AttentionScratch& s) const {
  const AttentionSpec& spec = plan_.spec;
  for (size_t m = 0; m < job.M; ++m) {  // a sink stands before the first segment that a row sees
    const bool sink =
        !spec.sinks.empty() && first_segment(job.rows, job.task.begin + m / job.rep) == segment;
    s.best[m] = sink ? spec.sinks[job.task.head * job.rep + m % job.rep] : kMasked;
    s.total[m] = sink ? 1.0f : 0.0f;
  }
  std::fill_n(s.out, job.M * spec.value_dim, 0.0f);
  const size_t newest = (job.position + job.tokens - 1) / kKeyBlock,
               oldest = oldest_seen(spec, job.position) / kKeyBlock;
  const size_t begin = std::max(segment * kSegmentBlocks, oldest),
               end = std::min((segment + 1) * kSegmentBlocks, newest + 1);
  for (size_t block = begin; block < end; ++block)
    if (any_selected(job, block)) run_block(job, block, s);
}

// A block of which no row sees a key changes nothing.
bool Attention::any_selected(const Job& job, size_t block) {
  if (job.rows.selected == nullptr) return true;
  for (size_t t = 0; t < job.tokens; ++t)
    if (const uint64_t* bits = selected_of(job, t, block); (bits[0] | bits[1]) != 0) return true;
  return false;
}

const uint64_t* Attention::selected_of(const Job& job, size_t token, size_t block) {
  if (job.rows.selected == nullptr) return nullptr;
  return job.rows.selected + (job.task.begin + token) * job.rows.words + block * (kKeyBlock / 64);
}

void Attention::run_block(const Job& job, size_t block, AttentionScratch& s) const {
  const AttentionSpec& spec = plan_.spec;
  const KvMatrix &keys = plan_.kv.keys(), &values = plan_.kv.values();
  const Kernel &kk = *keys.kernel, &vk = *values.kernel;
  const size_t M = job.M, dv = spec.value_dim;
  const ActParams none;
  PackedMatrix w;
  w.problem = &keys.problem, w.data = plan_.kv.keys_of(job.rows.blocks[block], job.task.head);
  const size_t columns = std::min<size_t>(
      kKeyBlock, round_up(job.position + job.tokens - block * kKeyBlock, kk.n_step));
  kk.gemm({&w, s.key_panel, M, 0, columns, s.scores, kKeyBlock, s.scratch});
  const Seen oldest = seen_keys(spec, job.position, block),
             newest = seen_keys(spec, job.position + job.tokens - 1, block);
  const bool whole = oldest.last == kKeyBlock && newest.first == 0;  // for every row
  const float *key_scales = plan_.kv.key_scales(job.rows.blocks[block], job.task.head),
              *value_scales = plan_.kv.value_scales(job.rows.blocks[block], job.task.head);
  if (key_scales != nullptr) multiply_rows(s.scores, M, columns, key_scales);
  for (size_t m = 0; m < M; ++m)
    s.keep[m] =
        softmax_seen(s.scores + m * kKeyBlock, spec.scale,
                     whole ? newest : seen_keys(spec, job.position + m / job.rep, block),
                     selected_of(job, m / job.rep, block), plan_.type, s.best[m], s.total[m]);
  w.problem = &values.problem, w.data = plan_.kv.values_of(job.rows.blocks[block], job.task.head);
  if (value_scales != nullptr) multiply_rows(s.scores, M, kKeyBlock, value_scales);
  vk.prepare_rows({&values.problem, &none, s.scores, kKeyBlock, M, s.rows});
  vk.make_panel({&values.problem, &w, s.rows, nullptr, M, s.value_panel});
  vk.gemm({&w, s.value_panel, M, 0, dv, s.sums, dv, s.scratch});
  for (size_t m = 0; m < M; ++m)
    row_functions().scale_and_add(s.out + m * dv, s.keep[m], s.sums + m * dv, dv);
}

void Attention::merge(size_t index) {
  const auto& [task, stride] = merges_[index];
  const size_t dv = plan_.spec.value_dim, M = (task.end - task.begin) * heads_per_kv();
  const State all = partial_at(task, task.partial);
  if (segments_ == Segments::kTogether)
    for (size_t i = 1; i < task.segments - task.segment; ++i)
      for (size_t m = 0; m < M; ++m) all.merge(partial_at(task, task.partial + i * stride), m, dv);
  finish(task, all.out, all.total);
}

void Attention::finish(const Task& task, float* out, const float* total) const {
  const RowFunctions& f = row_functions();
  const AttentionSpec& spec = plan_.spec;
  const size_t rep = heads_per_kv(), dv = spec.value_dim, M = (task.end - task.begin) * rep;
  for (size_t m = 0; m < M; ++m) {
    float* to = sequences_[task.sequence].out +
                ((task.begin + m / rep) * spec.heads + task.head * rep + m % rep) * dv;
    f.divide(out + m * dv, total[m], to, dv);
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
  for (const Task& t : tasks_) {
    const AttentionRows& rows = sequences_[t.sequence];
    const size_t first = std::max(oldest_seen(plan_.spec, rows.position + t.begin) / kKeyBlock,
                                  static_cast<size_t>(t.segment) * kSegmentBlocks);
    const size_t end = std::min((rows.position + t.end - 1) / kKeyBlock + 1,
                                static_cast<size_t>(t.segments) * kSegmentBlocks);
    bytes += (end - first) * head_bytes;
  }
  return bytes;
}

}  // namespace moebius
