// SPDX-License-Identifier: Apache-2.0
// The public C++ interface over checkpoint, layer loader and layers.
#include <optional>

#include "base/error.h"
#include "model/layer_loader.h"
#include "moebius/moebius.hpp"
#include "runtime/runtime.h"

namespace moebius {
namespace {

DType dtype_of(ElementType t) {
  return t == ElementType::kF32    ? DType::kF32
         : t == ElementType::kBf16 ? DType::kBf16
                                   : DType::kF16;
}
ConstRows rows_of(const InputMatrix& m) {
  return {m.data, dtype_of(m.type), m.rows, m.cols, m.stride == 0 ? m.cols : m.stride};
}
Rows rows_of(const OutputMatrix& m) {
  return {m.data, dtype_of(m.type), m.rows, m.cols, m.stride == 0 ? m.cols : m.stride};
}

LayerOptions layer_options(const Options& o, ThreadPool& pool) {
  LayerOptions out;
  out.pool = &pool;
  out.policy.accept = o.arithmetic == Arithmetic::kExact         ? Accept::kExact
                      : o.arithmetic == Arithmetic::kApproximate ? Accept::kApproximate
                                                                 : Accept::kDeclared;
  out.policy.kernel = normalize_kernel_name(o.kernel);
  out.int8 = o.int8 == Int8Rows::kVllm                ? Int8Mode::kVllm
             : o.int8 == Int8Rows::kCompressedTensors ? Int8Mode::kCompressedTensors
                                                      : Int8Mode::kDeclared;
  out.x_type = x_type_of(dtype_of(o.activations));
  return out;
}

// What a handle points to; a handle that was moved from points to nothing.
template <class Impl>
Impl& checked_handle(const std::unique_ptr<Impl>& impl, const char* what) {
  if (impl == nullptr) fail("this moebius::{} is empty: it was moved from", what);
  return *impl;
}

size_t checked_threads(int threads) {
  if (threads < 0 || threads > 1024) fail("Options::threads is {}; expected 0 to 1024", threads);
  return static_cast<size_t>(threads);
}

std::shared_ptr<Runtime> runtime_of(const Options& o) {
  const size_t threads = checked_threads(o.threads);
  if (o.runtime == nullptr) return Runtime::shared(threads);
  if (threads != 0 && threads != o.runtime->threads())
    fail("Options::threads is {}, but Options::runtime has {}", threads, o.runtime->threads());
  return o.runtime;
}

}  // namespace

std::shared_ptr<Runtime> make_runtime(int threads) {
  return std::make_shared<Runtime>(checked_threads(threads));
}
size_t threads_of(const Runtime& runtime) { return runtime.threads(); }

struct Linear::Impl {
  std::shared_ptr<Runtime> runtime;  // ends after the layer
  std::unique_ptr<LinearLayer> layer;
};

struct Moe::Impl {
  std::shared_ptr<Runtime> runtime;
  MoeBlockLayer layer;
  std::string kernel;
};

struct Folder::Impl {
  Checkpoint checkpoint;
};

Linear::Linear(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Linear::Impl& Linear::held() const { return checked_handle(impl_, "Linear"); }
Linear::~Linear() = default;
Linear::Linear(Linear&&) noexcept = default;
Linear& Linear::operator=(Linear&&) noexcept = default;
size_t Linear::inputs() const { return held().layer->in_features(); }
size_t Linear::outputs() const { return held().layer->out_features(); }
std::string Linear::kernel() const { return title_of(held().layer->kernel()); }
void Linear::run(const InputMatrix& x, const OutputMatrix& y) const {
  Impl& self = held();
  self.layer->forward(rows_of(x), rows_of(y), self.runtime->pool());
}

Moe::Moe(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Moe::Impl& Moe::held() const { return checked_handle(impl_, "Moe"); }
Moe::~Moe() = default;
Moe::Moe(Moe&&) noexcept = default;
Moe& Moe::operator=(Moe&&) noexcept = default;
size_t Moe::hidden() const { return held().layer.experts->spec().hidden; }
size_t Moe::experts() const { return held().layer.experts->spec().experts; }
size_t Moe::slots() const { return held().layer.experts->slots(); }
std::string Moe::kernel() const { return held().kernel; }

void Moe::run(const InputMatrix& x, const OutputMatrix& y, int32_t* ids, float* weights) const {
  const auto& router = held().layer.router;
  if (router == nullptr) fail("the experts were loaded without their router; give logits or ids");
  std::vector<float> logits(x.rows * router->out_features());
  router->forward(rows_of(x), f32_rows(logits.data(), x.rows, router->out_features()),
                  held().runtime->pool());
  run_logits(x, {logits.data(), ElementType::kF32, x.rows, router->out_features(), 0}, y, ids,
             weights);
}

void Moe::run_logits(const InputMatrix& x, const InputMatrix& logits, const OutputMatrix& y,
                     int32_t* ids, float* weights) const {
  MoeOptions options;
  options.ids_out = ids;
  options.weights_out = weights;
  held().layer.experts->forward_logits(rows_of(x), rows_of(logits), rows_of(y),
                                       held().runtime->pool(), options);
}

void Moe::run_ids(const InputMatrix& x, const int32_t* ids, const float* weights, size_t k,
                  const OutputMatrix& y) const {
  held().layer.experts->forward_ids(rows_of(x), {ids, x.rows * k}, {weights, x.rows * k},
                                    rows_of(y), held().runtime->pool());
}

Folder::Folder(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Folder::Impl& Folder::held() const { return checked_handle(impl_, "Folder"); }
Folder::~Folder() = default;
Folder::Folder(Folder&&) noexcept = default;
Folder& Folder::operator=(Folder&&) noexcept = default;

Folder Folder::open(const std::string& path) {
  return Folder(std::make_unique<Impl>(Impl{Checkpoint::open(path)}));
}
std::string Folder::architecture() const { return held().checkpoint.config().architecture; }
std::vector<std::string> Folder::warnings() const { return held().checkpoint.warnings(); }

std::vector<ModuleInfo> Folder::modules() const {
  std::vector<ModuleInfo> out;
  for (const Module& m : held().checkpoint.modules())
    out.push_back({m.name, std::string(name_of(m.kind)), describe(m.plan.scheme), m.decision.rule,
                   m.plan.N, m.plan.K, m.bytes, m.supported, m.reason});
  return out;
}

std::vector<std::string> Folder::moe_blocks() const {
  std::vector<std::string> out;
  for (const MoeBlock& b : held().checkpoint.moe_blocks()) out.push_back(b.name);
  return out;
}

Linear Folder::linear(const std::string& name, const Options& options) const {
  const Module* module = held().checkpoint.find_module(name);
  if (module == nullptr || !has_matrix(*module))
    fail("{}: has no linear module '{}'", held().checkpoint.folder(), printable(name));
  auto impl = std::make_unique<Linear::Impl>();
  impl->runtime = runtime_of(options);
  impl->layer =
      load_linear(held().checkpoint, {module}, layer_options(options, impl->runtime->pool()));
  return Linear(std::move(impl));
}

Moe Folder::moe(const std::string& name, const Options& options, MoeScope scope) const {
  const MoeBlock* block = held().checkpoint.find_moe(name);
  if (block == nullptr)
    fail("{}: has no mixture-of-experts block '{}'", held().checkpoint.folder(), printable(name));
  auto impl = std::make_unique<Moe::Impl>();
  impl->runtime = runtime_of(options);
  const LayerOptions lo = layer_options(options, impl->runtime->pool());
  impl->layer = load_moe(held().checkpoint, *block, lo,
                         scope == MoeScope::kBlock ? MoePart::kBlock : MoePart::kExperts);
  impl->kernel =
      title_of(kernel_for(problem_of(*block->experts[0][1], lo.int8, lo.x_type), lo, name));
  return Moe(std::move(impl));
}

std::string version() { return MOEBIUS_VERSION; }

}  // namespace moebius
