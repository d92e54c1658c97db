// SPDX-License-Identifier: Apache-2.0
// Finds the file of packed weights that belongs to a model, or to a rank's part of one.
#pragma once
#include <memory>

#include "device/packed_store.h"
#include "model/run/decoder.h"

namespace moebius {

PackRequest pack_request(const Checkpoint& checkpoint, const ModelOptions& options);

// Opens or creates the file of packed weights. Returns null if the options ask for none, or after a
// warning if none can be had. Throws Error if the weights then do not fit into memory.
std::shared_ptr<PackedStore> open_packed(const Checkpoint& checkpoint, const ModelOptions& options);

}  // namespace moebius
