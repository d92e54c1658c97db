// SPDX-License-Identifier: Apache-2.0
#include "device/packed_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "base/checksum.h"
#include "base/descriptor.h"
#include "base/error.h"
#include "base/file.h"
#include "device/cpu/pack_file.h"
#include "device/packed_store.h"

namespace moebius {
namespace {

constexpr uint64_t kMostIndexBytes = uint64_t{1} << 30;
constexpr size_t kMagicBytes = 16;

// Returns whether a file begins as every version of this program begins a packed file.
bool begins_as_ours(const ReadFile& file) {
  std::vector<uint8_t> begin(std::min<uint64_t>(file.size(), kMagicBytes));
  file.read_at(0, begin);
  const std::string ours = pack_header({.fingerprint = std::string(64, '0')});
  return std::string_view(ours).substr(0, kMagicBytes) ==
         std::string_view(reinterpret_cast<const char*>(begin.data()), begin.size());
}

// Returns the text between two marks, or to the end if the second is missing; "" without the first.
std::string between(std::string_view text, std::string_view begin, std::string_view end) {
  const size_t at = text.find(begin);
  if (at == std::string_view::npos) return "";
  text.remove_prefix(at + begin.size());
  return std::string(text.substr(0, end.empty() ? text.size() : text.find(end)));
}

void read_about(const ReadFile& file, PackedFile& out) {
  std::vector<uint8_t> bytes(std::min<uint64_t>(file.size(), kPackHeaderBytes));
  file.read_at(0, bytes);
  const PackHeader header = parse_pack_header(bytes, file.size(), file.path());
  if (header.index_bytes > kMostIndexBytes)
    fail("{}: an index of {} bytes", printable(file.path()), header.index_bytes);
  bytes.resize(header.index_bytes);
  file.read_at(header.index_offset, bytes);
  if (checksum(bytes) != header.index_checksum)
    fail("{}: its index is damaged", printable(file.path()));
  out.about = parse_pack_index(bytes, header.index_offset, file.path()).about;
  out.model = between(out.about, "", " packed by moebius ");
  out.version = between(out.about, " packed by moebius ", " for ");
  out.checkpoint = between(out.about, "; checkpoint ", "");
  out.checkpoint_gone = !out.checkpoint.empty() && !path_exists(out.checkpoint);
}

}  // namespace

std::string default_pack_folder() {
  const char *cache = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  if (cache != nullptr && *cache != 0) return join_path(cache, "moebius/packed");
  if (home == nullptr || *home == 0)
    fail("neither XDG_CACHE_HOME nor HOME is set: name the folder with --pack-dir");
  return join_path(home, ".cache/moebius/packed");
}

std::vector<PackedFile> list_packed_files(const std::string& folder) {
  namespace fs = std::filesystem;
  std::vector<PackedFile> out;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    PackedFile file;
    file.name = at->path().filename().string();
    if (!file.name.ends_with(kPackSuffix)) continue;
    try {
      const ReadFile opened(at->path().string());
      file.bytes = opened.size();
      if (!begins_as_ours(opened)) continue;
      read_about(opened, file);
    } catch (const Error& e) {
      file.problem = e.what();
    }
    out.push_back(std::move(file));
  }
  if (error && error != std::errc::no_such_file_or_directory)
    fail("{}: {}", printable(folder), error.message());
  std::sort(out.begin(), out.end(),
            [](const PackedFile& a, const PackedFile& b) { return a.name < b.name; });
  return out;
}

uint64_t remove_packed_file(const std::string& folder, const std::string& name) {
  if (name.find('/') != std::string::npos || !name.ends_with(kPackSuffix))
    fail("--remove {}: is no name that --list shows; they end in {}", printable(name), kPackSuffix);
  const std::string path = join_path(folder, name);
  const Descriptor locked(
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  if (!locked.open()) fail("{}: {}", printable(path), open_failure(path, errno));
  struct stat st {};
  if (::fstat(locked.get(), &st) != 0 || !S_ISREG(st.st_mode))
    fail("{}: is no regular file", printable(path));
  if (!begins_as_ours(ReadFile(path))) fail("{}: is no file of packed weights", printable(path));
  if (::flock(locked.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    fail("{}: is in use by a running program", printable(path));
  if (::unlink(path.c_str()) != 0)
    fail("{}: cannot delete: {}", printable(path), errno_text(errno));
  return static_cast<uint64_t>(st.st_size);
}

}  // namespace moebius
