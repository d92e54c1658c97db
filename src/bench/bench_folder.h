// SPDX-License-Identifier: Apache-2.0
// Folders of random weights in the sizes of published models, W4A8 in groups of 128, to time whole layers with.
#pragma once
#include <string>
#include <string_view>

namespace moebius {

size_t synthetic_layers(std::string_view name);  // of the published model

// A folder, named by the model and its layers, that is gone with its owner; below $TMPDIR, or /tmp.
class SyntheticFolder {
 public:
  // vocabulary, experts 0: the model's own. Throws Error; what was written is gone then. Ctrl-C
  // (apps/cli/interrupt.h) leaves out the layers that are not yet written.
  SyntheticFolder(std::string_view name, size_t layers, size_t vocabulary = 0, size_t experts = 0);
  ~SyntheticFolder();
  SyntheticFolder(const SyntheticFolder&) = delete;
  SyntheticFolder& operator=(const SyntheticFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string root_, path_;
};

}  // namespace moebius
