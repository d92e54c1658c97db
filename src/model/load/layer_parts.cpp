// SPDX-License-Identifier: Apache-2.0
#include "model/load/layer_parts.h"

#include "base/error.h"

namespace moebius {
namespace {

// The name of layer `index`'s member `suffix`, whatever prefix the exporter used ("model.",
// "language_model.model.", ...).
std::string layer_name(const Checkpoint& checkpoint, size_t index, std::string_view suffix) {
  for (const Module& m : checkpoint.modules())
    if (m.layer >= 0)
      if (const size_t at = m.name.find("layers."); at != std::string::npos)
        return fmt::format("{}layers.{}.{}", m.name.substr(0, at), index, suffix);
  fail("{}: has no layers", checkpoint.folder());
}

}  // namespace

LayerParts::LayerParts(const Checkpoint& checkpoint, size_t index)
    : checkpoint_(checkpoint), index_(index), prefix_(layer_name(checkpoint, index, "")) {}

const Module* LayerParts::find(std::string_view suffix) const {
  return checkpoint_.find_module(prefix_ + std::string(suffix));
}

const Module& LayerParts::require(std::string_view suffix) const {
  const Module* m = find(suffix);
  if (m == nullptr) fail("{}: {}{} is missing", checkpoint_.folder(), prefix_, suffix);
  return *m;
}

bool LayerParts::has(const std::string& tensor) const {
  return checkpoint_.store().find(prefix_ + tensor) != nullptr;
}

std::vector<float> LayerParts::values(const std::string& suffix, size_t count) const {
  const TensorInfo& t = checkpoint_.store().require(prefix_ + suffix);
  std::vector<float> v = read_floats(checkpoint_.store(), t);
  if (v.size() != count)
    fail("{} is {}; expected {} values", checkpoint_.store().where(t), describe(t), count);
  return v;
}

std::vector<float> LayerParts::values_if_any(const std::string& suffix, size_t count) const {
  return has(suffix) ? values(suffix, count) : std::vector<float>();
}

Norm LayerParts::norm(const std::string& suffix, NormKind kind, float epsilon, size_t count) const {
  return {kind, epsilon, values(suffix + ".weight", count), values_if_any(suffix + ".bias", count)};
}

void expect_width(const Module& m, size_t N, const char* what) {
  if (m.plan.N != N)
    fail("{} has {} outputs; the config's {} ask for {}", m.name, m.plan.N, what, N);
}

}  // namespace moebius
