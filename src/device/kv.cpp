// SPDX-License-Identifier: Apache-2.0
#include "device/kv.h"

#include <algorithm>

#include "base/error.h"
#include "device/device.h"

namespace moebius {

void DeviceBlocks::read(size_t, BlockId, size_t, std::span<uint8_t>) {
  fail("this device keeps its blocks to itself");
}

bool DeviceBlocks::write(size_t, BlockId, size_t, size_t, Fill) {
  fail("this device keeps its blocks to itself");
}

KvPool::KvPool(std::span<const DeviceKinds> devices, size_t slab_bytes) {
  for (const DeviceKinds& d : devices)
    devices_.push_back({d.device, d.device->blocks(d.block_bytes, slab_bytes), d.block_bytes});
}

DeviceBlocks& KvPool::on(const Device& device) const noexcept {
  size_t i = 0;
  while (devices_[i].device != &device) ++i;
  return *devices_[i].blocks;
}

void KvPool::commit(size_t kind, size_t count) {
  for (const Part& p : devices_) p.blocks->commit(kind, count);
}

void KvPool::trim(size_t kind, size_t count) {
  for (const Part& p : devices_) p.blocks->trim(kind, count);
}

void KvPool::copy(size_t kind, BlockId from, BlockId to) {
  for (const Part& p : devices_) p.blocks->copy(kind, from, to);
}

size_t KvPool::stored_bytes(size_t kind, size_t versions) const {
  size_t bytes = 0;
  for (const Part& p : devices_) {
    if (p.block_bytes[kind] > 0 && !p.blocks->readable()) return 0;
    bytes += p.block_bytes[kind] / versions;
  }
  return bytes;
}

void KvPool::read(size_t kind, BlockId id, size_t versions, size_t version,
                  std::span<uint8_t> out) {
  for (const Part& p : devices_) {
    const size_t bytes = p.block_bytes[kind] / versions;
    if (bytes > 0) p.blocks->read(kind, id, version * bytes, out.first(bytes));
    out = out.subspan(bytes);
  }
}

bool KvPool::write(size_t kind, BlockId id, size_t versions, size_t version,
                   DeviceBlocks::Fill fill) {
  const size_t all = stored_bytes(kind, versions);
  std::vector<uint8_t> staged;  // used where several devices hold parts of a block
  std::span<const uint8_t> rest;
  for (const Part& p : devices_) {
    const size_t bytes = p.block_bytes[kind] / versions;
    if (bytes == all) return p.blocks->write(kind, id, version * bytes, bytes, fill);
    if (bytes == 0) continue;
    if (staged.empty()) {
      staged.resize(all);
      if (!fill(staged)) return false;
      rest = staged;
    }
    p.blocks->write(kind, id, version * bytes, bytes, [&](std::span<uint8_t> to) {
      std::copy_n(rest.begin(), to.size(), to.begin());
      return true;
    });
    rest = rest.subspan(bytes);
  }
  return true;
}

size_t KvPool::bytes() const {
  size_t bytes = 0;
  for (const Part& p : devices_) bytes += p.blocks->bytes();
  return bytes;
}

KvPool::Lengths KvPool::lengths(BlockId id) const {
  return id < lengths_.size() ? lengths_[id] : Lengths{kNoState, kNoState};
}

void KvPool::reserve_lengths(BlockId id) {
  if (id >= lengths_.size()) lengths_.resize(size_t{id} + 1, {kNoState, kNoState});
}

}  // namespace moebius
