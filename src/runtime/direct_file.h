// SPDX-License-Identifier: Apache-2.0
// Reads pieces of a file past the page cache where the file system allows it, so that memory holds
// the pieces once, in the place that the caller chose.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/descriptor.h"

namespace moebius {

class DirectFile {
 public:
  // Opens the file of an open descriptor once more; the file keeps its content if its name goes.
  // Throws Error.
  DirectFile(int descriptor, std::string path);

  // Returns true if reads bypass the page cache.
  bool direct() const { return direct_; }
  // Offsets, sizes and addresses of reads must be multiples of this number of bytes.
  static constexpr size_t kAlignment = 4096;
  // Fills `out` from byte `offset` on. Tries a second time after a failure. Throws Error that names
  // the file if it cannot be read or ends before the last `out.size() - slack` bytes. Thread-safe.
  void read(uint64_t offset, std::span<uint8_t> out, size_t slack = 0) const;

 private:
  std::string path_;
  bool direct_ = false;
  Descriptor file_;
};

}  // namespace moebius
