// SPDX-License-Identifier: Apache-2.0
// Where a model keeps keys and values: the kinds of its layers, and each layer's place. From headers
// alone.
#pragma once
#include <optional>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "device/placement.h"
#include "model/arch/decoder_spec.h"

namespace moebius {

// Where a layer keeps compressed keys for attention and for its indexer, and what they are made of.
struct CompressedPlaces {
  KvPlace keys, sources, index_keys, index_sources;
};

struct KvPlan {
  std::vector<KvKind> kinds;  // bytes on all devices together
  std::vector<KvPlace> layers;
  std::vector<CompressedPlaces> compressed;  // of layers that have compressed keys
  std::vector<KvPlace> indexers;             // keys of the layers' indexers, where they have one
  std::vector<KvPlace> convolutions;  // their states beside keys and values, where layers have them
  std::vector<DeviceKinds> devices;

  uint64_t bytes_per_token() const;        // while nothing is given away; whole blocks, no states
  uint64_t bytes_of(size_t tokens) const;  // that a sequence of so many tokens holds
};

// What decides how keys and values are kept.
struct KvChoice {
  XType type = XType::kBf16;
  std::optional<KvType> kv_type;  // none: as the checkpoint declares
  bool exact = false;             // equal bytes are asked for: nothing is absorbed
};

// Kinds are those of all layers, in one order on every rank; bytes and places those of the layers
// `own`.
KvPlan plan_kv(const Checkpoint& checkpoint, const DecoderSpec& spec, const KvChoice& options,
               const DeviceSet& devices, Range own = {0, SIZE_MAX});

// Floats of the states of a layer's convolutions: of [k | v], of what attention and the block give.
size_t convolution_floats(const DecoderSpec& spec, size_t layer, size_t hidden);
// Of one of the three, in this order.
KvPlace convolution_place(const KvPlan& plan, const DecoderSpec& spec, size_t layer, size_t which,
                          size_t hidden);

// Of a layer that rows by n-grams join: the state of their convolution, then tokens.
size_t ngram_state_floats(const DecoderSpec& spec, size_t hidden);

// Where a layer's attention runs: with the layer whose keys or choice of keys it takes.
Device& attention_device(const DeviceSet& devices, const DecoderSpec& spec, size_t layer);

// Attention of one layer as its keys and values are multiplied: latents that absorb the
// up-projection are one kv head for all.
AttentionSpec attention_spec(const DecoderSpec& spec, size_t layer, bool absorbed);
// Whether the up-projection of latents (kv_b) is absorbed in this layer: not where it quantizes
// activations or outputs, and not where equal bytes are asked for.
bool absorbs(const Checkpoint& checkpoint, const DecoderSpec& spec, size_t layer,
             const KvChoice& options);
inline constexpr std::string_view kKvUp = "kv_b_proj";  // of attention

// How a layer's keys and values are kept.
KvStorage storage_of(const Checkpoint& checkpoint, const DecoderSpec& spec, size_t layer,
                     const KvChoice& options);

}  // namespace moebius
