// SPDX-License-Identifier: Apache-2.0
// Which file of packed weights belongs to a model, or to a rank's part of one.
#pragma once
#include <memory>

#include "device/cpu/packed_store.h"
#include "model/decoder.h"

namespace moebius {

PackRequest pack_request(const Checkpoint& checkpoint, const ModelOptions& options);

// Null: none was asked for, or none can be had here, which is said. Throws Error where weights then do
// not fit into memory.
std::shared_ptr<PackedStore> open_packed(const Checkpoint& checkpoint, const ModelOptions& options);

}  // namespace moebius
