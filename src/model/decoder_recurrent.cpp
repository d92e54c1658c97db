// SPDX-License-Identifier: Apache-2.0
// Recurrent layers of a step: states come from the block of the token before, and go to the blocks
// of the tokens of the step, beside what was there (state_block.h).
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "model/decoder_layer.h"
#include "model/state_block.h"

namespace moebius {
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
    for (const auto& [item, memory, sequence] : work) {
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

// Rows as the layer reads them.
const float* DecoderModel::project_recurrent(const Layer& layer, size_t T) {
  Buffers& b = *buffers_;
  const Timer timer(profile_, Phase::kLinear);
  const size_t given = layer.recurrent_in->out_features(), width = layer.recurrent->shape().in;
  grow(b.qkv, T * given);
  run_linear(*layer.recurrent_in, b.a.data(), b.qkv.data(), T);
  const auto& parts = layer.recurrent_parts;
  const bool twice =
      std::any_of(parts.begin(), parts.end(), [](const auto& p) { return p.second != nullptr; });
  if (!twice && !layer.recurrent->arranges()) return b.qkv.data();
  grow(b.recurrent_rows, T * width);
  if (!twice) {
    for_rows(T, [&](size_t t) {
      layer.recurrent->arrange(b.qkv.data() + t * given, b.recurrent_rows.data() + t * width);
    });
    return b.recurrent_rows.data();
  }
  const auto copy = [T](const float* from, size_t from_width, float* to, size_t to_width,
                        size_t n) {
    for (size_t t = 0; t < T; ++t)
      std::memcpy(to + t * to_width, from + t * from_width, n * sizeof(float));
  };
  size_t at = 0, to = 0;  // columns
  for (const Layer::RecurrentPart& p : parts) {
    const float* from = b.qkv.data() + at;
    size_t n = p.width, from_width = given;
    at += p.width;
    if (p.second != nullptr) {
      n = from_width = p.second->out_features();
      grow(b.recurrent_few, T * p.width), grow(b.recurrent_part, T * n);
      copy(from, given, b.recurrent_few.data(), p.width, p.width);
      run_linear(*p.second, b.recurrent_few.data(), b.recurrent_part.data(), T);
      from = b.recurrent_part.data();
    }
    copy(from, from_width, b.recurrent_rows.data() + to, width, n);
    to += n;
  }
  return b.recurrent_rows.data();
}

void DecoderModel::attend_recurrent(size_t index, std::span<const Work> work, size_t T) {
  Buffers& b = *buffers_;
  const Layer& layer = *layers_[index];
  const Recurrent& net = *layer.recurrent;
  const RecurrentShape& shape = net.shape();
  const KvPlan::Place& place = kv_plan_.layers[index];
  const size_t items = work.size();
  const float* in = project_recurrent(layer, T);
  const Timer timer(profile_, Phase::kAttention);
  grow(b.recurrent_mixed, T * shape.mixed), grow(b.attended, T * shape.out);
  grow(b.recurrent_states, items * shape.state);
  std::vector<RecurrentStep> steps(items);
  for (size_t i = 0; i < items; ++i) {
    const BatchItem& item = work[i].item;
    const size_t first = b.first_row[i];
    const StateBlock s{item, *work[i].memory, place.kind, kv_plan_.kinds[place.kind].block_bytes};
    RecurrentStep& step = steps[i];
    step.rows = {in + first * shape.in, b.recurrent_mixed.data() + first * shape.mixed,
                 b.attended.data() + first * shape.out};
    step.before = s.from(place.offset);
    const float* from = step.before;
    s.each_block([&](size_t at, size_t begin, size_t until) {
      uint8_t* block = s.block(at);
      float* to = block == nullptr ? b.recurrent_states.data() + i * shape.state
                                   : state_at(block, s.bytes, s.version_written(at), place.offset);
      step.runs.push_back({begin - item.position, until - item.position, from, to});
      from = to;
      stats_->kv_bytes += shape.state * sizeof(float);
    });
  }
  run_steps(net, steps, *options_.pool);
  const Timer linear(profile_, Phase::kLinear);
  run_linear(*layer.output, b.attended.data(), b.branch.data(), T);
}

}  // namespace moebius
