// SPDX-License-Identifier: Apache-2.0
// Reads and writes files through POSIX (file.h). O_NONBLOCK at open keeps a pipe from blocking
// before fstat says what it is; it has no effect on regular files.
#include "base/file.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <filesystem>
#include <system_error>

#include "base/descriptor.h"
#include "base/error.h"

namespace moebius {
namespace {

std::string_view kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  if (S_ISSOCK(mode)) return "a socket";
  return "not a regular file";
}

// Reads a descriptor without a size (a pipe, a device) to its end.
std::string read_stream(int fd, const std::string& name, uint64_t limit) {
  std::string text;
  char piece[1 << 16];
  while (true) {
    const ssize_t n = ::read(fd, piece, sizeof piece);
    if (n == 0) return text;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("{}: cannot read: {}", name, errno_text(errno));
    text.append(piece, static_cast<size_t>(n));
    if (text.size() > limit)
      fail("{}: more than {} bytes; no more are read for a file of this kind", name, limit);
  }
}

// Reads all bytes of a regular file.
std::string read_whole(const ReadFile& file, uint64_t limit) {
  if (file.size() > limit)
    fail("{}: file has {} bytes; at most {} are read for a file of this kind",
         printable(file.path()), file.size(), limit);
  std::string text(file.size(), '\0');
  file.read_at(0, {reinterpret_cast<uint8_t*>(text.data()), text.size()});
  return text;
}

// Writes `parts` one after another and closes the file. Returns 0 or the errno of the first failure.
int write_and_close(Descriptor& file, std::span<const std::span<const uint8_t>> parts) {
  int code = 0;
  for (const std::span<const uint8_t> part : parts)
    if (code == 0) code = write_all(file.get(), part);
  // EINVAL: a pipe or a device
  if (code == 0 && ::fsync(file.get()) != 0 && errno != EINVAL) code = errno;
  const int closed = file.close();
  return code != 0 ? code : closed;
}

// Writes everything to a file that must not exist yet; removes it again if anything fails. Errors
// name `shown`, the file that it will become.
void write_new_file(const std::string& path, const std::string& shown,
                    std::span<const std::span<const uint8_t>> parts) {
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file.open()) fail("{}: cannot create: {}", printable(shown), errno_text(errno));
  const int code = write_and_close(file, parts);
  if (code == 0) return;
  ::unlink(path.c_str());
  fail("{}: cannot write: {}", printable(shown), errno_text(code));
}

// Returns a connection to the process that listens on a socket of the file system, or -1 with errno set.
int connect_socket(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    errno = ENAMETOOLONG;
    return -1;
  }
  path.copy(address.sun_path, path.size());
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0)
    return fd;
  const int code = errno;
  ::close(fd);
  errno = code;
  return -1;
}

}  // namespace

ReadFile::ReadFile(const std::string& path) : path_(path) {
  if (path.find('\0') != std::string::npos)
    fail("{}: a path cannot hold a zero byte", printable(path));
  do {
    fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  } while (fd_ < 0 && errno == EINTR);
  if (fd_ < 0) fail("{}: {}", printable(path), open_failure(path, errno));
  struct stat st {};
  const int code = ::fstat(fd_, &st) != 0 ? errno : 0;
  if (code == 0 && S_ISREG(st.st_mode)) {
    size_ = static_cast<uint64_t>(st.st_size);
    identity_ = {st.st_dev, st.st_ino, st.st_mtim.tv_sec, st.st_mtim.tv_nsec};
    return;
  }
  ::close(fd_);
  if (code != 0) fail("{}: cannot open: {}", printable(path), errno_text(code));
  fail("{}: is {}; expected a regular file", printable(path), kind_of(st.st_mode));
}

ReadFile::~ReadFile() { ::close(fd_); }

void ReadFile::will_need(uint64_t offset, uint64_t bytes) const {
  ::posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_WILLNEED);
}

void ReadFile::check_unchanged() const {
  struct stat st {};
  if (::stat(path_.c_str(), &st) != 0)
    fail("{}: was opened and is gone: {}", printable(path_), errno_text(errno));
  const Identity now{st.st_dev, st.st_ino, st.st_mtim.tv_sec, st.st_mtim.tv_nsec};
  if (now != identity_ || static_cast<uint64_t>(st.st_size) != size_)
    fail("{}: was changed while it is in use: it has {} bytes, {} when it was opened",
         printable(path_), st.st_size, size_);
}

void ReadFile::read_at(uint64_t offset, std::span<uint8_t> out) const {
  if (offset > size_ || out.size() > size_ - offset)
    fail("{}: cannot read {} bytes at {}: the file has {} bytes", printable(path_), out.size(),
         offset, size_);
  const int code = read_all_at(fd_, offset, out);
  if (code == kEndOfFile)
    fail("{}: file shrank: it ends at byte {}, expected {} bytes as when it was opened",
         printable(path_), offset, size_);
  if (code != 0) fail("{}: cannot read at byte {}: {}", printable(path_), offset, errno_text(code));
}

void check_no_lfs_pointer(const ReadFile& file) {
  constexpr std::string_view kBegin = "version https://git-lfs.github.com/spec/";
  constexpr uint64_t kMostBytes = 1024;  // the pointer format's specification allows no more
  if (file.size() < kBegin.size() || file.size() >= kMostBytes) return;
  std::string begin(kBegin.size(), '\0');
  file.read_at(0, {reinterpret_cast<uint8_t*>(begin.data()), begin.size()});
  if (begin == kBegin)
    fail("{}: is a git-lfs pointer, not the file itself; run `git lfs pull` in its folder",
         printable(file.path()));
}

std::string read_text_file(const std::string& path, uint64_t limit) {
  const ReadFile file(path);
  check_no_lfs_pointer(file);
  return read_whole(file, limit);
}

std::string read_input(const std::string& path, uint64_t limit) {
  if (path == "-") return read_stream(STDIN_FILENO, "standard input", limit);
  struct stat st {};
  const bool streams =
      ::stat(path.c_str(), &st) == 0 && (S_ISFIFO(st.st_mode) || S_ISCHR(st.st_mode));
  if (!streams) return read_whole(ReadFile(path), limit);
  const Descriptor input(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  if (!input.open()) fail("{}: {}", printable(path), open_failure(path, errno));
  return read_stream(input.get(), printable(path), limit);
}

void write_file_atomically(const std::string& path,
                           std::span<const std::span<const uint8_t>> parts) {
  static std::atomic<unsigned> counter{0};
  const std::string temporary = fmt::format("{}.{}.{}.tmp", path, ::getpid(), counter.fetch_add(1));
  write_new_file(temporary, path, parts);
  if (::rename(temporary.c_str(), path.c_str()) == 0) return;
  const int code = errno;
  ::unlink(temporary.c_str());
  fail("{}: cannot replace: {}", printable(path), errno_text(code));
}

std::string output_target(const std::string& path) {
  constexpr int kMostLinks = 40;  // Linux follows no more links either
  std::error_code error;
  std::filesystem::path target = path;
  for (int i = 0; i < kMostLinks && std::filesystem::is_symlink(target, error); ++i)
    target = target.parent_path() / std::filesystem::read_symlink(target, error);
  if (std::filesystem::is_directory(target, error))
    fail("{}: is a folder; expected a file to write", printable(path));
  if (error == std::errc::too_many_symbolic_link_levels)
    fail("{}: cannot open: {}", printable(path), error.message());
  return target.string();
}

void write_output(const std::string& path, std::span<const std::span<const uint8_t>> parts) {
  const std::string target = output_target(path);
  struct stat st {
  }, found{};
  // /dev/stdout may lead to a file that lost its name: such a file is written in place, not
  // replaced.
  if (::stat(path.c_str(), &st) != 0 ||
      (S_ISREG(st.st_mode) && ::stat(target.c_str(), &found) == 0 && found.st_dev == st.st_dev &&
       found.st_ino == st.st_ino))
    return write_file_atomically(target, parts);
  Descriptor file(S_ISSOCK(st.st_mode)
                      ? connect_socket(path)
                      : ::open(path.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC | O_NOCTTY));
  if (!file.open()) fail("{}: cannot open: {}", printable(path), errno_text(errno));
  if (const int code = write_and_close(file, parts); code != 0)
    fail("{}: cannot write: {}", printable(path), errno_text(code));
}

bool path_exists(const std::string& path) {
  struct stat st {};
  return ::lstat(path.c_str(), &st) == 0;
}

std::string open_failure(const std::string& path, int code) {
  struct stat st {};
  if (code == ENOENT && ::lstat(path.c_str(), &st) == 0 && S_ISLNK(st.st_mode)) {
    std::string target(PATH_MAX, '\0');
    const ssize_t n = ::readlink(path.c_str(), target.data(), target.size());
    target.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
    return fmt::format("is a symbolic link to '{}', which does not exist", printable(target));
  }
  return fmt::format("cannot open: {}", errno_text(code));
}

std::string errno_text(int code) { return std::generic_category().message(code); }

std::string join_path(const std::string& folder, std::string_view name) {
  std::string path = folder;
  if (!path.empty() && path.back() != '/') path += '/';
  return path.append(name);
}

std::string_view base_name(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

}  // namespace moebius
