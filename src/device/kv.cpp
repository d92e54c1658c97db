// SPDX-License-Identifier: Apache-2.0
#include "device/kv.h"

#include "device/device.h"

namespace moebius {

KvPool::KvPool(std::span<const DeviceKinds> devices, size_t slab_bytes) {
  for (const DeviceKinds& d : devices)
    devices_.emplace_back(d.device, d.device->blocks(d.block_bytes, slab_bytes));
}

DeviceBlocks& KvPool::on(const Device& device) const noexcept {
  size_t i = 0;
  while (devices_[i].first != &device) ++i;
  return *devices_[i].second;
}

void KvPool::commit(size_t kind, size_t count) {
  for (const auto& [device, blocks] : devices_) blocks->commit(kind, count);
}

void KvPool::trim(size_t kind, size_t count) {
  for (const auto& [device, blocks] : devices_) blocks->trim(kind, count);
}

void KvPool::copy(size_t kind, BlockId from, BlockId to) {
  for (const auto& [device, blocks] : devices_) blocks->copy(kind, from, to);
}

size_t KvPool::bytes() const {
  size_t bytes = 0;
  for (const auto& [device, blocks] : devices_) bytes += blocks->bytes();
  return bytes;
}

KvPool::Lengths KvPool::lengths(BlockId id) const {
  return id < lengths_.size() ? lengths_[id] : Lengths{kNoState, kNoState};
}

void KvPool::reserve_lengths(BlockId id) {
  if (id >= lengths_.size()) lengths_.resize(size_t{id} + 1, {kNoState, kNoState});
}

}  // namespace moebius
