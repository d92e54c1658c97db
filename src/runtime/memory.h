// SPDX-License-Identifier: Apache-2.0
// Memory for weights (AlignedBuffer), scratch memory of running layers (Workspace), and the
// system's memory figures.
//
// Workspaces are shared by all layers of a process: a call leases one, lays out everything it needs
// in one block, and gives it back. The block grows and is kept, so a call of a size seen before
// allocates nothing. Concurrent and nested calls lease different workspaces.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace moebius {

inline constexpr size_t kCacheLine = 64;

// Owns uninitialised bytes, aligned to 64, or to 2 MiB with huge-page advice if large, which
// reduces TLB misses while weights stream.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t bytes);  // throws Error if the system has not enough memory
  ~AlignedBuffer() { reset(); }
  AlignedBuffer(AlignedBuffer&& other) noexcept { swap(other); }
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    AlignedBuffer(std::move(other)).swap(*this);
    return *this;
  }

  uint8_t* data() noexcept { return data_; }
  const uint8_t* data() const noexcept { return data_; }
  size_t size() const noexcept { return size_; }
  // Returns true if the bytes were zero when the buffer was made.
  bool zeroed() const noexcept { return mapped_ > 0; }
  void reset() noexcept;
  void swap(AlignedBuffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(mapped_, other.mapped_);
  }

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
  size_t mapped_ = 0;  // bytes of the mapping; 0: memory of the heap
};

// Holds bytes of packed weights: either own memory that packing fills once, or read-only memory
// that another object holds, such as a mapped file.
class WeightMemory {
 public:
  WeightMemory() = default;
  // Allocates zeros, so that bytes that packing skips are the same every time.
  explicit WeightMemory(size_t bytes);
  WeightMemory(std::shared_ptr<const void> holder, std::span<const uint8_t> bytes)
      : holder_(std::move(holder)), held_(bytes) {}

  const uint8_t* data() const noexcept { return held() ? held_.data() : own_.data(); }
  size_t size() const noexcept { return held() ? held_.size() : own_.size(); }
  std::span<const uint8_t> bytes() const noexcept { return {data(), size()}; }
  bool held() const noexcept { return holder_ != nullptr; }  // true: another object holds the bytes
  uint8_t* own() noexcept { return own_.data(); }  // returns the own memory; null if held()

 private:
  AlignedBuffer own_;
  std::shared_ptr<const void> holder_;
  std::span<const uint8_t> held_;
};

size_t page_bytes();  // returns the system's page size: 4, 16 or 64 KiB

// Computes how to cut a mapping with an aligned start out of a longer one. The system maps and
// unmaps whole pages only, so every number is a multiple of the page.
struct MappingCut {
  size_t used = 0;   // bytes to keep
  size_t whole = 0;  // bytes to map
  size_t page = 0, alignment = 0;

  MappingCut(size_t bytes, size_t page, size_t alignment);  // page and alignment are powers of two
  // Bytes to unmap before the aligned start of a mapping at `start`
  size_t head(uintptr_t start) const;
  size_t tail(uintptr_t start) const {
    return whole - head(start) - used;
  }  // bytes to unmap after the end
};

// Computes offsets of a call's scratch areas within one block; each area starts on its own cache
// line.
class ScratchLayout {
 public:
  size_t add(size_t bytes);  // returns the offset of a new area; throws Error on overflow
  // Makes the next area begin at a multiple of `alignment`.
  void align(size_t alignment);
  template <class T>
  size_t add_array(size_t count) {
    return add_items(count, sizeof(T));
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t add_items(size_t count, size_t item_bytes);
  size_t bytes_ = 0;
};

class Workspace {
 public:
  // Returns a block of at least `bytes` bytes, aligned to 64, with undefined content. Pointers of
  // earlier calls become invalid.
  uint8_t* reserve(size_t bytes);
  size_t capacity() const { return buffer_.size(); }

 private:
  AlignedBuffer buffer_;
};

class WorkspaceLease {
 public:
  WorkspaceLease();
  ~WorkspaceLease();
  WorkspaceLease(const WorkspaceLease&) = delete;
  WorkspaceLease& operator=(const WorkspaceLease&) = delete;
  Workspace* operator->() const { return workspace_; }
  Workspace& operator*() const { return *workspace_; }

 private:
  Workspace* workspace_;
};

// Frees the blocks of all workspaces that are not leased, and returns their bytes.
size_t release_workspaces();

// Return facts about the memory of this process and machine in bytes; 0 if the system does not
// tell.
uint64_t peak_resident_bytes();  // most memory that the process has had at once (VmHWM)
uint64_t resident_bytes();       // memory that the process has now (VmRSS)
// Returns the bytes that this process can still allocate: the least of memory_limits().
uint64_t available_memory_bytes();

}  // namespace moebius
