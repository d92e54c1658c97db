// SPDX-License-Identifier: Apache-2.0
// Returns the folder of the running program with links resolved. Files that belong to the program
// are found from there, wherever it was moved.
#pragma once
#include <filesystem>
#include <string>

namespace moebius {

inline std::string program_folder() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
}

}  // namespace moebius
