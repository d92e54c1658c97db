// SPDX-License-Identifier: Apache-2.0
// A cache of named files in a folder, bounded in bytes; the least recently used file is removed
// first. A thread of its own writes, so that callers never wait for the disk; files that the thread
// cannot keep up with are dropped. Files appear whole or not at all (a temporary name, then a
// rename), so a killed process leaves no file that looks complete. Several processes may share a
// folder. The meaning of the bytes is the caller's (kv_file.h).
//
// The modification time of a file is the order of its use: the time of the last use, or one
// microsecond after the latest time in the folder if the clock went back. So the order survives
// restarts.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/engine_stats.h"
#include "engine/kv_folder.h"

namespace moebius {

struct KvDiskOptions {
  std::string folder;  // created if missing, readable for this user alone
  uint64_t bytes = 0;  // most bytes of all files in the folder, including those of earlier runs
  size_t queue_bytes = size_t{256} << 20;             // most bytes that wait to be written
  std::function<void(const std::string& words)> say;  // receives one message when the disk fails
  std::function<uint64_t()> clock;  // returns nanoseconds; empty: the system's clock
  // Replaces write(2) in tests; returns 0 or an errno.
  std::function<int(int fd, std::span<const uint8_t> bytes)> write;
};

class KvDisk {
 public:
  // Throws Error if the folder cannot be used, or if other users own it or may write to it.
  explicit KvDisk(KvDiskOptions options);
  ~KvDisk();  // writes what is queued, then returns
  KvDisk(const KvDisk&) = delete;
  KvDisk& operator=(const KvDisk&) = delete;

  // Returns true if the file exists or is queued, as far as this process knows. Thread-safe.
  bool holds(const std::string& name) const;
  // Returns true if the file exists now, by asking the system: another process may have written or
  // removed it.
  bool find(const std::string& name) const noexcept;
  void expect(const std::string& name) const noexcept;  // hints that the file will be read soon
  KvFileReader open(const std::string& name) const { return {folder_, name}; }
  // has_read() records the time of a read; read_nanoseconds() predicts the time of a read from
  // these records.
  void has_read(uint64_t bytes, size_t files, uint64_t nanoseconds);
  double read_nanoseconds(uint64_t bytes, size_t files) const;
  // Records that a read was skipped because it was predicted to be too slow: the prediction is
  // lowered a little each time, so that the disk is tried again.
  void pass_over();
  void discard(const std::string& name);  // removes a damaged file

  // Returns a buffer of `bytes` bytes for a file that will be given to put(). Without a value, too
  // much is queued and the file counts as dropped; `wait`: waits for room instead.
  std::optional<std::vector<uint8_t>> take(size_t bytes, bool wait);
  // Takes back a buffer of take() that will not be put.
  void give_back(std::vector<uint8_t> bytes) noexcept;
  // Queues a file for writing. `seal` is called on the writer's thread before the write. An
  // existing file of this name is replaced if `replace` is true, else kept. `order`: order of its
  // last use; files that were used later are not evicted for it.
  using Seal = void (*)(std::span<uint8_t> bytes);
  void put(const std::string& name, std::vector<uint8_t> bytes, Seal seal, uint64_t order,
           bool replace);
  // Records that the files were used, in this order from `first` on.
  void used(std::vector<std::string> names, uint64_t first);
  // Returns the first of `count` consecutive orders of use that are later than all before.
  uint64_t next_orders(size_t count);
  void flush();  // waits until nothing is queued

  const std::string& folder() const { return options_.folder; }
  KvDiskFigures figures() const;
  uint64_t now() const;  // returns the clock, in nanoseconds

 private:
  struct Entry {
    uint64_t order, bytes;
  };
  struct Job {
    std::vector<std::string> names;
    std::vector<uint8_t> bytes;  // empty: this job only records a use of `names`
    Seal seal = nullptr;
    uint64_t order = 0;
    bool replace = false;
  };
  void scan();  // reads the folder's list of files; the caller holds mutex_
  void see_others_changes();
  void make_room(uint64_t bytes, uint64_t order, const std::string& name);
  void set_entry(const std::string& name, Entry entry);
  void drop_entry(const std::string& name);
  void work();
  void run(Job& job);
  bool store(Job& job);
  int create_temporary(std::string& name);
  // Returns true if the limit has room; the caller holds mutex_
  bool fits(const std::string& name, uint64_t bytes) const;
  int write_all(int fd, std::span<const uint8_t> bytes) const;
  void touch(const std::string& name, uint64_t order);
  void complain(std::string_view what, int code);

  KvDiskOptions options_;
  int folder_ = -1, lock_ = -1;
  // Counter of changes to the folder by all processes, as last seen; used by the writer's thread
  // alone.
  uint64_t generation_ = UINT64_MAX;
  uint64_t temporaries_ = 0;
  bool complained_ = false;

  mutable std::mutex mutex_;
  std::unordered_map<std::string, Entry> entries_;
  std::set<std::pair<uint64_t, std::string>> by_order_;
  std::unordered_set<std::string> queued_;
  uint64_t order_ = 0;  // the latest order that was given out
  KvDiskFigures figures_;
  double per_byte_ = 1;  // nanoseconds to read one byte, a running mean
  std::deque<Job> jobs_;
  std::vector<std::vector<uint8_t>> spare_;  // buffers for reuse
  size_t waiting_bytes_ = 0;
  bool busy_ = false, over_ = false;
  std::condition_variable changed_;
  std::thread writer_;
};

}  // namespace moebius
