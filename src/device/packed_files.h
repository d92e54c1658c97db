// SPDX-License-Identifier: Apache-2.0
// Lists the files of a folder of packed weights, and deletes them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace moebius {

// Returns $XDG_CACHE_HOME/moebius/packed, else ~/.cache/moebius/packed. Throws Error if neither
// variable is set.
std::string default_pack_folder();

struct PackedFile {
  std::string name;
  uint64_t bytes = 0;
  // The file's own words, "MODEL packed by moebius VERSION for CPU; OPTIONS", which
  // "; checkpoint PATH" may follow, and parts of them; empty: unknown.
  std::string about, model, version, checkpoint;
  bool checkpoint_gone = false;
  std::string problem;  // why this program does not use the file; "": it may
};
// Lists the folder's files in order of their names, by their headers; none if there is no such
// folder. Throws Error if the folder cannot be read.
std::vector<PackedFile> list_packed_files(const std::string& folder);
// Deletes a packed file and returns its bytes. Throws Error for a file that is not of this
// program's making, or that a process uses.
uint64_t remove_packed_file(const std::string& folder, const std::string& name);

}  // namespace moebius
