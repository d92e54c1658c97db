// SPDX-License-Identifier: Apache-2.0
// Decides the scheme of each module: the config's rules propose it, and the tensors that are stored
// have the last word.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "checkpoint/module_map.h"

namespace moebius {

// Collects warnings and prints equal ones of many modules as one line with the number of modules.
class RepeatedWarnings {
 public:
  // Adds a warning; digits between dots of `module` are replaced by '*'
  void add(const std::string& module, const std::string& text);
  void append_to(std::vector<std::string>& warnings) const;

 private:
  struct Entry {
    std::string first;
    size_t count = 0;
  };
  std::map<std::pair<std::string, std::string>, Entry> entries_;
};

// Returns true if any tensor of the module occurs in quantized modules only.
bool stores_quantized(const ModuleTensors& tensors);

// Sets decision, plan, supported, reason and bytes of a module with a matrix.
void decide_and_plan(MappedModule& mapped, const QuantConfig& quant, const TensorStore& store,
                     std::vector<UnusedTensor>& unused, RepeatedWarnings& warnings);
// Sets plan, supported, reason and bytes of a vector or another parameter.
void plan_vector(Module& module);

// Replaces indices by stars: returns "model.layers.*.mlp.experts.*.up_proj" for
// "model.layers.3.mlp.experts.17.up_proj".
std::string collapse_indices(std::string_view name);
// Returns the bytes that the referenced piece takes in the file.
uint64_t bytes_of(const TensorRef& ref);

}  // namespace moebius
