// SPDX-License-Identifier: Apache-2.0
// Compares a quantized folder with its base on text: both models read the same windows, and their
// predictions are compared at every position. The base runs together with the folder, or alone and
// first, storing its results in a file.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "device/tap.h"
#include "model/run/scoring.h"

namespace moebius {

// Records which experts every row of a step chose, layer by layer.
class RoutingTap final : public ModuleTap {
 public:
  struct Layer {
    std::string block;
    size_t slots = 0;
    std::vector<int32_t> ids;  // [rows, slots] experts, ascending in each row
  };
  void linear(std::span<const Module* const>, const TappedRows&) override {}
  void block(const MoeBlock& block, const TappedRows& x, std::span<const int32_t> ids,
             size_t slots) override;
  void clear() { layers_.clear(); }
  const std::vector<Layer>& layers() const { return layers_; }
  std::vector<Layer>& layers() { return layers_; }

 private:
  std::vector<Layer> layers_;
};

struct KlFigures {
  double mean = 0, error = 0, p50 = 0, p90 = 0, p99 = 0, p999 = 0, max = 0;
};
struct RoutingFigures {
  std::string block;
  double agreement = 0;  // share of rows for which both models chose the same set of experts
};
struct EvalFigures {
  size_t positions = 0;
  MeanAndError loss, base_loss;
  KlFigures kl;            // divergence of the folder from the base, in nats
  double top1 = 0;         // share of positions at which both have the same best token
  double top_overlap = 0;  // mean share of the base's best `top` tokens that are among the folder's
  double rms_delta_p = 0;  // root mean square difference of the right token's probability
  double routing = 0;      // mean of `agreement` over layers; 1 if there are none
  std::vector<RoutingFigures> layers;
};

// A model, and the tap that records which experts its rows choose.
struct EvalModel {
  DecoderModel* model = nullptr;
  RoutingTap* tap = nullptr;
};

struct EvalSettings {
  size_t top = 10;
  ThreadPool* pool = nullptr;
  std::function<void(size_t positions)> advance;
};

EvalFigures evaluate(const Windows& windows, EvalModel model, EvalModel base,
                     const EvalSettings& settings);
// write_eval_cache() runs the base and stores its results in a file; evaluate_cached() compares the
// folder with that file. The file has the probabilities of the best 2048 tokens and the sum of all
// others, so figures for larger vocabularies are approximate.
void write_eval_cache(const std::string& path, const Windows& windows, EvalModel base,
                      const EvalSettings& settings);
// Compares the folder with the file's results. Throws Error if the file was made from other windows
// or another vocabulary.
EvalFigures evaluate_cached(const std::string& path, const Windows& windows, EvalModel model,
                            const EvalSettings& settings);

}  // namespace moebius
