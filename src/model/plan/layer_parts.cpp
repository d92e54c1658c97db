// SPDX-License-Identifier: Apache-2.0
#include "model/plan/layer_parts.h"

#include <algorithm>

#include "base/error.h"
#include "checkpoint/families.h"
#include "checkpoint/tensor_name.h"

namespace moebius {
namespace {

// Returns a layer's prefix, such as "model.layers.7.", whatever comes before the number.
std::string layer_stem(const Checkpoint& checkpoint, size_t index) {
  for (const Module& m : checkpoint.modules())
    if (m.layer >= 0)
      if (const std::string_view before = before_layers(m.name); before.size() < m.name.size()) {
        const size_t word = m.name.find('.', before.size());
        return fmt::format("{}.{}.", m.name.substr(0, word), index);
      }
  fail("{}: has no layers", checkpoint.folder());
}

}  // namespace

LayerParts::LayerParts(const Checkpoint& checkpoint, size_t index)
    : checkpoint_(checkpoint), index_(index) {
  const Family* family = family_by_key(checkpoint.config().family);
  const PredictorNames& predictor = checkpoint.config().predictor;
  if (!predictor.stem.empty()) {
    prefix_ = predictor.layer;
    return;
  }
  const bool halves = layout_of(family).double_layers;
  prefix_ = layer_stem(checkpoint, halves ? index / 2 : index);
  if (halves) half_ = std::to_string(index % 2);
}

// Returns the full name; "self_attn.q_proj" is "...self_attn.1.q_proj" in the second half of a
// double layer.
std::string LayerParts::full(std::string_view suffix) const {
  if (half_.empty()) return prefix_ + std::string(suffix);
  const size_t word = std::min(suffix.find('.'), suffix.size());
  return fmt::format("{}{}.{}{}", prefix_, suffix.substr(0, word), half_, suffix.substr(word));
}

const Module* LayerParts::find(std::string_view suffix) const {
  return checkpoint_.find_module(full(suffix));
}

const Module& LayerParts::require(std::string_view suffix) const {
  const Module* m = find(suffix);
  if (m == nullptr) fail("{}: {} is missing", checkpoint_.folder(), full(suffix));
  return *m;
}

bool LayerParts::has(const std::string& tensor) const {
  return checkpoint_.store().find(full(tensor)) != nullptr;
}

std::string LayerParts::first_of(std::string_view words) const {
  std::string found, first;
  for_each_word(words, [&](std::string_view view, bool) {
    const std::string word(view);
    if (first.empty()) first = word;
    if (found.empty() && (find(word) != nullptr || has(word) || has(word + ".weight")))
      found = word;
  });
  return found.empty() ? first : found;
}

std::vector<float> LayerParts::values(const std::string& suffix, size_t count) const {
  const TensorInfo& t = checkpoint_.store().require(full(suffix));
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
