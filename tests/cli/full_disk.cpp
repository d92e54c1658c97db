// SPDX-License-Identifier: Apache-2.0
// A disk that is full from the FULL_DISK_AT-th write on, for a program that is started with this in
// LD_PRELOAD: whatever puts bytes or names on a disk fails with ENOSPC. Streams (descriptors up to 2)
// are no disk.
#include <dlfcn.h>
#include <sys/types.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

namespace {

bool full() {
  static std::atomic<long> count{0};
  static const long at = [] {
    const char* text = std::getenv("FULL_DISK_AT");
    return text != nullptr ? std::atol(text) : 0;
  }();
  if (at <= 0 || ++count < at) return false;
  errno = ENOSPC;
  return true;
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

ssize_t write(int fd, const void* bytes, size_t n) {
  if (fd > 2 && full()) return -1;
  return next<ssize_t(int, const void*, size_t)>("write")(fd, bytes, n);
}
ssize_t pwrite(int fd, const void* bytes, size_t n, off_t at) {
  if (full()) return -1;
  return next<ssize_t(int, const void*, size_t, off_t)>("pwrite")(fd, bytes, n, at);
}
ssize_t pwrite64(int fd, const void* bytes, size_t n, off_t at) { return pwrite(fd, bytes, n, at); }
int fallocate(int fd, int mode, off_t from, off_t n) {
  if (full()) return -1;
  return next<int(int, int, off_t, off_t)>("fallocate")(fd, mode, from, n);
}
int fallocate64(int fd, int mode, off_t from, off_t n) { return fallocate(fd, mode, from, n); }
int fsync(int fd) {
  if (full()) return -1;
  return next<int(int)>("fsync")(fd);
}
int rename(const char* from, const char* to) {
  if (full()) return -1;
  return next<int(const char*, const char*)>("rename")(from, to);
}
int mkdir(const char* path, mode_t mode) {
  if (full()) return -1;
  return next<int(const char*, mode_t)>("mkdir")(path, mode);
}

}  // extern "C"
