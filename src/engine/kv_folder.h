// SPDX-License-Identifier: Apache-2.0
// The folder of a KvDisk as the system sees it: who may use it, which of its files are ours, and what
// a killed process left.
#pragma once
#include <cstdint>
#include <ctime>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace moebius {

inline constexpr const char* kKvLockName = "lock";
inline constexpr const char* kKvSuffix = ".kv";

struct KvFolderFile {
  std::string name;
  uint64_t order = 0, bytes = 0;
};

// Opens the folder, or makes it for this user alone, and locks it as one of those who use it. Who
// comes first removes what others left half written. Throws Error in words where somebody else owns
// it or may write to it.
int open_kv_folder(const std::string& folder);
std::vector<KvFolderFile> list_kv_folder(int folder);
std::optional<KvFolderFile> stat_kv_file(int folder, const std::string& name);
// A file that is held open while it is read, at positions: what happens to its name does not matter.
class KvFileReader {
 public:
  KvFileReader(int folder, const std::string& name);
  ~KvFileReader();
  KvFileReader(const KvFileReader&) = delete;
  KvFileReader& operator=(const KvFileReader&) = delete;
  bool there() const { return fd_ >= 0; }
  uint64_t size() const { return size_; }
  bool read(uint64_t at, std::span<uint8_t> out) const;  // all of it

 private:
  int fd_ = -1;
  uint64_t size_ = 0;
};
int write_kv_folder(int fd, std::span<const uint8_t> bytes);  // all of them; 0 or an errno
// The right to change names, of one process at a time. `held` is false where another has it for
// seconds.
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
// Orders of use are times in microseconds since 1970, which file systems keep: an order as a file's
// time, and the order of something that is used now.
timespec kv_time_of(uint64_t order);
uint64_t kv_order_now();

}  // namespace moebius
