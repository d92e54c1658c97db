// SPDX-License-Identifier: Apache-2.0
// Reads regular files at positions, through a descriptor that is opened once; nothing is mapped, so
// that a file that shrinks while it is read gives an Error and not a signal. Folders, pipes and
// devices are refused, except by read_input, which reads what a user names. Every error message
// starts with the path.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace moebius {

class ReadFile {
 public:
  explicit ReadFile(const std::string& path);  // Opens the file. Throws Error.
  ~ReadFile();
  ReadFile(const ReadFile&) = delete;
  ReadFile& operator=(const ReadFile&) = delete;

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }  // size in bytes when the file was opened
  // Fills `out` from byte `offset` on. Throws Error if the file got shorter or cannot be read.
  // Thread-safe.
  void read_at(uint64_t offset, std::span<uint8_t> out) const;
  // Hints that these bytes are read soon, so that the system reads ahead. Never fails.
  void will_need(uint64_t offset, uint64_t bytes) const;
  // Throws Error unless the path still leads to the same file, of the size and modification time
  // that it had when it was opened.
  void check_unchanged() const;

 private:
  std::string path_;
  int fd_ = -1;
  uint64_t size_ = 0;
  struct Identity {
    uint64_t device = 0, inode = 0;
    int64_t seconds = 0, nanoseconds = 0;  // time of the file's last change
    bool operator==(const Identity&) const = default;
  } identity_;
};

// Throws Error if the file is a git-lfs pointer: the short text that `git clone` without git-lfs
// leaves in place of a large file.
void check_no_lfs_pointer(const ReadFile& file);

// Returns the text of a small file (configs, indices). Throws Error if it is larger than `limit`
// bytes, or a git-lfs pointer.
std::string read_text_file(const std::string& path, uint64_t limit);

// Returns the text of a file that a user named, as read_text_file does; "-" is standard input, and
// pipes and terminals are read to their end.
std::string read_input(const std::string& path, uint64_t limit);

// Writes `parts` one after another under a temporary name in the same folder, then renames the
// file: readers see all of it or nothing. Throws Error and removes the temporary file on failure.
void write_file_atomically(const std::string& path,
                           std::span<const std::span<const uint8_t>> parts);

// Writes `parts` to a file that a user named. A symbolic link is followed, and the regular file
// behind it is replaced atomically; a device, a pipe or a socket is opened and written. Throws
// Error for a folder.
void write_output(const std::string& path, std::span<const std::span<const uint8_t>> parts);
// Returns the path behind the symbolic links of a file that a user names for output, whether it
// exists or not. Throws Error for a folder.
std::string output_target(const std::string& path);

// Returns true also for a symbolic link that leads nowhere.
bool path_exists(const std::string& path);
// Returns why a path could not be opened: "cannot open: Permission denied", or the target of a
// symbolic link to a missing file. `code` is the errno.
std::string open_failure(const std::string& path, int code);
std::string errno_text(int code);  // returns text such as "No such file or directory"
std::string join_path(const std::string& folder, std::string_view name);
std::string_view base_name(std::string_view path);

}  // namespace moebius
