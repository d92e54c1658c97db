// SPDX-License-Identifier: Apache-2.0
#include "model/load/row_lists.h"

#include <algorithm>

#include "base/error.h"
#include "checkpoint/families.h"

namespace moebius {
namespace {

Norm norm_of(const LayerOp& op, size_t width, const LayerParts& parts, const DecoderSpec& spec) {
  if (op.parameter == nullptr)
    return {op.norm.value_or(NormKind::kRmsPlain), spec.norm_epsilon, {}, {}};
  const NormKind kind = op.norm.value_or(spec.norm);
  const std::string name = parts.first_of(op.parameter);
  Norm norm = parts.has(name) ? Norm{kind, spec.norm_epsilon, parts.values(name, width), {}}
                              : parts.norm(name, kind, spec.norm_epsilon, width);
  if (op.factor != 1.0f)
    for (float& w : norm.weight) w *= op.factor;
  return norm;
}

// Returns the first of some words whose tensors the layer has.
std::string stem_of(const char* words, const LayerParts& parts) {
  std::string found;
  for_each_word(words, [&](std::string_view word, bool) {
    if (found.empty() && parts.has(std::string(word) + "fn")) found = word;
  });
  if (found.empty()) fail("layer {}: has none of {} with fn, base and scale", parts.index(), words);
  return found;
}

}  // namespace

std::shared_ptr<const StreamGates> load_stream_gates(
    const DecoderSpec& spec, size_t hidden, bool joins,
    const std::function<std::vector<float>(const char* member, size_t count)>& values) {
  const StreamSpec& s = spec.streams;
  auto g = std::make_shared<StreamGates>();
  g->streams = s.count;
  g->norm_epsilon = spec.norm_epsilon;
  g->epsilon = s.epsilon;
  g->out_epsilon = s.out_epsilon;
  g->magnitude = s.magnitude;
  g->rounds = joins ? s.rounds : 0;
  const size_t outputs = StreamGates::outputs(s.count, joins, g->rounds);
  g->weight = values("fn", outputs * s.count * hidden);
  g->base = values("base", outputs);
  g->scale = values("scale", !joins ? 1 : s.rounds > 0 ? 3 : 2);
  return g;
}

std::vector<float> load_position_scales(const LayerParts& parts, const std::string& stem,
                                        size_t heads) {
  const bool published = parts.has(stem + ".s");
  std::vector<float> all = parts.values(stem + (published ? ".s" : ".scale"), heads);
  const std::vector<float> bias = parts.values(stem + (published ? ".b" : ".bias"), heads);
  all.insert(all.end(), bias.begin(), bias.end());
  return all;
}

RowOp norm_op(RowView y, RowView x, Norm norm) {
  RowOp op{RowOpKind::kNorm, y, x};
  op.norm = std::move(norm);
  return op;
}

RowColumns heads_at(LayerRows rows, size_t operand, size_t heads, size_t d) {
  return {rows, {operand, 0, heads * d}, {operand, 0, d, heads, d}};
}

std::vector<RowOp> row_ops(const LayerOps& list, std::span<const RowColumns> places,
                           const LayerParts& parts, const DecoderSpec& spec) {
  const KeyMixer* mixer = spec.layers[parts.index()].keys();
  const bool keys = mixer == nullptr || mixer->kv_from == 0;
  const auto place = [&](LayerRows rows) {
    const auto p = std::find_if(places.begin(), places.end(),
                                [&](const RowColumns& at) { return at.rows == rows; });
    if (p == places.end())
      fail("layer {}: an operation on rows that this layer does not have", parts.index());
    return *p;
  };
  std::vector<RowOp> ops;
  std::shared_ptr<const StreamGates> gates;  // gates of the current list
  for (const LayerOp& op : list) {
    if (!keys && (op.y == LayerRows::kKey || op.y == LayerRows::kValue)) continue;
    const RowColumns y = place(op.y), x = place(op.x);
    RowOp made{op.kind, op.per_head ? y.each : y.whole, op.per_head ? x.each : x.whole, op.factor};
    if (op.kind == RowOpKind::kNorm) made.norm = norm_of(op, made.y.width, parts, spec);
    if (op.kind == RowOpKind::kHeadBias) {
      const std::vector<float> all =
          parts.values(op.parameter, y.all_heads != 0 ? y.all_heads : made.y.heads);
      const auto first = all.begin() + static_cast<std::ptrdiff_t>(y.first_head);
      made.values = {first, first + static_cast<std::ptrdiff_t>(made.y.heads)};
    }
    if (op.kind == RowOpKind::kHeadScale) {
      const size_t heads = y.each.heads, of_all = y.all_heads != 0 ? y.all_heads : heads;
      const std::vector<float> all = load_position_scales(parts, op.parameter, of_all);
      made.y = heads_view(y.whole.operand, heads, y.whole.width / heads);
      for (const size_t at : {y.first_head, of_all + y.first_head})
        for (size_t h = 0; h < heads; ++h) made.values.push_back(all[at + h]);
    }
    if (op.kind == RowOpKind::kScale) {
      if (op.parameter != nullptr) made.factor = parts.values(op.parameter, 1)[0];
      if (made.factor == 1.0f) continue;
    }
    made.rope = op.rope;
    made.temperature = op.temperature;
    if (op.kind == RowOpKind::kStreamGates) {
      const std::string stem = stem_of(op.parameter, parts);
      gates = load_stream_gates(
          spec, made.x.width / spec.streams.count, /*joins=*/true,
          [&](const char* member, size_t count) { return parts.values(stem + member, count); });
    }
    if (op.kind == RowOpKind::kStreamsOut) {  // gates of an earlier list: only the counts are used
      auto joins = std::make_shared<StreamGates>();
      joins->streams = spec.streams.count;
      joins->rounds = spec.streams.rounds;
      gates = std::move(joins);
    }
    made.streams = gates;
    if (op.kind == RowOpKind::kStreamsIn || op.kind == RowOpKind::kStreamsOut)
      made.w = place(LayerRows::kMix).whole;
    ops.push_back(std::move(made));
  }
  return ops;
}

}  // namespace moebius
