// SPDX-License-Identifier: Apache-2.0
// Implements attention over blocks, and the indexer of sparse attention, as operations of the CPU.
#include <algorithm>
#include <cstring>

#include "device/cpu/block_addresses.h"
#include "device/cpu/cpu_linear.h"

namespace moebius {
namespace {

constexpr size_t kInlineAppend = 16384;  // numbers; the calling thread alone writes fewer

class CpuAttention : public AttentionOp {
 public:
  CpuAttention(CpuDevice& device, const AttentionRequest& r, const KvStorage& storage)
      : device_(device),
        plan_(plan_attention(r.spec, device.options().type, storage, device.cpu(),
                             device.options().policy)),
        place_(r.place),
        entries_at_(r.entries),
        sparse_(r.sparse),
        first_kv_head_(r.first_kv_head) {}

  void forward(Step& step, const RowSet& q, const RowSet& k, const RowSet& v,
               const RowSet& relative, const RowSet& out) const override {
    device_.run(step, [this, &step, q, k, v, relative, out] {
      blocks_.gather(step, device_, place_);
      if (plan_.spec.ratio != 0) entries_.gather(step, device_, entries_at_);
      relative_ = relative.rows > 0 ? device_.at(step, relative) : nullptr;
      if (k.rows > 0) append(step, k, v);
      if (out.rows > 0) attend(step, device_.at(step, q), device_.at(step, out));
    });
  }
  void cut(const KvPool& pool, BlockId id, size_t tokens) const override {
    device_.in_between([&] { plan_.kv.cut(block_of(pool, device_, place_, id), tokens); });
  }

 protected:
  virtual void append(const Step& step, const RowSet& k, const RowSet& v) const {
    const AttentionSpec& a = plan_.spec;
    const float *keys = device_.at(step, k), *values = device_.at(step, v);
    const auto put = [&](size_t i) {
      const size_t sequence = i / a.kv_heads, head = i % a.kv_heads;
      each_block(step.sequences[sequence], blocks_.of(sequence),
                 [&](uint8_t* block, size_t first, size_t count, size_t row) {
                   plan_.kv.put(block, head, first, count, keys + row * k.stride + head * a.key_dim,
                                k.stride, values + row * v.stride + head * a.value_dim, v.stride);
                 });
    };
    const size_t tasks = a.kv_heads * step.sequences.size();
    if (k.rows * (k.cols + v.cols) <= kInlineAppend)
      for (size_t i = 0; i < tasks; ++i) put(i);
    else
      device_.pool().parallel_for(tasks, put);
  }
  virtual void attend(Step& step, const float* q, float* out) const {
    rows_.clear();
    for (size_t i = 0; i < step.sequences.size(); ++i) rows_.push_back(rows_of(step, i, q, out));
    Attention attention(plan_, rows_, Segments::kParallel, device_.pool().size());
    step.kv_bytes += attention.bytes_read();
    run_attention(attention, device_.pool(), device_.attention_scratch());
  }
  AttentionRows rows_of(const Step& step, size_t i, const float* q, float* out) const {
    const AttentionSpec& a = plan_.spec;
    const StepSequence& s = step.sequences[i];
    AttentionRows rows{blocks_.of(i), s.position, q + s.first_row * a.heads * a.key_dim,
                       out + s.first_row * a.heads * a.value_dim, s.tokens};
    if (plan_.spec.ratio != 0) rows.entries = entries_.of(i);
    if (relative_ != nullptr) rows.relative = relative_ + s.first_row * a.heads * a.relative_dims;
    if (!sparse_) return rows;
    const CpuDevice::Selection& chosen = device_.selection(step);
    if (plan_.spec.ratio != 0) {
      if (chosen.words[i] > 0) {
        rows.chosen = chosen.bits.data() + chosen.at[i];
        rows.entry_words = chosen.words[i];
      }
      return rows;
    }
    if (chosen.words[i] > 0) {
      rows.selected = chosen.bits.data() + chosen.at[i];
      rows.words = chosen.words[i];
    }
    rows.selections = chosen.selections;
    rows.first_choice = first_kv_head_;
    return rows;
  }

  CpuDevice& device_;
  AttentionPlan plan_;
  KvOffset place_, entries_at_;
  bool sparse_;
  size_t first_kv_head_;
  mutable BlockAddresses blocks_, entries_;  // blocks of the current call
  mutable std::vector<AttentionRows> rows_;
  mutable const float* relative_ = nullptr;
};

// Attends over latents. The blocks hold latents as rows, in any type; the keys and values that each
// use expands from them have the activations' type.
class CpuLatentAttention final : public CpuAttention {
 public:
  CpuLatentAttention(CpuDevice& device, AttentionRequest& r)
      : CpuAttention(device, r, KvStorage{kv_type_of(device.options().type)}),
        latents_(std::move(*r.latents)),
        up_(static_cast<const CpuLinear&>(*latents_.up).layer()),
        layout_{latents_.width + latents_.rope, r.storage.type} {}
  // Attention never reads behind the last row.
  void cut(const KvPool&, BlockId, size_t) const override {}

 private:
  void append(const Step& step, const RowSet& k, const RowSet&) const override {
    const float* keys = device_.at(step, k);
    device_.pool().parallel_for(step.sequences.size(), [&](size_t i) {
      put_rows(layout_, step.sequences[i], blocks_.of(i), keys, k.stride);
    });
  }
  void attend(Step& step, const float* q, float* out) const override {
    for (size_t i = 0; i < step.sequences.size(); ++i) attend_sequence(step, i, q, out);
  }
  // Attends segment by segment, so that only one segment of keys and values is in memory at a time.
  void attend_sequence(Step& step, size_t i, const float* q, float* out) const;
  void expand(const uint8_t* from, size_t tokens, uint8_t* to) const;

  AttentionRequest::Latents latents_;
  const LinearLayer& up_;
  KvRowLayout layout_;
  mutable std::vector<AlignedBuffer> expanded_;  // expanded blocks of one segment
  mutable std::vector<const uint8_t*> expanded_at_;
  mutable std::vector<float> latent_rows_, kv_latent_, kv_rows_, k_rows_, v_rows_;
};

// Expands the keys and values of a block's first `tokens` tokens by the up-projection.
void CpuLatentAttention::expand(const uint8_t* from, size_t tokens, uint8_t* to) const {
  const size_t heads = plan_.spec.heads, dk = plan_.spec.key_dim, dv = plan_.spec.value_dim,
               latent = latents_.width, nope = latents_.nope, rope = latents_.rope,
               kv_head = nope + dv, width = layout_.width;
  grow(latent_rows_, kBlockTokens * width), grow(kv_latent_, kBlockTokens * latent);
  grow(kv_rows_, kBlockTokens * heads * kv_head);
  grow(k_rows_, kBlockTokens * heads * dk), grow(v_rows_, kBlockTokens * heads * dv);
  for (size_t t = 0; t < tokens; ++t) {
    float* row = latent_rows_.data() + t * width;
    layout_.get(from, t, row);
    std::memcpy(kv_latent_.data() + t * latent, row, latent * sizeof(float));
  }
  up_.forward(f32_rows(std::as_const(kv_latent_).data(), tokens, latent),
              f32_rows(kv_rows_.data(), tokens, heads * kv_head, device_.options().type),
              device_.pool());
  device_.pool().parallel_for(heads, [&](size_t h) {
    for (size_t t = 0; t < tokens; ++t) {
      const float* kv = kv_rows_.data() + (t * heads + h) * kv_head;
      float* k = k_rows_.data() + (t * heads + h) * dk;
      std::memcpy(k, kv, nope * sizeof(float));
      std::memcpy(k + nope, latent_rows_.data() + t * width + latent, rope * sizeof(float));
      std::memcpy(v_rows_.data() + (t * heads + h) * dv, kv + nope, dv * sizeof(float));
    }
    plan_.kv.put(to, h, 0, tokens, k_rows_.data() + h * dk, heads * dk, v_rows_.data() + h * dv,
                 heads * dv);
  });
}

void CpuLatentAttention::attend_sequence(Step& step, size_t i, const float* q, float* out) const {
  const StepSequence& s = step.sequences[i];
  const size_t total = s.position + s.tokens, blocks = (total + kBlockTokens - 1) / kBlockTokens;
  while (expanded_.size() < kSegmentBlocks) expanded_.emplace_back(plan_.kv.block_bytes());
  expanded_at_.resize(blocks);
  for (size_t b = 0; b < blocks; ++b) expanded_at_[b] = expanded_[b % kSegmentBlocks].data();
  AttentionRows rows = rows_of(step, i, q, out);
  rows.blocks = expanded_at_.data();
  Attention attention(plan_, {&rows, 1}, Segments::kSequential);
  for (size_t begin = 0; begin < attention.tasks();) {
    const size_t segment = attention.segment_of(begin);
    size_t end = begin;
    while (end < attention.tasks() && attention.segment_of(end) == segment) ++end;
    for (size_t b = segment * kSegmentBlocks; b < std::min((segment + 1) * kSegmentBlocks, blocks);
         ++b) {
      expand(blocks_.of(i)[b], std::min(kBlockTokens, total - b * kBlockTokens),
             expanded_[b % kSegmentBlocks].data());
      step.kv_bytes += layout_.block_bytes();
    }
    WorkCounter next;
    device_.pool().run([&](ThreadPool::Member& me) {
      for (size_t t = begin + next.take(); t < end; t = begin + next.take())
        attention.run(t, device_.attention_scratch()[me.index()]);
    });
    begin = end;
  }
  device_.pool().parallel_for(attention.merges(), [&](size_t m) { attention.merge(m); });
}

class CpuIndexer final : public IndexerOp {
 public:
  CpuIndexer(CpuDevice& device, const IndexerSpec& spec, KvType storage, KvOffset place)
      : device_(device),
        indexer_(spec, device.options().type, storage, device.cpu(), device.options().policy),
        place_(place) {}
  void select(Step& step, const RowSet& q, const RowSet& kw) const override {
    device_.run(step, [this, &step, q, kw] { execute(step, q, kw); });
  }
  void cut(const KvPool& pool, BlockId id, size_t tokens) const override {
    device_.in_between([&] { indexer_.keys().cut(block_of(pool, device_, place_, id), tokens); });
  }

 private:
  void execute(Step& step, const RowSet& q, const RowSet& kw) const {
    const IndexerSpec& spec = indexer_.spec();
    const float *keys = device_.at(step, kw), *queries = device_.at(step, q);
    const size_t items = step.sequences.size();
    blocks_.gather(step, device_, place_);
    if (spec.ratio == 0) {
      device_.pool().parallel_for(items, [&](size_t i) {
        each_block(step.sequences[i], blocks_.of(i),
                   [&](uint8_t* block, size_t first, size_t count, size_t row) {
                     indexer_.keys().put(block, 0, first, count, keys + row * kw.stride, kw.stride,
                                         nullptr, 0);
                   });
      });
    }
    CpuDevice::Selection& chosen = device_.selection(step);
    chosen.at.assign(items, 0), chosen.words.assign(items, 0);
    chosen.selections = spec.selections();
    std::vector<size_t> item_of;
    size_t total = 0;
    for (size_t i = 0; i < items; ++i) {
      const StepSequence& s = step.sequences[i];
      const size_t end = (s.position + s.tokens) / spec.tokens();  // number of keys
      item_of.resize(item_of.size() + s.tokens, i);
      if (end <= spec.top_k) continue;  // every row sees all keys
      chosen.at[i] = total;
      chosen.words[i] = IndexRows::words_of(spec.pooled ? s.position + s.tokens : end);
      total += s.tokens * chosen.selections * chosen.words[i];
      step.kv_bytes +=
          (end + spec.block_keys() - 1) / spec.block_keys() * indexer_.keys().block_bytes();
    }
    if (total == 0) return;
    grow(chosen.bits, total);
    std::vector<IndexRows> rows(items);
    for (size_t i = 0; i < items; ++i) {
      const StepSequence& s = step.sequences[i];
      rows[i] = {blocks_.of(i),
                 0,
                 s.position,
                 queries + s.first_row * q.stride,
                 keys + s.first_row * kw.stride + (spec.ratio == 0 ? spec.head_dim : 0),
                 kw.stride,
                 chosen.bits.data() + chosen.at[i],
                 chosen.words[i],
                 s.tokens};
    }
    WorkCounter next;
    device_.pool().run([&](ThreadPool::Member& me) {
      for (size_t t = next.take(); t < step.rows; t = next.take())
        if (const IndexRows& r = rows[item_of[t]]; r.words > 0)
          indexer_.select(r, t - step.sequences[item_of[t]].first_row,
                          device_.index_scratch()[me.index()]);
    });
  }

  CpuDevice& device_;
  Indexer indexer_;
  KvOffset place_;
  mutable BlockAddresses blocks_;  // blocks of the current call
};

}  // namespace

std::unique_ptr<AttentionOp> CpuDevice::attention(AttentionRequest r) {
  if (r.latents != nullptr) return std::make_unique<CpuLatentAttention>(*this, r);
  return std::make_unique<CpuAttention>(*this, r, r.storage);
}

std::unique_ptr<IndexerOp> CpuDevice::indexer(const IndexerSpec& spec, KvType storage,
                                              KvOffset place) {
  return std::make_unique<CpuIndexer>(*this, spec, storage, place);
}

}  // namespace moebius
