// SPDX-License-Identifier: Apache-2.0
// Implements buffers, the free list of workspaces, and what the system says of this process's
// memory.
#include "runtime/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "base/checked.h"
#include "base/error.h"
#include "runtime/system_files.h"

namespace moebius {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
// Rounding a smaller size to huge pages would waste too much.
constexpr size_t kLarge = 4 * kHugePage;

// Maps memory that starts at a multiple of 2 MiB: maps more, then unmaps both ends.
uint8_t* map_huge(const MappingCut& cut) {
  void* raw = mmap(nullptr, cut.whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* start = static_cast<uint8_t*>(raw);
  const auto address = reinterpret_cast<uintptr_t>(start);
  const size_t head = cut.head(address), tail = cut.tail(address);
  if (head > 0) munmap(start, head);
  if (tail > 0) munmap(start + head + cut.used, tail);
  (void)madvise(start + head, cut.used, MADV_HUGEPAGE);
  return start + head;
}

[[noreturn]] void out_of_memory(size_t bytes) {
  fail_at({"memory", "", "", "", ""}, "out of memory: cannot allocate {} bytes", bytes);
}

struct WorkspaceList {
  std::mutex mutex;
  std::vector<std::unique_ptr<Workspace>> all;
  std::vector<Workspace*> free;
};

WorkspaceList& workspace_list() {
  static auto* list =
      new WorkspaceList;  // never destroyed: threads may still compute while the process exits
  return *list;
}

}  // namespace

size_t page_bytes() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

MappingCut::MappingCut(size_t bytes, size_t page_size, size_t align)
    : used(round_up(bytes, page_size)), page(page_size), alignment(std::max(page_size, align)) {
  whole = used + alignment - page;  // mappings start at a page already
}

size_t MappingCut::head(uintptr_t start) const { return round_up(start, alignment) - start; }

AlignedBuffer::AlignedBuffer(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  if (bytes > SIZE_MAX / 2) fail("cannot allocate {} bytes", bytes);
  if (bytes >= kLarge) {
    const MappingCut cut(bytes, page_bytes(), kHugePage);
    mapped_ = cut.used;
    data_ = map_huge(cut);
    if (data_ == nullptr) out_of_memory(bytes);
    return;
  }
  data_ = static_cast<uint8_t*>(std::aligned_alloc(kCacheLine, round_up(bytes, kCacheLine)));
  if (data_ == nullptr) out_of_memory(bytes);
}

void AlignedBuffer::reset() noexcept {
  if (mapped_ > 0)
    munmap(data_, mapped_);
  else
    std::free(data_);
  data_ = nullptr;
  size_ = mapped_ = 0;
}

WeightMemory::WeightMemory(size_t bytes) : own_(bytes) {
  if (bytes > 0 && !own_.zeroed()) std::memset(own_.data(), 0, bytes);
}

size_t ScratchLayout::add(size_t bytes) {
  const size_t offset = bytes_;
  const auto end = checked_add(offset, bytes);
  if (!end || *end > SIZE_MAX / 2)
    fail("scratch of {} bytes does not fit the address space", bytes);
  bytes_ = round_up(*end, kCacheLine);
  return offset;
}

void ScratchLayout::align(size_t alignment) { add(round_up(bytes_, alignment) - bytes_); }

size_t ScratchLayout::add_items(size_t count, size_t item_bytes) {
  const auto bytes = checked_mul(count, item_bytes);
  if (!bytes)
    fail("scratch of {} items of {} bytes does not fit the address space", count, item_bytes);
  return add(*bytes);
}

uint8_t* Workspace::reserve(size_t bytes) {
  if (bytes > buffer_.size()) {
    // Allocates a quarter more than asked, so that slowly growing batches do not allocate every
    // time.
    const size_t wanted = bytes < (size_t{1} << 30) ? bytes + bytes / 4 : bytes;
    buffer_.reset();
    buffer_ = AlignedBuffer(std::max<size_t>(wanted, 4096));
  }
  return buffer_.data();
}

WorkspaceLease::WorkspaceLease() : workspace_(nullptr) {
  WorkspaceList& list = workspace_list();
  const std::lock_guard lock(list.mutex);
  if (list.free.empty()) {
    list.all.push_back(std::make_unique<Workspace>());
    list.free.reserve(list.all.size());  // reserved here so that returning a workspace cannot fail
    workspace_ = list.all.back().get();
  } else {
    workspace_ = list.free.back();
    list.free.pop_back();
  }
}

WorkspaceLease::~WorkspaceLease() {
  WorkspaceList& list = workspace_list();
  const std::lock_guard lock(list.mutex);
  list.free.push_back(workspace_);
}

size_t release_workspaces() {
  WorkspaceList& list = workspace_list();
  const std::lock_guard lock(list.mutex);
  size_t freed = 0;
  for (Workspace* w : list.free) {
    freed += w->capacity();
    *w = Workspace();
  }
  return freed;
}

uint64_t peak_resident_bytes() { return named_number("/proc/self/status", "VmHWM:", 1024); }
uint64_t resident_bytes() { return named_number("/proc/self/status", "VmRSS:", 1024); }

}  // namespace moebius
