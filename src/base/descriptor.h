// SPDX-License-Identifier: Apache-2.0
// Owns descriptors of open files, and transfers whole buffers, however the system divides them.
#pragma once
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <span>
#include <utility>

namespace moebius {

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() { close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  // Closes the file before the end of the object's life; returns 0 or the errno.
  int close() { return open() && ::close(release()) != 0 ? errno : 0; }

 private:
  int fd_;
};

inline constexpr int kEndOfFile = -1;
// Transfer all bytes, at the file's position or from `offset` on; a reading offset ends behind the
// last byte that was read. Return 0, or what ended the transfer: an errno, or kEndOfFile.
int write_all(int fd, std::span<const uint8_t> bytes);
int write_all_at(int fd, uint64_t offset, std::span<const uint8_t> bytes);
int read_all_at(int fd, uint64_t& offset, std::span<uint8_t> out);

}  // namespace moebius
