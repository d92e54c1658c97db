// SPDX-License-Identifier: Apache-2.0
// Writing a model folder: files whose bytes come in any order and from any thread, made durable before
// they get their names; a member of config.json replaced with the rest of its text untouched. Every
// error names the file.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace moebius {

// A file of a known size. What is there under its name is replaced, unless it is kept.
class OutputFile {
 public:
  OutputFile(const std::string& path, uint64_t size, bool keep = false);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  void write_at(uint64_t offset, std::span<const uint8_t> bytes);  // thread-safe
  void sync();                           // what was written is on the disk
  void finish(const std::string& name);  // the same, then renamed to `name`

 private:
  std::string path_;
  int fd_ = -1;
};

void write_text_file(const std::string& path, std::string_view text);  // atomically
void copy_file_bytes(const std::string& from, const std::string& to);  // and to the disk
void make_folder(const std::string& path);
void sync_folder(const std::string& path);  // names in it are on the disk
void rename_path(const std::string& from, const std::string& to);
uint64_t free_bytes(const std::string& path);  // of the disk that a folder lies on

std::string hash_of_file(const std::string& path);  // its checksum as text

// `text`, an object that parses, with the top-level member `key` replaced by `value`, or with it
// added at the end; nothing else changes.
std::string with_member(const std::string& text, std::string_view key, const std::string& value);

}  // namespace moebius
