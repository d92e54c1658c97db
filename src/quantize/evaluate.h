// SPDX-License-Identifier: Apache-2.0
// What a quantized folder lost against its base, on text: both see the same windows, and every
// position is compared. The base runs beside the folder, or alone and first, into a file.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "device/tap.h"
#include "model/run/scoring.h"

namespace moebius {

// The experts of every row of a step, layer by layer.
class RoutingTap final : public ModuleTap {
 public:
  struct Layer {
    std::string block;
    size_t slots = 0;
    std::vector<int32_t> ids;  // [rows, slots], each row ascending
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
  double agreement = 0;  // share of rows with the same set of experts
};
struct EvalFigures {
  size_t positions = 0;
  MeanAndError loss, base_loss;
  KlFigures kl;            // of the folder from the base, in nats
  double top1 = 0;         // share of positions with the same best token
  double top_overlap = 0;  // mean share of the base's best `top` tokens that are among ours
  double rms_delta_p = 0;  // of the probability of the right token
  double routing = 0;      // mean over layers; 1 where there are none
  std::vector<RoutingFigures> layers;
};

// A model with the tap that sees its routing.
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
// The base alone, into a file; then the folder against that file. A file holds the probabilities of
// the best 2048 tokens and of all others together, so the figures of larger vocabularies are near.
void write_eval_cache(const std::string& path, const Windows& windows, EvalModel base,
                      const EvalSettings& settings);
// Throws Error where the file is of other windows or another vocabulary.
EvalFigures evaluate_cached(const std::string& path, const Windows& windows, EvalModel model,
                            const EvalSettings& settings);

}  // namespace moebius
