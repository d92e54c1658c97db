// SPDX-License-Identifier: Apache-2.0
// Plans from headers alone where a model keeps keys and values: the kinds of its layers, and each
// layer's place.
#pragma once
#include <optional>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "device/placement.h"
#include "model/arch/decoder_spec.h"

namespace moebius {

// Holds the places of a layer's compressed keys, of its indexer's, and of the rows from which they
// are made.
struct CompressedKv {
  KvOffset keys, sources, index_keys, index_sources;
};

// Holds the places of what a layer keeps of the past, as far as it keeps it.
struct LayerKvOffsets {
  KvOffset mixer;         // keys and values, or a state
  KvOffset indexer;       // keys of its indexer
  KvOffset convolutions;  // states of convolutions beside them
  CompressedKv compressed;
};

struct KvPlan {
  std::vector<KvKind> kinds;  // sizes are the bytes on all devices together
  std::vector<LayerKvOffsets> layers;
  std::vector<DeviceKinds> devices;

  // Returns the bytes that one more token of a sequence takes while no block is freed: blocks
  // divided by their tokens, without states.
  uint64_t bytes_per_token() const;
  uint64_t bytes_of(size_t tokens) const;  // bytes that a sequence with so many tokens holds
};

// Holds the options that decide how keys and values are stored.
struct KvChoice {
  XType type = XType::kBf16;
  std::optional<KvType> kv_type;  // unset: as the checkpoint declares
  // true: results must have the bytes of the reference, so up-projections of latents are not
  // absorbed (head_linear.h).
  bool exact = false;
};

// Plans the KV cache. The kinds are those of all layers, in the same order on every rank; bytes and
// places are those of the layers in `own`. Throws Error.
KvPlan plan_kv(const Checkpoint& checkpoint, const DecoderSpec& spec, const KvChoice& options,
               const DeviceSet& devices, Range own = {0, SIZE_MAX});

// Returns the place of a state of a layer's convolutions: of [k | v] (0), or of the result of
// attention (1) or block (2).
KvOffset convolution_place(const KvPlan& plan, const DecoderSpec& spec, size_t layer, size_t which,
                           size_t hidden);

// Returns the device that runs a layer's attention: the device of the layer whose keys or choice of
// keys it uses.
Device& attention_device(const DeviceSet& devices, const DecoderSpec& spec, size_t layer);

// Returns the attention of a layer as its keys and values are multiplied: with an absorbed
// up-projection, latents are one kv head for all heads.
AttentionSpec attention_spec(const DecoderSpec& spec, size_t layer, bool absorbed);
// Returns whether the up-projection of latents (kv_b) is absorbed in this layer, multiplied into
// queries and results: not if it quantizes activations or outputs, and not if the caller wants
// equal bytes.
bool absorbs(const Checkpoint& checkpoint, const DecoderSpec& spec, size_t layer,
             const KvChoice& options);
inline constexpr std::string_view kKvUp = "kv_b_proj";  // name of the up-projection of latents

// Returns how a layer's keys and values are stored. Throws Error.
KvStorage storage_of(const Checkpoint& checkpoint, const DecoderSpec& spec, size_t layer,
                     const KvChoice& options);

}  // namespace moebius
