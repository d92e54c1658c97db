// SPDX-License-Identifier: Apache-2.0
// The scheme of each module, from rules and tensors together: the config's rules decide, and what
// is stored has the last word.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "checkpoint/module_map.h"

namespace moebius {

// Many modules give the same warning: one line each, with the number of modules.
class RepeatedWarnings {
 public:
  void add(const std::string& module,
           const std::string& text);  // digits between dots of `module` become '*'
  void append_to(std::vector<std::string>& warnings) const;

 private:
  struct Entry {
    std::string first;
    size_t count = 0;
  };
  std::map<std::pair<std::string, std::string>, Entry> entries_;
};

// True if any tensor of the module only makes sense for a quantized one.
bool stores_quantized(const ModuleTensors& tensors);

// Fills decision, plan, supported, reason and bytes of a module with a matrix.
void decide_and_plan(MappedModule& mapped, const QuantConfig& quant, const TensorStore& store,
                     std::vector<UnusedTensor>& unused, RepeatedWarnings& warnings);
// The same for vectors and parameters.
void plan_vector(Module& module);

// "model.layers.3.mlp.experts.17.up_proj" -> "model.layers.*.mlp.experts.*.up_proj"
std::string collapse_indices(std::string_view name);
// Bytes of the referenced piece.
uint64_t bytes_of(const TensorRef& ref);

}  // namespace moebius
