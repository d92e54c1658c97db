// SPDX-License-Identifier: Apache-2.0
#include "apps/folder.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "apps/manners.h"
#include "apps/places.h"
#include "base/error.h"
#include "base/file.h"
#include "runtime/program_folder.h"

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

// The hub's cache keeps revisions of a repository in snapshots/<revision>, and the name of the
// current one in refs/main.
std::string current_snapshot(const std::string& folder) {
  const std::string snapshots = join_path(folder, "snapshots");
  if (path_exists(join_path(folder, "config.json")) || !path_exists(snapshots)) return folder;
  const std::string ref = join_path(folder, "refs/main");
  std::string revision;
  if (path_exists(ref)) revision = read_text_file(ref, 1024);
  revision.erase(std::find_if(revision.begin(), revision.end(),
                              [](unsigned char c) { return std::isalnum(c) == 0; }),
                 revision.end());
  const std::string snapshot = join_path(snapshots, revision);
  if (revision.empty() || !path_exists(snapshot))
    fail("{}: is a repository of the hub's cache; name one of the folders in {}", printable(folder),
         printable(snapshots));
  note("{} is a repository of the hub's cache; its revision {} is used", printable(folder),
       revision);
  return snapshot;
}

// --no-follow, for the files that are read beside the checkpoint's own: tokenizer, templates ...
void refuse_links_out(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string kind = entry.path().extension().string();
    if (entry.is_symlink(error) && (kind == ".json" || kind == ".jinja" || kind == ".model"))
      file_in_folder(folder, entry.path().filename().string(), Links::kInside);
  }
}

}  // namespace

std::string bundled_folder() {
  const std::string models = model_place(program_folder(), kBuildPlaces);
  const std::string folder = join_path(models, "moebius-tiny-w4a8");
  if (path_exists(join_path(folder, "config.json"))) return folder;
  fail("no folder given, and the bundled model is not in {}", printable(models));
}

std::string usable_folder(const std::string& typed) {
  if (typed.empty()) fail("the name of the folder is empty");
  struct stat st {};
  if (::stat(typed.c_str(), &st) == 0) {
    if (S_ISDIR(st.st_mode)) {
      const std::string folder = current_snapshot(typed);
      if (manners().no_follow) refuse_links_out(folder);
      return folder;
    }
    fail("{}: is not a folder; expected the folder that holds config.json", printable(typed));
  }
  const int code = errno;
  if (code == ENOENT && looks_like_repository(typed))
    fail("{0}: there is no such folder; download it with `hf download {0} --local-dir DIR`",
         printable(typed));
  if (code == ENOENT && !path_exists(typed)) fail("{}: there is no such folder", printable(typed));
  fail("{}: {}", printable(typed), open_failure(typed, code));
}

Checkpoint open_checkpoint(const std::string& folder, const Stated& stated) {
  return Checkpoint::open(folder, manners().no_follow ? Links::kInside : Links::kAnywhere, stated);
}

}  // namespace moebius
