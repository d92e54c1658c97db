// SPDX-License-Identifier: Apache-2.0
// Measures how fast pieces of a file come from its disk, at random places, with so many reads under
// way: past the page cache (O_DIRECT) and through it, and the CPU time that this takes. Each read
// under way is a thread that calls pread.
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ostream.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <numeric>
#include <ostream>
#include <thread>

#include "apps/cli/interrupt.h"
#include "apps/cli/layout.h"
#include "apps/cli/manners.h"
#include "base/descriptor.h"
#include "base/error.h"
#include "base/file.h"
#include "base/human.h"
#include "base/random.h"
#include "bench/bench_report.h"
#include "runtime/memory.h"

namespace moebius {
namespace {

constexpr size_t kDiskBlock = 4096;  // what O_DIRECT asks of addresses, offsets and sizes

struct DiskRate {
  double gb = 0, seconds = 0, cpu = 0;
  int failure = 0;  // errno of a read; kEndOfFile: the file became shorter
};

// Reads pieces in the order given until all were read or the time is over.
DiskRate measure_disk(int file, std::span<const uint64_t> pieces, size_t bytes, size_t depth,
                      double limit) {
  using Clock = std::chrono::steady_clock;
  // Buffers are touched before the clock starts.
  AlignedBuffer memory(depth * bytes + kDiskBlock);
  uint8_t* const first =
      memory.data() + kDiskBlock - reinterpret_cast<uintptr_t>(memory.data()) % kDiskBlock;
  std::fill(first, first + depth * bytes, uint8_t{1});
  std::atomic<size_t> next{0}, done{0};
  std::atomic<int> failure{0};
  const std::clock_t cpu = std::clock();  // of all threads
  const Clock::time_point start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  {
    std::vector<std::jthread> readers;
    for (size_t d = 0; d < depth; ++d)
      readers.emplace_back([&, d] {
        for (size_t i = next++; i < pieces.size(); i = next++) {
          uint64_t offset = pieces[i];
          if (const int code = read_all_at(file, offset, {first + d * bytes, bytes}); code != 0)
            failure = code;
          if (failure != 0 || interrupt_seen()) return;
          ++done;
          if (elapsed() > limit) return;
        }
      });
  }
  const double used = static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC;
  return {1e-9 * static_cast<double>(done * bytes), elapsed(), used, failure};
}

// Gives the pages of a file in the page cache back, so that reads come from the disk.
void drop_pages(int file) { (void)::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED); }

}  // namespace

int run_bench_disk(const BenchOptions& options, std::ostream& out) {
  interrupt_is_noted();
  const std::string name = printable(options.file);
  const size_t bytes = options.bytes / kDiskBlock * kDiskBlock;
  const Descriptor buffered(::open(options.file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!buffered.open()) fail("{}: {}", name, open_failure(options.file, errno));
  struct stat st {};
  if (::fstat(buffered.get(), &st) != 0 || !S_ISREG(st.st_mode))
    fail("{}: is no regular file", name);
  const auto size = static_cast<uint64_t>(st.st_size);
  if (size < bytes) fail("{}: has {} bytes; expected at least --bytes, {}", name, size, bytes);
  std::vector<uint64_t> pieces(size / bytes);
  for (size_t i = 0; i < pieces.size(); ++i) pieces[i] = i * bytes;
  SplitMix64 random(1);
  for (size_t i = pieces.size(); i > 1; --i) std::swap(pieces[i - 1], pieces[random.below(i)]);
  Descriptor direct(::open(options.file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_DIRECT));
  int refused = direct.open() ? 0 : errno;
  (void)::fdatasync(buffered.get());  // pages that are not written yet cannot be dropped
  if (!options.json)
    out << labelled(
               "",
               fmt::format("{}, {} in pieces of {}", name, human_bytes(size), human_bytes(bytes)),
               0, output_width())
        << fmt::format("{:>5} {:<9} {:>8} {:>14}\n", "depth", "reads", "GB/s", "CPU s per GB");
  for (const size_t depth : options.depths)
    for (const bool past_cache : {true, false}) {
      if (past_cache && refused != 0) continue;
      drop_pages(buffered.get());
      const DiskRate r = measure_disk(past_cache ? direct.get() : buffered.get(), pieces, bytes,
                                      depth, options.seconds);
      if (interrupt_seen()) return kExitInterrupted;
      if (past_cache && r.failure == EINVAL) {
        refused = EINVAL;
        continue;
      }
      if (r.failure != 0)
        fail("{}: cannot read: {}", name,
             r.failure == kEndOfFile ? "it became shorter" : errno_text(r.failure));
      const double gbs = r.gb / r.seconds, cpu = r.cpu / r.gb;
      if (!options.json) {
        fmt::print(out, "{:>5} {:<9} {:>8.3f} {:>14.3f}\n", depth,
                   past_cache ? "direct" : "buffered", gbs, cpu);
        out.flush();
        continue;
      }
      Json line = Json::object({{"bench", "disk"}, {"depth", depth}, {"direct", past_cache}});
      line.set("bytes", bytes);
      line.set("gbs", rounded(gbs, 5));
      line.set("cpu_s_per_gb", rounded(cpu, 4));
      print_json(line, out);
    }
  drop_pages(buffered.get());
  if (refused != 0)
    warning("{}: its file system refuses direct reads (O_DIRECT): {}; all reads were buffered",
            name, errno_text(refused));
  return kExitDone;
}

}  // namespace moebius
