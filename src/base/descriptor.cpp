// SPDX-License-Identifier: Apache-2.0
#include "base/descriptor.h"

#include <algorithm>

namespace moebius {
namespace {

constexpr size_t kMostAtOnce = size_t{1}
                               << 28;  // one system call transfers at most this many bytes

// Calls move(first byte, count) for the rest of the bytes until all are moved.
template <class Byte, class Move>
int move_all(std::span<Byte> bytes, Move move) {
  while (!bytes.empty()) {
    const ssize_t n = move(bytes.data(), std::min(bytes.size(), kMostAtOnce));
    if (n == 0) return kEndOfFile;
    if (n > 0) bytes = bytes.subspan(static_cast<size_t>(n));
    if (n < 0 && errno != EINTR) return errno;
  }
  return 0;
}

// Adds what a call moved to an offset.
ssize_t moved(ssize_t n, uint64_t& offset) {
  offset += static_cast<uint64_t>(std::max<ssize_t>(n, 0));
  return n;
}

}  // namespace

int write_all(int fd, std::span<const uint8_t> bytes) {
  return move_all(bytes, [&](const uint8_t* from, size_t n) { return ::write(fd, from, n); });
}

int write_all_at(int fd, uint64_t offset, std::span<const uint8_t> bytes) {
  return move_all(bytes, [&](const uint8_t* from, size_t n) {
    return moved(::pwrite(fd, from, n, static_cast<off_t>(offset)), offset);
  });
}

int read_all_at(int fd, uint64_t& offset, std::span<uint8_t> out) {
  return move_all(out, [&](uint8_t* to, size_t n) {
    return moved(::pread(fd, to, n, static_cast<off_t>(offset)), offset);
  });
}

}  // namespace moebius
