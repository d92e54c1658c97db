// SPDX-License-Identifier: Apache-2.0
// Builds layers from tensors in memory of a caller. Format readers, plans and packing are those
// used for folders, so equal bytes give equal packed bytes.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "checkpoint/quant_config.h"
#include "device/cpu/layer_loader.h"

namespace moebius {

// A scheme as the caller states it, with the version of the program that wrote the tensors, which
// decides how odd widths are packed.
struct StoredScheme {
  Scheme scheme;  // scheme of compressed-tensors, or what the method's configuration declares
  std::string version;
  // Rules and tensor names of a method other than compressed-tensors; the tensors complete the
  // scheme, as in a folder. module: the name by which rules find the matrix.
  std::shared_ptr<const QuantConfig> method{};
  std::string module{};
};
// Parses one group of quantization_config, with the config's format and version added to its
// members; or the whole quantization_config of another method, with the module's name as "module".
// "{}" is dense. Throws Error that names the field.
StoredScheme parse_stored_scheme(const std::string& json);

struct SuffixNeed {
  std::string suffix;  // end of the tensor's name: "weight_packed", or the method's own: "qweight"
  bool required;       // false: the tensor is used if it is there
};
std::vector<SuffixNeed> suffixes_of(const StoredScheme& scheme);

// One matrix of a linear layer. The names of its tensors are suffixes: weight_packed, weight_scale,
// bias, ..., or the method's: qweight, scales, weight_scale_inv, ...
struct MatrixPart {
  std::string name;
  StoredScheme scheme;
  uint64_t outputs = 0, inputs = 0;  // size of the whole matrix, before it is split over ranks
  Cut cut = Cut::kWhole;
  // Ranks that share the matrix, and this one's number; 0: as the options say.
  uint64_t tp = 0, tp_rank = 0;
  std::vector<TensorData> tensors;
};
std::unique_ptr<LinearLayer> build_linear(const std::vector<MatrixPart>& parts,
                                          const LayerOptions& options);

// Builds a layer's experts from tensors, one expert at a time, in any order and from any thread.
// Tensors are named by projection and suffix: gate.weight_packed, up.weight_scale, down.bias;
// gate_up.* if gate and up are one matrix.
class ExpertsBuilder {
 public:
  struct Description {
    std::string name;
    MoeSpec spec;  // must have no shared expert
    RouterWeights router;
    std::array<StoredScheme, 3> schemes;  // gate, up, down
    // [experts] index on this rank, -1: on another rank; empty: the options decide
    std::vector<int32_t> expert_map;
    // Order of rows in gate_up: 1: all of gate, then all of up; 2: they alternate.
    uint64_t gate_up_step = 1;
  };
  ExpertsBuilder(Description description, const LayerOptions& options);
  // Packs one expert; the tensors are read until the call returns. Thread-safe. Throws Error for an
  // expert of another rank, and for tensors that do not fit the scheme.
  void set_expert(size_t id, std::span<const TensorData> tensors);
  // Returns the layer. Throws Error that names a missing expert.
  std::unique_ptr<MoeLayer> finish();
  const Kernel* kernel() const { return kernel_; }  // kernel of up; null before the first expert

 private:
  MoeLayer& layer_for(const ExpertPlan& plan, size_t id);
  Description d_;
  LayerOptions options_;
  std::vector<int32_t> map_;  // [experts] local index or -1
  std::mutex mutex_;
  std::unique_ptr<MoeLayer> layer_;
  ExpertPlan plan_;
  std::vector<bool> given_;  // [local experts] true once the expert was set
  size_t packing_ = 0;       // number of calls of set_expert that are running
  bool finished_ = false;
  const Kernel* kernel_ = nullptr;
};

}  // namespace moebius
