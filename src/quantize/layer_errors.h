// SPDX-License-Identifier: Apache-2.0
// Finds the layers in which a quantized folder loses accuracy: both models process the same windows
// layer by layer, with the weights of one layer in memory. After each layer the hidden states are
// compared, and each quantized module is compared on the rows that it reads in the base.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "model/run/decoder.h"
#include "quantize/stage_run.h"

namespace moebius {

struct ModuleError {
  std::string name;
  int layer = -1;
  double error = 0;  // ||X (W - Wq)|| / ||X W||; if there are no rows ||W - Wq|| / ||W||
  size_t rows = 0;   // number of rows of X
};
struct HiddenError {
  int layer = -1;      // number of the layer; the hidden state is that after it
  double error = 0;    // ||h - hq|| / ||h||
  double modules = 0;  // mean error of the layer's modules
};
struct LayerErrors {
  std::vector<HiddenError> layers;
  std::vector<ModuleError> modules;  // largest error first
};

// Compares two folders. options: kernels and types of both. begins(layer, layers): may be empty.
// Throws Error if the folders are not the same model.
LayerErrors layer_errors(const Checkpoint& base, const Checkpoint& folder,
                         const TokenWindows& windows, const ModelOptions& options,
                         const std::function<void(size_t layer, size_t layers)>& begins);

}  // namespace moebius
