// SPDX-License-Identifier: Apache-2.0
// Parses MLX (section `quantization`, or quantization_config without a method): bits, group_size
// and mode for the whole model; keys that name modules give them numbers of their own, or false for
// a module left dense. Only weights are quantized.
#include <map>

#include "checkpoint/methods/schemes.h"

namespace moebius {
namespace {

struct MlxNumbers {
  int64_t bits = 4, group_size = 64;
  std::string mode = "affine";
};

Scheme mlx_scheme(const MlxNumbers& n) {
  Scheme s;
  s.format = Format::kMlx;
  const auto bits = static_cast<int>(n.bits);
  const bool affine = n.mode == "affine", nv = n.mode == "nvfp4";
  s.weights =
      quant_args(affine ? NumberKind::kInt : NumberKind::kFloat, bits,
                 nv ? Strategy::kTensorGroup : Strategy::kGroup, n.group_size, Dynamic::kStatic,
                 affine ? ""
                 : nv   ? "float8_e4m3fn"
                        : "uint8");
  s.weights->symmetric = !affine;
  s.weights->offsets = affine;
  return s;
}

class MlxRules : public MethodRules {
 public:
  MlxNumbers numbers;
  using Modules = std::map<std::string, std::optional<MlxNumbers>, std::less<>>;
  // Numbers of single modules; without a value: the module is dense.
  Modules modules;

  SchemeDecision decide(const StoredModule& m) const override {
    const auto own = find(m);
    const bool stated = own != modules.end() && own->second;
    const MlxNumbers& n = stated ? *own->second : numbers;
    std::string rule = fmt::format("mlx, {}", n.mode);
    if (stated) rule += fmt::format(", '{}'", printable(own->first, 120));
    return decided(mlx_scheme(n), std::move(rule));
  }

  std::string dense_by(std::string_view module) const override {
    const auto it = modules.find(module);
    if (it == modules.end() || it->second) return "";
    return fmt::format("'{}': false", printable(it->first, 120));
  }
  bool lists_dense() const override {
    return false;
    // Modules too narrow for a group are dense without being listed.
  }

 private:
  Modules::const_iterator find(const StoredModule& m) const {
    const auto it = modules.find(m.stored_name);
    return it != modules.end() ? it : modules.find(m.name);
  }
};

MlxNumbers read_mlx_numbers(const QuantFields& f, MlxNumbers n) {
  struct Mode {
    std::string_view name;
    int64_t bits, group_size;
  };
  constexpr Mode kModes[] = {
      {"affine", 4, 64}, {"mxfp4", 4, 32}, {"mxfp8", 8, 32}, {"nvfp4", 4, 16}};
  const std::string name = f.lower_text("mode").value_or(n.mode);
  const Mode* mode = nullptr;
  for (const Mode& m : kModes)
    if (m.name == name) mode = &m;
  if (mode == nullptr) f.reject("mode", "expected affine, mxfp4, mxfp8 or nvfp4");
  if (name != n.mode) n = {mode->bits, mode->group_size, name};
  n.bits = f.integer("bits").value_or(n.bits);
  n.group_size = f.integer("group_size").value_or(n.group_size);
  if (f.boolean("quantize_input").value_or(false))
    f.reject("quantize_input", "quantized inputs of MLX are not run; expected weights alone");
  if (name != "affine") {
    if (n.bits != mode->bits) f.reject("bits", fmt::format("{} has {} bits", name, mode->bits));
    if (n.group_size != mode->group_size)
      f.reject("group_size", fmt::format("{} has groups of {}", name, mode->group_size));
    return n;
  }
  if (n.bits < 2 || n.bits > 8 || n.bits == 7) f.reject("bits", "expected 2, 3, 4, 5, 6 or 8");
  if (n.group_size < 1 || n.group_size > 1 << 20)
    f.reject("group_size", "expected a positive number, as 32, 64 or 128");
  return n;
}

bool is_module(const Json& value) { return value.is_object() || value.is_bool(); }

}  // namespace

void parse_mlx(const MethodConfig& c) {
  // Entries of modules are members beside the model's numbers.
  Json own = Json::object();
  constexpr size_t kMost = 1'000'000;
  auto rules = std::make_shared<MlxRules>();
  for (const auto& [key, value] : c.section.members())
    if (!is_module(value) || key.find('.') == std::string::npos) own.set(key, value);
  const QuantFields f(own, c.out.path, c.context,
                      "quant_method bits group_size mode quantize_input lm_head embed_tokens");
  rules->numbers = read_mlx_numbers(f, {});
  for (const auto& [key, value] : c.section.members()) {
    const bool top = key == "lm_head" || key == "embed_tokens";
    if (!is_module(value) || (key.find('.') == std::string::npos && !top)) continue;
    if (rules->modules.size() >= kMost)
      f.reject("", fmt::format("at most {} modules are accepted", kMost));
    std::optional<MlxNumbers> numbers;
    if (value.is_object())
      numbers = read_mlx_numbers(
          QuantFields(value, fmt::format("{}.{}", c.out.path, printable(key, 120)), c.context,
                      "bits group_size mode quantize_input global_scale"),
          rules->numbers);
    else if (value.as_bool())
      numbers = rules->numbers;
    rules->modules.emplace(key, numbers);
  }
  c.out.rules = std::move(rules);
}

}  // namespace moebius
