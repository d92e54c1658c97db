// SPDX-License-Identifier: Apache-2.0
#include "apps/folder.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"
#include "base/file.h"

namespace moebius {
namespace {

// "Qwen/Qwen3-30B-A3B": two words of a repository on the hub.
bool looks_like_repository(const std::string& name) {
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.' ||
           c == '/';
  };
  return std::count(name.begin(), name.end(), '/') == 1 && name.find("..") == std::string::npos &&
         std::isalnum(static_cast<unsigned char>(name.front())) != 0 && name.back() != '/' &&
         std::all_of(name.begin(), name.end(), plain);
}

}  // namespace

std::string bundled_folder() {
  for (const char* root : {MOEBIUS_SOURCE_DIR, MOEBIUS_INSTALL_DATADIR}) {
    const std::string path = std::string(root) + "/models/moebius-tiny-w4a8";
    if (path_exists(join_path(path, "config.json"))) return path;
  }
  fail("no folder given, and the bundled model is neither in {}/models nor in {}/models",
       MOEBIUS_SOURCE_DIR, MOEBIUS_INSTALL_DATADIR);
}

std::string usable_folder(const std::string& typed) {
  if (typed.empty()) fail("the name of the folder is empty");
  struct stat st {};
  if (::stat(typed.c_str(), &st) == 0) {
    if (S_ISDIR(st.st_mode)) return typed;
    fail("{}: is not a folder; expected the folder that holds config.json", printable(typed));
  }
  const int code = errno;
  if (code == ENOENT && looks_like_repository(typed))
    fail("{0}: there is no such folder; download it with `hf download {0} --local-dir DIR`",
         printable(typed));
  if (code == ENOENT) fail("{}: there is no such folder", printable(typed));
  fail("{}: cannot open: {}", printable(typed), errno_text(code));
}

Checkpoint open_checkpoint(const std::string& folder) { return Checkpoint::open(folder); }

}  // namespace moebius
