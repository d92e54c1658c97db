// SPDX-License-Identifier: Apache-2.0
// Finds the layer of a folder that predicts the token after the next. Two forms of names are known:
// in DeepSeek's and GLM's it is the layer after the last one, in Qwen's its names begin with "mtp".
#include <algorithm>

#include "base/error.h"
#include "checkpoint/checkpoint.h"

namespace moebius {
namespace {

// Returns the names of the predictor in the form that a tensor's name shows; an empty stem: the
// tensor belongs to none.
PredictorNames names_by(std::string_view tensor, int64_t layers) {
  const auto before = [&](const std::string& words, std::string_view last) {
    const size_t at = tensor.find(words);
    const bool found = at != std::string_view::npos && (at == 0 || tensor[at - 1] == '.');
    return std::string(found ? tensor.substr(0, at + words.size() - last.size()) : "");
  };
  if (const std::string stem = before(fmt::format("layers.{}.eh_proj.", layers), "eh_proj.");
      !stem.empty())
    return {stem, stem};
  if (const std::string stem = before("mtp.fc.", "fc."); !stem.empty())
    return {stem, stem + "layers.0."};
  return {};
}

}  // namespace

PredictorNames Checkpoint::predictor_names() const {
  const Family* family = family_by_key(config_.family);
  if (layout_of(family).double_layers) return {};
  for (const UnusedTensor& t : unused_)
    if (t.prediction)
      if (PredictorNames names = names_by(t.name, config_.layers); !names.stem.empty())
        return names;
  return {};
}

bool Checkpoint::has_predictor() const { return !predictor_names().stem.empty(); }

Checkpoint Checkpoint::open_predictor() const {
  Checkpoint c;
  c.folder_ = folder_;
  c.config_ = config_;
  c.quant_ = quant_;
  c.generation_ = generation_;
  ModelConfig& config = c.config_;
  config.predictor = predictor_names();
  if (config.predictor.stem.empty()) {
    const auto unknown = std::find_if(unused_.begin(), unused_.end(),
                                      [](const UnusedTensor& t) { return t.prediction; });
    fail_at({"unsupported", folder_, "", "", ""}, "{}: has no layer for multi-token prediction{}",
            folder_,
            unknown == unused_.end()
                ? std::string()
                : fmt::format(" whose form is known (one of its tensors is {})",
                              printable(unknown->name)));
  }
  const auto own = std::make_shared<std::vector<TensorInfo>>();
  bool experts = false;
  for (const TensorInfo& t : store_->tensors()) {
    if (!t.name.starts_with(config.predictor.stem)) continue;
    own->push_back(t);
    experts = experts || t.name.find(".experts.") != std::string::npos;
  }
  config.layers = 1;
  config.wide_layers = 0;
  config.moe_layer = {experts};
  config.layer_types.clear();
  for (std::vector<float>* limits : {&config.routed_limits, &config.other_limits})
    if (!limits->empty()) *limits = {limits->back()};
  const auto kept = std::make_shared<std::pair<decltype(store_), decltype(own)>>(store_, own);
  c.store_ = {kept, kept->first.get()};  // the tensors live as long as the store
  placing_errors(at_file("file", folder_), [&] { c.understand(*own); });
  return c;
}

}  // namespace moebius
