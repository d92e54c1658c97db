// SPDX-License-Identifier: Apache-2.0
// Implements the public C++ interface of folders and layers, over checkpoint, layer loader and
// layers.
#include <unistd.h>

#include <algorithm>
#include <tuple>

#include "api/api.h"
#include "base/checked.h"
#include "kernels/list.h"
#include "report/explain.h"
#include "report/inspect.h"
#include "runtime/openmp.h"

namespace moebius {

DType dtype_of(ElementType t) {
  return t == ElementType::kF32    ? DType::kF32
         : t == ElementType::kBf16 ? DType::kBf16
                                   : DType::kF16;
}
Accept accept_of(Arithmetic a) {
  return a == Arithmetic::kExact         ? Accept::kExact
         : a == Arithmetic::kApproximate ? Accept::kApproximate
                                         : Accept::kDeclared;
}
ActRequest act_request_of(Int8Rows int8, ActivationRows rows, const Policy& policy) {
  ActRequest request;
  request.mode = int8 == Int8Rows::kVllm                ? Int8Mode::kVllm
                 : int8 == Int8Rows::kCompressedTensors ? Int8Mode::kCompressedTensors
                                                        : Int8Mode::kDeclared;
  request.int8_rows = rows == ActivationRows::kInt8;
  check_request(policy, request);
  return request;
}

namespace {

// Checks that the caller's matrix fits the address space, so that sizes computed from its own do
// not overflow.
template <class Made, class Matrix>
Made viewed(const Matrix& m, const char* what) {
  constexpr uint64_t kMost = uint64_t{1} << 48;
  const size_t stride = m.stride == 0 ? m.cols : m.stride;
  const std::optional<uint64_t> elements = checked_mul(m.rows, std::max(stride, size_t{1}));
  if (!elements || *elements > kMost)
    fail_argument(what, "{} is [{},{}] with a row stride of {}; too large", what, m.rows, m.cols,
                  stride);
  return {m.data, dtype_of(m.type), m.rows, m.cols, stride};
}
ConstRows rows_of(const InputMatrix& m, const char* what = "x") {
  return viewed<ConstRows>(m, what);
}
Rows rows_of(const OutputMatrix& m) { return viewed<Rows>(m, "y"); }

size_t checked_threads(int threads) {
  if (threads < 0 || threads > 1024)
    fail_argument("threads", "Options::threads is {}; expected 0 to 1024", threads);
  return static_cast<size_t>(threads);
}

template <class Layer>
const Layer& on_device(const std::optional<Layer>& cuda) {
  if (!cuda)
    fail("this layer runs on the CPU; a layer that was loaded with device \"cuda\" is launched");
  return *cuda;
}
void give(const CudaExperts::Routed& routed, int32_t* ids, float* weights) {
  if (ids != nullptr) std::copy(routed.ids.begin(), routed.ids.end(), ids);
  if (weights != nullptr) std::copy(routed.weights.begin(), routed.weights.end(), weights);
}

// Runs fn and reports its errors as errors of the call's arguments.
template <class F>
auto argument_errors(F&& fn) {
  return placed({"argument", "", "", "", ""}, fn);
}

}  // namespace

void LoadProgress::advance(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  done_ += bytes;
  const auto now = std::chrono::steady_clock::now();
  if (!tell_ || now < next_) return;
  next_ = now + std::chrono::milliseconds(100);
  tell(std::min(done_, total_));
}
void LoadProgress::finish() const {
  if (tell_) tell(total_);
}
void LoadProgress::tell(uint64_t done) const {
  if (!tell_(done, total_))
    fail_at({"state", "", "", "", "progress"}, "loading was stopped by the progress function");
}

LayerOptions layer_options(const Options& o, ThreadPool& pool) {
  LayerOptions out;
  out.pool = &pool;
  out.policy.accept = accept_of(o.arithmetic);
  out.policy.kernel = normalize_kernel_name(o.kernel);
  out.act = act_request_of(o.int8, o.rows, out.policy);
  out.x_type = x_type_of(dtype_of(o.activations));
  for (const auto& [size, rank, name] :
       {std::tuple{o.tp, o.tp_rank, "tp_rank"}, std::tuple{o.ep, o.ep_rank, "ep_rank"}})
    if (size == 0 || size > 65536 || rank >= size)
      fail_argument(name, "{} is {} of {}; expected a rank below the size", name, rank, size);
  out.rank.tp = o.tp;
  out.rank.tp_rank = o.tp_rank;
  out.rank.ep = o.ep;
  out.rank.ep_rank = o.ep_rank;
  out.rank.placement = o.round_robin ? Placement::kRoundRobin : Placement::kLinear;
  out.rank.own_maxima = true;
  return out;
}

std::shared_ptr<Runtime> runtime_of(int asked, const std::shared_ptr<Runtime>& given) {
  const size_t threads = checked_threads(asked);
  if (given == nullptr) return Runtime::shared(threads);
  if (threads != 0 && threads != given->threads())
    fail_argument("threads", "Options::threads is {}, but Options::runtime has {}", threads,
                  given->threads());
  return given;
}

std::shared_ptr<Runtime> make_runtime(int threads) {
  return std::make_shared<Runtime>(checked_threads(threads));
}
std::shared_ptr<Runtime> make_runtime(const RuntimeOptions& o) {
  const size_t threads = checked_threads(o.threads);
  if (o.openmp && !o.cpus.empty())
    fail_argument("cpus", "RuntimeOptions::cpus cannot place the threads of an OpenMP team");
  if (o.openmp) return std::make_shared<Runtime>(openmp_places(threads));
  if (o.cpus.empty()) return make_runtime(o.threads);
  if (threads != 0 && threads != o.cpus.size())
    fail_argument("threads", "{} threads and {} CPUs; expected one for each", threads,
                  o.cpus.size());
  const long known = ::sysconf(_SC_NPROCESSORS_CONF);
  for (const int cpu : o.cpus)
    if (cpu < 0 || cpu > 65535 || (known > 0 && cpu >= known))
      fail_argument("cpus", "CPU {}; expected 0 to {}, the system's own", cpu, known - 1);
  return argument_errors([&] { return std::make_shared<Runtime>(CpuList{o.cpus}); });
}
size_t threads_of(const Runtime& runtime) { return runtime.threads(); }

// Holds a layer on the CPU or on a CUDA device.
struct Linear::Impl {
  std::shared_ptr<Runtime> runtime;  // destroyed after the layer
  std::unique_ptr<LinearLayer> layer;
  std::optional<CudaLinear> cuda = {};
};

struct Moe::Impl {
  std::shared_ptr<Runtime> runtime;
  MoeBlockLayer layer;
  std::string kernel;
  std::optional<CudaExperts> cuda = {};
  const MoeSpec& spec() const { return cuda ? cuda->spec() : layer.experts->spec(); }
};

struct Folder::Impl {
  Checkpoint checkpoint;
};

struct LayerAccess {
  template <class Layer, class... Members>
  static Layer make(Members... members) {
    using Impl = typename Layer::Impl;
    return Layer(std::make_unique<Impl>(Impl{std::move(members)...}));
  }
};
Linear make_linear(std::shared_ptr<Runtime> runtime, std::unique_ptr<LinearLayer> layer) {
  return LayerAccess::make<Linear>(std::move(runtime), std::move(layer));
}
Moe make_moe(std::shared_ptr<Runtime> runtime, MoeBlockLayer layer, std::string kernel) {
  return LayerAccess::make<Moe>(std::move(runtime), std::move(layer), std::move(kernel));
}

Linear::Linear(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Linear::Impl& Linear::held() const { return checked_handle(impl_, "Linear"); }
Linear::~Linear() = default;
Linear::Linear(Linear&&) noexcept = default;
Linear& Linear::operator=(Linear&&) noexcept = default;
size_t Linear::inputs() const {
  return held().cuda ? held().cuda->in_features() : held().layer->in_features();
}
size_t Linear::outputs() const {
  return held().cuda ? held().cuda->out_features() : held().layer->out_features();
}
std::string Linear::kernel() const {
  return held().cuda ? held().cuda->kernel() : title_of(held().layer->kernel());
}
uint64_t Linear::packed_bytes() const {
  return held().cuda ? held().cuda->layer().bytes() : held().layer->packed_bytes();
}
std::string Linear::device() const { return held().cuda ? "cuda" : "cpu"; }
void Linear::run(const InputMatrix& x, const OutputMatrix& y) const {
  Impl& self = held();
  argument_errors([&] {
    if (self.cuda)
      self.cuda->forward(rows_of(x), rows_of(y));
    else
      self.layer->forward(rows_of(x), rows_of(y), self.runtime->pool());
  });
}
void Linear::launch(const InputMatrix& x, const OutputMatrix& y, void* stream) const {
  argument_errors([&] { on_device(held().cuda).launch(rows_of(x), rows_of(y), stream); });
}

Moe::Moe(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Moe::Impl& Moe::held() const { return checked_handle(impl_, "Moe"); }
Moe::~Moe() = default;
Moe::Moe(Moe&&) noexcept = default;
Moe& Moe::operator=(Moe&&) noexcept = default;
size_t Moe::hidden() const { return held().spec().hidden; }
size_t Moe::experts() const { return held().spec().experts; }
size_t Moe::slots() const {
  return held().cuda ? held().cuda->slots() : held().layer.experts->slots();
}
std::string Moe::kernel() const { return held().kernel; }
uint64_t Moe::packed_bytes() const {
  return held().cuda ? held().cuda->layer().bytes() : held().layer.experts->packed_bytes();
}
std::string Moe::device() const { return held().cuda ? "cuda" : "cpu"; }

void Moe::run(const InputMatrix& x, const OutputMatrix& y, int32_t* ids, float* weights) const {
  if (const auto& cuda = held().cuda)
    return argument_errors([&] { give(cuda->forward(rows_of(x), rows_of(y)), ids, weights); });
  const auto& router = held().layer.router;
  if (router == nullptr)
    fail_argument("", "the experts were loaded without their router; give logits or ids");
  const ConstRows rows = rows_of(x);
  std::vector<float> logits(x.rows * router->out_features());
  argument_errors([&] {
    router->forward(rows, f32_rows(logits.data(), x.rows, router->out_features()),
                    held().runtime->pool());
  });
  run_logits(x, {logits.data(), ElementType::kF32, x.rows, router->out_features(), 0}, y, ids,
             weights);
}

void Moe::run_logits(const InputMatrix& x, const InputMatrix& logits, const OutputMatrix& y,
                     int32_t* ids, float* weights) const {
  if (const auto& cuda = held().cuda)
    return argument_errors([&] {
      give(cuda->forward_logits(rows_of(x), rows_of(logits, "logits"), rows_of(y)), ids, weights);
    });
  MoeOptions options;
  options.ids_out = ids;
  options.weights_out = weights;
  argument_errors([&] {
    held().layer.experts->forward_logits(rows_of(x), rows_of(logits, "logits"), rows_of(y),
                                         held().runtime->pool(), options);
  });
}

void Moe::run_ids(const InputMatrix& x, const int32_t* ids, const float* weights, size_t k,
                  const OutputMatrix& y) const {
  argument_errors([&] {
    const ConstRows rows = rows_of(x);
    const std::optional<uint64_t> count = checked_mul(x.rows, k);
    if (!count || k > (size_t{1} << 20))
      fail_argument("k", "{} expert slots for each token; too many", k);
    if (*count != 0 && (ids == nullptr || weights == nullptr))
      fail_argument("ids", "ids and weights of {} rows are NULL", x.rows);
    if (held().cuda)
      held().cuda->forward_ids(rows, {ids, *count}, {weights, *count}, rows_of(y));
    else
      held().layer.experts->forward_ids(rows, {ids, *count}, {weights, *count}, rows_of(y),
                                        held().runtime->pool());
  });
}

void Moe::launch(const InputMatrix& x, const OutputMatrix& y, int32_t* ids, float* weights,
                 void* stream) const {
  argument_errors([&] {
    const CudaExperts& experts = on_device(held().cuda);
    if (!experts.has_router())
      fail("the experts were loaded without their router; give logits or ids");
    experts.launch(rows_of(x), nullptr, rows_of(y), ids, weights, stream);
  });
}
void Moe::launch_logits(const InputMatrix& x, const InputMatrix& logits, const OutputMatrix& y,
                        int32_t* ids, float* weights, void* stream) const {
  argument_errors([&] {
    const ConstRows rows = rows_of(logits, "logits");
    on_device(held().cuda).launch(rows_of(x), &rows, rows_of(y), ids, weights, stream);
  });
}
void Moe::launch_ids(const InputMatrix& x, const int32_t* ids, const float* weights, size_t k,
                     const OutputMatrix& y, void* stream) const {
  argument_errors([&] {
    const CudaExperts& experts = on_device(held().cuda);
    if (k == 0 || k > (size_t{1} << 20)) fail("{} expert slots for each token", k);
    if (x.rows != 0 && (ids == nullptr || weights == nullptr))
      fail("ids and weights of {} rows are NULL", x.rows);
    experts.launch_ids(rows_of(x), ids, weights, k, rows_of(y), stream);
  });
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

std::string Folder::inspect_json(bool deep) const {
  InspectQuestion question;
  question.deep = deep;
  return moebius::inspect_json(gather_facts(held().checkpoint, question)).dump(1) + "\n";
}

std::string Folder::explain_json(const std::string& cpu) const {
  const Checkpoint& c = held().checkpoint;
  ExplainQuestion question;
  if (!cpu.empty()) question.cpu = parse_cpu(cpu);
  question.wish.type = activation_type("auto", c.config().dtype);
  return to_json(explain(c, question)).dump(1) + "\n";
}

Linear Folder::linear(const std::string& name, const Options& options) const {
  const Module* module = held().checkpoint.find_module(name);
  if (module == nullptr || !has_matrix(*module))
    fail_at({"argument", held().checkpoint.folder(), "", name, ""}, "{}: has no linear module '{}'",
            held().checkpoint.folder(), printable(name));
  auto impl = std::make_unique<Linear::Impl>();
  if (on_cuda(options)) {
    impl->cuda = loaded_on_cuda(options, name, module->bytes, [&](const CudaLoad& load) {
      return load_cuda_linear(held().checkpoint, *module, load);
    });
    return Linear(std::move(impl));
  }
  impl->runtime = runtime_of(options.threads, options.runtime);
  impl->layer = placed({"file", held().checkpoint.folder(), "", name, ""}, [&] {
    return load_told(
        layer_options(options, impl->runtime->pool()), options.progress, module->bytes,
        [&](const LayerOptions& lo) { return load_linear(held().checkpoint, {module}, lo); });
  });
  return Linear(std::move(impl));
}

Moe Folder::moe(const std::string& name, const Options& options, MoeScope scope) const {
  const MoeBlock* block = held().checkpoint.find_moe(name);
  if (block == nullptr)
    fail_at({"argument", held().checkpoint.folder(), "", name, ""},
            "{}: has no mixture-of-experts block '{}'", held().checkpoint.folder(),
            printable(name));
  auto impl = std::make_unique<Moe::Impl>();
  const MoePart part = scope == MoeScope::kBlock ? MoePart::kBlock : MoePart::kExperts;
  if (on_cuda(options)) {
    impl->cuda = loaded_on_cuda(options, name, file_bytes(*block), [&](const CudaLoad& load) {
      return load_cuda_experts(held().checkpoint, *block, load, part);
    });
    impl->kernel = impl->cuda->kernel();
    return Moe(std::move(impl));
  }
  impl->runtime = runtime_of(options.threads, options.runtime);
  const LayerOptions lo = layer_options(options, impl->runtime->pool());
  impl->layer = placed({"file", held().checkpoint.folder(), "", name, ""}, [&] {
    return load_told(
        lo, options.progress, file_bytes(*block, lo.rank),
        [&](const LayerOptions& told) { return load_moe(held().checkpoint, *block, told, part); });
  });
  impl->kernel =
      title_of(kernel_for(problem_of(*block->experts[0][1], lo.act, lo.x_type), lo, name));
  return Moe(std::move(impl));
}

std::string version() { return MOEBIUS_VERSION; }
std::string cpu_name() { return describe(host_cpu()); }
std::string cpu_model() { return cpu_model_name(); }
void narrow_cpu(const std::string& features) { narrow_host_cpu(features); }
std::vector<std::string> kernel_titles() {
  std::vector<std::string> names;
  for (const Kernel* k : kernel_list()) names.push_back(title_of(*k));
  return names;
}

}  // namespace moebius
