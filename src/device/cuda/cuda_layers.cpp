// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/cuda_layers.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "kernels/packed_matrix.h"
#include "quant/quant_access.h"

namespace moebius {
namespace {

XType type_of(DType dtype) { return x_type_of(dtype); }
size_t bytes_of(DType dtype) { return bits_of(dtype) / 8; }

// Copies rows to consecutive memory, as they go to the device.
std::vector<uint8_t> gathered(const ConstRows& x) {
  const size_t row = x.cols * bytes_of(x.dtype);
  std::vector<uint8_t> out(x.rows * row);
  for (size_t r = 0; r < x.rows; ++r)
    std::memcpy(out.data() + r * row,
                static_cast<const uint8_t*>(x.data) + r * x.stride * bytes_of(x.dtype), row);
  return out;
}
void scatter_rows(const std::vector<uint8_t>& from, const Rows& y) {
  const size_t row = y.cols * bytes_of(y.dtype);
  for (size_t r = 0; r < y.rows; ++r)
    std::memcpy(static_cast<uint8_t*>(y.data) + r * y.stride * bytes_of(y.dtype),
                from.data() + r * row, row);
}

// Holds x and y on the device for one call.
struct DeviceRows {
  CudaMemory x_memory, y_memory;
  CudaRows x, y;
  DeviceRows(const CudaApi& api, const ConstRows& from, const Rows& to)
      : x_memory(api, from.rows * from.cols * bytes_of(from.dtype)),
        y_memory(api, to.rows * to.cols * bytes_of(to.dtype)),
        x{x_memory.data(), type_of(from.dtype), from.rows, from.cols},
        y{y_memory.data(), type_of(to.dtype), to.rows, to.cols} {
    const std::vector<uint8_t> bytes = gathered(from);
    x_memory.upload(bytes.data(), bytes.size());
  }
  void read(const Rows& to) const {
    std::vector<uint8_t> bytes(to.rows * to.cols * bytes_of(to.dtype));
    y_memory.download(bytes.data(), bytes.size());
    scatter_rows(bytes, to);
  }
};

// Describes rows that are on the device already.
CudaRows device_rows(const ConstRows& x) {
  return {const_cast<void*>(x.data), type_of(x.dtype), x.rows, x.stride};
}
CudaRows device_rows(const Rows& y) { return {y.data, type_of(y.dtype), y.rows, y.stride}; }

// Holds a module in memory, with the data around its product.
struct LoadedMatrix {
  LoadBuffer buffer;
  std::vector<float> bias;
  CudaMatrix matrix{};
  LoadedMatrix(const TensorStore& store, const Module& m, const CudaLoad& load) {
    const QuantMatrix w = reader_for(m.plan.scheme.format).load(m.plan, store, buffer);
    bias = load_bias(m.plan, store);
    matrix = cuda_matrix(w, act_spec_of(m, load.act), m.plan.input, load.x_type, bias,
                         m.plan.has_output_scale ? m.plan.output.scale : 0.0f);
  }
};

// Returns whether one matrix can hold the outputs of both, first a's and then b's.
bool can_join(const CudaMatrix& a, const CudaMatrix& b) {
  const QuantMatrix &v = a.w, &w = b.w;
  const bool scales = v.scale_type == ScaleType::kNone ||
                      (v.block_n == w.block_n && v.N % v.block_n == 0 && w.N % w.block_n == 0 &&
                       v.scale_stride == w.scale_stride && v.groups == w.groups);
  return v.K == w.K && v.code == w.code && v.lut == w.lut && v.bits == w.bits &&
         v.row_bytes == w.row_bytes && v.scale_type == w.scale_type &&
         v.scale_type != ScaleType::kTwoLevel && scales && v.block_k == w.block_k &&
         v.n_phase == 0 && w.n_phase == 0 && v.k_phase == w.k_phase &&
         (v.zero_points != nullptr) == (w.zero_points != nullptr) && v.offsets == nullptr &&
         w.offsets == nullptr && v.g_idx == nullptr && w.g_idx == nullptr &&
         v.global_scale.value == w.global_scale.value &&
         v.global_scale.multiplies == w.global_scale.multiplies && a.act == b.act &&
         a.input == b.input && a.x_type == b.x_type && a.output_scale == 0.0f &&
         b.output_scale == 0.0f;
}

// Joins several matrices into one.
struct JoinedMatrix {
  std::vector<uint8_t> codes, scales;
  std::vector<int8_t> zero_points;
  std::vector<float> bias;
  CudaMatrix matrix;
  explicit JoinedMatrix(std::span<const std::unique_ptr<LoadedMatrix>> parts)
      : matrix(parts[0]->matrix) {
    QuantMatrix& w = matrix.w;
    const size_t scale = scale_bytes(w.scale_type);
    w.N = 0;
    for (const auto& p : parts) {
      const CudaMatrix& m = p->matrix;
      const size_t rows =
          w.scale_type == ScaleType::kNone ? 0 : (m.w.N + m.w.block_n - 1) / m.w.block_n;
      const size_t row_codes = (m.w.K * code_bits(m.w.code) + 7) / 8;
      for (size_t n = 0; n < m.w.N; ++n) {
        const uint8_t* from = m.w.codes + n * m.w.row_bytes;
        codes.insert(codes.end(), from, from + row_codes);
      }
      for (size_t r = 0; r < rows; ++r) {
        const uint8_t* from = m.w.scales + r * m.w.scale_stride * scale;
        scales.insert(scales.end(), from, from + m.w.groups * scale);
        if (m.w.zero_points == nullptr) continue;
        const int8_t* zero = m.w.zero_points + r * m.w.scale_stride;
        zero_points.insert(zero_points.end(), zero, zero + m.w.groups);
      }
      bias.resize(w.N, 0.0f);
      if (m.bias != nullptr) bias.insert(bias.end(), m.bias, m.bias + m.w.N);
      w.N += m.w.N;
    }
    const bool biased = std::any_of(parts.begin(), parts.end(),
                                    [](const auto& p) { return p->matrix.bias != nullptr; });
    bias.resize(biased ? w.N : 0, 0.0f);
    w.row_bytes = (w.K * code_bits(w.code) + 7) / 8;
    w.codes = codes.data();
    if (w.scale_type != ScaleType::kNone) {
      w.scales = scales.data();
      w.scale_stride = w.groups;
    }
    if (w.zero_points != nullptr) w.zero_points = zero_points.data();
    matrix.bias = biased ? bias.data() : nullptr;
  }
};

const Kernel& chosen_kernel(const Problem& problem, const CudaLoad& load, std::string_view module) {
  return placing_errors(
      [&] {
        return ErrorPlace{"argument", "", "", std::string(module), ""};
      },
      [&]() -> const Kernel& {
        return *choose_cuda(problem, cuda_target(load.module->facts), load.policy).chosen;
      });
}

// Returns the path of an expert: tensor cores if all its matrices can use them.
CudaPath expert_path(const ExpertModules& e, const CudaLoad& load) {
  CudaPath path = CudaPath::kHopper;
  for (const ModulePlan& p : e) {
    if (p.module == nullptr) continue;
    if (p.module->plan.has_output_scale) return CudaPath::kPlain;
    const CudaPath one = path_of(chosen_kernel(p.projection.problem, load, p.module->name));
    if (one == CudaPath::kPlain) return one;
    path = one;
  }
  return path;
}
CudaPath experts_path(const MoeBlockPlan& plan, const MoeSpec& spec, const CudaLoad& load) {
  if (plain_experts_reason(spec) != nullptr) return CudaPath::kPlain;
  CudaPath path = CudaPath::kPlain;
  for (const ExpertModules& e : plan.experts)
    if ((path = expert_path(e, load)) == CudaPath::kPlain) break;
  return path;
}

void set_cuda_expert(const CudaLayer& layer, size_t local, const Checkpoint& checkpoint,
                     const ExpertModules& e, const CudaLoad& load) {
  const CudaHostExpert expert(checkpoint.store(), e, load);
  uint64_t bytes = 0;
  for (const ModulePlan& p : e) bytes += p.module != nullptr ? p.module->bytes : 0;
  check_cuda(layer.api(), layer.api().set_expert(layer.get(), local, &expert.view()),
             e[1].module->name);
  if (load.progress) load.progress(bytes);
}

// Maps global expert numbers to places; -1: not here.
std::vector<int32_t> places_map(std::span<const uint32_t> expert_of, size_t experts) {
  std::vector<int32_t> map(experts, -1);
  for (size_t p = 0; p < expert_of.size(); ++p) map.at(expert_of[p]) = static_cast<int32_t>(p);
  return map;
}

// Loads the experts of a block. shared: the shared expert may use tensor cores, too.
CudaLayer make_experts(const Checkpoint& checkpoint, const MoeBlock& block,
                       const MoeBlockPlan& plan, const CudaLoad& load, CudaPath path, bool shared,
                       std::optional<std::span<const uint32_t>> some) {
  const MoeSpec& spec = plan.layer.spec;
  const CudaApi& api = *load.module->api;
  CudaMoe moe{};
  const size_t here = some ? some->size() : plan.experts.size();
  const std::vector<int32_t> map =
      places_map(some.value_or(std::span<const uint32_t>()), plan.experts.size());
  moe.hidden = spec.hidden;
  moe.experts = here;
  if (some) {
    moe.expert_map = map.data();
    moe.mapped = map.size();
  }
  moe.intermediate = plan.experts.at(0)[1].projection.problem.N;
  if (plan.shared) moe.shared_intermediate = (*plan.shared)[1].projection.problem.N;
  moe.gated = is_gated(spec.activation.kind);
  moe.weight_on_input = spec.router.weight_on_input;
  moe.activation = cuda_activation(spec.activation);
  moe.shared_activation = cuda_activation(spec.shared_activation.value_or(spec.activation));
  moe.path = path;
  moe.memory = load.memory;
  moe.memory_bytes = load.memory_bytes;
  if (plan.shared) {
    CudaLoad own = load;
    own.policy.where_it_can = true;  // a requested kernel is meant for the routed experts
    moe.shared_path = shared ? expert_path(*plan.shared, own) : CudaPath::kPlain;
  }
  void* made = nullptr;
  check_cuda(api, api.make_moe(&moe, &made), block.name);
  CudaLayer layer(api, made);
  for (size_t p = 0; p < here; ++p)
    set_cuda_expert(layer, p, checkpoint, plan.experts[some ? (*some)[p] : p], load);
  if (plan.shared) {
    set_cuda_expert(layer, here, checkpoint, *plan.shared, load);
    if (block.shared_gate != nullptr) {
      const LoadedMatrix gate(checkpoint.store(), *block.shared_gate, load);
      check_cuda(api, api.set_shared_gate(layer.get(), &gate.matrix), block.shared_gate->name);
    }
  }
  return layer;
}

}  // namespace

CudaHostExpert::CudaHostExpert(const TensorStore& store, const ExpertModules& e,
                               const CudaLoad& load) {
  const CudaMatrix** const to[] = {&view_.gate, &view_.up, &view_.down};
  for (size_t i = 0; i < e.size(); ++i) {
    if (e[i].module == nullptr) continue;
    const auto matrix = std::make_shared<const LoadedMatrix>(store, *e[i].module, load);
    *to[i] = &matrix->matrix;
    kept_.push_back(matrix);
  }
}

CudaMemory::CudaMemory(const CudaApi& api, size_t bytes) : api_(&api) {
  void* p = nullptr;
  check_cuda(api, api.allocate(bytes, &p), fmt::format("{} bytes on the device", bytes));
  data_ = std::shared_ptr<void>(p, [&api](void* q) { api.release(q); });
}
void CudaMemory::upload(const void* from, size_t bytes) const {
  if (bytes > 0) check_cuda(*api_, api_->upload(data(), from, bytes, nullptr), "copy");
}
void CudaMemory::download(void* to, size_t bytes) const {
  if (bytes > 0) check_cuda(*api_, api_->download(to, data(), bytes, nullptr), "copy");
}

CudaMatrix cuda_matrix(const QuantMatrix& w, const ActSpec& act, const ActParams& input,
                       XType x_type, std::span<const float> bias, float output_scale) {
  CudaMatrix m{};
  m.w = w;
  m.act = act;
  m.input = input;
  m.x_type = x_type;
  m.bias = bias.empty() ? nullptr : bias.data();
  m.output_scale = output_scale;
  return m;
}

CudaLinear::CudaLinear(const CudaModule& module, const CudaMatrix& matrix, const Kernel& kernel)
    : inputs_(matrix.w.K), outputs_(matrix.w.N), path_(path_of(kernel)), kernel_(title_of(kernel)) {
  const CudaApi& api = *module.api;
  void* made = nullptr;
  CudaStatus status = api.make_linear(&matrix, 1, path_, &made);
  if (status == CudaStatus::kRefused && path_ != CudaPath::kPlain) {
    path_ = CudaPath::kPlain;
    kernel_ = title_of(plain_cuda_kernel());
    status = api.make_linear(&matrix, 1, path_, &made);
  }
  check_cuda(api, status, "linear layer");
  layer_ = CudaLayer(api, made);
}

void CudaLinear::forward(const ConstRows& x, const Rows& y) const {
  check_rows(x, x.rows, inputs_, "x");
  check_rows(y, x.rows, outputs_, "y");
  if (x.rows == 0) return;
  const DeviceRows rows(layer_.api(), x, y);
  check_cuda(layer_.api(), layer_.api().run_linear(layer_.get(), &rows.x, &rows.y, nullptr),
             "linear layer");
  rows.read(y);
}

void CudaLinear::launch(const ConstRows& x, const Rows& y, void* stream) const {
  check_rows(x, x.rows, inputs_, "x");
  check_rows(y, x.rows, outputs_, "y");
  const CudaRows from = device_rows(x), to = device_rows(y);
  check_cuda(layer_.api(), layer_.api().run_linear(layer_.get(), &from, &to, stream),
             "linear layer");
}

CudaLinear load_cuda_linear(const Checkpoint& checkpoint, const Module& module,
                            const CudaLoad& load) {
  if (!module.supported)
    fail_at({"unsupported", "", "", module.name, ""}, "{}: {}", module.name, module.reason);
  const LoadedMatrix m(checkpoint.store(), module, load);
  const Problem problem = make_problem(m.matrix.w, m.matrix.act, load.x_type);
  const Kernel& kernel = m.matrix.output_scale != 0.0f ? plain_cuda_kernel()
                                                       : chosen_kernel(problem, load, module.name);
  if (load.progress) load.progress(module.bytes);
  return {*load.module, m.matrix, kernel};
}

std::vector<CudaLinear> load_cuda_linears(const Checkpoint& checkpoint,
                                          std::span<const Module* const> modules,
                                          const CudaLoad& load) {
  std::vector<std::unique_ptr<LoadedMatrix>> matrices;
  const bool supported =
      std::all_of(modules.begin(), modules.end(), [](const Module* m) { return m->supported; });
  if (modules.size() > 1 && supported)
    for (const Module* m : modules)
      matrices.push_back(std::make_unique<LoadedMatrix>(checkpoint.store(), *m, load));
  const bool alike =
      !matrices.empty() && std::all_of(matrices.begin(), matrices.end(), [&](const auto& m) {
        return can_join(matrices[0]->matrix, m->matrix);
      });
  std::vector<CudaLinear> out;
  if (!alike) {
    for (const Module* m : modules) out.push_back(load_cuda_linear(checkpoint, *m, load));
    return out;
  }
  const JoinedMatrix joined(matrices);
  const Problem problem = make_problem(joined.matrix.w, joined.matrix.act, load.x_type);
  for (const Module* m : modules)
    if (load.progress) load.progress(m->bytes);
  out.emplace_back(*load.module, joined.matrix, chosen_kernel(problem, load, modules[0]->name));
  return out;
}

void CudaExperts::replace(size_t place, const CudaHostExpert& expert) const {
  check_cuda(layer_.api(), layer_.api().set_expert(layer_.get(), place, &expert.view()), "expert");
}
void CudaExperts::set_places(std::span<const uint32_t> expert_of) const {
  const std::vector<int32_t> map = places_map(expert_of, all_.size());
  check_cuda(layer_.api(), layer_.api().map_experts(layer_.get(), map.data()), "experts");
}

CudaExperts load_cuda_experts(const Checkpoint& checkpoint, const MoeBlock& block,
                              const CudaLoad& load, MoePart part,
                              std::optional<std::span<const uint32_t>> some) {
  const auto groups = [&](const Module& m) { return read_g_idx(checkpoint.store(), m.plan); };
  LayerOptions options;  // the CPU's plan checks the block and reports its problems
  options.act = load.act, options.x_type = load.x_type;
  const MoeBlockPlan plan = plan_moe(block, options, part, groups);
  CudaExperts out;
  out.spec_ = plan.layer.spec;
  if (out.spec_.router.experts == 0) out.spec_.router.experts = out.spec_.experts;
  out.router_ = Router(out.spec_.router);
  out.bias_ = block.correction_bias;
  out.expert_scale_ = block.per_expert_scale;
  out.path_ = experts_path(plan, out.spec_, load);
  const auto make = [&](bool shared) {
    const ModulePlan& up = plan.experts.at(0)[1];
    out.kernel_ = title_of(out.path_ == CudaPath::kPlain
                               ? plain_cuda_kernel()
                               : chosen_kernel(up.projection.problem, load, up.module->name));
    out.exact_ = out.path_ == CudaPath::kPlain ||
                 std::all_of(plan.experts.begin(), plan.experts.end(), [&](const ExpertModules& e) {
                   return std::all_of(e.begin(), e.end(), [&](const ModulePlan& p) {
                     return p.module == nullptr ||
                            chosen_kernel(p.projection.problem, load, p.module->name)
                                    .numerics(p.projection.problem) == Numerics::kExact;
                   });
                 });
    out.layer_ = make_experts(checkpoint, block, plan, load, out.path_, shared, some);
    out.set_router(checkpoint, block, load, part);
  };
  try {
    make(true);
    // Experts that differ, or numbers that the path's layout cannot hold.
  } catch (const Error&) {
    if (load.memory != nullptr) throw;  // plain kernels do not use this memory
    out.path_ = CudaPath::kPlain;
    make(false);
  }
  if (some) out.all_ = plan.experts;
  return out;
}

void CudaExperts::set_router(const Checkpoint& checkpoint, const MoeBlock& block,
                             const CudaLoad& load, MoePart part) {
  const RouterSpec& rule = spec_.router;
  if (rule.method == RouterMethod::kTable) return;  // experts by token id: the caller chooses them
  CudaRouter router{};
  router.spec = rule;
  router.bias = bias_.empty() ? nullptr : bias_.data();
  router.expert_scale = expert_scale_.empty() ? nullptr : expert_scale_.data();
  std::unique_ptr<LoadedMatrix> matrix;
  if (part == MoePart::kBlock && load.router_matrix && block.router != nullptr) {
    CudaLoad own = load;
    own.policy.where_it_can = true;  // a requested kernel is meant for the experts
    matrix = std::make_unique<LoadedMatrix>(checkpoint.store(), *block.router, own);
    router.matrix = &matrix->matrix;
    router.path = path_of(chosen_kernel(
        make_problem(matrix->matrix.w, matrix->matrix.act, load.x_type), own, block.router->name));
  }
  const CudaApi& api = layer_.api();
  CudaStatus status = api.set_router(layer_.get(), &router);
  if (status == CudaStatus::kRefused && router.path != CudaPath::kPlain) {
    router.path = CudaPath::kPlain;
    status = api.set_router(layer_.get(), &router);
  }
  // Experts are chosen on the CPU.
  if (status == CudaStatus::kRefused && router.matrix == nullptr) return;
  check_cuda(api, status, block.name);
  routes_ = true;
  has_router_ = router.matrix != nullptr;
}

void CudaExperts::launch_ids(const ConstRows& x, const int32_t* ids, const float* weights,
                             size_t slots, const Rows& y, void* stream) const {
  check_rows(x, x.rows, spec_.hidden, "x");
  check_rows(y, x.rows, spec_.hidden, "y");
  const CudaRows from = device_rows(x), to = device_rows(y);
  const CudaRouting routing{ids, weights, nullptr, slots};
  check_cuda(layer_.api(),
             layer_.api().run_moe(layer_.get(), &from, &routing, &to, nullptr, stream), "experts");
}

void CudaExperts::launch(const ConstRows& x, const ConstRows* logits, const Rows& y, int32_t* ids,
                         float* weights, void* stream) const {
  check_rows(x, x.rows, spec_.hidden, "x");
  check_rows(y, x.rows, spec_.hidden, "y");
  if (logits != nullptr) check_rows(*logits, x.rows, router_.width(), "router logits");
  if (!routes_) fail("this layer's experts are chosen on the CPU; give ids and weights");
  const CudaRows from = device_rows(x), to = device_rows(y);
  const CudaRows given = logits != nullptr ? device_rows(*logits) : CudaRows{};
  const CudaChosen chosen{ids, weights, nullptr};
  check_cuda(layer_.api(),
             layer_.api().run_routed(layer_.get(), &from, logits != nullptr ? &given : nullptr, &to,
                                     &chosen, stream),
             "experts");
}

CudaExperts::Routed CudaExperts::route_on_device(const ConstRows& x, const ConstRows* logits,
                                                 const Rows& y) const {
  check_rows(x, x.rows, spec_.hidden, "x");
  check_rows(y, x.rows, spec_.hidden, "y");
  Routed routed{std::vector<int32_t>(x.rows * slots()), std::vector<float>(x.rows * slots())};
  if (x.rows == 0) return routed;
  const CudaApi& api = layer_.api();
  const DeviceRows rows(api, x, y);
  const size_t bytes = routed.ids.size() * sizeof(int32_t);
  const CudaMemory ids(api, bytes), weights(api, bytes);
  CudaRows given{};
  std::optional<CudaMemory> logit_memory;
  if (logits != nullptr) {
    check_rows(*logits, x.rows, router_.width(), "router logits");
    const std::vector<uint8_t> packed = gathered(*logits);
    logit_memory.emplace(api, packed.size());
    logit_memory->upload(packed.data(), packed.size());
    given = {logit_memory->data(), type_of(logits->dtype), x.rows, router_.width()};
  }
  const CudaChosen chosen{static_cast<int32_t*>(ids.data()), static_cast<float*>(weights.data()),
                          nullptr};
  check_cuda(api,
             api.run_routed(layer_.get(), &rows.x, logits != nullptr ? &given : nullptr, &rows.y,
                            &chosen, nullptr),
             "experts");
  rows.read(y);
  ids.download(routed.ids.data(), bytes);
  weights.download(routed.weights.data(), bytes);
  return routed;
}

CudaExperts::Routed CudaExperts::forward(const ConstRows& x, const Rows& y) const {
  if (!has_router_) fail("the experts were loaded without their router; give logits or ids");
  return route_on_device(x, nullptr, y);
}

void CudaExperts::forward_ids(const ConstRows& x, std::span<const int32_t> ids,
                              std::span<const float> weights, const Rows& y,
                              std::span<const float> zero_weights) const {
  check_rows(x, x.rows, spec_.hidden, "x");
  check_rows(y, x.rows, spec_.hidden, "y");
  if (ids.size() != weights.size())
    fail("{} expert ids and {} weights; expected as many", ids.size(), weights.size());
  if (x.rows == 0) return;
  if (ids.size() % x.rows != 0 || ids.empty())
    fail("{} expert ids for {} tokens; expected the same number for each", ids.size(), x.rows);
  const size_t k = ids.size() / x.rows;
  const auto experts = static_cast<int32_t>(spec_.experts + spec_.router.shared_slots);
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < -1 || ids[i] >= experts)
      fail("token {}, slot {}: expert id {}; expected 0 to {}, or -1 for none", i / k, i % k,
           ids[i], experts - 1);
  const CudaApi& api = layer_.api();
  const DeviceRows rows(api, x, y);
  const CudaMemory id_memory(api, ids.size_bytes()), weight_memory(api, weights.size_bytes());
  const CudaMemory zero_memory(api, zero_weights.size_bytes());
  id_memory.upload(ids.data(), ids.size_bytes());
  weight_memory.upload(weights.data(), weights.size_bytes());
  zero_memory.upload(zero_weights.data(), zero_weights.size_bytes());
  const CudaRouting routing{
      static_cast<const int32_t*>(id_memory.data()),
      static_cast<const float*>(weight_memory.data()),
      zero_weights.empty() ? nullptr : static_cast<const float*>(zero_memory.data()), k};
  check_cuda(api, api.run_moe(layer_.get(), &rows.x, &routing, &rows.y, nullptr, nullptr),
             "experts");
  rows.read(y);
}

CudaExperts::Routed CudaExperts::forward_logits(const ConstRows& x, const ConstRows& logits,
                                                const Rows& y) const {
  if (routes_) return route_on_device(x, &logits, y);
  const size_t T = x.rows, n = router_.width(), k = router_.slots();
  check_rows(logits, T, n, "router logits");
  std::vector<float> rows(T * n), scratch(router_.scratch_floats()), zero(T);
  for (size_t t = 0; t < T; ++t) load_row(logits, t, 0, n, rows.data() + t * n);
  Routed routed{std::vector<int32_t>(T * k), std::vector<float>(T * k)};
  RouterInput in;
  in.logits = rows.data();
  in.T = T;
  in.bias = bias_.empty() ? nullptr : bias_.data();
  in.expert_scale = expert_scale_.empty() ? nullptr : expert_scale_.data();
  router_.check(in);
  RouterOutput out;
  out.ids = routed.ids.data();
  out.weights = routed.weights.data();
  out.zero_weights = zero.data();
  out.zero_id = -1;
  for (size_t t = 0; t < T; ++t) router_.route_row(in, t, out, scratch.data());
  forward_ids(
      x, routed.ids, routed.weights, y,
      spec_.router.zero_experts > 0 ? std::span<const float>(zero) : std::span<const float>());
  return routed;
}

}  // namespace moebius
