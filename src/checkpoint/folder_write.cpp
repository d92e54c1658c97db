// SPDX-License-Identifier: Apache-2.0
// Writes files and makes them durable through POSIX calls (folder_write.h).
#include "checkpoint/folder_write.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/checksum.h"
#include "base/error.h"
#include "base/file.h"

namespace moebius {
namespace {

constexpr size_t kPiece = size_t{1} << 20;
constexpr ssize_t kEarly = 1 << 16;  // bytes from which a piece is written to the disk early

[[noreturn]] void cannot(const std::string& path, std::string_view what, int code) {
  fail("{}: cannot {}: {}", printable(path), what, errno_text(code));
}

// Finds positions in the text of a JSON object that is known to parse.
class ObjectText {
 public:
  explicit ObjectText(const std::string& text) : text_(text) {}

  size_t skip_space(size_t at) const {
    while (at < text_.size() && std::strchr(" \t\r\n", text_[at]) != nullptr) ++at;
    return at;
  }
  size_t skip_string(size_t at) const {  // at: position of the opening quote
    for (++at; text_[at] != '"'; ++at)
      if (text_[at] == '\\') ++at;
    return at + 1;
  }
  size_t skip_value(size_t at) const {
    size_t depth = 0;
    while (at < text_.size()) {
      const char c = text_[at];
      if (c == '"') {
        at = skip_string(at);
        if (depth == 0) return at;
        continue;
      }
      if (depth == 0 && (c == ',' || c == '}' || c == ']')) return at;
      if (c == '{' || c == '[') ++depth;
      ++at;
      if ((c == '}' || c == ']') && --depth == 0) return at;
    }
    return at;
  }

 private:
  const std::string& text_;
};

// Indents all lines but the first.
std::string indented(const std::string& text, size_t by) {
  std::string out;
  for (const char c : text) {
    out += c;
    if (c == '\n') out.append(by, ' ');
  }
  return out;
}

}  // namespace

OutputFile::OutputFile(const std::string& path, uint64_t size, bool keep)
    : path_(path),
      file_(::open(path.c_str(), O_WRONLY | O_CREAT | (keep ? 0 : O_TRUNC) | O_CLOEXEC, 0666)) {
  if (!file_.open()) cannot(path, "create", errno);
  // Reserves the room for the whole file, so that a full disk is found before the work. Not every
  // file system can.
  if (size == 0 || ::fallocate(file_.get(), 0, 0, static_cast<off_t>(size)) == 0) return;
  if (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL) cannot(path, "write", errno);
}

void OutputFile::write_at(uint64_t offset, std::span<const uint8_t> bytes) {
  if (const int code = write_all_at(file_.get(), offset, bytes); code != 0)
    cannot(path_, "write", code);
  // The disk starts to write while further pieces are made; fsync at the end reports any failure.
  if (bytes.size() >= kEarly)
    ::sync_file_range(file_.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes.size()),
                      SYNC_FILE_RANGE_WRITE);
}

void OutputFile::sync() {
  if (::fsync(file_.get()) != 0) cannot(path_, "write", errno);
}

void OutputFile::finish(const std::string& name) {
  sync();
  if (const int code = file_.close(); code != 0) cannot(path_, "write", code);
  rename_path(path_, name);
}

void write_text_file(const std::string& path, std::string_view text) {
  const std::span<const uint8_t> part(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  write_file_atomically(path, {&part, 1});
}

void copy_file_bytes(const std::string& from, const std::string& to) {
  const ReadFile in(from);
  OutputFile out(to + ".tmp", in.size());
  std::vector<uint8_t> piece(std::min<uint64_t>(kPiece, in.size()));
  for (uint64_t at = 0; at < in.size(); at += piece.size()) {
    piece.resize(std::min<uint64_t>(piece.size(), in.size() - at));
    in.read_at(at, piece);
    out.write_at(at, piece);
  }
  out.finish(to);
}

void make_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) cannot(path, "create", errno);
}

void sync_folder(const std::string& path) {
  const Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.open()) cannot(path, "open", errno);
  ::fsync(folder.get());  // file systems without fsync of folders keep their names anyway
}

void rename_path(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    const int code = errno;
    fail("{}: cannot rename to {}: {}", printable(from), printable(to), errno_text(code));
  }
}

uint64_t free_bytes(const std::string& path) {
  struct statvfs s {};
  if (::statvfs(path.c_str(), &s) != 0) cannot(path, "ask for free space", errno);
  return static_cast<uint64_t>(s.f_bavail) * s.f_frsize;
}

std::string hash_of_file(const std::string& path) {
  const ReadFile in(path);
  Checksum hash;
  std::vector<uint8_t> piece(kPiece);
  for (uint64_t at = 0; at < in.size(); at += kPiece) {
    const std::span<uint8_t> part(piece.data(), std::min<uint64_t>(kPiece, in.size() - at));
    in.read_at(at, part);
    hash.add(part);
  }
  return hash.hex();
}

std::string with_member(const std::string& text, std::string_view key, const std::string& value) {
  const ObjectText t(text);
  // Position after the brace.
  size_t at = t.skip_space(text.starts_with("\xEF\xBB\xBF") ? 3 : 0) + 1;
  const size_t first = t.skip_space(at);
  // The first member shows the layout: on the line of the brace, all members share that line.
  const size_t line = text.rfind('\n', first);
  const bool lines = line != std::string::npos && line >= at - 1;
  const size_t indent = lines ? first - line - 1 : 0;
  const std::string written = lines ? indented(value, indent) : value;
  size_t last = at;
  bool any = false;
  for (at = first; text[at] == '"'; at = t.skip_space(at)) {
    const size_t name = at;
    at = t.skip_string(at);
    const std::string_view found(text.data() + name + 1, at - name - 2);
    const size_t begin = t.skip_space(t.skip_space(at) + 1);
    const size_t end = t.skip_value(begin);
    last = end;
    any = true;
    if (found == key) {
      size_t stop = end;  // numbers and words include the space after them
      while (stop > begin && std::strchr(" \t\r\n", text[stop - 1]) != nullptr) --stop;
      return text.substr(0, begin) + written + text.substr(stop);
    }
    at = t.skip_space(end);
    if (text[at] == ',') ++at;
  }
  while (last > 0 && std::strchr(" \t\r\n", text[last - 1]) != nullptr) --last;
  std::string member = any ? "," : "";
  member += lines ? "\n" + std::string(indent, ' ') : any ? " " : "";
  member += fmt::format("\"{}\": {}", key, written);
  return text.substr(0, last) + member + text.substr(last);
}

}  // namespace moebius
