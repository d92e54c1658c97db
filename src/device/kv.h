// SPDX-License-Identifier: Apache-2.0
// Keys, values and states behind block numbers. Numbers belong to whoever runs sequences (an engine,
// a sequence of its own); memory belongs to the devices that have the layers, and nobody above them
// sees an address of it.
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

// Layers whose blocks live equally long. Block i of a table holds tokens [128 i, 128 i + 128); of a
// kind with states, the state after the last token so far within these.
struct KvKind {
  std::string name;        // "full", "window 4096", "state"
  size_t block_bytes = 0;  // of 128 tokens, all layers of the kind
  // How far behind the next position blocks are read: SIZE_MAX all, w for a window of w keys (the
  // next token sees itself and w - 1 before it), 1 for states (the last one). What lies further
  // back may be given away.
  size_t reach = SIZE_MAX;
  // A block can be cut at any token; otherwise it is good only for the length it was written at.
  bool cuttable = true;
};

// First block that the token at position `length` reads.
inline size_t first_block_needed(const KvKind& kind, size_t length) noexcept {
  if (length == 0 || kind.reach > length) return 0;
  return (kind.cuttable ? length - kind.reach + 1 : length - 1) / kBlockTokens;
}

// Where a sequence's blocks are, one table per kind (in the order of the backend's kinds). An entry
// is kNoBlock where nothing reads it any more, and for states also where none is wanted.
using BlockTables = std::vector<std::vector<BlockId>>;

// A layer's part of the blocks of a kind: so many bytes behind their begin, on the layer's device.
struct KvPlace {
  size_t kind = SIZE_MAX;  // SIZE_MAX: the layer keeps nothing
  size_t offset = 0;
};

// The memory of one device behind the numbers. Calls take effect before the operations that are
// given to the device behind them.
class DeviceBlocks {
 public:
  virtual ~DeviceBlocks() = default;
  // Makes blocks [0, count) usable. Throws Error when there is not that much memory; what was usable
  // stays so.
  virtual void commit(size_t kind, size_t count) = 0;
  virtual void trim(size_t kind, size_t count) = 0;  // gives what lies behind back, if it can
  virtual void copy(size_t kind, BlockId from, BlockId to) = 0;
  // Bytes of a block from `offset` on, as they are here: of use only to the same layers on the same
  // kind of device, and only while no operation uses the block. Blocks may be written from several
  // threads. `fill` puts bytes there; false: the block is not to be used.
  virtual bool readable() const { return false; }
  using Fill = FunctionRef<bool(std::span<uint8_t> bytes)>;
  virtual void read(size_t kind, BlockId id, size_t offset, std::span<uint8_t> out);
  virtual bool write(size_t kind, BlockId id, size_t offset, size_t bytes, Fill fill);
  virtual size_t bytes() const = 0;
};

// Bytes of a block of every kind on one device.
struct DeviceKinds {
  Device* device;
  std::vector<size_t> block_bytes;
};

// Blocks by number on all devices of a model. A block of states has room for two versions, each for
// one length, so that a step writes beside what it read: a step that fails half-way has lost nothing.
// Which version is for which length is kept here, on the host.
class KvPool {
 public:
  // Memory comes about so many bytes at a time.
  KvPool(std::span<const DeviceKinds> devices, size_t slab_bytes);
  KvPool(KvPool&&) noexcept = default;
  KvPool& operator=(KvPool&&) noexcept = default;

  DeviceBlocks& on(const Device& device) const noexcept;
  void commit(size_t kind, size_t count);
  void trim(size_t kind, size_t count);
  void copy(size_t kind, BlockId from, BlockId to);
  // What all devices have of a block, one behind the other. Of states: of one of the two versions.
  // 0: some device keeps its own to itself.
  size_t stored_bytes(size_t kind, size_t versions) const;
  void read(size_t kind, BlockId id, size_t versions, size_t version, std::span<uint8_t> out);
  bool write(size_t kind, BlockId id, size_t versions, size_t version, DeviceBlocks::Fill fill);
  size_t bytes() const;

  using Lengths = std::array<uint64_t, 2>;  // of the two versions of a block's state
  static constexpr uint64_t kNoState = UINT64_MAX;
  Lengths lengths(BlockId id) const;
  void reserve_lengths(BlockId id);  // so that set_lengths() cannot fail
  void set_lengths(BlockId id, Lengths lengths) noexcept { lengths_[id] = lengths; }

 private:
  struct Part {
    const Device* device;
    std::unique_ptr<DeviceBlocks> blocks;
    std::vector<size_t> block_bytes;  // of every kind
  };
  std::vector<Part> devices_;
  std::vector<Lengths> lengths_;
};

}  // namespace moebius
