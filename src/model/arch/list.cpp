// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "model/arch/arch.h"
#include "model/arch/layer_fields.h"

namespace moebius {

#define MOEBIUS_RUNS(key, title, spec, ...) DecoderSpec spec(const ModelConfig&);
#define MOEBIUS_LACKS(...)
#include "checkpoint/families.inc"

namespace {

#define MOEBIUS_RUNS(key, title, spec, ...) {key, title, spec},
#define MOEBIUS_LACKS(...)
constexpr Architecture kArchitectures[] = {
#include "checkpoint/families.inc"
};

// Lists families of which only blocks, experts or names are known, with what they would need to
// run.
#define MOEBIUS_RUNS(...)
#define MOEBIUS_LACKS(key, needs, ...) {key, needs},
constexpr std::pair<std::string_view, std::string_view> kMissing[] = {
#include "checkpoint/families.inc"
};

// Lists the fields that single layers of a family may have of their own (layer_fields.h).
constexpr std::pair<std::string_view, std::string_view> kLayerFields[] = {
    {"gemma4", "head_dim num_key_value_heads"},
    {"step3p7", "num_attention_heads"},
};

std::string_view layer_fields_of(std::string_view family) {
  for (const auto& [key, names] : kLayerFields)
    if (key == family) return names;
  return "";
}

std::string missing_of(std::string_view family) {
  for (const auto& [key, what] : kMissing)
    if (key == family) return fmt::format(": it needs {}", what);
  return "";
}

// Checks rotations: features turn in pairs; if no layer rotates, heads may have any size.
void check_rotations(const DecoderSpec& s) {
  const bool rotates = std::any_of(s.layers.begin(), s.layers.end(), [](const LayerSpec& layer) {
    const KeyMixer* m = layer.keys();
    return m != nullptr && std::any_of(m->rows.begin(), m->rows.end(), [](const LayerOp& op) {
             return op.kind == RowOpKind::kRotate;
           });
  });
  const auto check = [](const RopeSpec& rope) {
    if (rope.dims % 2 != 0)
      fail("config.json: {} rotated features per head; expected an even number", rope.dims);
  };
  if (!rotates) return;
  check(s.rope);
  std::for_each(s.other_ropes.begin(), s.other_ropes.end(), check);
}

}  // namespace

std::span<const Architecture> architectures() { return kArchitectures; }

DecoderSpec decoder_spec(const ModelConfig& config) {
  for (const Architecture& a : kArchitectures) {
    if (a.family != config.family) continue;
    refuse_layer_fields(config, layer_fields_of(a.family));
    DecoderSpec spec = a.spec(config);
    check_rotations(spec);
    return spec;
  }
  fail_at({"unsupported", "", "", "", "architectures"},
          "architecture {} (model_type {}) cannot be run as a whole model{}; `moebius help "
          "architectures` lists those that can",
          printable(config.architecture), printable(config.model_type), missing_of(config.family));
}

}  // namespace moebius
