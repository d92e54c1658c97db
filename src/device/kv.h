// SPDX-License-Identifier: Apache-2.0
// Blocks of keys, values and states. Block numbers belong to the caller that runs sequences (an
// engine, or a single sequence); memory belongs to the devices of the layers, and only devices know
// addresses.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"

namespace moebius {

class Device;

using BlockId = uint32_t;
inline constexpr BlockId kNoBlock = UINT32_MAX;
inline constexpr size_t kBlockTokens = 128;

// A kind of layers: those whose blocks are needed for the same time, so that they share block
// numbers. Block i of a sequence's table holds tokens [128 i, 128 i + 128); for a kind with states,
// the state after the last token among these.
struct KvKind {
  std::string name;        // name for messages: "full", "window 4096", "state"
  size_t block_bytes = 0;  // size of a block: 128 tokens in all layers of the kind
  // Number of positions before the next token whose blocks are still read: SIZE_MAX for all, w for
  // a window of w keys (a token sees itself and w - 1 before it), 1 for states. Older blocks may be
  // released.
  size_t reach = SIZE_MAX;
  // true: blocks can be cut at any token; false: a block is valid only for the length at which it
  // was written.
  bool cuttable = true;
};

// Returns the first block that the token at position `length` reads.
inline size_t first_block_needed(const KvKind& kind, size_t length) noexcept {
  if (length == 0 || kind.reach > length) return 0;
  return (kind.cuttable ? length - kind.reach + 1 : length - 1) / kBlockTokens;
}

// The block numbers of a sequence: one table per kind, in the order of the backend's kinds. An
// entry is kNoBlock if nothing reads the block any more; for states, also if none is stored.
using BlockTables = std::vector<std::vector<BlockId>>;

// Says where a layer's data lies within the blocks of a kind: `offset` bytes after their begin, on
// the layer's device.
struct KvOffset {
  size_t kind = SIZE_MAX;  // SIZE_MAX: the layer keeps nothing
  size_t offset = 0;
};

// The memory of KV blocks on one device. Changes take effect before operations that are queued
// later.
class DeviceBlocks {
 public:
  virtual ~DeviceBlocks() = default;
  // Makes blocks [0, count) usable. Throws Error if there is not enough memory; usable blocks stay
  // usable.
  virtual void commit(size_t kind, size_t count) = 0;
  // Releases the memory of blocks >= count, if possible.
  virtual void trim(size_t kind, size_t count) = 0;
  virtual void copy(size_t kind, BlockId from, BlockId to) = 0;
  // Read and write bytes of a block from `offset` on, in the device's own form, which fits only the
  // same layers on the same kind of device. No operation may use the block meanwhile. Several
  // threads may write different blocks. If `fill` returns false, the block must not be used.
  virtual bool readable() const { return false; }
  using Fill = FunctionRef<bool(std::span<uint8_t> bytes)>;
  virtual void read(size_t kind, BlockId id, size_t offset, std::span<uint8_t> out);
  virtual bool write(size_t kind, BlockId id, size_t offset, size_t bytes, Fill fill);
  virtual size_t bytes() const = 0;
};

// Bytes that a block of each kind takes on one device.
struct DeviceKinds {
  Device* device;
  std::vector<size_t> block_bytes;
};

// The KV blocks of a model on all its devices. A block of states has room for two versions, each
// for one length, so that a step writes next to what it read: a step that fails half-way has lost
// nothing. The lengths of both versions are kept here, on the host.
class KvPool {
 public:
  // `slab_bytes`: memory is allocated in portions of about this size.
  KvPool(std::span<const DeviceKinds> devices, size_t slab_bytes);
  KvPool(KvPool&&) noexcept = default;
  KvPool& operator=(KvPool&&) noexcept = default;

  DeviceBlocks& on(const Device& device) const noexcept;
  void commit(size_t kind, size_t count);
  void trim(size_t kind, size_t count);
  void copy(size_t kind, BlockId from, BlockId to);
  // Save and restore a block: what all devices hold of it, one after the other; for states, one of
  // the two versions. stored_bytes 0: a device does not support it.
  size_t stored_bytes(size_t kind, size_t versions) const;
  void read(size_t kind, BlockId id, size_t versions, size_t version, std::span<uint8_t> out);
  bool write(size_t kind, BlockId id, size_t versions, size_t version, DeviceBlocks::Fill fill);
  size_t bytes() const;

  using Lengths = std::array<uint64_t, 2>;  // lengths of the two versions of a block's state
  static constexpr uint64_t kNoState = UINT64_MAX;
  Lengths lengths(BlockId id) const;
  void reserve_lengths(BlockId id);  // reserves memory, so that set_lengths() cannot fail
  void set_lengths(BlockId id, Lengths lengths) noexcept { lengths_[id] = lengths; }

 private:
  struct Part {
    const Device* device;
    std::unique_ptr<DeviceBlocks> blocks;
    std::vector<size_t> block_bytes;  // [kinds] bytes of a block on the device
  };
  std::vector<Part> devices_;
  std::vector<Lengths> lengths_;
};

}  // namespace moebius
