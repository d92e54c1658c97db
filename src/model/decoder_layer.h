// SPDX-License-Identifier: Apache-2.0
// Inside of DecoderModel: one layer and the rows of a step. Included by decoder*.cpp only.
#pragma once
#include <chrono>

#include "base/grow.h"
#include "model/decoder.h"
#include "nn/head_linear.h"
#include "nn/recurrent.h"

namespace moebius {

// Attention of one layer as its keys and values are multiplied: latents that absorb the
// up-projection are one kv head for all.
AttentionSpec attention_spec(const DecoderSpec& spec, size_t layer, bool absorbed);
// Whether the up-projection of latents (kv_b) is absorbed in this layer: not where it quantizes
// activations or outputs, and not where equal bytes are asked for.
bool absorbs(const Checkpoint& checkpoint, size_t layer, const ModelOptions& options);

// The indexer of a layer that has one; else null.
std::unique_ptr<Indexer> make_indexer(const Checkpoint& checkpoint, const DecoderSpec& spec,
                                      size_t layer, const ModelOptions& options, const Cpu& cpu);

// How a layer's keys and values are kept.
KvStorage storage_of(const Checkpoint& checkpoint, const DecoderSpec& spec, size_t layer,
                     const ModelOptions& options);

struct DecoderModel::Layer {
  HeadSizes sizes;  // on this rank
  // Several ranks: its heads of all; what columns of attended values each rank of the stage has;
  // whether q and k of all heads are here, because their norm reads them.
  HeadSizes all;
  HeadCut cut;
  std::vector<Range> values_of;
  bool norm_before_cut = false;
  size_t key_dim = 0;
  std::optional<Norm> attention_in, attention_out, block_in, block_out;
  Norm q_norm, k_norm;
  float scalar = 1;
  bool keys = true, values = true;  // of its own: else another layer's, else the keys
  std::unique_ptr<LinearLayer> qkv, output;
  // latent attention: x -> [q latent | kv latent, k_rope]; then q from its latent. Keys and values
  // are the latents themselves: the up-projection is absorbed by queries and results ...
  std::unique_ptr<LinearLayer> latent, q_up;
  std::unique_ptr<HeadLinear> query_up, value_up;
  // ... or, where it must be computed as declared, [k_nope | v] are made of the latents at each use.
  std::unique_ptr<LinearLayer> kv_up;
  // Sparse attention: [wk | weights_proj], wq_b, and where in a block its keys begin.
  std::unique_ptr<Indexer> indexer;
  std::unique_ptr<LinearLayer> index_kw, index_q;
  Norm index_norm;
  size_t index_at = 0;
  KvRowLayout latents;  // then: how they are kept
  Norm q_latent_norm, kv_latent_norm;
  std::unique_ptr<AttentionPlan> attention;  // null: recurrent, or neither
  std::unique_ptr<Recurrent> recurrent;
  std::unique_ptr<LinearLayer> recurrent_in;
  // What recurrent_in gives side by side; some of it goes through a second projection.
  struct RecurrentPart {
    size_t width;
    std::unique_ptr<LinearLayer> second;
  };
  std::vector<RecurrentPart> recurrent_parts;
  // Router null: a dense MLP as one expert that every row takes. Experts null: no MLP.
  MoeBlockLayer moe;
  // A dense MLP beside the experts: what it gives, what the router and the experts read, and what
  // they give.
  std::unique_ptr<MoeLayer> parallel_mlp;
  Norm parallel_out, router_in, experts_in, experts_out;
  bool routed = false;
  uint64_t moe_bytes_per_token = 0, expert_bytes = 0;  // of k experts and the shared one; of one
  size_t top_k = 0;

  uint64_t dense_bytes() const {  // packed weights that every step reads, without the experts
    uint64_t bytes = 0;
    for (const LinearLayer* l :
         {qkv.get(), output.get(), recurrent_in.get(), latent.get(), q_up.get(), kv_up.get(),
          moe.router.get(), index_kw.get(), index_q.get()})
      bytes += l != nullptr ? l->packed_bytes() : 0;
    for (const RecurrentPart& p : recurrent_parts)
      bytes += p.second != nullptr ? p.second->packed_bytes() : 0;
    for (const HeadLinear* l : {query_up.get(), value_up.get()})
      bytes += l != nullptr ? l->packed_bytes() : 0;
    return bytes;
  }
};

// Rows of one step, f32 values exact in the activation type.
struct DecoderModel::Buffers {
  std::vector<float> h, a, branch;  // [T, hidden]
  std::vector<float> q, k, v, qkv, absorbed, attended, latent, q_latent, kv_latent;
  std::vector<float> part, all_values;  // several ranks: own columns, gathered ones
  std::vector<float> router, gathered, weights, gate, dense, experts_in;
  std::vector<int32_t> tokens, positions, ones_ids, ids;
  std::vector<size_t> lengths;  // of the sequence that a row belongs to
  // Blocks of one layer: those of item 0, of item 1, ...; where an item's begin, and its rows.
  std::vector<uint8_t*> blocks;
  std::vector<size_t> blocks_at, first_row;
  // Recurrent layers: rows as they read them and behind the convolution, states that are not kept.
  std::vector<float> recurrent_rows, recurrent_mixed, recurrent_states, recurrent_few,
      recurrent_part;
  // Keys and values of one segment, made of latents.
  std::vector<AlignedBuffer> expanded;
  std::vector<const uint8_t*> expanded_at;
  std::vector<float> latent_rows, kv_rows, k_rows, v_rows;
  std::vector<float> ones;
  std::vector<AttentionScratch> scratch;  // per thread
  // Sparse attention: what the last layer with an indexer chose, item by item; where an item's
  // begins, and how many words a row has.
  std::vector<float> index_q, index_kw;
  std::vector<uint64_t> selected;
  std::vector<size_t> selected_at, selected_words;
  std::vector<IndexScratch> index_scratch;
};

class DecoderModel::Timer {
 public:
  Timer(Profile& profile, Phase phase)
      : total_(profile[static_cast<size_t>(phase)]), start_(std::chrono::steady_clock::now()) {}
  ~Timer() {
    total_ += static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now() - start_)
                                        .count());
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

 private:
  uint64_t& total_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace moebius
