// SPDX-License-Identifier: Apache-2.0
// Makes folders with random weights in the sizes of published models, W4A8 in groups of 128, for
// timing whole layers.
#pragma once
#include <string>
#include <string_view>

namespace moebius {

// Returns the number of layers of the published model.
size_t synthetic_layers(std::string_view name);

// Makes a temporary folder below $TMPDIR or /tmp, named by the model and its layers, that is
// deleted with this object.
class SyntheticFolder {
 public:
  // vocabulary and experts: 0: the model's own numbers. Throws Error and deletes what was written.
  // After Ctrl-C (apps/cli/interrupt.h) the remaining layers are not written.
  SyntheticFolder(std::string_view name, size_t layers, size_t vocabulary = 0, size_t experts = 0);
  ~SyntheticFolder();
  SyntheticFolder(const SyntheticFolder&) = delete;
  SyntheticFolder& operator=(const SyntheticFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string root_, path_;
};

}  // namespace moebius
