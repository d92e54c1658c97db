// SPDX-License-Identifier: Apache-2.0
// Finds modules and parameters of one layer of a checkpoint by the ends of their names.
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
  // Returns the module whose name ends so; null if there is none.
  const Module* find(std::string_view suffix) const;
  // Returns the module whose name ends so. Throws Error that names it if there is none.
  const Module& require(std::string_view suffix) const;
  bool has(const std::string& tensor) const;
  // Returns the first of some words that names a module, a tensor or a weight here, or the first
  // word if none does.
  std::string first_of(std::string_view words) const;
  // Reads a parameter of `count` values of any shape. Throws Error for another count; values() also
  // if it is missing, where values_if_any() returns nothing.
  std::vector<float> values(const std::string& suffix, size_t count) const;
  std::vector<float> values_if_any(const std::string& suffix, size_t count) const;
  Norm norm(const std::string& suffix, NormKind kind, float epsilon, size_t count) const;
  // Returns the full name of a member of the layer.
  std::string full(std::string_view suffix) const;

 private:
  const Checkpoint& checkpoint_;
  size_t index_;
  // prefix_: the names' beginning; half_: "0" or "1" if a layer of the file is two layers of the
  // model.
  std::string prefix_, half_;
};

void expect_width(const Module& m, size_t N, const char* what);

}  // namespace moebius
