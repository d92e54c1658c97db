// SPDX-License-Identifier: Apache-2.0
// Files by name in a folder of our own, within a number of bytes; what was used least recently goes
// first. A thread of its own writes, so that nobody waits for a disk; what it cannot keep up with is
// dropped. Files appear whole or not at all (a temporary name, then a rename), so that a process that
// is killed leaves nothing that could be taken for one. Several processes may share a folder. What
// the bytes mean is not known here.
//
// The order of use is kept as the time of modification: the time of the use, or where a clock went
// back, a microsecond after the latest time in the folder. It is there again after a restart.
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

#include "engine/kv_disk_figures.h"
#include "engine/kv_folder.h"

namespace moebius {

struct KvDiskOptions {
  std::string folder;                      // made where it is missing, for this user alone
  uint64_t bytes = 0;                      // of all files, those of earlier runs included
  size_t queue_bytes = size_t{256} << 20;  // that may wait to be written
  std::function<void(const std::string& words)> say;  // of a disk that fails, once
  std::function<uint64_t()> clock;                    // nanoseconds; empty: the system's
  std::function<int(int fd, std::span<const uint8_t> bytes)> write;  // for tests; 0 or an errno
};

class KvDisk {
 public:
  // Throws Error in words: a folder that others may write to or own, or that cannot be used.
  explicit KvDisk(KvDiskOptions options);
  ~KvDisk();  // what waits is written
  KvDisk(const KvDisk&) = delete;
  KvDisk& operator=(const KvDisk&) = delete;

  // Is or will be there, as far as this process knows.
  bool holds(const std::string& name) const;
  // Asks the system: another process may have written or removed it.
  bool find(const std::string& name) const noexcept;
  void expect(const std::string& name) const noexcept;  // it will be read soon
  KvFileReader open(const std::string& name) const { return {folder_, name}; }
  bool read(const std::string& name, std::vector<uint8_t>& out);  // all of it
  // Files were read. Reading so many bytes takes so long, by what was measured.
  void has_read(uint64_t bytes, size_t files, uint64_t nanoseconds);
  double read_nanoseconds(uint64_t bytes, size_t files) const;
  void pass_over();  // it was found too slow: that is believed a little less each time
  void discard(const std::string& name);  // it is damaged

  // Room for a file that will be put; none: too much waits already (then it counts as dropped),
  // unless `wait`.
  std::optional<std::vector<uint8_t>> take(size_t bytes, bool wait);
  void give_back(std::vector<uint8_t> bytes) noexcept;  // taken, and not put
  // Writes a file. `seal` runs on the writer's thread before. A file of that name is replaced where
  // `replace` is true, else left. `order`: of its use; others that were used later do not go for it.
  using Seal = void (*)(std::span<uint8_t> bytes);
  void put(const std::string& name, std::vector<uint8_t> bytes, Seal seal, uint64_t order,
           bool replace);
  // In this order of use, from `first` on.
  void used(std::vector<std::string> names, uint64_t first);
  uint64_t next_orders(size_t count);  // the first of so many that are later than all before
  void flush();                        // until nothing waits

  const std::string& folder() const { return options_.folder; }
  KvDiskFigures figures() const;
  uint64_t now() const;  // nanoseconds

 private:
  struct Entry {
    uint64_t order, bytes;
  };
  struct Job {
    std::vector<std::string> names;
    std::vector<uint8_t> bytes;  // empty: the names were used
    Seal seal = nullptr;
    uint64_t order = 0;
    bool replace = false;
  };
  void scan();  // under mutex_
  void see_others_changes();
  void make_room(uint64_t bytes, uint64_t order, const std::string& name);
  void set_entry(const std::string& name, Entry entry);
  void drop_entry(const std::string& name);
  void work();
  void run(Job& job);
  bool store(Job& job);
  int create_temporary(std::string& name);
  bool fits(const std::string& name, uint64_t bytes) const;  // under mutex_
  int write_all(int fd, std::span<const uint8_t> bytes) const;
  void touch(const std::string& name, uint64_t order);
  void complain(std::string_view what, int code);

  KvDiskOptions options_;
  int folder_ = -1, lock_ = -1;
  uint64_t generation_ = UINT64_MAX;  // of changes by all processes, as last seen; the writer's
  uint64_t temporaries_ = 0;
  bool complained_ = false;

  mutable std::mutex mutex_;
  std::unordered_map<std::string, Entry> entries_;
  std::set<std::pair<uint64_t, std::string>> by_order_;
  std::unordered_set<std::string> queued_;
  uint64_t order_ = 0;  // the last that was given
  KvDiskFigures figures_;
  double per_byte_ = 1;  // nanoseconds
  std::deque<Job> jobs_;
  std::vector<std::vector<uint8_t>> spare_;  // buffers to use again
  size_t waiting_bytes_ = 0;
  bool busy_ = false, over_ = false;
  std::condition_variable changed_;
  std::thread writer_;
};

}  // namespace moebius
