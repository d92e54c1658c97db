// SPDX-License-Identifier: Apache-2.0
// The folder of the program that runs, links resolved: what belongs to it is found from there, wherever it was moved.
#pragma once
#include <filesystem>
#include <string>

namespace moebius {

inline std::string program_folder() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
}

}  // namespace moebius
