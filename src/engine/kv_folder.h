// SPDX-License-Identifier: Apache-2.0
// Makes the system calls of a KvDisk: access rights of its folder, its list of files, and cleaning
// up after killed processes.
#pragma once
#include <cstdint>
#include <ctime>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/descriptor.h"

namespace moebius {

inline constexpr const char* kKvLockName = "lock";
inline constexpr const char* kKvSuffix = ".kv";

struct KvFolderFile {
  std::string name;
  uint64_t order = 0, bytes = 0;
};

// Opens the folder, creating it for this user alone, and takes a shared lock on it; the first user
// removes half-written files. Returns its file descriptor. Throws Error if somebody else owns the
// folder or may write to it.
int open_kv_folder(const std::string& folder);
std::vector<KvFolderFile> list_kv_folder(int folder);
std::optional<KvFolderFile> stat_kv_file(int folder, const std::string& name);
// Reads one file at given positions through an open descriptor, so that renaming or removing the
// file does not matter.
class KvFileReader {
 public:
  KvFileReader(int folder, const std::string& name);
  bool there() const { return file_.open(); }
  uint64_t size() const { return size_; }
  bool read(uint64_t at, std::span<uint8_t> out) const {  // fills `out`, or returns false
    return read_all_at(file_.get(), at, out) == 0;
  }

 private:
  Descriptor file_;
  uint64_t size_ = 0;
};
// Holds the lock for changing names in the folder, exclusive among processes. `held` is false if
// another process kept the lock for seconds.
class KvFolderLock {
 public:
  explicit KvFolderLock(int fd);
  ~KvFolderLock();
  KvFolderLock(const KvFolderLock&) = delete;
  KvFolderLock& operator=(const KvFolderLock&) = delete;
  bool held = false;

 private:
  int fd_;
};
std::string kv_temporary_name(uint64_t number);
// Convert between a file's time and the order of its last use, which is a time in microseconds
// since 1970; kv_order_now() is the order of a use now.
timespec kv_time_of(uint64_t order);
uint64_t kv_order_now();

}  // namespace moebius
