// SPDX-License-Identifier: Apache-2.0
// A file of our own making, mapped for reading and shared by all processes that map it. A page that
// cannot be read (the file was cut, the disk failed) is read as zeros and counted instead of ending
// the process: who computes with the bytes compares the count before and after, and throws its
// result away where it changed.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace moebius {

class MappedFile {
 public:
  // Takes over the descriptor, also when it throws. The file may be shorter now: bytes that it grows
  // by are seen. Large ones begin at a multiple of 2 MiB and ask for huge pages, which not every file
  // system has. Throws Error.
  MappedFile(int descriptor, std::string path, size_t bytes);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const uint8_t* data() const noexcept { return data_; }
  size_t size() const noexcept { return size_; }
  const std::string& path() const noexcept { return path_; }
  int descriptor() const noexcept { return descriptor_; }

  // Pages that could not be read so far.
  uint64_t faults() const noexcept;
  // Such pages are tried again when they are read next. Whoever reads meanwhile sees their count grow,
  // or the file's bytes.
  void retry() noexcept;

 private:
  int descriptor_;
  std::string path_;
  uint8_t* data_ = nullptr;
  size_t size_ = 0, mapped_ = 0, region_ = 0;
  std::atomic<uint64_t> mended_{0};  // of the faults
};

// The system may begin to read these bytes of a mapping now: somebody will.
void read_ahead(std::span<const uint8_t> bytes) noexcept;

// Bytes per second at which pieces of a few MB come from the disk, past the page cache; 0: not known.
// Takes some tens of milliseconds.
double disk_read_rate(const std::string& path);

}  // namespace moebius
