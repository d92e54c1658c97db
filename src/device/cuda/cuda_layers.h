// SPDX-License-Identifier: Apache-2.0
// Layers of a folder on a CUDA device: owners of the plugin's layers, made from modules, run with
// rows in host memory (copied there and back) or on the device.
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
  Policy policy;  // choice of CUDA kernels
  ActRequest act;
  XType x_type = XType::kBf16;
  std::function<void(uint64_t bytes)> progress;  // receives the file bytes that were read
  bool router_matrix = true;  // true: experts get the router's matrix; false: callers pass logits
  // Memory on the device for routed experts (CudaMoe::memory); null: the layer allocates its own.
  void* memory = nullptr;
  size_t memory_bytes = 0;
};

// Owned memory on the device.
class CudaMemory {
 public:
  CudaMemory(const CudaApi& api, size_t bytes);
  void upload(const void* from, size_t bytes) const;
  void download(void* to, size_t bytes) const;  // waits
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
  // Makes a layer from one matrix with a given kernel. If the matrix' numbers do not fit the
  // tensor-core form (NaN codes), a plain kernel is used.
  CudaLinear(const CudaModule& module, const CudaMatrix& matrix, const Kernel& kernel);
  const std::string& kernel() const { return kernel_; }
  size_t in_features() const { return inputs_; }
  size_t out_features() const { return outputs_; }
  CudaPath path() const { return path_; }
  const CudaLayer& layer() const { return layer_; }
  void forward(const ConstRows& x, const Rows& y) const;  // rows in host memory; waits
  // Rows on the device; queued on `stream` (null: the default one) without waiting.
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
// stored alike, else as one layer each.
std::vector<CudaLinear> load_cuda_linears(const Checkpoint& checkpoint,
                                          std::span<const Module* const> modules,
                                          const CudaLoad& load);

// An expert in host memory, in the form that the plugin takes.
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
  struct Routed {  // the router's choice for given logits
    std::vector<int32_t> ids;
    std::vector<float> weights;
  };
  const MoeSpec& spec() const { return spec_; }
  size_t slots() const { return router_.slots(); }
  // Kernel of the first expert's up projection.
  const std::string& kernel() const { return kernel_; }
  CudaPath path() const { return path_; }
  const CudaLayer& layer() const { return layer_; }
  // true: the layer has the matrix that computes logits
  bool has_router() const { return has_router_; }
  bool routes() const { return routes_; }  // true: the device chooses experts
  bool exact() const { return exact_; }    // true: results have the bytes of the reference
  // All experts of the layer, also those elsewhere.
  const std::vector<ExpertModules>& all() const { return all_; }
  // For divided layers, after all calls: replaces the expert in a place; sets which expert is in
  // each place.
  void replace(size_t place, const CudaHostExpert& expert) const;
  void set_places(std::span<const uint32_t> expert_of) const;
  // Run with rows in host memory. ids: [rows, slots] global, -1: none.
  void forward_ids(const ConstRows& x, std::span<const int32_t> ids, std::span<const float> weights,
                   const Rows& y, std::span<const float> zero_weights = {}) const;
  Routed forward_logits(const ConstRows& x, const ConstRows& logits, const Rows& y) const;
  // Logits are computed by the layer's router.
  Routed forward(const ConstRows& x, const Rows& y) const;

  // Run with memory on the device, queued on `stream` (null: the default one) without waiting; a
  // graph may capture the call. ids and weights [rows, slots] receive the choice unless null. Ids
  // outside the layer count as -1.
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
// experts in the places of this device, if it does not hold all.
CudaExperts load_cuda_experts(const Checkpoint& checkpoint, const MoeBlock& block,
                              const CudaLoad& load, MoePart part,
                              std::optional<std::span<const uint32_t>> some = {});

// Describes a matrix in host memory for the plugin; `m` is a view of w.
CudaMatrix cuda_matrix(const QuantMatrix& w, const ActSpec& act, const ActParams& input,
                       XType x_type, std::span<const float> bias = {}, float output_scale = 0.0f);

}  // namespace moebius
