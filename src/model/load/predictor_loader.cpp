// SPDX-License-Identifier: Apache-2.0
// Loads the layers of a predictor (predictor_plan.h) from its checkpoint.
#include "base/error.h"
#include "model/load/layer_set_loader.h"

namespace moebius {

void LayerSetLoader::load_predictor(LayerSet& to, const LayerSet& model, KvOffset rows) {
  begin(to);
  const size_t n = to.hidden;
  to.layers.push_back(std::make_unique<GraphLayer>());
  LayerLoader(c_, 0, *to.layers[0]).load();
  const PredictorNames& names = c_.checkpoint.config().predictor;
  const auto module = [&](std::string_view words) -> const Module& {
    const Module* found = nullptr;
    for_each_word(words, [&](std::string_view word, bool) {
      if (found == nullptr) found = c_.checkpoint.find_module(names.stem + std::string(word));
    });
    if (found == nullptr)
      fail("{}: no module is called {} and one of {}", c_.checkpoint.folder(), names.stem, words);
    return *found;
  };
  const auto norm = [&](std::string_view words) {
    const TensorStore& store = c_.checkpoint.store();
    const TensorInfo& weights = store.require(module(words).name + ".weight");
    Norm made{c_.spec.norm, c_.spec.norm_epsilon, read_floats(store, weights), {}};
    if (made.weight.size() != n)
      fail("{} is {}; expected [{}]", store.where(weights), describe(weights), n);
    return made;
  };
  Device& ends = to.devices.ends();
  to.predictor = std::make_unique<PredictorInput>();
  to.predictor->made = ends.row_store(n, rows);
  to.predictor->norms =
      ends.rows({norm_op({2, 0, n}, {0, 0, n}, norm("pre_fc_norm_embedding enorm")),
                 norm_op({2, n, n}, {1, 0, n}, norm("pre_fc_norm_hidden hnorm"))});
  const Module& join = module("fc eh_proj");
  if (join.plan.N != n || join.plan.K != 2 * n)
    fail("{} is [{}, {}]; expected [{}, {}]", join.name, join.plan.N, join.plan.K, n, 2 * n);
  to.predictor->join = ends.linear(c_.checkpoint, {{&join}}, c_.options);
  to.final_norm = ends.rows({norm_op({1, 0, n}, {0, 0, n}, norm("norm shared_head.norm"))});
  to.embedding = model.embedding;
  to.output = model.output;
  to.output_width = model.output_width;
  if (const Module* own = c_.checkpoint.find_module(names.stem + "shared_head.head")) {
    if (own->plan.N < to.vocab)
      fail("{} has {} outputs; expected at least {}", own->name, own->plan.N, to.vocab);
    to.output = ends.linear(c_.checkpoint, {{own}}, c_.options);
    to.output_width = own->plan.N;
  }
  to.file_bytes += read_;
}

}  // namespace moebius
