// SPDX-License-Identifier: Apache-2.0
#include "model/plan/kv_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/checked.h"
#include "base/error.h"
#include "model/plan/layer_parts.h"

namespace moebius {
namespace {

std::string window_name(size_t reach) {
  return reach == SIZE_MAX ? "full" : fmt::format("window {}", reach);
}

// Returns the first channel of one of a layer's convolutions (convolution_place); 3: the end.
size_t convolution_channels(const HeadSizes& n, size_t which, size_t hidden) {
  return which == 0 ? 0 : n.kv_heads * (n.head_dim + n.value_dim) + (which - 1) * hidden;
}

// Adds up, layer by layer, what mixers and what stands beside them keep.
class KvPlanner {
 public:
  KvPlanner(const Checkpoint& checkpoint, const DecoderSpec& spec, const KvChoice& options,
            const DeviceSet& devices, Range own)
      : checkpoint_(checkpoint), spec_(spec), options_(options), devices_(devices), own_(own) {
    for (Device* d : devices.all()) plan_.devices.push_back({d, {}});
    plan_.layers.resize(spec.layers.size());
  }

  KvPlan plan() {
    for (size_t i = 0; i < spec_.layers.size(); ++i) {
      begin(i);
      keep_beside();
      std::visit([this](const auto& mixer) { keep(mixer); }, spec_.layers[i].mixer);
    }
    for (size_t i = 0; i < spec_.layers.size(); ++i) {
      begin(i);
      if (const KeyMixer* m = spec_.layers[i].keys()) keep_compressed(*m);
    }
    for (size_t k = 0; k < plan_.kinds.size(); ++k) {
      for (DeviceKinds& d : plan_.devices) {
        d.block_bytes.resize(plan_.kinds.size(), 0);
        plan_.kinds[k].block_bytes += d.block_bytes[k];
      }
      // Block numbers are common to all devices, so a kind without bytes here still has blocks.
      if (plan_.kinds[k].block_bytes == 0) plan_.kinds[k].block_bytes = 64;
    }
    return std::move(plan_);
  }

 private:
  void begin(size_t layer) {
    layer_ = layer;
    at_ = &plan_.layers[layer];
    device_ = &attention_device(devices_, spec_, layer);
    here_ = layer >= own_.begin && layer < own_.end;
  }
  // Adds bytes to the blocks of a kind, where this process has the layer.
  KvOffset add(size_t kind, uint64_t bytes) {
    for (DeviceKinds& d : plan_.devices) {
      d.block_bytes.resize(plan_.kinds.size(), 0);
      if (d.device != device_) continue;
      const KvOffset at{kind, d.block_bytes[kind]};
      if (here_) d.block_bytes[kind] += bytes;
      return at;
    }
    fail("a layer on a device that is not there");
  }
  KvOffset add(const KvKind& wanted, uint64_t bytes) {
    const auto found =
        std::find_if(plan_.kinds.begin(), plan_.kinds.end(), [&](const KvKind& kind) {
          return kind.reach == wanted.reach && kind.cuttable == wanted.cuttable;
        });
    const auto kind = static_cast<size_t>(found - plan_.kinds.begin());
    if (found == plan_.kinds.end()) plan_.kinds.push_back(wanted);
    return add(kind, bytes);
  }
  KvOffset add_state(size_t floats) {  // two versions (KvPool)
    KvOffset at = add({"state", 0, 1, false}, 2 * round_up(floats * sizeof(float), 64));
    at.offset /= 2;
    return at;
  }
  KvOffset add_sources(const CompressorSpec& c) {
    return add({window_name(c.reach()), 0, c.reach(), true},
               KvRowLayout{c.source_width(), kv_type_of(options_.type)}.block_bytes());
  }
  KvStorage storage() const { return storage_of(checkpoint_, spec_, layer_, options_); }

  // Plans states of convolutions and n-grams.
  void keep_beside() {
    const LayerSpec& layer = spec_.layers[layer_];
    const auto hidden = static_cast<size_t>(checkpoint_.config().hidden);
    if (layer.ngrams) {
      const NGramSpec& n = layer.ngrams->spec;
      at_->convolutions = add_state(
          ShortConvolution::state_floats(spec_.streams.count * hidden, n.taps()) + n.size - 1);
    }
    if (layer.convolutions)
      at_->convolutions = add_state(ShortConvolution::state_floats(
          convolution_channels(spec_.keys(layer_).sizes, 3, hidden), layer.convolutions->width));
  }
  void keep(const std::monostate&) {}
  void keep(const StateMixer& m) { at_->mixer = add_state(m.state_floats()); }
  void keep(const KeyMixer& m) {
    if (m.kv_from != 0) {
      at_->mixer = plan_.layers[layer_ - m.kv_from].mixer;
    } else {
      const KvStorage stored = storage();  // an unsupported type is refused on every rank
      at_->mixer =
          add({window_name(m.reach()), 0, m.reach(), true}, here_ ? key_bytes(m, stored) : 0);
    }
    // The keys of an indexer live as long as its layer's keys.
    if (m.makes_choice() && m.ratio() == 0)
      at_->indexer =
          add(at_->mixer.kind, here_ ? device_->index_bytes(m.choice->indexer, storage().type) : 0);
  }
  uint64_t key_bytes(const KeyMixer& m, const KvStorage& stored) const {
    return m.latent && !absorbs(checkpoint_, spec_, layer_, options_)
               ? KvRowLayout{m.latent->stored_width(), stored.type}.block_bytes()
               : device_->kv_bytes(attention_spec(spec_, layer_, true), stored);
  }
  // Compressed keys are kept as long as the sequence, like keys of which 128 tokens fill a block;
  // their sources only as far as the next compressed key reaches.
  void keep_compressed(const KeyMixer& m) {
    CompressedKv& to = at_->compressed;
    if (m.makes_choice() && m.choice->indexer.pooled) {
      to.index_keys = at_->indexer;
      to.index_sources = add_sources(m.choice->compressor());
    }
    if (m.ratio() == 0) return;
    const KvType stored = storage().type;
    const KvKind kept{"compressed", 0, SIZE_MAX, true};
    const CompressorSpec c = m.compressor();
    to.keys = add(kept, KvRowLayout{c.width, stored, c.block_keys()}.block_bytes());
    to.sources = add_sources(c);
    if (!m.makes_choice()) return;
    to.index_keys = add(kept, device_->index_bytes(m.choice->indexer, stored));
    to.index_sources = add_sources(m.choice->compressor());
  }

  const Checkpoint& checkpoint_;
  const DecoderSpec& spec_;
  const KvChoice& options_;
  const DeviceSet& devices_;
  Range own_;
  KvPlan plan_;
  size_t layer_ = 0;
  LayerKvOffsets* at_ = nullptr;
  Device* device_ = nullptr;
  bool here_ = false;
};

}  // namespace

// Layers that share keys or a choice of keys run on one device: each with the first one.
Device& attention_device(const DeviceSet& devices, const DecoderSpec& spec, size_t layer) {
  std::vector<size_t> before(spec.layers.size());
  std::iota(before.begin(), before.end(), size_t{0});
  const auto first_of = [&](size_t i) {
    while (before[i] != i) i = before[i] = before[before[i]];
    return i;
  };
  const auto join = [&](size_t a, size_t b) {
    const auto [least, other] = std::minmax({first_of(a), first_of(b)});
    before[other] = least;
  };
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const KeyMixer* m = spec.layers[i].keys();
    if (m == nullptr) continue;
    if (m->kv_from != 0) join(i, i - m->kv_from);
    if (m->takes_choice()) join(i, choice_from(spec, i));
  }
  return devices.attention(first_of(layer));
}

KvPlan plan_kv(const Checkpoint& checkpoint, const DecoderSpec& spec, const KvChoice& options,
               const DeviceSet& devices, Range own) {
  return KvPlanner(checkpoint, spec, options, devices, own).plan();
}

KvOffset convolution_place(const KvPlan& plan, const DecoderSpec& spec, size_t layer, size_t which,
                           size_t hidden) {
  KvOffset place = plan.layers[layer].convolutions;
  place.offset += sizeof(float) * ShortConvolution::state_floats(
                                      convolution_channels(spec.keys(layer).sizes, which, hidden),
                                      spec.layers[layer].convolutions->width);
  return place;
}

uint64_t KvPlan::bytes_per_token() const {
  uint64_t bytes = 0;
  for (const KvKind& k : kinds) bytes += k.cuttable ? k.block_bytes : 0;
  return (bytes + kBlockTokens - 1) / kBlockTokens;
}

uint64_t KvPlan::bytes_of(size_t tokens) const {
  uint64_t bytes = 0;
  if (tokens == 0) return 0;
  for (const KvKind& k : kinds) {
    const size_t last = (tokens - 1) / kBlockTokens;
    bytes += (last + 1 - first_block_needed(k, tokens - 1)) * k.block_bytes;
  }
  return bytes;
}

AttentionSpec attention_spec(const DecoderSpec& s, size_t index, bool absorbed) {
  const KeyMixer& m = s.keys(index);
  AttentionSpec a;
  a.heads = m.sizes.heads;
  a.kv_heads = m.sizes.kv_heads;
  a.key_dim = m.key_width();
  a.value_dim = m.sizes.value_dim;
  if (m.latent && absorbed) {
    a.kv_heads = 1;
    a.key_dim = m.latent->stored_width();
    a.value_dim = m.latent->keys;
  }
  a.scale = m.score_scale();
  a.window = m.window;
  a.chunk = m.chunk;
  a.ratio = m.ratio();
  a.first = m.first_key;
  return a;
}

bool absorbs(const Checkpoint& checkpoint, const DecoderSpec& spec, size_t layer,
             const KvChoice& options) {
  const MatrixPlan& kv_b = LayerParts(checkpoint, layer).require(spec.keys(layer).name(kKvUp)).plan;
  return !options.exact && !kv_b.scheme.input && !kv_b.scheme.output && !kv_b.has_output_scale &&
         load_bias(kv_b, checkpoint.store()).empty();
}

KvStorage storage_of(const Checkpoint& checkpoint, const DecoderSpec& spec, size_t layer,
                     const KvChoice& options) {
  const std::optional<QuantArgs>& declared = checkpoint.quant().kv_cache();
  const bool eight = declared && declared->bits == 8 && declared->symmetric;
  if (!options.kv_type && declared && !eight)
    fail(
        "{}: quantization_config.kv_cache_scheme is {}; only symmetric 8-bit keys and values run "
        "(--kv-dtype states another type)",
        checkpoint.folder(), describe(*declared));
  const KvType own = !declared                              ? kv_type_of(options.type)
                     : declared->kind == NumberKind::kFloat ? KvType::kFp8
                                                            : KvType::kInt8;
  KvStorage storage{options.kv_type.value_or(own)};
  // Stored scales belong to the declared type. Latents are neither the keys nor the values on which
  // scales were measured.
  if (!declared || storage.type != own || declared->dynamic != Dynamic::kStatic ||
      spec.keys(layer).latent)
    return storage;
  const LayerParts parts(checkpoint, layer);
  for (const auto& [member, to] :
       {std::pair{"k_scale", &storage.key_scale}, std::pair{"v_scale", &storage.value_scale}}) {
    const std::string name = spec.keys(layer).name(member);
    if (!parts.has(name)) continue;  // not calibrated: each token gets a scale
    const std::vector<uint64_t>& shape = checkpoint.store().require(parts.full(name)).shape;
    const bool several = std::any_of(shape.begin(), shape.end(), [](uint64_t d) { return d != 1; });
    if (several && declared->strategy != Strategy::kTensor)
      fail(
          "{}: quantization_config.kv_cache_scheme.strategy is {}, and {} has several scales; only "
          "strategy tensor runs (--kv-dtype states another type)",
          checkpoint.folder(), name_of(declared->strategy), parts.full(name));
    *to = parts.values(name, 1)[0];
    if (!(*to >= 0) || !std::isfinite(*to))
      fail("{}: {} of layer {} is {}; expected a scale", checkpoint.folder(), name, layer, *to);
  }
  return storage;
}

}  // namespace moebius
