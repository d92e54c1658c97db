// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/folder.h"

#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "apps/cli/manners.h"
#include "apps/cli/places.h"
#include "base/error.h"
#include "base/file.h"
#include "gguf/model_files.h"
#include "runtime/program_folder.h"

namespace moebius {
namespace {

// Returns the current revision's folder: the hub's cache keeps revisions in snapshots/<revision>,
// and the name of the current one in refs/main.
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
    fail("{}: is a repository of the Hugging Face cache; name one of the folders in {}",
         printable(folder), printable(snapshots));
  note("{} is a repository of the Hugging Face cache; its revision {} is used", printable(folder),
       revision);
  return snapshot;
}

// Implements --no-follow for the files that are read beside the checkpoint's own, such as tokenizer
// and templates.
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
  const std::string models = model_place(program_folder(), kBuildPaths);
  const std::string folder = join_path(models, "moebius-tiny-w4a8");
  if (path_exists(join_path(folder, "config.json"))) return folder;
  fail("no folder given, and the bundled model is not in {}", printable(models));
}

std::string usable_folder(const std::string& typed) {
  if (typed.empty()) fail("the name of the folder is empty");
  struct stat st {};
  if (::stat(typed.c_str(), &st) == 0) {
    if (S_ISDIR(st.st_mode)) {
      if (::access(typed.c_str(), X_OK) != 0)
        fail("{}: {}", printable(typed), open_failure(typed, errno));
      const std::string folder = current_snapshot(typed);
      if (manners().no_follow) refuse_links_out(folder);
      return folder;
    }
    if (is_gguf_file(typed)) return typed;
    fail("{}: is not a folder; expected the folder that has config.json, or a GGUF file",
         printable(typed));
  }
  const int code = errno;
  if (code == ENOENT && !path_exists(typed)) {
    if (typed.find_first_of("./~") == 0) fail("{}: there is no such folder", printable(typed));
    fail(
        "{}: there is no such folder; `hf download ORG/NAME --local-dir DIR` gets a model from "
        "Hugging Face",
        printable(typed));
  }
  fail("{}: {}", printable(typed), open_failure(typed, code));
}

Checkpoint open_checkpoint(const std::string& folder) {
  return Checkpoint::open(folder, manners().no_follow ? Links::kInside : Links::kAnywhere);
}

}  // namespace moebius
