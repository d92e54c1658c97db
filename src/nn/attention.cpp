// SPDX-License-Identifier: Apache-2.0
// One task: the queries of some tokens for the heads that share a kv head, M = tokens * heads per
// kv head rows (row = token-major).
// Blocks of keys in ascending order:   s = scale * q k^T, masked;   m' = max(m, max s);   p = exp(s - m');
//   l = l * exp(m - m') + sum p;   o = o * exp(m - m') + p v, with p rounded to the type of v.   A block that a row does not see changes nothing of it, bit for bit.
#include "nn/attention.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/checked.h"
#include "base/error.h"
#include "kernels/packed_matrix.h"
#include "kernels/row_functions.h"

namespace moebius {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();
constexpr size_t kTaskRows = 256;  // scores and sums of a task stay in the second-level cache

// A dense matrix of numbers of the type that is cached.
QuantMatrix dense_matrix(size_t N, size_t K, XType type, const uint8_t* codes) {
  QuantMatrix w;
  w.N = N, w.K = K, w.codes = codes;
  w.code = type == XType::kBf16  ? CodeType::kBf16
           : type == XType::kF16 ? CodeType::kF16
                                 : CodeType::kF32;
  w.bits = type == XType::kF32 ? 32 : 16;
  w.block_n = N, w.block_k = K;
  w.row_bytes = K * (w.bits / 8u);
  return w;
}

Problem dense_problem(size_t N, size_t K, XType type) {
  return make_problem(dense_matrix(N, K, type, nullptr), ActSpec{}, type);
}

// A row of values becomes a column of the block: element d goes to to[d * kKeyBlock].
template <class Element>
void store_column(XType type, const float* v, size_t n, uint8_t* to) {
  constexpr size_t kAtOnce = 64;
  Element part[kAtOnce];
  for (size_t d = 0; d < n; d += kAtOnce) {
    const size_t count = std::min(kAtOnce, n - d);
    row_functions().store(type, v + d, part, count);
    for (size_t i = 0; i < count; ++i)
      std::memcpy(to + (d + i) * kKeyBlock * sizeof(Element), &part[i], sizeof(Element));
  }
}

// Which keys of a block a query at `position` sees: [first, last).
struct Seen {
  size_t first, last;
};
Seen seen_keys(const AttentionSpec& spec, size_t position, size_t block) {
  size_t from = 0;
  if (spec.window != 0 && position + 1 > spec.window) from = position + 1 - spec.window;
  if (spec.chunk != 0) from = std::max(from, position / spec.chunk * spec.chunk);
  const size_t begin = block * kKeyBlock;
  const size_t first = from > begin ? std::min(from - begin, kKeyBlock) : 0;
  const size_t last = position + 1 > begin ? std::min(position + 1 - begin, kKeyBlock) : 0;
  return {std::min(first, last), last};
}

// p = exp(scale * s - m') over the seen keys, 0 elsewhere; updates m and l; returns exp(m - m').
float softmax_seen(float* s, float scale, Seen seen, XType type, float& best, float& total) {
  std::fill_n(s, seen.first, kMasked);
  std::fill(s + seen.last, s + kKeyBlock, kMasked);
  if (!(scale > 0.0f)) {  // a positive one does not change which score is the largest
    for (size_t i = 0; i < kKeyBlock; ++i)
      s[i] = seen.first <= i && i < seen.last ? s[i] * scale : kMasked;
    scale = 1.0f;
  }
  return row_functions().softmax_step(s, kKeyBlock, scale, type == XType::kBf16, &best, &total);
}

}  // namespace

AttentionPlan plan_attention(AttentionSpec spec, XType type, const Cpu& cpu, const Policy& policy) {
  AttentionPlan plan;
  plan.keys = dense_problem(kKeyBlock, spec.key_dim, type);
  plan.values = dense_problem(spec.value_dim, kKeyBlock, type);
  plan.key_kernel = choose_kernel(plan.keys, cpu, request_for(plan.keys, policy)).chosen;
  plan.value_kernel = choose_kernel(plan.values, cpu, request_for(plan.values, policy)).chosen;
  plan.spec = std::move(spec);
  plan.type = type;
  return plan;
}

KvCache::KvCache(const AttentionPlan& plan)
    : plan_(&plan),
      element_(plan.type == XType::kF32 ? 4 : 2),
      key_bytes_(round_up(plan.key_kernel->packed_bytes(plan.keys), 64)),
      head_bytes_(key_bytes_ + round_up(plan.value_kernel->packed_bytes(plan.values), 64)),
      tail_keys_(plan.spec.kv_heads * kKeyBlock * plan.spec.key_dim * element_),
      tail_values_(plan.spec.kv_heads * kKeyBlock * plan.spec.value_dim * element_) {}

size_t KvCache::block_bytes(const AttentionPlan& plan) {
  return plan.spec.kv_heads * (round_up(plan.key_kernel->packed_bytes(plan.keys), 64) +
                               round_up(plan.value_kernel->packed_bytes(plan.values), 64));
}

size_t KvCache::bytes() const {
  return blocks_.size() * plan_->spec.kv_heads * head_bytes_ + tail_keys_.size() +
         tail_values_.size();
}

void KvCache::reserve(size_t T) {
  while (blocks_.size() * kKeyBlock < length_ + T)
    blocks_.emplace_back(plan_->spec.kv_heads * head_bytes_);
}

void KvCache::append_head(size_t head, const float* k, size_t ldk, const float* v, size_t ldv,
                          size_t T) {
  const size_t dk = plan_->spec.key_dim, dv = plan_->spec.value_dim;
  uint8_t* keys = tail_keys_.data() + head * kKeyBlock * dk * element_;
  uint8_t* values = tail_values_.data() + head * kKeyBlock * dv * element_;
  for (size_t t = 0; t < T;) {
    const size_t first = (length_ + t) % kKeyBlock, count = std::min(kKeyBlock - first, T - t);
    if (first == 0) {  // a fresh block: what is not filled yet must be finite
      std::memset(keys, 0, kKeyBlock * dk * element_);
      std::memset(values, 0, kKeyBlock * dv * element_);
    }
    for (size_t i = 0; i < count; ++i) {
      row_functions().store(plan_->type, k + (t + i) * ldk, keys + (first + i) * dk * element_, dk);
      uint8_t* to = values + (first + i) * element_;
      if (element_ == 4) {
        store_column<float>(plan_->type, v + (t + i) * ldv, dv, to);
      } else {
        store_column<uint16_t>(plan_->type, v + (t + i) * ldv, dv, to);
      }
    }
    pack_tail(head, (length_ + t) / kKeyBlock, first, count);
    t += count;
  }
}

void KvCache::pack_tail(size_t head, size_t block, size_t first, size_t count) {
  const size_t dk = plan_->spec.key_dim, dv = plan_->spec.value_dim;
  const Kernel &kk = *plan_->key_kernel, &vk = *plan_->value_kernel;
  const QuantMatrix keys = dense_matrix(kKeyBlock, dk, plan_->type,
                                        tail_keys_.data() + head * kKeyBlock * dk * element_);
  const QuantMatrix values = dense_matrix(dv, kKeyBlock, plan_->type,
                                          tail_values_.data() + head * kKeyBlock * dv * element_);
  uint8_t* to = blocks_[block].data() + head * head_bytes_;
  const size_t step = kk.n_step;
  const size_t from = first == 0 ? 0 : first / step * step;
  const size_t until =
      first == 0 ? kKeyBlock : std::min<size_t>(round_up(first + count, step), kKeyBlock);
  kk.pack({&plan_->keys, &keys, from, until, to});
  if (first == 0 || vk.pack_inputs == nullptr)
    vk.pack({&plan_->values, &values, 0, dv, to + key_bytes_});
  else
    vk.pack_inputs({&plan_->values, &values, first, first + count, to + key_bytes_});
}

void KvCache::truncate(size_t length) {
  if (length >= length_) return;
  if (length % kKeyBlock != 0)
    fail("a KV cache can only be cut at a multiple of {} tokens, not at {}", kKeyBlock, length);
  length_ = length;
  blocks_.resize(length / kKeyBlock);
}

void AttentionScratch::reserve(const AttentionPlan& plan, size_t M) {
  const Kernel &kk = *plan.key_kernel, &vk = *plan.value_kernel;
  ScratchLayout layout;
  const size_t at_rows =
      layout.add(M * std::max(kk.row_bytes(plan.keys), vk.row_bytes(plan.values)));
  const size_t at_keys = layout.add(kk.panel_bytes(plan.keys, M)),
               at_values = layout.add(vk.panel_bytes(plan.values, M));
  const size_t at_scratch =
      layout.add(std::max(kk.scratch_bytes(plan.keys, M), vk.scratch_bytes(plan.values, M)));
  const size_t at_q = layout.add_array<float>(M * plan.spec.key_dim),
               at_scores = layout.add_array<float>(M * kKeyBlock);
  const size_t at_sums = layout.add_array<float>(M * plan.spec.value_dim),
               at_out = layout.add_array<float>(M * plan.spec.value_dim);
  const size_t at_best = layout.add_array<float>(M), at_total = layout.add_array<float>(M),
               at_keep = layout.add_array<float>(M);
  uint8_t* base = memory_.reserve(layout.bytes());
  const auto floats = [&](size_t at) { return reinterpret_cast<float*>(base + at); };
  rows = base + at_rows, key_panel = base + at_keys, value_panel = base + at_values,
  scratch = base + at_scratch;
  q = floats(at_q), scores = floats(at_scores), sums = floats(at_sums), out = floats(at_out),
  best = floats(at_best), total = floats(at_total), keep = floats(at_keep);
}

Attention::Attention(const AttentionPlan& plan, std::span<const AttentionRows> sequences)
    : plan_(plan), sequences_(sequences) {
  const size_t rep = plan.spec.heads / plan.spec.kv_heads,
               tokens = std::max<size_t>(1, kTaskRows / rep);
  for (size_t s = 0; s < sequences.size(); ++s)
    for (size_t begin = 0; begin < sequences[s].T; begin += tokens)
      for (size_t h = 0; h < plan.spec.kv_heads; ++h)
        tasks_.push_back({static_cast<uint32_t>(s), static_cast<uint32_t>(h),
                          static_cast<uint32_t>(begin),
                          static_cast<uint32_t>(std::min(begin + tokens, sequences[s].T))});
  std::reverse(tasks_.begin(),
               tasks_.end());  // the last tokens of a prompt see the most keys: start with them
}

void Attention::run(size_t index, AttentionScratch& s) const {
  const Task task = tasks_[index];
  const AttentionRows& rows = sequences_[task.sequence];
  const AttentionSpec& spec = plan_.spec;
  const Kernel &kk = *plan_.key_kernel, &vk = *plan_.value_kernel;
  const RowFunctions& f = row_functions();
  const size_t rep = spec.heads / spec.kv_heads, dk = spec.key_dim, dv = spec.value_dim;
  const size_t tokens = task.end - task.begin, M = tokens * rep;
  const size_t position0 = rows.cache->length() - rows.T + task.begin;
  s.reserve(plan_, M);
  for (size_t t = 0; t < tokens; ++t)
    std::memcpy(s.q + t * rep * dk, rows.q + ((task.begin + t) * spec.heads + task.head * rep) * dk,
                rep * dk * sizeof(float));
  PackedMatrix w;
  w.problem = &plan_.keys;
  const ActParams none;
  kk.prepare_rows({&plan_.keys, &none, s.q, dk, M, s.rows});
  kk.make_panel({&plan_.keys, &w, s.rows, nullptr, M, s.key_panel});
  for (size_t m = 0; m < M; ++m) {
    const bool sink = !spec.sinks.empty();
    s.best[m] = sink ? spec.sinks[task.head * rep + m % rep] : kMasked;
    s.total[m] = sink ? 1.0f : 0.0f;
  }
  std::fill_n(s.out, M * dv, 0.0f);
  const size_t last_block = (position0 + tokens - 1) / kKeyBlock;
  size_t block = 0;
  while (block < last_block && seen_keys(spec, position0, block).last == kKeyBlock &&
         seen_keys(spec, position0, block).first == kKeyBlock)
    ++block;
  for (; block <= last_block; ++block) {
    const size_t columns =
        std::min<size_t>(kKeyBlock, round_up(position0 + tokens - block * kKeyBlock, kk.n_step));
    w.problem = &plan_.keys, w.data = rows.cache->key_block(task.head, block);
    kk.gemm({&w, s.key_panel, M, 0, columns, s.scores, kKeyBlock, s.scratch});
    const Seen oldest = seen_keys(spec, position0, block),
               newest = seen_keys(spec, position0 + tokens - 1, block);
    const bool whole = oldest.last == kKeyBlock && newest.first == 0;  // for every row
    for (size_t m = 0; m < M; ++m)
      s.keep[m] = softmax_seen(s.scores + m * kKeyBlock, spec.scale,
                               whole ? newest : seen_keys(spec, position0 + m / rep, block),
                               plan_.type, s.best[m], s.total[m]);
    w.problem = &plan_.values, w.data = rows.cache->value_block(task.head, block);
    vk.prepare_rows({&plan_.values, &none, s.scores, kKeyBlock, M, s.rows});
    vk.make_panel({&plan_.values, &w, s.rows, nullptr, M, s.value_panel});
    vk.gemm({&w, s.value_panel, M, 0, dv, s.sums, dv, s.scratch});
    for (size_t m = 0; m < M; ++m) f.scale_and_add(s.out + m * dv, s.keep[m], s.sums + m * dv, dv);
  }
  for (size_t m = 0; m < M; ++m) {
    float* to = rows.out + ((task.begin + m / rep) * spec.heads + task.head * rep + m % rep) * dv;
    f.divide(s.out + m * dv, s.total[m], to, dv);
    f.round(plan_.type, to, dv);
  }
}

}  // namespace moebius
