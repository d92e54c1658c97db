// SPDX-License-Identifier: Apache-2.0
// Linear attention of a step: states come from the block of the token before, and go to the blocks
// of the tokens of the step, beside what was there (state_block.h).
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "model/decoder_layer.h"
#include "model/state_block.h"

namespace moebius {
namespace {

void grow_state(std::vector<float>& v, size_t n) {
  if (v.size() < n) v.resize(n);
}

}  // namespace

// Where the state of one item is read and written in a step.
struct DecoderModel::StateBlock {
  const BatchItem& item;
  KvMemory& memory;
  size_t kind, bytes;

  uint8_t* block(size_t index) const {
    const BlockId id = (*item.tables)[kind][index];
    return id == kNoBlock ? nullptr : memory.block(kind, id);
  }
  size_t source() const { return (item.position - 1) / kBlockTokens; }  // position > 0
  // The version that holds what is read; throws when there is none.
  size_t version_read() const {
    const size_t v = state_version(block(source()), item.position);
    if (v == 2) fail("block {} has no state for a sequence of {} tokens", source(), item.position);
    return v;
  }
  size_t version_written(size_t index) const {
    return item.position > 0 && index == source() ? 1 - version_read() : 0;
  }
  const float* from(size_t offset) const {
    if (item.position == 0) return nullptr;
    return state_at(block(source()), bytes, version_read(), offset);
  }
  // The item's tokens, block by block.
  template <class F>
  void each_block(F f) const {
    const size_t end = item.position + item.tokens.size();
    for (size_t at = item.position; at < end;) {
      const size_t index = at / kBlockTokens, until = std::min(end, (index + 1) * kBlockTokens);
      f(index, at, until);
      at = until;
    }
  }
};

void DecoderModel::commit_states(std::span<const Work> work) const {
  for (size_t k = 0; k < kv_plan_.kinds.size(); ++k) {
    if (kv_plan_.kinds[k].cuttable) continue;
    for (const auto& [item, memory] : work) {
      const StateBlock s{item, *memory, k, kv_plan_.kinds[k].block_bytes};
      s.each_block([&](size_t index, size_t, size_t until) {
        uint8_t* block = s.block(index);
        if (block == nullptr) return;
        const size_t written = s.version_written(index);
        const bool source = item.position > 0 && index == s.source();
        if (!source) state_header(block).length[1 - written] = StateHeader::kNone;
        state_header(block).length[written] = until;
      });
    }
  }
}

// q k v before the convolution, z, and [b | a], all in the order of heads.
void DecoderModel::project_delta(const Layer& layer, size_t T) {
  Buffers& b = *buffers_;
  const DeltaSpec& d = spec_.delta;
  const size_t C = d.channels(), nv = d.values(), H = d.value_heads,
               width = layer.delta_in->out_features(), rep = H / d.key_heads;
  grow_state(b.qkv, T * width), grow_state(b.delta_rows, T * C), grow_state(b.delta_z, T * nv);
  grow_state(b.delta_ba, T * 2 * H);
  {
    const Timer timer(profile_, Phase::kLinear);
    run_linear(*layer.delta_in, b.a.data(), b.qkv.data(), T);
  }
  const auto copy = [](float* to, const float* from, size_t n) {
    std::memcpy(to, from, n * sizeof(float));
    return from + n;
  };
  for_rows(T, [&](size_t t) {
    const float* x = b.qkv.data() + t * width;
    float *rows = b.delta_rows.data() + t * C, *z = b.delta_z.data() + t * nv,
          *ba = b.delta_ba.data() + t * 2 * H;
    if (spec_.delta_apart) {
      x = copy(rows, x, C), x = copy(z, x, nv);
      copy(ba, x, 2 * H);
      return;
    }
    for (size_t g = 0; g < d.key_heads; ++g) {
      x = copy(rows + g * d.key_dim, x, d.key_dim);
      x = copy(rows + d.keys() + g * d.key_dim, x, d.key_dim);
      x = copy(rows + 2 * d.keys() + g * rep * d.value_dim, x, rep * d.value_dim);
      x = copy(z + g * rep * d.value_dim, x, rep * d.value_dim);
    }
    for (size_t g = 0; g < d.key_heads; ++g) {
      x = copy(ba + g * rep, x, rep);
      x = copy(ba + H + g * rep, x, rep);
    }
  });
}

void DecoderModel::attend_linear(size_t index, std::span<const Work> work, size_t T) {
  Buffers& b = *buffers_;
  const Layer& layer = *layers_[index];
  const DeltaNet& net = *layer.delta;
  const DeltaSpec& d = spec_.delta;
  const KvPlan::Place& place = kv_plan_.layers[index];
  const size_t C = d.channels(), nv = d.values(), H = d.value_heads, items = work.size();
  project_delta(layer, T);
  const Timer timer(profile_, Phase::kAttention);
  grow_state(b.delta_mixed, T * C), grow_state(b.attended, T * nv);
  const size_t spare = d.state_floats();
  grow_state(b.delta_state, items * spare);
  std::vector<DeltaRows> rows;
  std::vector<std::vector<DeltaRun>> runs(items);
  std::vector<const float*> before;
  std::vector<size_t> item_of(T);
  for (size_t i = 0; i < items; ++i) {
    const BatchItem& item = work[i].item;
    const size_t first = b.first_row[i], n = item.tokens.size();
    std::fill_n(item_of.begin() + static_cast<std::ptrdiff_t>(first), n, i);
    rows.push_back({b.delta_rows.data() + first * C, b.delta_z.data() + first * nv,
                    b.delta_ba.data() + first * 2 * H, b.delta_ba.data() + first * 2 * H + H, nv,
                    2 * H, b.delta_mixed.data() + first * C, b.attended.data() + first * nv, n});
    const StateBlock s{item, *work[i].memory, place.kind, kv_plan_.kinds[place.kind].block_bytes};
    before.push_back(s.from(place.offset));
    const float* from = before.back();
    s.each_block([&](size_t at, size_t begin, size_t until) {
      uint8_t* block = s.block(at);
      float* to = block == nullptr ? b.delta_state.data() + i * spare
                                   : state_at(block, s.bytes, s.version_written(at), place.offset);
      runs[i].push_back({begin - item.position, until - item.position, from, to});
      from = to;
      stats_->kv_bytes += spare * sizeof(float);
    });
  }
  WorkCounter next_row, next_head, next_out;
  options_.pool->run([&](ThreadPool::Member& me) {
    for (size_t t = next_row.take(); t < T; t = next_row.take()) {
      const size_t i = item_of[t];
      net.convolve(rows[i], before[i], t - b.first_row[i]);
    }
    me.barrier();
    for (size_t i = next_head.take(); i < items * H; i = next_head.take())
      net.scan(rows[i / H], runs[i / H], i % H);
    me.barrier();
    for (size_t t = next_out.take(); t < T; t = next_out.take())
      net.finish(rows[item_of[t]], t - b.first_row[item_of[t]]);
  });
  for (size_t i = 0; i < items; ++i)
    for (const DeltaRun& run : runs[i]) net.keep_rows(rows[i], run, before[i]);
  const Timer linear(profile_, Phase::kLinear);
  run_linear(*layer.output, b.attended.data(), b.branch.data(), T);
  stats_->weight_bytes += layer.dense_bytes();
}

}  // namespace moebius
