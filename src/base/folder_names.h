// SPDX-License-Identifier: Apache-2.0
// Lists folders with opendir: std::filesystem's iterator ends the process if there is no memory for
// the next path.
#pragma once
#include <dirent.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace moebius {

// Returns the names of a folder's entries without "." and "..", in the system's order; empty if the
// folder cannot be read.
inline std::vector<std::string> folder_names(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> list(::opendir(folder.c_str()), ::closedir);
  std::vector<std::string> names;
  while (const dirent* entry = list != nullptr ? ::readdir(list.get()) : nullptr) {
    std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(std::move(name));
  }
  return names;
}

}  // namespace moebius
