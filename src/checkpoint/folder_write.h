// SPDX-License-Identifier: Apache-2.0
// Writes model folders: files whose bytes come in any order and from any thread, and that get their
// names only when they are on the disk; and config.json with one member replaced and the rest of
// its text untouched. Every error names the file.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/descriptor.h"

namespace moebius {

// Writes a file of known size. An existing file of that name is replaced, unless `keep` continues
// it.
class OutputFile {
 public:
  OutputFile(const std::string& path, uint64_t size, bool keep = false);
  // Writes bytes at an offset; thread-safe.
  void write_at(uint64_t offset, std::span<const uint8_t> bytes);
  void sync();                           // returns when all written bytes are on the disk
  void finish(const std::string& name);  // sync(), then renames the file to `name`

 private:
  std::string path_;
  Descriptor file_;
};

// Writes `text` to a file, which is replaced atomically: readers see the old or the new one.
void write_text_file(const std::string& path, std::string_view text);
// Copies a file and returns when the copy is on the disk.
void copy_file_bytes(const std::string& from, const std::string& to);
void make_folder(const std::string& path);
void sync_folder(const std::string& path);  // returns when the names in the folder are on the disk
void rename_path(const std::string& from, const std::string& to);
// Returns the free bytes of the disk that holds the folder.
uint64_t free_bytes(const std::string& path);

// Returns a checksum of the file's contents, in hexadecimal.
std::string hash_of_file(const std::string& path);

// Returns `text`, a JSON object, with the top-level member `key` replaced by `value`, or with the
// member appended; nothing else changes.
std::string with_member(const std::string& text, std::string_view key, const std::string& value);

}  // namespace moebius
