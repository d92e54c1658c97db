// SPDX-License-Identifier: Apache-2.0
// Layers from tensors that the caller has in memory, as another loader hands them over: whole, with the bytes of the file.
//
//   using namespace moebius::build;
//   Part q{"q_proj", Scheme::parse(group_json), 4096, 2048, Split::kNone, {{"weight_packed", data, TensorType::kI32, {4096, 256}}, ...}};
//   moebius::Linear layer = linear({q});
//
// The same bytes give the same packed weights as a folder that holds them. Everything throws moebius::Error. Part of the static
// library; the shared one shows moebius.h alone.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "moebius/moebius.hpp"

namespace moebius::build {

enum class TensorType { kF32, kBf16, kF16, kI8, kU8, kI32, kI64, kF8E4M3, kU32 };

// Memory of the caller, read during the call it is given to.
struct Tensor {
  std::string name;
  const void* data = nullptr;
  TensorType type = TensorType::kF32;
  std::vector<uint64_t> shape;
  std::vector<int64_t> strides = {};  // in elements; empty: contiguous
};

struct TensorNeed {
  std::string suffix;     // weight_packed, weight_scale, ...
  bool required = false;  // else: taken when there
};

// How matrices are stored: one group of a quantization_config, or the quantization_config of another method.
class Scheme {
 public:
  Scheme();  // dense
  // The group as JSON (weights, input_activations, ...), with the config's format and version in it. Of another method than
  // compressed-tensors (gptq, awq, fp8, modelopt, ...): its whole section, with the module's name as "module" where rules go
  // by name. Tensors then have the method's names too, and what they are decides, as in a folder.
  static Scheme parse(const std::string& json);
  std::string family() const;    // w4a8, fp8, nvfp4, ...
  std::string describe() const;  // one line for people
  // Why it cannot run, "" when it can; experts know fewer schemes than linears.
  std::string problem(bool expert) const;
  std::vector<TensorNeed> tensors() const;

 private:
  friend struct SchemeAccess;
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

// What tensor parallelism cuts: nothing, outputs (ranks put theirs side by side) or inputs (ranks add theirs up; the first one
// has the bias).
enum class Split { kNone, kOutputs, kInputs };

struct Part {
  std::string name;
  Scheme scheme;
  size_t outputs = 0, inputs = 0;  // whole, before any cut
  Split split = Split::kNone;
  std::vector<Tensor> tensors;  // named by their suffixes; "bias" too
  size_t tp = 0, tp_rank = 0;   // 0: those of the options
};
// Parts lie side by side in the outputs (q, k, v).
Linear linear(const std::vector<Part>& parts, const Options& options = {});

struct MoeSpec {
  std::string name = "experts";                             // for messages
  size_t hidden = 0, intermediate = 0, experts = 0, slots = 0;  // whole, before any cut
  std::string activation = "silu";                          // as config.json spells it
  float limit = 0;                                          // of swiglu; 0: none
  float alpha = 1.702f, beta = 1.0f;                        // of swigluoai
  std::vector<int32_t> expert_map;  // [experts] local number, -1 elsewhere; empty: by options.ep
  size_t gate_up_step = 1;          // 2: rows of gate_up alternate
  // For run_logits.
  std::string scoring = "softmax";  // sigmoid
  bool renormalize = false;
  size_t groups = 0, group_slots = 0;  // 0: no groups
  float scaling = 1;
  std::vector<float> correction_bias;  // [experts], for the choice alone; empty: none
};

// Experts one by one, in any order and from any thread. Tensors are named gate.weight_packed, up.weight_scale, down.bias, ...;
// gate_up.* where both are one matrix.
class MoeBuilder {
 public:
  MoeBuilder(const MoeSpec& spec, const Scheme& gate, const Scheme& up, const Scheme& down,
             const Options& options = {});
  ~MoeBuilder();
  MoeBuilder(MoeBuilder&&) noexcept;
  MoeBuilder& operator=(MoeBuilder&&) noexcept;
  void set_expert(size_t id, const std::vector<Tensor>& tensors);  // id: of the whole layer
  Moe finish();  // once; throws naming what is missing

 private:
  struct Impl;
  Impl& held() const;
  std::unique_ptr<Impl> impl_;
};

}  // namespace moebius::build
