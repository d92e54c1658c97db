// SPDX-License-Identifier: Apache-2.0
// Fuzzes the way from a config and a list of tensors to modules. Input: config.json, a line "---",
// then one tensor per line: name, dtype and dimensions separated by spaces. Whatever comes, it is
// an Error or a map in which every tensor is accounted for.
#include <cstdint>
#include <cstdlib>
#include <set>
#include <sstream>

#include "base/checked.h"
#include "base/error.h"
#include "checkpoint/module_map.h"
#include "fuzz/target.h"

namespace moebius::fuzz_module_map {
namespace {

std::vector<TensorInfo> read_tensors(std::istringstream& lines) {
  std::vector<TensorInfo> out;
  std::set<std::string> names;
  std::string line;
  while (std::getline(lines, line) && out.size() < 2000) {
    std::istringstream words(line);
    TensorInfo t;
    std::string dtype;
    if (!(words >> t.name >> dtype) || !dtype_from_name(dtype) || !names.insert(t.name).second)
      continue;
    t.dtype = *dtype_from_name(dtype);
    uint64_t d = 0, elements = 1;
    bool fits = true;
    while (words >> d && t.shape.size() < 6) {
      t.shape.push_back(d);
      const auto product = checked_mul(elements, d);
      fits = fits && product.has_value();
      elements = product.value_or(0);
    }
    // What the safetensors reader would have proven: the tensor has its bytes in a file.
    const auto bits = checked_mul(elements, bits_of(t.dtype));
    if (!fits || !bits || *bits / 8 > (uint64_t{1} << 22)) continue;
    t.bytes = *bits / 8;
    out.push_back(std::move(t));
  }
  return out;
}

void check_accounting(const std::vector<TensorInfo>& tensors, const ModuleMap& map) {
  std::set<std::string_view> seen;
  for (const MappedModule& m : map.modules)
    for (const TensorRef& ref : m.module.plan.tensors.by_role)
      if (ref) seen.insert(ref.info->name);
  for (const UnusedTensor& u : map.unused) {
    seen.insert(u.name);
    if (u.reason.empty()) std::abort();
  }
  for (const TensorInfo& t : tensors)
    if (!seen.contains(t.name)) std::abort();
}

}  // namespace

FUZZ_TARGET(module_map) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const size_t cut = text.find("\n---\n");
  if (cut == std::string::npos) return 0;
  std::istringstream lines(text.substr(cut + 5));
  const std::vector<TensorInfo> tensors = read_tensors(lines);
  try {
    std::vector<std::string> warnings;
    const ModelConfig config =
        ModelConfig::parse(parse_json(text.substr(0, cut), "config.json"), "config.json", warnings);
    if (config.experts > 4096) return 0;  // bounds the fuzzer's memory, not the product's
    const ModuleMap map = map_modules(tensors, config, "folder", [](const TensorInfo& t) {
      return "model.safetensors: " + printable(t.name);
    });
    check_accounting(tensors, map);
  } catch (const Error&) {
  }
  return 0;
}

}  // namespace moebius::fuzz_module_map
