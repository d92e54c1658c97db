// SPDX-License-Identifier: Apache-2.0
// Turns a SIGBUS inside a mapping into a page of zeros and a count. The handler reads a fixed table
// of mappings without a lock and forwards every other SIGBUS to the handler before it.
#include "runtime/mapped_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <mutex>

#include "base/error.h"
#include "base/file.h"
#include "runtime/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace moebius {
namespace {

constexpr size_t kHugeFilePage = size_t{2} << 20;
constexpr size_t kMostMappings = 256;

struct MappedRegion {
  std::atomic<uintptr_t> begin{0}, end{0};  // both 0 in a free entry
  std::atomic<uint64_t> faults{0};
};
std::array<MappedRegion, kMostMappings> mapped_regions;
std::mutex mapped_mutex;  // held while an entry is taken or freed
struct sigaction earlier_handler;
size_t handler_page = 4096;

void pass_on(int signal, siginfo_t* info, void* context) {
  if ((earlier_handler.sa_flags & SA_SIGINFO) != 0 && earlier_handler.sa_sigaction != nullptr)
    return earlier_handler.sa_sigaction(signal, info, context);
  if (earlier_handler.sa_handler != SIG_DFL && earlier_handler.sa_handler != SIG_IGN &&
      earlier_handler.sa_handler != nullptr)
    return earlier_handler.sa_handler(signal);
  std::signal(signal, SIG_DFL);  // the access repeats and ends the process
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (MappedRegion& r : mapped_regions) {
    if (address < r.begin.load(std::memory_order_acquire) ||
        address >= r.end.load(std::memory_order_acquire))
      continue;
    // Counted before any thread can read the zeros.
    r.faults.fetch_add(1, std::memory_order_acq_rel);
    void* page = reinterpret_cast<void*>(address / handler_page * handler_page);
    if (mmap(page, handler_page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) !=
        MAP_FAILED)
      return;
    break;
  }
  pass_on(signal, info, context);
}

void install_bus_handler() {
  static const bool installed = [] {
    handler_page = page_bytes();
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigemptyset(&action.sa_mask);
    return sigaction(SIGBUS, &action, &earlier_handler) == 0;
  }();
  (void)installed;
}

size_t take_region(const std::string& path) {
  for (size_t i = 0; i < kMostMappings; ++i)
    if (mapped_regions[i].end.load(std::memory_order_relaxed) == 0) return i;
  fail("{}: {} files are mapped already", printable(path), kMostMappings);
}

}  // namespace

MappedFile::MappedFile(int descriptor, std::string path, size_t bytes)
    : file_(descriptor), path_(std::move(path)), size_(bytes) {
  install_bus_handler();
  const std::lock_guard lock(mapped_mutex);
  region_ = take_region(path_);
  const MappingCut cut(std::max<size_t>(bytes, 1), page_bytes(),
                       bytes >= kHugeFilePage ? kHugeFilePage : page_bytes());
  void* raw =
      mmap(nullptr, cut.whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED)
    fail("{}: cannot map {} bytes: {}", printable(path_), bytes, errno_text(errno));
  auto* start = static_cast<uint8_t*>(raw);
  const size_t head = cut.head(reinterpret_cast<uintptr_t>(start)),
               tail = cut.tail(reinterpret_cast<uintptr_t>(start));
  if (head > 0) munmap(start, head);
  if (tail > 0) munmap(start + head + cut.used, tail);
  data_ = start + head;
  mapped_ = cut.used;
  if (mmap(data_, mapped_, PROT_READ, MAP_SHARED | MAP_FIXED, file_.get(), 0) == MAP_FAILED) {
    const int code = errno;
    munmap(data_, mapped_);
    fail("{}: cannot map {} bytes: {}", printable(path_), bytes, errno_text(code));
  }
  if (bytes >= kHugeFilePage) (void)madvise(data_, mapped_, MADV_HUGEPAGE);
  MappedRegion& region = mapped_regions[region_];
  region.faults.store(0, std::memory_order_relaxed);
  region.begin.store(reinterpret_cast<uintptr_t>(data_), std::memory_order_release);
  region.end.store(reinterpret_cast<uintptr_t>(data_) + mapped_, std::memory_order_release);
}

MappedFile::~MappedFile() {
  const std::lock_guard lock(mapped_mutex);
  mapped_regions[region_].end.store(0, std::memory_order_release);
  mapped_regions[region_].begin.store(0, std::memory_order_release);
  munmap(data_, mapped_);
}

uint64_t MappedFile::faults() const noexcept {
  return mapped_regions[region_].faults.load(std::memory_order_acquire);
}

void MappedFile::retry() noexcept {
  if (mended_.load(std::memory_order_acquire) == faults()) return;
  const std::lock_guard lock(mapped_mutex);
  const uint64_t seen = faults();
  (void)mmap(data_, mapped_, PROT_READ, MAP_SHARED | MAP_FIXED, file_.get(), 0);
  mended_.store(seen, std::memory_order_release);
}

double disk_read_rate(const std::string& path) {
  constexpr size_t kPieceBytes = size_t{4} << 20, kPieces = 8;
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
  if (!file.open()) return 0;
  const auto size = static_cast<uint64_t>(std::max<off_t>(0, ::lseek(file.get(), 0, SEEK_END)));
  const AlignedBuffer memory(2 * kPieceBytes);  // large enough to begin at a page
  const auto start = std::chrono::steady_clock::now();
  uint64_t bytes = 0;
  for (size_t i = 0; i < kPieces && size > kPieceBytes; ++i) {
    const uint64_t at = (size - kPieceBytes) / kPieces * i / kPieceBytes * kPieceBytes;
    const ssize_t n = ::pread(file.get(), const_cast<uint8_t*>(memory.data()), kPieceBytes,
                              static_cast<off_t>(at));
    if (n <= 0) break;
    bytes += static_cast<uint64_t>(n);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return bytes > 0 ? static_cast<double>(bytes) / seconds.count() : 0;
}

void read_ahead(std::span<const uint8_t> bytes) noexcept {
  const size_t page = page_bytes();
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data()) / page * page;
  const auto end = reinterpret_cast<uintptr_t>(bytes.data()) + bytes.size();
  if (!bytes.empty()) (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_WILLNEED);
}

}  // namespace moebius
