// SPDX-License-Identifier: Apache-2.0
// Maps a file that this program wrote, for reading, shared by all processes that map it. A page
// that cannot be read (the file was cut, the disk failed) reads as zeros and is counted instead of
// ending the process: callers that compute with the bytes compare faults() before and after, and
// discard their result if it grew.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/descriptor.h"

namespace moebius {

class MappedFile {
 public:
  // Maps the file and takes ownership of the descriptor, also if the constructor throws. The file
  // may still be shorter than `bytes`: bytes appended later are seen. Large files are mapped at a
  // multiple of 2 MiB and ask for huge pages, which some file systems do not have. Throws Error if
  // the system refuses.
  MappedFile(int descriptor, std::string path, size_t bytes);
  ~MappedFile();

  const uint8_t* data() const noexcept { return data_; }
  size_t size() const noexcept { return size_; }
  const std::string& path() const noexcept { return path_; }
  int descriptor() const noexcept { return file_.get(); }

  // Returns the number of failed page reads so far. Thread-safe.
  uint64_t faults() const noexcept;
  // Lets failed pages be read again at their next use. Threads that read meanwhile either see
  // faults() grow or get the file's bytes.
  void retry() noexcept;

 private:
  Descriptor file_;
  std::string path_;
  uint8_t* data_ = nullptr;
  size_t size_ = 0, mapped_ = 0, region_ = 0;
  std::atomic<uint64_t> mended_{0};  // failed pages that retry() has reset
};

// Hints that these bytes of a mapping are read soon, so that the system reads ahead.
void read_ahead(std::span<const uint8_t> bytes) noexcept;

// Measures how many bytes per second come from the disk in pieces of a few MB, bypassing the page
// cache; 0: not measurable. Takes some tens of milliseconds.
double disk_read_rate(const std::string& path);

}  // namespace moebius
