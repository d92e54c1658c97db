// SPDX-License-Identifier: Apache-2.0
// Modules and parameters of one layer of a checkpoint, by the ends of their names.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "nn/norm.h"

namespace moebius {

class LayerParts {
 public:
  LayerParts(const Checkpoint& checkpoint, size_t index);
  const Checkpoint& checkpoint() const { return checkpoint_; }
  size_t index() const { return index_; }
  const Module* find(std::string_view suffix) const;     // null: not there
  const Module& require(std::string_view suffix) const;  // throws Error naming it
  bool has(const std::string& tensor) const;
  // Of some words the first that names a module, a tensor or a weight here; none does: the first.
  std::string first_of(std::string_view words) const;
  // A parameter of `count` values, whatever its shape; throws Error.
  std::vector<float> values(const std::string& suffix, size_t count) const;
  std::vector<float> values_if_any(const std::string& suffix, size_t count) const;
  Norm norm(const std::string& suffix, NormKind kind, float epsilon, size_t count) const;
  std::string full(std::string_view suffix) const;  // name

 private:
  const Checkpoint& checkpoint_;
  size_t index_;
  std::string prefix_, half_;  // half_: "0" or "1" where a layer of the file is two of the model
};

void expect_width(const Module& m, size_t N, const char* what);

}  // namespace moebius
