// SPDX-License-Identifier: Apache-2.0
// Layers from tensors that a caller has in memory. Readers, plans and packers are those of folders;
// what is made here are the modules they look at, so the same bytes give the same packed bytes.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "checkpoint/quant_config.h"
#include "device/cpu/layer_loader.h"

namespace moebius {

// A scheme with the version of its writer, which says how odd widths were packed.
struct StoredScheme {
  Scheme scheme;  // of another method: what its configuration declares
  std::string version;
  // Of another method than compressed-tensors: its names of tensors are known, and the tensors
  // decide, as in a folder. module: the name by which its rules find the matrix.
  std::shared_ptr<const QuantConfig> method{};
  std::string module{};
};
// One group of quantization_config, with the config's format and version beside its own members; or
// the whole quantization_config of another method, with the name of the module as "module". "{}":
// dense. Throws Error naming the field.
StoredScheme parse_stored_scheme(const std::string& json);

struct SuffixNeed {
  std::string suffix;  // "weight_packed", or what the method calls it: "qweight"
  bool required;       // else: taken when there
};
std::vector<SuffixNeed> suffixes_of(const StoredScheme& scheme);

// One of the matrices of a linear layer. Its tensors have their suffixes for names: weight_packed,
// weight_scale, bias, ...; or those of its method: qweight, scales, weight_scale_inv, ...
struct MatrixPart {
  std::string name;
  StoredScheme scheme;
  uint64_t outputs = 0, inputs = 0;  // whole, before any cut
  Cut cut = Cut::kWhole;
  uint64_t tp = 0, tp_rank = 0;  // 0: those of the options
  std::vector<TensorData> tensors;
};
std::unique_ptr<LinearLayer> build_linear(const std::vector<MatrixPart>& parts,
                                          const LayerOptions& options);

// The experts of a layer, given one by one in any order and by any thread. Tensors are named by
// projection and suffix: gate.weight_packed, up.weight_scale, down.bias; gate_up.* where gate and up
// are one matrix.
class ExpertsBuilder {
 public:
  struct Description {
    std::string name;
    MoeSpec spec;  // no shared expert
    RouterWeights router;
    std::array<StoredScheme, 3> schemes;  // gate, up, down
    std::vector<int32_t> expert_map;      // global id to local, -1 elsewhere; empty: by the options
    uint64_t gate_up_step = 1;            // 2: rows of gate and up alternate
  };
  ExpertsBuilder(Description description, const LayerOptions& options);
  // Views need to live only during the call. Throws Error for an expert of another rank.
  void set_expert(size_t id, std::span<const TensorData> tensors);
  // Throws Error naming what is missing.
  std::unique_ptr<MoeLayer> finish();
  const Kernel* kernel() const { return kernel_; }  // of up; null: no expert was given

 private:
  MoeLayer& layer_for(const ExpertPlan& plan, size_t id);
  Description d_;
  LayerOptions options_;
  std::vector<int32_t> map_;  // [experts]
  std::mutex mutex_;
  std::unique_ptr<MoeLayer> layer_;
  ExpertPlan plan_;
  std::vector<bool> given_;  // [local experts]
  size_t packing_ = 0;       // calls of set_expert under way
  bool finished_ = false;
  const Kernel* kernel_ = nullptr;
};

}  // namespace moebius
