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

// Returns how many tokens back a layer looks.
size_t reach_of(const LayerSpec& layer) {
  size_t reach = SIZE_MAX;
  if (layer.window != 0) reach = layer.window;
  if (layer.chunk != 0) reach = std::min(reach, layer.chunk);
  return reach;
}

std::string window_name(size_t reach) {
  return reach == SIZE_MAX ? "full" : fmt::format("window {}", reach);
}

// Returns the shape of the layers that keep a state.
RecurrentShape recurrent_shape(const DecoderSpec& spec) {
  return std::visit(
      [](const auto& s) -> RecurrentShape {
        if constexpr (std::is_same_v<std::decay_t<decltype(s)>, std::monostate>)
          return {};
        else
          return s.shape();
      },
      spec.recurrent);
}

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
    if (spec.layers[i].kv_from != 0) join(i, i - spec.layers[i].kv_from);
    if (takes_choice(spec, i)) join(i, choice_from(spec, i));
  }
  return devices.attention(first_of(layer));
}

KvPlan plan_kv(const Checkpoint& checkpoint, const DecoderSpec& spec, const KvChoice& options,
               const DeviceSet& devices, Range own) {
  KvPlan plan;
  for (Device* d : devices.all()) plan.devices.push_back({d, {}});
  const auto bytes_on = [&](const Device& device, size_t kind) -> size_t& {
    for (DeviceKinds& d : plan.devices) {
      d.block_bytes.resize(plan.kinds.size(), 0);
      if (d.device == &device) return d.block_bytes[kind];
    }
    fail("a layer on a device that is not there");
  };
  const auto kind_of = [&](const KvKind& wanted) {
    size_t kind = 0;
    while (kind < plan.kinds.size() &&
           (plan.kinds[kind].reach != wanted.reach || plan.kinds[kind].cuttable != wanted.cuttable))
      ++kind;
    if (kind == plan.kinds.size()) plan.kinds.push_back(wanted);
    return kind;
  };
  // Plans an indexer's keys, which live as long as its layer's keys.
  const auto keep_index = [&](size_t i, bool here) {
    if (!spec.layers[i].indexes) return;
    Device& device = attention_device(devices, spec, i);
    size_t& bytes = bytes_on(device, plan.layers[i].kind);
    plan.indexers[i] = {plan.layers[i].kind, bytes};
    if (here)
      bytes += device.index_bytes(spec.indexer, storage_of(checkpoint, spec, i, options).type);
  };
  const size_t state = round_up(recurrent_shape(spec).state * sizeof(float), 64);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const LayerSpec& layer = spec.layers[i];
    const bool here = i >= own.begin && i < own.end;
    plan.indexers.push_back({}), plan.convolutions.push_back({});
    if (!layer.attends) {
      plan.layers.push_back({});
      continue;
    }
    if (layer.kv_from != 0) {
      plan.layers.push_back(plan.layers[i - layer.kv_from]);
      keep_index(i, here);
      continue;
    }
    Device& device = attention_device(devices, spec, i);
    if (layer.ngrams) {
      const size_t kind = kind_of({"state", 0, 1, false});
      size_t& bytes = bytes_on(device, kind);
      plan.convolutions.back() = {kind, bytes / 2};
      const size_t floats =
          ngram_state_floats(spec, static_cast<size_t>(checkpoint.config().hidden));
      if (here) bytes += 2 * round_up(floats * sizeof(float), 64);
    }
    if (layer.recurrent) {  // two versions (KvPool)
      const size_t kind = kind_of({"state", 0, 1, false});
      size_t& bytes = bytes_on(device, kind);
      plan.layers.push_back({kind, bytes / 2});
      if (here) bytes += 2 * state;
      continue;
    }
    if (spec.convolutions) {
      const size_t kind = kind_of({"state", 0, 1, false});
      size_t& bytes = bytes_on(device, kind);
      plan.convolutions.back() = {kind, bytes / 2};
      if (here)
        bytes += 2 * round_up(convolution_floats(spec, i,
                                                 static_cast<size_t>(checkpoint.config().hidden)) *
                                  sizeof(float),
                              64);
    }
    const size_t reach = reach_of(layer), kind = kind_of({window_name(reach), 0, reach, true});
    size_t& bytes = bytes_on(device, kind);
    plan.layers.push_back({kind, bytes});
    // An unsupported type is refused on every rank.
    const KvStorage stored = storage_of(checkpoint, spec, i, options);
    if (here)
      bytes += spec.latent() && !absorbs(checkpoint, spec, i, options)
                   ? KvRowLayout{spec.kv_lora + spec.rotated_dim(i), stored.type}.block_bytes()
                   : device.kv_bytes(attention_spec(spec, i, true), stored);
    if (layer.ratio == 0) keep_index(i, here);
  }
  // Compressed keys are kept as long as the sequence, like keys of which 128 tokens fill a block;
  // their sources only as far as the next compressed key reaches.
  plan.compressed.resize(spec.layers.size());
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const bool pools = spec.layers[i].indexes && spec.indexer.pooled;
    if (spec.layers[i].ratio == 0 && !pools) continue;
    Device& device = attention_device(devices, spec, i);
    const KvType stored = storage_of(checkpoint, spec, i, options).type;
    const auto place = [&](const KvKind& wanted, size_t size) {
      const size_t kind = kind_of(wanted);
      size_t& bytes = bytes_on(device, kind);
      const KvPlace at{kind, bytes};
      if (i >= own.begin && i < own.end) bytes += size;
      return at;
    };
    const auto sources = [&](const CompressorSpec& c) {
      return place({window_name(c.reach()), 0, c.reach(), true},
                   KvRowLayout{c.source_width(), kv_type_of(options.type)}.block_bytes());
    };
    CompressedPlaces& to = plan.compressed[i];
    if (pools) {
      to.index_keys = plan.indexers[i];
      to.index_sources = sources(index_compressor_of(spec));
      continue;
    }
    const KvKind kept{"compressed", 0, SIZE_MAX, true};
    const CompressorSpec c = compressor_of(spec, i);
    to.keys = place(kept, KvRowLayout{c.width, stored, c.block_keys()}.block_bytes());
    to.sources = sources(c);
    if (!spec.layers[i].indexes) continue;
    to.index_keys = place(kept, device.index_bytes(spec.indexer, stored));
    to.index_sources = sources(index_compressor_of(spec));
  }
  for (size_t k = 0; k < plan.kinds.size(); ++k) {
    for (DeviceKinds& d : plan.devices) {
      d.block_bytes.resize(plan.kinds.size(), 0);
      plan.kinds[k].block_bytes += d.block_bytes[k];
    }
    // Block numbers are common to all devices, so a kind without bytes here still has blocks.
    if (plan.kinds[k].block_bytes == 0) plan.kinds[k].block_bytes = 64;
  }
  return plan;
}

size_t ngram_state_floats(const DecoderSpec& spec, size_t hidden) {
  const NGramSpec& n = *spec.ngrams;
  return ShortConvolution::state_floats(spec.streams.count * hidden, n.taps()) + n.size - 1;
}

size_t convolution_floats(const DecoderSpec& spec, size_t layer, size_t hidden) {
  const HeadSizes n = spec.sizes(layer);
  return ShortConvolution::state_floats(n.kv_heads * (n.head_dim + n.value_dim) + 2 * hidden,
                                        spec.convolutions->width);
}

KvPlace convolution_place(const KvPlan& plan, const DecoderSpec& spec, size_t layer, size_t which,
                          size_t hidden) {
  const HeadSizes n = spec.sizes(layer);
  const size_t channels =
      which == 0 ? 0 : n.kv_heads * (n.head_dim + n.value_dim) + (which - 1) * hidden;
  KvPlace place = plan.convolutions[layer];
  place.offset +=
      ShortConvolution::state_floats(channels, spec.convolutions->width) * sizeof(float);
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
  AttentionSpec a;
  const HeadSizes sizes = s.sizes(index);
  a.heads = sizes.heads;
  a.kv_heads = sizes.kv_heads;
  a.key_dim = s.key_dim(index);
  a.value_dim = sizes.value_dim;
  if (s.latent() && absorbed) {
    a.kv_heads = 1;
    a.key_dim = s.kv_lora + s.rotated_dim(index);
    a.value_dim = s.kv_lora;
  }
  a.scale = s.attention_scale != 0
                ? s.attention_scale
                : static_cast<float>(1 / std::sqrt(static_cast<double>(s.key_dim(index))));
  if (s.layers[index].attention_scale != 0) a.scale = s.layers[index].attention_scale;
  a.window = s.layers[index].window;
  a.chunk = s.layers[index].chunk;
  a.ratio = s.layers[index].ratio;
  a.first = s.layers[index].first_key;
  return a;
}

bool absorbs(const Checkpoint& checkpoint, const DecoderSpec& spec, size_t layer,
             const KvChoice& options) {
  const MatrixPlan& kv_b = LayerParts(checkpoint, layer).require(attention_name(spec, kKvUp)).plan;
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
  if (!declared || storage.type != own || declared->dynamic != Dynamic::kStatic || spec.latent())
    return storage;
  const LayerParts parts(checkpoint, layer);
  for (const auto& [member, to] :
       {std::pair{"k_scale", &storage.key_scale}, std::pair{"v_scale", &storage.value_scale}}) {
    const std::string name = attention_name(spec, member);
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
