// SPDX-License-Identifier: Apache-2.0
#include "model/plan/model_part.h"

#include "model/ranks.h"
#include "nn/moe.h"

namespace moebius {

std::vector<size_t> plan_stages(const Checkpoint& checkpoint, const DecoderSpec& spec,
                                size_t stages) {
  const size_t n = spec.layers.size();
  std::vector<uint64_t> bytes(n, 0);
  uint64_t ends = 0;  // bytes of embedding, final norm and output projection
  for (const Module& m : checkpoint.modules()) {
    if (!m.loaded()) continue;
    if (m.layer >= 0 && static_cast<size_t>(m.layer) < n)
      bytes[static_cast<size_t>(m.layer)] += m.bytes;
    else if (m.layer < 0)
      ends += m.bytes;
  }
  return stage_layers(bytes, ends, stage_begins(spec), stages);
}

std::vector<bool> stage_begins(const DecoderSpec& spec) {
  std::vector<bool> may_begin(spec.layers.size(), true);
  for (size_t i = 0; i < may_begin.size(); ++i) {
    if (joins_later(spec.layers[i])) may_begin[i] = false;
    const KeyMixer* m = spec.layers[i].keys();
    if (m == nullptr) continue;
    for (size_t back = 0; back < m->kv_from; ++back) may_begin[i - back] = false;
    if (m->takes_choice())
      for (size_t j = choice_from(spec, i); j < i; ++j) may_begin[j + 1] = false;
  }
  return may_begin;
}

// Latents have a key and a value for every head.
HeadCut ModelPart::cut(size_t layer, size_t member) const {
  const KeyMixer& m = whole.keys(layer);
  return head_cut(m.sizes.heads, m.latent ? m.sizes.heads : m.sizes.kv_heads, ranks->members(),
                  member);
}

// All ranks of a stage repeat recurrent layers and shared keys.
DecoderSpec ModelPart::spec_of(size_t member) const {
  DecoderSpec s = whole;
  if (!cuts_heads) return s;
  for (size_t i = 0; i < whole.layers.size(); ++i) {
    KeyMixer* m = s.layers[i].keys();
    if (m == nullptr) continue;
    const HeadCut c = cut(i, member);
    m->sizes.heads = c.heads.size();
    m->sizes.kv_heads = c.kv_heads.size();
  }
  return s;
}

ModelPart::ModelPart(const Checkpoint& checkpoint, DecoderSpec all, Ranks* r, bool repeated)
    : ranks(r), whole(std::move(all)), spec(whole), own{0, whole.layers.size()} {
  if (ranks == nullptr) return;
  embeds = ranks->leader();
  const auto hidden = static_cast<size_t>(checkpoint.config().hidden);
  const RankSplit& split = ranks->split();
  stages = plan_stages(checkpoint, whole, split.pp);
  own = {stages[ranks->stage()], stages[ranks->stage() + 1]};
  if (ranks->members() == 1) return;
  repeats = repeated;
  if (!repeats) columns = output_ranges(hidden, ranks->members(), "hidden_size");
  for (size_t m = 0; m < ranks->members(); ++m) {
    const size_t ep_rank = m / split.tp;
    expert_columns.push_back(
        moe_split(hidden, split.tp, m % split.tp, split.ep, ep_rank, "hidden_size")
            .columns[ep_rank]);
  }
  cuts_heads = !repeats && !split.repeat_attention && !shares_keys(whole);
  spec = spec_of(ranks->member());
}

ModelPart::ModelPart(DecoderSpec all, Range layers)
    : ranks(nullptr),
      whole(std::move(all)),
      spec(whole),
      own(layers),
      embeds(layers.begin == 0),
      projects(false) {}

Range ModelPart::heads_of(size_t layer, size_t each) const {
  if (!cuts_heads) return {};
  const Range heads = cut(layer, ranks->member()).heads;
  return {heads.begin * each, heads.end * each};
}

Range ModelPart::kv_heads_of(size_t layer, size_t each) const {
  if (!cuts_heads) return {};
  const Range heads = cut(layer, ranks->member()).kv_heads;
  return {heads.begin * each, heads.end * each};
}

std::vector<Range> ModelPart::values_of(size_t layer) const {
  std::vector<Range> values;
  const size_t each = whole.keys(layer).sizes.value_dim;
  for (size_t m = 0; m < ranks->members(); ++m) {
    const Range given = cut(layer, m).given;
    values.push_back({given.begin * each, given.end * each});
  }
  return values;
}

}  // namespace moebius
