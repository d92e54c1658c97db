// SPDX-License-Identifier: Apache-2.0
// Keeps blocks in files. Readers and the writer share the index under one mutex, which is never
// held during a write. Names in the folder change under a lock of all processes; a number in the
// lock's file counts the changes.
#include "engine/kv_disk.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "base/error.h"
#include "base/file.h"

namespace moebius {
namespace {

constexpr double kFileNanoseconds = 50000;  // cost of opening a file
constexpr size_t kSpareBuffers = 3;

uint64_t steady_now() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

}  // namespace

KvDisk::KvDisk(KvDiskOptions options) : options_(std::move(options)) {
  folder_ = open_kv_folder(options_.folder);
  try {
    lock_ = openat(folder_, kKvLockName, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (lock_ < 0)
      fail("--kv-dir {}: cannot be written: {}", printable(options_.folder), errno_text(errno));
    const KvFolderLock lock(lock_);
    see_others_changes();
    make_room(0, UINT64_MAX, "");
    writer_ = std::thread([this] { work(); });
  } catch (...) {
    if (lock_ >= 0) close(lock_);
    close(folder_);
    throw;
  }
}

KvDisk::~KvDisk() {
  {
    const std::lock_guard guard(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  writer_.join();
  close(lock_);
  close(folder_);
}

uint64_t KvDisk::now() const { return options_.clock ? options_.clock() : steady_now(); }

// --- the index; under mutex_, but for the constructor ---

void KvDisk::set_entry(const std::string& name, Entry entry) {
  drop_entry(name);
  by_order_.insert({entry.order, name});
  entries_[name] = entry;
  figures_.bytes += entry.bytes;
  figures_.files = entries_.size();
  order_ = std::max(order_, entry.order);
}

void KvDisk::drop_entry(const std::string& name) {
  const auto it = entries_.find(name);
  if (it == entries_.end()) return;
  by_order_.erase({it->second.order, name});
  figures_.bytes -= it->second.bytes;
  entries_.erase(it);
  figures_.files = entries_.size();
}

void KvDisk::scan() {
  entries_.clear();
  by_order_.clear();
  figures_.bytes = figures_.files = 0;
  for (const KvFolderFile& f : list_kv_folder(folder_)) set_entry(f.name, {f.order, f.bytes});
}

// Reads the folder again if another process changed names since the last look; called under the
// lock of all processes.
void KvDisk::see_others_changes() {
  uint64_t there = 0;
  if (pread(lock_, &there, sizeof(there), 0) != static_cast<ssize_t>(sizeof(there))) there = 0;
  if (there != generation_) {
    const std::lock_guard guard(mutex_);
    scan();
  }
  generation_ = there + 1;  // this process changes names next
  if (pwrite(lock_, &generation_, sizeof(generation_), 0) < 0) generation_ = 0;
}

bool KvDisk::fits(const std::string& name, uint64_t bytes) const {
  const auto own = entries_.find(name);  // the file is replaced
  const uint64_t freed = own == entries_.end() ? 0 : own->second.bytes;
  return figures_.bytes - freed + bytes <= options_.bytes;
}

// Removes files that were used before `order` until a file of so many bytes fits. Another process
// may have used a file meanwhile: its order is read again.
void KvDisk::make_room(uint64_t bytes, uint64_t order, const std::string& name) {
  for (;;) {
    std::pair<uint64_t, std::string> oldest;
    {
      const std::lock_guard guard(mutex_);
      if (fits(name, bytes) || by_order_.empty() || by_order_.begin()->first >= order) return;
      oldest = *by_order_.begin();
    }
    const std::optional<KvFolderFile> there = stat_kv_file(folder_, oldest.second);
    const bool newer = there && there->order > oldest.first;
    if (there && !newer && unlinkat(folder_, oldest.second.c_str(), 0) != 0 && errno != ENOENT)
      return;
    const std::lock_guard guard(mutex_);
    if (newer) {
      set_entry(oldest.second, {there->order, there->bytes});
    } else {
      drop_entry(oldest.second);
      figures_.evicted += there ? 1 : 0;
    }
  }
}

// --- reading ---

bool KvDisk::holds(const std::string& name) const {
  const std::lock_guard guard(mutex_);
  return entries_.count(name) != 0 || queued_.count(name) != 0;
}

bool KvDisk::find(const std::string& name) const noexcept {
  struct stat s {};
  return fstatat(folder_, name.c_str(), &s, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(s.st_mode);
}

void KvDisk::expect(const std::string& name) const noexcept {
  const int fd = openat(folder_, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return;
  posix_fadvise(fd, 0, 0, POSIX_FADV_WILLNEED);
  close(fd);
}

void KvDisk::has_read(uint64_t bytes, size_t files, uint64_t nanoseconds) {
  if (bytes == 0) return;
  const double opening = kFileNanoseconds * static_cast<double>(files),
               measured = std::max(0.0, static_cast<double>(nanoseconds) - opening) /
                          static_cast<double>(bytes);
  const std::lock_guard guard(mutex_);
  figures_.read_files += files;
  figures_.read_bytes += bytes;
  per_byte_ += (measured - per_byte_) / 4;
}

double KvDisk::read_nanoseconds(uint64_t bytes, size_t files) const {
  const std::lock_guard guard(mutex_);
  return per_byte_ * static_cast<double>(bytes) + kFileNanoseconds * static_cast<double>(files);
}

void KvDisk::pass_over() {
  const std::lock_guard guard(mutex_);
  per_byte_ *= 0.9;
}

void KvDisk::discard(const std::string& name) {
  unlinkat(folder_, name.c_str(), 0);
  const std::lock_guard guard(mutex_);
  drop_entry(name);
  ++figures_.damaged;
}

// --- writing ---

std::optional<std::vector<uint8_t>> KvDisk::take(size_t bytes, bool wait) {
  std::unique_lock guard(mutex_);
  const auto fits = [&] {
    return waiting_bytes_ == 0 || waiting_bytes_ + bytes <= options_.queue_bytes;
  };
  if (wait) changed_.wait(guard, fits);
  if (!fits() || bytes > options_.bytes) {
    ++figures_.dropped;
    return std::nullopt;
  }
  waiting_bytes_ += bytes;
  std::vector<uint8_t> out;
  if (!spare_.empty()) {
    out = std::move(spare_.back());
    spare_.pop_back();
  }
  guard.unlock();
  try {
    out.resize(bytes);
  } catch (...) {
    guard.lock();
    waiting_bytes_ -= bytes;
    throw;
  }
  return out;
}

void KvDisk::give_back(std::vector<uint8_t> bytes) noexcept {
  {
    const std::lock_guard guard(mutex_);
    waiting_bytes_ -= bytes.size();
    if (spare_.size() < kSpareBuffers && spare_.capacity() > spare_.size())
      spare_.push_back(std::move(bytes));
  }
  changed_.notify_all();
}

void KvDisk::put(const std::string& name, std::vector<uint8_t> bytes, Seal seal, uint64_t order,
                 bool replace) {
  {
    const std::lock_guard guard(mutex_);
    spare_.reserve(kSpareBuffers);
    queued_.insert(name);
    jobs_.push_back({{name}, std::move(bytes), seal, order, replace});
  }
  changed_.notify_all();
}

void KvDisk::used(std::vector<std::string> names, uint64_t first) {
  if (names.empty()) return;
  {
    const std::lock_guard guard(mutex_);
    jobs_.push_back({std::move(names), {}, nullptr, first, false});
  }
  changed_.notify_all();
}

uint64_t KvDisk::next_orders(size_t count) {
  const std::lock_guard guard(mutex_);
  const uint64_t first = std::max(order_ + 1, kv_order_now());
  order_ = first + count - 1;
  return first;
}

void KvDisk::flush() {
  std::unique_lock guard(mutex_);
  changed_.wait(guard, [&] { return jobs_.empty() && !busy_; });
}

KvDiskFigures KvDisk::figures() const {
  const std::lock_guard guard(mutex_);
  return figures_;
}

// --- the writer's thread ---

void KvDisk::work() {
  pthread_setname_np(pthread_self(), "moebius-kv-dir");
  std::unique_lock guard(mutex_);
  for (;;) {
    changed_.wait(guard, [&] { return over_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    busy_ = true;
    guard.unlock();
    run(job);
    guard.lock();
    busy_ = false;
    guard.unlock();
    changed_.notify_all();
    guard.lock();
  }
}

void KvDisk::run(Job& job) {
  bool stored = false;
  try {
    if (job.bytes.empty())
      for (size_t i = 0; i < job.names.size(); ++i) touch(job.names[i], job.order + i);
    else
      stored = store(job);
  } catch (const std::exception&) {
    // No memory for the index: the file is written again later.
  }
  if (job.bytes.empty()) return;
  {
    const std::lock_guard guard(mutex_);
    figures_.dropped += stored ? 0 : 1;
    queued_.erase(job.names[0]);
  }
  give_back(std::move(job.bytes));
}

int KvDisk::write_all(int fd, std::span<const uint8_t> bytes) const {
  return options_.write ? options_.write(fd, bytes) : moebius::write_all(fd, bytes);
}

// Creates a temporary file. Returns a descriptor, or -1 and errno. The name may exist, of a process
// that was killed or runs on another host.
int KvDisk::create_temporary(std::string& name) {
  int fd = -1;
  for (int i = 0; i < 100 && fd < 0 && (i == 0 || errno == EEXIST); ++i) {
    name = kv_temporary_name(temporaries_++);
    fd = openat(folder_, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  }
  return fd;
}

bool KvDisk::store(Job& job) {
  const std::string& name = job.names[0];
  if (!job.replace && find(name)) {
    touch(name, job.order);
    return true;
  }
  {
    const std::lock_guard guard(mutex_);
    const bool all_newer = by_order_.empty() || by_order_.begin()->first >= job.order;
    if (!fits(name, job.bytes.size()) && all_newer) return false;
  }
  if (job.seal != nullptr) job.seal(job.bytes);
  std::string temporary;
  const int fd = create_temporary(temporary);
  if (fd < 0) {
    complain("create a file", errno);
    return false;
  }
  int code = write_all(fd, job.bytes);
  const timespec times[2] = {{0, UTIME_OMIT}, kv_time_of(job.order)};
  if (code == 0 && futimens(fd, times) != 0) code = errno;
  if (close(fd) != 0 && code == 0) code = errno;
  bool stored = false;
  if (code == 0) {
    const KvFolderLock lock(lock_);
    if (lock.held) {
      see_others_changes();
      make_room(job.bytes.size(), job.order, name);
      const std::lock_guard guard(mutex_);
      stored = fits(name, job.bytes.size());
      if (stored && renameat(folder_, temporary.c_str(), folder_, name.c_str()) != 0) {
        code = errno;
        stored = false;
      }
      if (stored) {
        set_entry(name, {job.order, job.bytes.size()});
        ++figures_.written_files;
        figures_.written_bytes += job.bytes.size();
      }
    } else {
      code = EDEADLK;
    }
  }
  if (!stored) unlinkat(folder_, temporary.c_str(), 0);
  if (code != 0) complain("write", code);
  return stored;
}

void KvDisk::touch(const std::string& name, uint64_t order) {
  const timespec times[2] = {{0, UTIME_OMIT}, kv_time_of(order)};
  const bool there = utimensat(folder_, name.c_str(), times, AT_SYMLINK_NOFOLLOW) == 0;
  const std::lock_guard guard(mutex_);
  const auto it = entries_.find(name);
  if (it == entries_.end()) return;
  if (there)
    set_entry(name, {order, it->second.bytes});
  else
    drop_entry(name);
}

void KvDisk::complain(std::string_view what, int code) {
  if (std::exchange(complained_, true) || !options_.say) return;
  options_.say(fmt::format(
      "--kv-dir {}: cannot {}: {}; prompts are computed again where they would have been read",
      printable(options_.folder), what,
      code == EDEADLK ? "another process holds its lock" : errno_text(code)));
}

}  // namespace moebius
