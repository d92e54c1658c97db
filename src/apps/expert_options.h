// SPDX-License-Identifier: Apache-2.0
// Options of models whose experts do not fit memory: where their experts lie, and how much memory
// they get.
#pragma once
#include <functional>
#include <string>

#include "apps/cli/command.h"
#include "model/run/decoder.h"

namespace moebius {

struct ExpertDiskOptions {
  double gib = 0;  // memory for experts in GiB; 0: what memory has room for
  std::string cache = "auto", expected = "auto";
  bool no_pack = false;  // true: reads the checkpoint itself
  bool yes = false;      // true: packs without a question
};
void add_expert_options(Command& command, ExpertDiskOptions& options);
void take_expert_options(ModelOptions& to, const ExpertDiskOptions& options);

// Returns the folder in which a model that does not fit memory is packed, after asking at a
// terminal; "": its experts are read from the checkpoint. bytes: size of its packed weights.
std::string pack_folder_for(uint64_t bytes, const ExpertDiskOptions& options);

}  // namespace moebius
