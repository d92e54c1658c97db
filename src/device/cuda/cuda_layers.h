// SPDX-License-Identifier: Apache-2.0
// Layers of a folder on a CUDA device: the plugin's layers with owners, made from modules, run with
// rows of the host (copied there and back) or of the device.
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
  Policy policy;  // of CUDA's kernels
  ActRequest act;
  XType x_type = XType::kBf16;
  std::function<void(uint64_t bytes)> progress;  // file bytes done
  bool router_matrix = true;  // experts have their router's; else logits are the caller's
  // Of the device, where routed experts go (CudaMoe::memory); null: into memory of their own.
  void* memory = nullptr;
  size_t memory_bytes = 0;
};

// Memory of the device.
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

// A layer of the plugin; frees itself.
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
  // One matrix as it is, by a kernel that can run it. Where its numbers do not fit the
  // tensor-core form (NaN codes), the plain kernels take it.
  CudaLinear(const CudaModule& module, const CudaMatrix& matrix, const Kernel& kernel);
  const std::string& kernel() const { return kernel_; }
  size_t in_features() const { return inputs_; }
  size_t out_features() const { return outputs_; }
  CudaPath path() const { return path_; }
  const CudaLayer& layer() const { return layer_; }
  void forward(const ConstRows& x, const Rows& y) const;  // of the host
  // Rows of the device; queued on `stream` (null: the default one), nothing waits.
  void launch(const ConstRows& x, const Rows& y, void* stream) const;

 private:
  CudaLayer layer_;
  size_t inputs_, outputs_;
  CudaPath path_;
  std::string kernel_;
};
CudaLinear load_cuda_linear(const Checkpoint& checkpoint, const Module& module,
                            const CudaLoad& load);
// Modules with the same inputs, side by side: one layer where they are stored alike, else one for each.
std::vector<CudaLinear> load_cuda_linears(const Checkpoint& checkpoint,
                                          std::span<const Module* const> modules,
                                          const CudaLoad& load);

// An expert in memory of the host, as the plugin takes it.
class CudaHostExpert {
 public:
  CudaHostExpert(const TensorStore& store, const ExpertModules& modules, const CudaLoad& load);
  const CudaExpert& view() const { return view_; }

 private:
  std::vector<std::shared_ptr<const void>> kept_;  // what the view is of
  CudaExpert view_{};
};

class CudaExperts {
 public:
  struct Routed {  // what became of logits
    std::vector<int32_t> ids;
    std::vector<float> weights;
  };
  const MoeSpec& spec() const { return spec_; }
  size_t slots() const { return router_.slots(); }
  const std::string& kernel() const { return kernel_; }  // of the first expert's up projection
  CudaPath path() const { return path_; }
  const CudaLayer& layer() const { return layer_; }
  bool has_router() const { return has_router_; }  // the matrix that makes logits
  bool routes() const { return routes_; }          // the device chooses experts
  bool exact() const { return exact_; }            // experts have the bytes of the reference
  // All experts, where some are elsewhere.
  const std::vector<ExpertModules>& all() const { return all_; }
  // Of such a layer, behind all calls: another expert in a place, and what the places hold.
  void replace(size_t place, const CudaHostExpert& expert) const;
  void set_places(std::span<const uint32_t> expert_of) const;
  // Rows of the host. ids: [rows, slots] global, -1: none.
  void forward_ids(const ConstRows& x, std::span<const int32_t> ids, std::span<const float> weights,
                   const Rows& y, std::span<const float> zero_weights = {}) const;
  Routed forward_logits(const ConstRows& x, const ConstRows& logits, const Rows& y) const;
  Routed forward(const ConstRows& x, const Rows& y) const;  // logits of its own router

  // The same with memory of the device, queued on `stream` (null: the default one); nothing waits,
  // and a graph may capture it. ids, weights [rows, slots] are written unless null. Ids outside the
  // layer count as none.
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
// Routed experts, and with MoePart::kBlock the shared ones and the router's matrix. some: what the places of
// the device hold, where it does not have all experts.
CudaExperts load_cuda_experts(const Checkpoint& checkpoint, const MoeBlock& block,
                              const CudaLoad& load, MoePart part,
                              std::optional<std::span<const uint32_t>> some = {});

// A matrix of the host as the plugin takes it; `m` is read, nothing is kept.
CudaMatrix cuda_matrix(const QuantMatrix& w, const ActSpec& act, const ActParams& input,
                       XType x_type, std::span<const float> bias = {}, float output_scale = 0.0f);

}  // namespace moebius
