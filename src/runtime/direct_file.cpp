// SPDX-License-Identifier: Apache-2.0
#include "runtime/direct_file.h"

#include <fmt/format.h>

#include <cerrno>

#include "base/error.h"
#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>

namespace moebius {
namespace {

// Returns whether direct reads of the file need no more than DirectFile::kAlignment.
bool reads_directly(int fd) {
#if defined(STATX_DIOALIGN)
  struct statx facts {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &facts) == 0 &&
      (facts.stx_mask & STATX_DIOALIGN) != 0)
    return facts.stx_dio_offset_align != 0 &&
           facts.stx_dio_offset_align <= DirectFile::kAlignment &&
           facts.stx_dio_mem_align <= DirectFile::kAlignment;
#endif
  return (::fcntl(fd, F_GETFL) & O_DIRECT) != 0;
}

// Opens the file of a descriptor for direct reads, or returns a copy of the descriptor.
int open_again(int descriptor, bool& direct) {
  Descriptor own(
      ::open(fmt::format("/proc/self/fd/{}", descriptor).c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
  direct = own.open() && reads_directly(own.get());
  return direct ? own.release() : ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
}

}  // namespace

DirectFile::DirectFile(int descriptor, std::string path)
    : path_(std::move(path)), file_(open_again(descriptor, direct_)) {
  if (!file_.open()) fail("{}: cannot open: {}", printable(path_), errno_text(errno));
}

void DirectFile::read(uint64_t offset, std::span<uint8_t> out, size_t slack) const {
  constexpr int kTries = 2;
  int failure = 0;
  uint64_t end = offset;
  for (int i = 0; i < kTries; ++i) {
    end = offset;
    failure = read_all_at(file_.get(), end, out);
    if (end - offset + slack < out.size()) continue;
    if (!direct_)  // memory would hold the bytes twice
      (void)::posix_fadvise(file_.get(), static_cast<off_t>(offset), static_cast<off_t>(out.size()),
                            POSIX_FADV_DONTNEED);
    return;
  }
  // A direct read that goes on behind the end of a file is refused for its offset.
  if (failure == kEndOfFile || end % kAlignment != 0)
    fail("{}: ends at byte {}; expected {} more", printable(path_), end,
         offset + out.size() - slack - end);
  fail("{}: cannot read {} bytes at {}: {}", printable(path_), out.size(), offset,
       errno_text(failure));
}

}  // namespace moebius
