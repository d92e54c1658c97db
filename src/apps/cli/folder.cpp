// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/folder.h"

#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <sstream>

#include "apps/cli/manners.h"
#include "apps/cli/places.h"
#include "apps/cli/suggest.h"
#include "base/error.h"
#include "base/file.h"
#include "gguf/model_files.h"
#include "runtime/program_folder.h"

namespace moebius {
namespace {

// Returns whether a name looks like a repository on the hub, as "Qwen/Qwen3-30B-A3B" does.
bool looks_like_repository(const std::string& name) {
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.' ||
           c == '/';
  };
  return std::count(name.begin(), name.end(), '/') == 1 && name.find("..") == std::string::npos &&
         std::isalnum(static_cast<unsigned char>(name.front())) != 0 && name.back() != '/' &&
         std::all_of(name.begin(), name.end(), plain);
}

bool folder_exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

// Returns the names of the folders in a folder, sorted.
std::vector<std::string> folders_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error))
    if (entry.is_directory(error)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

// Returns the path that a misspelt one probably means, part by part; empty: nothing is near.
std::string nearest_path(const std::string& typed) {
  std::string found;
  std::istringstream parts(typed);
  for (std::string part; std::getline(parts, part, '/');) {
    std::string next = found + part;
    if (!part.empty() && !folder_exists(next)) {
      const std::string near = nearest(part, folders_in(found.empty() ? "." : found));
      if (near.empty()) return "";
      next = found + near;
    }
    found = next + "/";
  }
  if (!found.empty()) found.pop_back();
  return found;
}

bool has_config(const std::string& folder) { return path_exists(join_path(folder, "config.json")); }

// Returns the folders below, at most two levels down, that hold a checkpoint.
std::vector<std::string> checkpoints_below(const std::string& folder) {
  std::vector<std::string> found;
  for (const std::string& name : folders_in(folder)) {
    const std::string below = join_path(folder, name);
    // A repository in the hub's cache counts, too.
    if (has_config(below) || path_exists(join_path(below, "snapshots"))) found.push_back(name);
    for (const std::string& deeper : folders_in(below))
      if (has_config(join_path(below, deeper))) found.push_back(join_path(name, deeper));
  }
  return found;
}

// Returns the first names of a list, and the number of the others.
std::string first_of(const std::vector<std::string>& names) {
  constexpr size_t kShown = 8;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i)
    text += (i == 0 ? "" : ", ") + printable(names[i]);
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

// Throws Error for a folder that is no model but contains some.
void check_not_a_parent(const std::string& folder) {
  if (has_config(folder) || has_model_text(folder, "tokenizer.json")) return;
  const std::vector<std::string> below = checkpoints_below(folder);
  if (below.empty()) return;
  fail("{}: has no config.json; {} below it: {}", printable(folder),
       below.size() == 1 ? "there is a model" : "there are models", first_of(below));
}

// Returns what the folder that a mistyped path leads through has: its models, else its folders.
std::string what_is_beside(std::string path) {
  while (path.ends_with('/')) path.pop_back();
  const size_t slash = path.rfind('/');
  const std::string parent =
      path.substr(0, slash == std::string::npos ? 0 : std::max<size_t>(slash, 1));
  if (parent.empty() || !folder_exists(parent)) return "";
  std::vector<std::string> names = checkpoints_below(parent);
  if (names.empty()) names = folders_in(parent);
  return fmt::format("; {} has {}", printable(parent),
                     names.empty() ? "no folder" : first_of(names));
}

// Returns the command that downloads what was typed, where that is a name of the hub (ORG/NAME,
// hf://ORG/NAME, hf.co/ORG/NAME:Q4, its page) or of ollama's library (qwen3:30b); else "".
std::string download_command(std::string typed) {
  if (typed.find_first_of("./~") == 0 || typed.find(' ') != std::string::npos) return "";
  bool foreign = false;
  for (const std::string_view begin : {"https://", "hf://", "hf.co/", "huggingface.co/"})
    if (typed.starts_with(begin)) typed.erase(0, begin.size()), foreign = true;
  if (const size_t tag = typed.find(':'); tag != std::string::npos) {
    typed.erase(tag);
    foreign = true;
  }
  const size_t slash = typed.find('/');
  if (foreign && slash != std::string::npos) typed = typed.substr(0, typed.find('/', slash + 1));
  const bool repository = looks_like_repository(typed);
  const std::string owner = typed.substr(0, slash);
  if (!foreign && (!repository || owner == "models" || folder_exists(owner))) return "";
  return fmt::format("`hf download {} --local-dir DIR`",
                     repository ? printable(typed) : "ORG/NAME");
}

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
      check_not_a_parent(folder);
      if (manners().no_follow) refuse_links_out(folder);
      return folder;
    }
    if (is_gguf_file(typed)) return typed;
    fail("{}: is not a folder; expected the folder that has config.json, or a GGUF file",
         printable(typed));
  }
  const int code = errno;
  if (const std::string near = code == ENOENT ? nearest_path(typed) : ""; !near.empty())
    fail("{}: there is no such folder; did you mean {}?", printable(typed), printable(near));
  if (const std::string get = code == ENOENT ? download_command(typed) : ""; !get.empty())
    fail("{}: there is no such folder; download it with {}, then name DIR", printable(typed), get);
  if (code == ENOENT && !path_exists(typed))
    fail("{}: there is no such folder{}", printable(typed), what_is_beside(typed));
  fail("{}: {}", printable(typed), open_failure(typed, code));
}

Checkpoint open_checkpoint(const std::string& folder, const Stated& stated) {
  return Checkpoint::open(folder, manners().no_follow ? Links::kInside : Links::kAnywhere, stated);
}

}  // namespace moebius
