// SPDX-License-Identifier: Apache-2.0
// Builds layers from tensors that the caller already has in memory, for example because another
// program's loader read them: every tensor whole, with the bytes of its file.
//
//   using namespace moebius::build;
//   Part q{"q_proj", Scheme::parse(group_json), 4096, 2048, Split::kNone, {{"weight_packed", data,
// TensorType::kI32, {4096, 256}}, ...}};
//   moebius::Linear layer = linear({q});
//
// The same bytes give the same packed weights as loading a folder that holds them. Every function
// may throw moebius::Error. These functions are in the static library only; the shared library
// exports moebius.h alone.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "moebius/moebius.hpp"

namespace moebius::build {

enum class TensorType { kF32, kBf16, kF16, kI8, kU8, kI32, kI64, kF8E4M3, kU32 };

// One tensor in memory of the caller, who keeps it alive until the call that receives it returns.
struct Tensor {
  std::string name;
  const void* data = nullptr;
  TensorType type = TensorType::kF32;
  std::vector<uint64_t> shape;
  // Elements between neighbours of each dimension; empty: contiguous.
  std::vector<int64_t> strides = {};
};

struct TensorNeed {
  // end of a tensor's name, after the module's: weight_packed, weight_scale, ...
  std::string suffix;
  bool required = false;  // true: building fails without this tensor; false: it is used if given
};

// Describes how matrices are stored: one group of a compressed-tensors quantization_config, or the
// quantization_config of another method.
class Scheme {
 public:
  Scheme();  // Makes the scheme of dense weights: f32, bf16 or f16, without scales.
  // Parses the JSON of one group (weights, input_activations, ...), to which the caller adds the
  // config's format and version. For a method other than compressed-tensors (gptq, awq, fp8,
  // modelopt, ...) the JSON is the method's whole section, with the module's name as "module" if
  // its rules go by name; tensors then have the method's names, and their types and shapes complete
  // the scheme as they do in a folder. Throws Error for what is not understood.
  static Scheme parse(const std::string& json);
  // Returns the name of the scheme's family: w4a8, fp8, nvfp4, ...
  std::string family() const;
  std::string describe() const;  // returns a description of one line
  // Returns why no layer can be built with this scheme, or "" when one can. Routed experts
  // (`expert`) support fewer schemes than linear layers.
  std::string problem(bool expert) const;
  std::vector<TensorNeed> tensors() const;

 private:
  friend struct SchemeAccess;
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

// Selects how tensor parallelism divides a matrix over ranks. kNone: every rank has all of it.
// kOutputs: each rank computes some outputs, and the caller concatenates them. kInputs: each rank
// reads some inputs, and the caller adds the results up; only rank 0 adds the bias.
enum class Split { kNone, kOutputs, kInputs };

struct Part {
  std::string name;
  Scheme scheme;
  size_t outputs = 0, inputs = 0;  // size of the whole matrix, before it is split over ranks
  Split split = Split::kNone;
  // Tensor::name is the suffix (weight_packed, weight_scale, ...), or "bias"
  std::vector<Tensor> tensors;
  // Ranks that share the matrix, and this one's number; tp 0: as Options say.
  size_t tp = 0, tp_rank = 0;
};
// Builds one linear layer whose outputs are those of all parts in order (q, k, v). The tensors may
// be freed afterwards.
Linear linear(const std::vector<Part>& parts, const Options& options = {});

struct MoeSpec {
  std::string name = "experts";  // name of the layer in error messages
  // Sizes of the whole layer, before it is split over ranks
  size_t hidden = 0, intermediate = 0, experts = 0, slots = 0;
  std::string activation = "silu";    // name of the function as config.json spells it
  float limit = 0;                    // swiglu: values are clamped to [-limit, limit]; 0: no limit
  float alpha = 1.702f, beta = 1.0f;  // constants of the activation "swigluoai"
  // [experts] index of each expert on this rank; -1: the expert is on another rank. Empty:
  // Options::ep decides.
  std::vector<int32_t> expert_map;
  // Order of rows in gate_up: 1: all gate rows, then all up rows; 2: they alternate.
  size_t gate_up_step = 1;
  // The fields below are read by Moe::run_logits only: they say how logits become expert choices.
  std::string scoring = "softmax";  // softmax or sigmoid
  bool renormalize = false;
  // Experts are chosen within the best `group_slots` of `groups` groups; 0: no groups.
  size_t groups = 0, group_slots = 0;
  float scaling = 1;
  // [experts] added to the scores for the choice, not for the weights; empty: none
  std::vector<float> correction_bias;
};

// Builds a mixture of experts from tensors that arrive expert by expert. Tensors are named
// gate.weight_packed, up.weight_scale, down.bias, ...; gate_up.* if gate and up are one matrix.
class MoeBuilder {
 public:
  MoeBuilder(const MoeSpec& spec, const Scheme& gate, const Scheme& up, const Scheme& down,
             const Options& options = {});
  ~MoeBuilder();
  MoeBuilder(MoeBuilder&&) noexcept;
  MoeBuilder& operator=(MoeBuilder&&) noexcept;
  // Packs the tensors of one expert; `id` counts the experts of the whole layer, not of this rank.
  // Thread-safe: experts may come in any order and from any thread. Throws Error for tensors that
  // do not fit the scheme.
  void set_expert(size_t id, const std::vector<Tensor>& tensors);
  // Returns the layer, after all experts of this rank were set. Throws Error that names a missing
  // expert, and Error if called twice.
  Moe finish();

 private:
  struct Impl;
  Impl& held() const;
  std::unique_ptr<Impl> impl_;
};

}  // namespace moebius::build
