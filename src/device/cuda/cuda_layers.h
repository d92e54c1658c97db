// SPDX-License-Identifier: Apache-2.0
// Layers of a folder on a CUDA device. Classes own layers of the plugin, which are made from
// modules, and run them with rows in host memory (copied there and back) or in GPU memory.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "device/cpu/layer_plan.h"
#include "device/cuda/cuda_choice.h"
#include "device/cuda/cuda_module.h"
#include "nn/ops.h"
#include "nn/router.h"

namespace moebius {

struct CudaLoad {
  const CudaModule* module = nullptr;
  Policy policy;  // which CUDA kernels may be chosen
  ActRequest act;
  XType x_type = XType::kBf16;
  // Receives the number of bytes read from files since its last call.
  std::function<void(uint64_t bytes)> progress;
  bool router_matrix = true;  // true: experts get the router's matrix; false: callers pass logits
  // GPU memory for routed experts (CudaMoe::memory); null: the layer allocates its own.
  void* memory = nullptr;
  size_t memory_bytes = 0;
};

// Owns GPU memory.
class CudaMemory {
 public:
  CudaMemory(const CudaApi& api, size_t bytes);
  void upload(const void* from, size_t bytes) const;
  void download(void* to, size_t bytes) const;  // waits for the copy
  void* data() const { return data_.get(); }

 private:
  const CudaApi* api_;
  std::shared_ptr<void> data_;
};

// Owns a layer of the plugin.
class CudaLayer {
 public:
  CudaLayer() = default;
  CudaLayer(const CudaApi& api, void* layer)
      : api_(&api), layer_(layer, [&api](void* l) { api.free_layer(l); }) {}
  const CudaApi& api() const { return *api_; }
  void* get() const { return layer_.get(); }
  uint64_t bytes() const { return api_->layer_bytes(layer_.get()); }

 private:
  const CudaApi* api_ = nullptr;
  std::shared_ptr<void> layer_;
};

class CudaLinear {
 public:
  // Makes a layer from one matrix with a given kernel. If the matrix has numbers that the
  // tensor-core form cannot hold (NaN codes), a plain kernel is used.
  CudaLinear(const CudaModule& module, const CudaMatrix& matrix, const Kernel& kernel);
  const std::string& kernel() const { return kernel_; }
  size_t in_features() const { return inputs_; }
  size_t out_features() const { return outputs_; }
  CudaPath path() const { return path_; }
  const CudaLayer& layer() const { return layer_; }
  // x and y in host memory; waits for the result.
  void forward(const ConstRows& x, const Rows& y) const;
  // Queues the product on `stream` (null: the default one) and does not wait; x and y are in GPU
  // memory.
  void launch(const ConstRows& x, const Rows& y, void* stream) const;

 private:
  CudaLayer layer_;
  size_t inputs_, outputs_;
  CudaPath path_;
  std::string kernel_;
};
CudaLinear load_cuda_linear(const Checkpoint& checkpoint, const Module& module,
                            const CudaLoad& load);
// Loads modules with the same inputs, whose outputs are concatenated: as one layer if they are
// stored alike, else as several.
std::vector<CudaLinear> load_cuda_linears(const Checkpoint& checkpoint,
                                          std::span<const Module* const> modules,
                                          const CudaLoad& load);

// Holds an expert in host memory, in the form that the plugin takes.
class CudaHostExpert {
 public:
  CudaHostExpert(const TensorStore& store, const ExpertModules& modules, const CudaLoad& load);
  const CudaExpert& view() const { return view_; }

 private:
  std::vector<std::shared_ptr<const void>> kept_;  // owns what the view refers to
  CudaExpert view_{};
};

class CudaExperts {
 public:
  struct Routed {  // what the router chose for given logits
    std::vector<int32_t> ids;
    std::vector<float> weights;
  };
  const MoeSpec& spec() const { return spec_; }
  size_t slots() const { return router_.slots(); }
  // Returns the name of the kernel of the first expert's up projection.
  const std::string& kernel() const { return kernel_; }
  CudaPath path() const { return path_; }
  const CudaLayer& layer() const { return layer_; }
  // Returns true if the layer has the matrix that computes logits.
  bool has_router() const { return has_router_; }
  bool routes() const { return routes_; }  // true: the GPU chooses experts
  bool exact() const { return exact_; }    // true: results have the bytes of the reference
  // Returns the plans of all experts of the layer, also of those on another device.
  const std::vector<ExpertModules>& all() const { return all_; }
  // Change a layer whose experts are divided between two devices, while no call runs: replace()
  // replaces the expert in a place, map() says which expert is in each place.
  void replace(size_t place, const CudaHostExpert& expert) const;
  void set_places(std::span<const uint32_t> expert_of) const;
  // Run with rows in host memory and wait. ids: [rows, slots] global, -1: none.
  void forward_ids(const ConstRows& x, std::span<const int32_t> ids, std::span<const float> weights,
                   const Rows& y, std::span<const float> zero_weights = {}) const;
  Routed forward_logits(const ConstRows& x, const ConstRows& logits, const Rows& y) const;
  // Computes logits with the layer's router, then runs the chosen experts.
  Routed forward(const ConstRows& x, const Rows& y) const;

  // Queue a run with GPU memory on `stream` (null: the default one) and do not wait; a graph may
  // capture the call. ids and weights [rows, slots] receive the choice unless null. Ids outside the
  // layer count as -1.
  void launch_ids(const ConstRows& x, const int32_t* ids, const float* weights, size_t slots,
                  const Rows& y, void* stream) const;
  void launch(const ConstRows& x, const ConstRows* logits, const Rows& y, int32_t* ids,
              float* weights, void* stream) const;

 private:
  friend CudaExperts load_cuda_experts(const Checkpoint&, const MoeBlock&, const CudaLoad&, MoePart,
                                       std::optional<std::span<const uint32_t>>);
  void set_router(const Checkpoint& checkpoint, const MoeBlock& block, const CudaLoad& load,
                  MoePart part);
  Routed route_on_device(const ConstRows& x, const ConstRows* logits, const Rows& y) const;
  CudaLayer layer_;
  MoeSpec spec_;
  Router router_;
  std::vector<float> bias_, expert_scale_;
  CudaPath path_ = CudaPath::kPlain;
  std::string kernel_;
  bool has_router_ = false, routes_ = false, exact_ = false;
  std::vector<ExpertModules> all_;
};
// Loads routed experts and, for MoePart::kBlock, shared experts and the router's matrix. some: the
// experts in the places of this device; unset: all.
CudaExperts load_cuda_experts(const Checkpoint& checkpoint, const MoeBlock& block,
                              const CudaLoad& load, MoePart part,
                              std::optional<std::span<const uint32_t>> some = {});

// Describes matrix w in host memory for the plugin; the result points into w and bias.
CudaMatrix cuda_matrix(const QuantMatrix& w, const ActSpec& act, const ActParams& input,
                       XType x_type, std::span<const float> bias = {}, float output_scale = 0.0f);

}  // namespace moebius
