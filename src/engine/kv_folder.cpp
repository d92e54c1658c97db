// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <string_view>
#include <thread>

#include "base/error.h"
#include "base/file.h"

namespace moebius {
namespace {

constexpr std::string_view kTemporary = "writing-";
constexpr int kLockTries = 2000;  // a millisecond apart
constexpr mode_t kOthersWrite = S_IWGRP | S_IWOTH, kOthers = S_IRWXG | S_IRWXO;

constexpr uint64_t kMicroseconds = 1'000'000;  // per second

uint64_t order_of(const timespec& time) {
  const auto seconds = static_cast<uint64_t>(std::clamp<time_t>(time.tv_sec, 0, INT32_MAX));
  return seconds * kMicroseconds + static_cast<uint64_t>(time.tv_nsec) / 1000;
}

// Returns the names in a folder without "." and "..".
std::vector<std::string> names_in(int folder) {
  std::vector<std::string> out;
  // A new descriptor reads from the start.
  const int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return out;
  const std::unique_ptr<DIR, int (*)(DIR*)> list(fdopendir(fd), closedir);
  if (list == nullptr) {
    close(fd);
    return out;
  }
  while (const dirent* entry = readdir(list.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") out.emplace_back(name);
  }
  return out;
}

bool is_ours(std::string_view name) {
  if (!name.ends_with(kKvSuffix)) return false;
  name.remove_suffix(std::string_view(kKvSuffix).size());
  return name.size() > 64 && std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || c == '-';
         });
}

}  // namespace

int open_kv_folder(const std::string& folder) {
  const std::string shown = printable(folder);
  struct stat there {};
  if (stat(folder.c_str(), &there) != 0 && mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    fail("--kv-dir {}: cannot be made: {}", shown, errno_text(errno));
  Descriptor opened(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const int fd = opened.get();
  if (fd < 0) fail("--kv-dir {}: cannot be opened: {}", shown, errno_text(errno));
  struct stat s {};
  if (fstat(fd, &s) != 0) fail("--kv-dir {}: {}", shown, errno_text(errno));
  if (s.st_uid != geteuid())
    fail("--kv-dir {}: belongs to another user, who could change what is read from it", shown);
  if ((s.st_mode & kOthersWrite) != 0)
    fail(
        "--kv-dir {}: others may write to it (mode {:o}) and so change what is read from it; use "
        "a folder of your own (chmod 700)",
        shown, s.st_mode & 07777u);
  // The first of the processes that use the folder deletes half-written files, which nobody is
  // writing.
  const bool alone = flock(fd, LOCK_EX | LOCK_NB) == 0;
  const std::vector<std::string> names = names_in(fd);
  if (alone)
    for (const std::string& name : names)
      if (name.starts_with(kTemporary)) unlinkat(fd, name.c_str(), 0);
  const bool all_ours = std::all_of(names.begin(), names.end(), [](const std::string& name) {
    return is_ours(name) || name == kKvLockName || name.starts_with(kTemporary);
  });
  if ((s.st_mode & kOthers) != 0 && all_ours) fchmod(fd, 0700);
  flock(fd, LOCK_SH);
  return opened.release();
}

std::optional<KvFolderFile> stat_kv_file(int folder, const std::string& name) {
  struct stat s {};
  if (fstatat(folder, name.c_str(), &s, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(s.st_mode))
    return std::nullopt;
  return KvFolderFile{name, order_of(s.st_mtim), static_cast<uint64_t>(s.st_size)};
}

std::vector<KvFolderFile> list_kv_folder(int folder) {
  std::vector<KvFolderFile> out;
  for (const std::string& name : names_in(folder)) {
    if (!is_ours(name)) continue;
    if (auto file = stat_kv_file(folder, name)) out.push_back(std::move(*file));
  }
  return out;
}

KvFileReader::KvFileReader(int folder, const std::string& name)
    : file_(openat(folder, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK)) {
  struct stat s {};
  if (file_.open() && fstat(file_.get(), &s) == 0 && S_ISREG(s.st_mode))
    size_ = static_cast<uint64_t>(s.st_size);
  else
    (void)file_.close();
}

KvFolderLock::KvFolderLock(int fd) : fd_(fd) {
  for (int i = 0; i < kLockTries && !held; ++i) {
    held = flock(fd_, LOCK_EX | LOCK_NB) == 0;
    // The file system has no locks: the process counts as alone.
    if (!held && errno != EWOULDBLOCK && errno != EINTR) held = true;
    if (!held) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

KvFolderLock::~KvFolderLock() {
  if (held) flock(fd_, LOCK_UN);
}

std::string kv_temporary_name(uint64_t number) {
  return fmt::format("{}{}-{}", kTemporary, getpid(), number);
}

timespec kv_time_of(uint64_t order) {
  const uint64_t seconds = std::min<uint64_t>(order / kMicroseconds, INT32_MAX);
  return {static_cast<time_t>(seconds), static_cast<long>(order % kMicroseconds * 1000)};
}

uint64_t kv_order_now() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return order_of(now);
}

}  // namespace moebius
