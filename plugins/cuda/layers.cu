// SPDX-License-Identifier: Apache-2.0
// Implements the layers (layers.h): copies weights to the device, and launches the kernels of a
// call.
#include "layers.h"

#include <algorithm>

#include "items.cuh"
#include "launch.h"

namespace moebius::cuda {
namespace {

__global__ void __launch_bounds__(1024) route_kernel(const __grid_constant__ RoutingArgs a) {
  extern __shared__ int32_t shared[];
  route_block(a, shared, /*whole=*/false);
}
__global__ void __launch_bounds__(128) scatter_kernel(const __grid_constant__ RoutingArgs a) {
  const int t = static_cast<int>(blockIdx.x * 128 + threadIdx.x);
  if (t < a.T) scatter_token(a, t);
}

__global__ void __launch_bounds__(kItemThreads) add_items_kernel(const ItemSum a) {
  __shared__ ItemOrder order;
  add_items_of(a, order);
}

}  // namespace

// ---- experts ----

uint64_t Moe::Projection::bytes() const {
  uint64_t sum = 0;
  for (const auto& w : weights) sum += w != nullptr ? w->bytes() : 0;
  return sum;
}

bool Moe::Projection::complete() const {
  return !weights.empty() &&
         std::none_of(weights.begin(), weights.end(), [](const auto& w) { return w == nullptr; });
}

const PlainMatrix* Moe::Projection::table() {
  if (uploaded) return views.as<PlainMatrix>();
  std::vector<PlainMatrix> all;
  for (const auto& w : weights) {
    all.push_back(w->view);
    modes = static_cast<uint8_t>(modes | 1u << static_cast<unsigned>(w->view.mode));
    groups = std::max(groups, w->view.act_groups);
  }
  views = Buffer(all.data(), all.size() * sizeof(PlainMatrix));
  uploaded = true;
  return views.as<PlainMatrix>();
}

void Moe::Experts::set(size_t i, const CudaExpert& e) {
  if (e.gate != nullptr) {
    gate.weights[i] = std::make_unique<PlainWeights>(*e.gate);
    one_input = one_input && e.gate->act == e.up->act && e.gate->input == e.up->input &&
                e.gate->x_type == e.up->x_type;
  }
  up.weights[i] = std::make_unique<PlainWeights>(*e.up);
  down.weights[i] = std::make_unique<PlainWeights>(*e.down);
}

// Replaces an expert in place: graphs captured the table's address and which kernels run, so these
// must not change.
void Moe::Projection::replace(size_t i, std::unique_ptr<PlainWeights> by) {
  if ((modes >> static_cast<unsigned>(by->view.mode) & 1u) == 0 || by->view.act_groups > groups)
    refuse("an expert that is stored in another way than the others");
  weights[i] = std::move(by);
  check(cudaMemcpy(views.as<PlainMatrix>() + i, &weights[i]->view, sizeof(PlainMatrix),
                   cudaMemcpyHostToDevice),
        "copy to the device");
}

void Moe::Experts::replace(size_t i, const CudaExpert& e) {
  if (e.gate != nullptr) {
    if (one_input && !(e.gate->act == e.up->act && e.gate->input == e.up->input &&
                       e.gate->x_type == e.up->x_type))
      refuse("an expert whose gate and up see different rows");
    gate.replace(i, std::make_unique<PlainWeights>(*e.gate));
  }
  up.replace(i, std::make_unique<PlainWeights>(*e.up));
  down.replace(i, std::make_unique<PlainWeights>(*e.down));
}

Moe::Moe(const CudaMoe& spec) : spec_(spec), hopper_(spec.path != CudaPath::kPlain) {
  if ((spec.experts == 0 && spec.expert_map == nullptr) || spec.hidden == 0 ||
      spec.intermediate == 0)
    refuse("a layer without experts or without size");
  if (spec.memory != nullptr && !hopper_) refuse("plain kernels have memory of their own");
  memory_ = WeightMemory(spec.memory, spec.memory_bytes);
  if (spec.expert_map != nullptr) map_ = Buffer(spec.expert_map, spec.mapped * sizeof(int32_t));
  given_.assign(spec.experts + (spec.shared_intermediate != 0 ? 1 : 0), false);
  const auto size = [&](Experts& e, size_t count, size_t I, const CudaActivation& activation) {
    e.count = count, e.I = I, e.activation = activation;
    if (spec.gated) e.gate.weights.resize(count);
    e.up.weights.resize(count), e.down.weights.resize(count);
  };
  size(routed_, spec.experts, spec.intermediate, spec.activation);
  size(shared_, spec.shared_intermediate != 0 ? 1 : 0, spec.shared_intermediate,
       spec.shared_activation);
}

uint64_t Moe::bytes() const {
  uint64_t sum = gate_.bytes();
  for (const Experts* e : {&routed_, &shared_})
    sum += e->gate.bytes() + e->up.bytes() + e->down.bytes();
  for (const std::optional<Tiles>* t : {&tiles_, &shared_tiles_})
    if (*t) sum += (*t)->bytes();
  if (router_ && router_->matrix != nullptr) sum += router_->matrix->bytes();
  return sum;
}

void Moe::set(size_t local, const CudaExpert& e) {
  if (local >= given_.size() || (given_[local] && local == spec_.experts))
    refuse("an expert that is not of this layer, or was given before");
  if (e.up == nullptr || e.down == nullptr || (e.gate != nullptr) != spec_.gated)
    refuse("a matrix of an expert is missing, or one too many");
  const bool shared = local == spec_.experts;
  const size_t I = shared ? spec_.shared_intermediate : spec_.intermediate;
  const bool fits = e.up->w.N == I && e.up->w.K == spec_.hidden && e.down->w.N == spec_.hidden &&
                    e.down->w.K == I &&
                    (e.gate == nullptr || (e.gate->w.N == I && e.gate->w.K == spec_.hidden));
  if (!fits) refuse("a matrix of an expert has other sizes than the layer");
  const CudaPath path = shared ? spec_.shared_path : spec_.path;
  if (path == CudaPath::kPlain && given_[local])
    routed_.replace(local, e);
  else if (path == CudaPath::kPlain)
    (shared ? shared_ : routed_).set(shared ? 0 : local, e);
  else
    set_tiles(shared ? shared_tiles_ : tiles_, shared ? 0 : local, e, shared);
  given_[local] = true;
  // Tables are on the device before the first call, because a graph may capture that call.
  for (Projection* p :
       {&routed_.gate, &routed_.up, &routed_.down, &shared_.gate, &shared_.up, &shared_.down})
    if (p->complete()) p->table();
}

void Moe::set_tiles(std::optional<Tiles>& to, size_t local, const CudaExpert& e, bool shared) {
  const int count = shared ? 1 : static_cast<int>(spec_.experts);
  const CudaMatrix& first = e.gate != nullptr ? *e.gate : *e.up;
  const CudaMatrix* second = e.gate != nullptr ? e.up : nullptr;
  if (!to) {
    const CudaPath path = shared ? spec_.shared_path : spec_.path;
    Tiles t;
    t.activation = shared ? spec_.shared_activation : spec_.activation;
    WeightMemory& memory = shared ? own_memory_ : memory_;
    t.up.plan(first, second, count, path, static_cast<int>(kStageInputs), memory);
    t.down.plan(*e.down, nullptr, count, path, 128, memory);
    if (spec_.weight_on_input && !shared) t.up.rows.by_expert = true, t.up.rows.fast = false;
    t.I = static_cast<size_t>(t.down.K);
    t.fused = e.gate != nullptr && t.activation.kind == 0 && !t.activation.has_limit &&
              first.bias == nullptr && second->bias == nullptr;
    // In the fused form, h has the 16-bit type of its own rows.
    if (is_as_is(t.down.rows.form) && t.down.rows.act.code == ActCode::kAsIs &&
        row_form(t.up.scheme) != row_form(t.down.scheme))
      t.fused = false;
    to = std::move(t);
  }
  if (to->fused && (first.bias != nullptr || second->bias != nullptr))
    refuse("some experts have biases and others not");
  to->up.fill(static_cast<int>(local), first, second);
  to->down.fill(static_cast<int>(local), *e.down, nullptr);
}

void Moe::set_shared_gate(const CudaMatrix& gate) {
  if (spec_.shared_intermediate == 0 || gate.w.N != 1 || gate.w.K != spec_.hidden)
    refuse("a gate without a shared expert, or of another size");
  gate_.weights.clear();
  gate_.weights.push_back(std::make_unique<PlainWeights>(gate));
  gate_.table();
}

void Moe::check_call(const CudaRows& x, const CudaRouting& routing) const {
  check_rows(x, spec_.hidden, "x");
  if (std::find(given_.begin(), given_.end(), false) != given_.end())
    refuse("an expert was not given");
  if (routing.slots == 0) refuse("no slots");
  if (x.rows * routing.slots > INT32_MAX / 4) refuse("too many rows in one call");
}

struct Moe::Output {
  CudaRows y{};
  const CudaDivided* divided = nullptr;  // receives the rows instead of y
};

void Moe::run(const CudaRows& x, const CudaRouting& routing, const CudaRows& y, CudaLaunch launch,
              cudaStream_t stream) {
  check_call(x, routing);
  check_rows(y, spec_.hidden, "y");
  if (spec_.experts == 0) refuse("a layer whose experts are elsewhere");
  if (x.rows != y.rows) refuse("x and y have different numbers of rows");
  if (x.rows == 0) return;
  if (hopper_)
    run_hopper(x, routing, {y}, launch, stream);
  else
    run_plain(x, routing, {y}, stream);
}

void Moe::run_items(const CudaRows& x, const CudaRouting& routing, const CudaDivided& to,
                    cudaStream_t stream) {
  check_call(x, routing);
  if (to.own.rows == nullptr || to.own.at == nullptr ||
      (shared_.count != 0 && (to.shared == nullptr || to.shared_gate == nullptr)))
    refuse("a divided layer without room for its rows");
  if (x.rows == 0) return;
  if (spec_.experts == 0)
    run_shared_alone(x, routing, to, stream);
  else if (hopper_)
    run_hopper(x, routing, {{}, &to}, {}, stream);
  else
    run_plain(x, routing, {{}, &to}, stream);
}

void Moe::add_items(const CudaRows& x, const CudaRouting& routing, const CudaDivided& from,
                    const CudaRows& y, cudaStream_t stream) const {
  check_rows(x, spec_.hidden, "x");
  check_rows(y, spec_.hidden, "y");
  if (x.rows != y.rows) refuse("x and y have different numbers of rows");
  if (routing.slots > kItemSlots) refuse("more experts of a token than a divided layer adds");
  if (x.rows == 0) return;
  ItemSum a{routing, from, x, y, spec_.hidden, spec_.weight_on_input};
  if (shared_.count == 0) a.rows.shared = nullptr;
  if (gate_.weights.empty()) a.rows.shared_gate = nullptr;
  const dim3 grid(static_cast<unsigned>(x.rows),
                  static_cast<unsigned>((spec_.hidden + kItemColumns - 1) / kItemColumns));
  launch(add_items_kernel, grid, kItemThreads, 0, /*early=*/false, stream, "sum of experts", a);
}

void Moe::map(const int32_t* expert_map) {
  if (map_.bytes() == 0) refuse("a layer that has all experts");
  check(cudaMemcpy(map_.as<void>(), expert_map, map_.bytes(), cudaMemcpyHostToDevice),
        "copy to the device");
}

size_t Moe::ranges(size_t local, CudaRange* to) const {
  if (spec_.memory == nullptr || !tiles_ || local >= spec_.experts)
    refuse("an expert that is not in memory of the caller");
  size_t count = 0;
  for (const HopperWeights* w : {&tiles_->up, &tiles_->down})
    for (const Buffer* b : {&w->tiles, &w->channel})
      if (b->bytes() > 0) to[count++] = memory_.part(*b, local, spec_.experts);
  return count;
}

// Locates the arrays that routing writes.
struct Moe::Rows {
  size_t source, expert, input_weight, weight, order, rows_of, tiles, total, cursor;
  int n, max_tiles;
  Rows(Arena& a, const CudaMoe& spec, size_t T, size_t slots, size_t tile)
      : n(static_cast<int>(T * slots)),
        max_tiles(static_cast<int>(most_token_tiles(T * slots, spec.experts, tile))) {
    const size_t rows = T * slots;
    source = a.add<int32_t>(rows), expert = a.add<int32_t>(rows), input_weight = a.add<float>(rows),
    weight = a.add<float>(rows);
    order = a.add<int32_t>(rows), rows_of = a.add<int32_t>(rows),
    tiles = a.add<TokenTile>(static_cast<size_t>(max_tiles));
    total = a.add<int32_t>(1), cursor = a.add<int32_t>(spec.experts);
  }
  RoutingArgs args(const Arena& a, const CudaMoe& spec, const Buffer& map, const CudaRouting& r,
                   size_t T, uint32_t tile, const Output& to) const {
    RoutingArgs g{};
    g.ids = r.ids, g.weights = r.weights, g.map = map.as<int32_t>();
    g.T = static_cast<int>(T), g.slots = static_cast<int>(r.slots),
    g.experts = static_cast<int>(spec.experts);
    g.mapped = static_cast<int>(spec.mapped), g.tile = static_cast<int>(tile),
    g.weight_on_input = spec.weight_on_input;
    g.source = a.at<int32_t>(source), g.expert = a.at<int32_t>(expert),
    g.input_weight = a.at<float>(input_weight);
    g.weight = a.at<float>(weight), g.order = a.at<int32_t>(order),
    g.rows_of = to.divided != nullptr ? to.divided->own.at : a.at<int32_t>(rows_of);
    g.tiles = a.at<TokenTile>(tiles), g.max_tiles = max_tiles, g.total = a.at<int32_t>(total),
    g.cursor = a.at<int32_t>(cursor);
    return g;
  }
};

namespace {

CombineArgs combine_args(const RoutingArgs& g, const float* y, const CudaRows& x,
                         const CudaRows& out, const CudaRouting& r, size_t H) {
  CombineArgs c{};
  c.y = y, c.order = g.order, c.weight = g.weight, c.zero_weights = r.zero_weights, c.x = x,
  c.out = out;
  c.T = g.T, c.slots = g.slots, c.H = static_cast<int>(H);
  return c;
}

}  // namespace

// Locates the shared expert's part of the sum and its gates.
struct Moe::SharedRows {
  size_t y, gate;
  SharedRows(Arena& a, size_t T, size_t H) : y(a.add<float>(T * H)), gate(a.add<float>(T)) {}
  float* rows(const Arena& a, const Output& to) const {
    return to.divided != nullptr ? to.divided->shared : a.at<float>(y);
  }
  float* gates(const Arena& a, const Output& to) const {
    return to.divided != nullptr ? to.divided->shared_gate : a.at<float>(gate);
  }
};

struct Moe::TileRows {
  const RoutingArgs* routing;  // null: rows are those of x, and all use the only expert
  size_t T, n;                 // number of rows of x, and of rows of experts
  uint32_t tile;
  int max_tiles;
  CudaLaunch launch;
  bool early, early_down;
};

struct Moe::TileArrays {
  size_t operands, scales, outputs, h, h_operands, h_scales;
  // Set if rows of x, and of h, are operands already.
  bool direct, h_direct;
  TileArrays(Arena& a, const Tiles& e, const CudaRows& x, size_t T, size_t n) {
    const size_t x_rows = e.up.rows.by_expert ? n : T;
    direct = e.up.takes(x);
    h_direct = is_as_is(e.down.rows.form) && e.down.rows.act.code == ActCode::kAsIs &&
               !e.down.rows.by_expert;
    operands = a.add<uint8_t>(direct ? 0 : x_rows * e.up.row_bytes());
    scales = a.add<float>(x_rows * e.up.row_scales());
    outputs = a.add<float>(e.fused ? 0 : n * static_cast<size_t>(e.up.padded));
    h = a.add<uint8_t>(n * e.I * (h_direct ? 2 : 4));
    h_operands = a.add<uint8_t>(h_direct ? 0 : n * e.down.row_bytes());
    h_scales = a.add<float>(n * e.down.row_scales());
  }
};

// Reserves memory for the plain kernels behind the arena's: it must not move between their passes.
void Moe::reserve_experts(Arena arena, size_t rows, cudaStream_t stream) {
  for (Projection* p : {&routed_.gate, &routed_.up, &routed_.down, &shared_.gate, &shared_.up,
                        &shared_.down, &gate_}) {
    if (p->complete()) p->table();
    groups_ = std::max(groups_, p->groups);
  }
  const size_t I = std::max(tiles_ ? 0 : routed_.I, shared_tiles_ ? 0 : shared_.I),
               groups = static_cast<size_t>(groups_);
  arena.add<float>(rows * std::max(spec_.hidden, I));
  arena.add<float>(rows * groups), arena.add<int32_t>(rows * groups);
  arena.add<float>(rows * I), arena.add<float>(rows * I);
  arena.reserve(stream);
}

void Moe::run_shared(float* y, float* gate, const TileArrays* tiles, const CudaRows& x,
                     CombineArgs& c, Arena arena, cudaStream_t stream) {
  if (shared_.count == 0) return;
  RowSelection all;
  all.rows = static_cast<int>(x.rows);
  if (tiles != nullptr) {
    TileRows r{};
    r.T = r.n = x.rows;
    r.tile = shared_tiles_->down.row_tile(x.rows);
    run_tiles(*shared_tiles_, r, *tiles, x, y, arena, stream);
  } else {
    run_experts(shared_, all, /*tiles=*/nullptr, /*max_tiles=*/0, x, y, arena, stream);
  }
  c.shared = y;
  if (gate_.weights.empty()) return;
  const size_t T = x.rows, H = spec_.hidden, groups = static_cast<size_t>(groups_);
  const size_t values = arena.add<float>(T * H), scales = arena.add<float>(T * groups),
               zeros = arena.add<int32_t>(T * groups);
  PlainGemm g{};
  g.matrices = gate_.table(), g.rows = all.rows, g.outputs = 1;
  g.x = {arena.at<float>(values), arena.at<float>(scales), arena.at<int32_t>(zeros),
         static_cast<int>(H), groups_};
  g.y = gate, g.y_type = XType::kF32, g.stride = 1;
  prepare_rows(g.matrices, all, x, g.x, stream);
  plain_gemm(gate_.weights[0]->view.mode, g, stream);
  c.shared_gate = gate;
}

// Makes operands of x (the routing kernel has made them where that is fast), and runs both products
// and the steps between them.
void Moe::run_tiles(const Tiles& e, const TileRows& r, const TileArrays& at, const CudaRows& x,
                    float* y, const Arena& arena, cudaStream_t stream) {
  const RoutingArgs* routing = r.routing;
  const auto operands = [&](const HopperWeights& w, const CudaRows& from, bool sorted, uint8_t* to,
                            float* scales) {
    OperandArgs a{};
    a.rows.rows = static_cast<int>(sorted ? r.n : r.T);
    if (sorted && routing != nullptr) {
      a.rows.expert = routing->expert, a.rows.total = routing->total;
      if (&w == &e.up) a.rows.source = routing->source;
      if (&w == &e.up && spec_.weight_on_input) a.rows.weight = routing->input_weight;
    }
    a.x = from, a.act = w.rows.act, a.inputs = w.rows.inputs.as<ActParams>(),
    a.columns = w.rows.columns.as<int32_t>(), a.x_type = w.rows.x_type, a.form = w.rows.form;
    a.K = w.stored, a.padded = w.K, a.to = to, a.scales = scales;
    make_operands(a, stream);
  };
  const auto gemm = [&](const HopperWeights& w, const void* from, const float* scales) {
    HopperGemm g = w.gemm();
    const auto outputs = static_cast<size_t>(w.padded);
    const uint32_t tile = w.built_tile(r.tile);
    if (routing != nullptr)
      g.tiles = routing->tiles, g.max_tiles = r.max_tiles;
    else
      g.max_tiles = static_cast<int>((r.n + tile - 1) / tile), g.rows = static_cast<int>(r.n);
    g.x = static_cast<const uint8_t*>(from), g.x_scale = scales;
    const uint32_t bytes = hopper_tile(w.scheme).row_bytes;
    const int slabs = routing == nullptr
                          ? hopper_row_slabs(tile, r.n, outputs, device_limits().multiprocessors)
                      : r.launch.slabs == 0 ? hopper_slabs(tile, r.n, spec_.experts, outputs, bytes)
                      : hopper_can_pair_slabs(tile, outputs) ? r.launch.slabs
                                                             : 1;
    g.slabs = built_slabs(w.scheme, tile, slabs);
    return std::pair(g, tile);
  };
  uint8_t* x_operands = arena.at<uint8_t>(at.operands);
  float* x_scales = arena.at<float>(at.scales);
  if (!at.direct && !e.up.rows.fast) {
    operands(e.up, x, e.up.rows.by_expert, x_operands, x_scales);
  } else if (!at.direct && routing == nullptr) {
    PrepareArgs a{};
    a.x = x, a.T = static_cast<int>(r.T), a.H = e.up.K, a.scaling = e.up.rows.scaling;
    a.rows = x_operands, a.scales = x_scales;
    prepare_x(e.up.rows.form, a, /*early=*/false, stream);
  }
  auto [g, tile] = gemm(e.up, at.direct ? x.data : static_cast<const void*>(x_operands), x_scales);
  if (routing != nullptr && !e.up.rows.by_expert) g.source = routing->source;
  uint8_t* h = arena.at<uint8_t>(at.h);
  const XType h_type = !at.h_direct                     ? XType::kF32
                       : hopper_tile(e.down.scheme).f16 ? XType::kF16
                                                        : XType::kBf16;
  g.h_f32 = !at.h_direct;
  if (e.fused) {
    g.out = h;
    hopper_gemm(e.up.scheme, e.up.mma, /*gate_up=*/true, tile, g, r.early, stream);
  } else {
    g.out = arena.at<void>(at.outputs), g.out_stride = static_cast<size_t>(e.up.padded);
    g.outputs = e.up.padded;
    hopper_gemm(e.up.scheme, e.up.mma, /*gate_up=*/false, tile, g, /*early=*/false, stream);
    ActivateArgs a{};
    a.activation = e.activation, a.y = arena.at<float>(at.outputs), a.bias = e.up.bias.as<float>();
    if (routing != nullptr) a.expert = routing->expert, a.total = routing->total;
    a.rows = static_cast<int>(r.n), a.outputs = e.up.padded, a.I = static_cast<int>(e.I);
    a.joined = e.up.joined, a.h = h, a.type = h_type;
    activate_outputs(a, stream);
  }
  uint8_t* h_operands = at.h_direct ? h : arena.at<uint8_t>(at.h_operands);
  float* h_scales = arena.at<float>(at.h_scales);
  if (!at.h_direct) {
    const bool dynamic = e.down.rows.act.code != ActCode::kAsIs && e.down.rows.fast;
    if (dynamic)
      requantize_h(e.down.rows.form, arena.at<float>(at.h),
                   routing != nullptr ? routing->total : nullptr, static_cast<int>(r.n),
                   static_cast<int>(e.I), e.down.rows.scaling, h_operands, h_scales, r.early,
                   stream);
    else
      operands(e.down, CudaRows{h, XType::kF32, r.n, e.I}, /*sorted=*/true, h_operands, h_scales);
  }
  auto [d, d_tile] = gemm(e.down, h_operands, h_scales);
  d.out = y, d.out_stride = spec_.hidden, d.bias = e.down.bias.as<float>();
  hopper_gemm(e.down.scheme, e.down.mma, /*gate_up=*/false, d_tile, d, r.early_down, stream);
}

void Moe::run_hopper(const CudaRows& x, const CudaRouting& routing, const Output& to,
                     CudaLaunch launch, cudaStream_t stream) {
  const Tiles& e = *tiles_;
  const size_t T = x.rows, H = spec_.hidden, n = T * routing.slots;
  const uint32_t wanted = launch.tile != 0 ? launch.tile
                          : e.down.mma
                              ? mma_tile(e.down.scheme, n, spec_.experts,
                                         static_cast<size_t>(e.down.padded), device_limits().card())
                              : hopper_token_tile(n, spec_.experts);
  const uint32_t tile = e.up.built_tile(e.down.built_tile(wanted));
  const size_t most =
      std::max((e.up.rows.by_expert ? n : T) * e.up.row_bytes(), n * e.down.row_bytes());
  if (most / 16 >= (size_t{1} << 31)) refuse("too many rows in one call");
  Arena arena(scratch().of(stream));
  const Rows rows(arena, spec_, T, routing.slots, tile);
  if (tile >= 64 && rows.max_tiles >= 1 << 15) refuse("too many rows in one call");
  const TileArrays arrays(arena, e, x, T, n);
  const size_t yo = arena.add<float>(to.divided != nullptr ? 0 : n * H);
  const SharedRows shared(arena, shared_.count != 0 && to.divided == nullptr ? T : 0, H);
  std::optional<TileArrays> shared_arrays;
  if (shared_tiles_) shared_arrays.emplace(arena, *shared_tiles_, x, T, T);
  reserve_experts(arena, shared_.count != 0 ? T : 0, stream);
  float* out = to.divided != nullptr ? to.divided->own.rows : arena.at<float>(yo);
  const bool plain_rows = is_as_is(e.up.rows.form);
  TileRows r{};
  r.T = T, r.n = n, r.tile = tile, r.max_tiles = rows.max_tiles, r.launch = launch;
  r.early = launch.early != CudaEarly::kNever;
  r.early_down = launch.early == CudaEarly::kRule
                     ? hopper_early_down(n, spec_.experts, H * spec_.intermediate, !plain_rows)
                     : launch.early == CudaEarly::kAlways;
  PrepareArgs a{};
  a.routing = rows.args(arena, spec_, map_, routing, T, tile, to);
  a.x = x, a.T = static_cast<int>(T), a.H = static_cast<int>(H), a.scaling = e.up.rows.scaling;
  const bool here = !arrays.direct && e.up.rows.fast;
  a.rows = here ? arena.at<uint8_t>(arrays.operands) : nullptr;
  a.scales = arena.at<float>(arrays.scales);
  prepare_x(e.up.rows.form, a, r.early, stream);
  r.routing = &a.routing;
  run_tiles(e, r, arrays, x, out, arena, stream);
  CombineArgs c = combine_args(a.routing, out, x, to.y, routing, H);
  run_shared(shared.rows(arena, to), shared.gates(arena, to),
             shared_arrays ? &*shared_arrays : nullptr, x, c, arena, stream);
  if (to.divided == nullptr) combine_rows(c, r.early && shared_.count == 0, stream);
}

// Runs only the shared expert, for calls in which no chosen expert is here.
void Moe::run_shared_alone(const CudaRows& x, const CudaRouting& routing, const CudaDivided& to,
                           cudaStream_t stream) {
  check(cudaMemsetAsync(to.own.at, 0xFF, x.rows * routing.slots * sizeof(int32_t), stream),
        "memory of the device");
  if (shared_.count == 0) return;
  Arena arena(scratch().of(stream));
  std::optional<TileArrays> arrays;
  if (shared_tiles_) arrays.emplace(arena, *shared_tiles_, x, x.rows, x.rows);
  reserve_experts(arena, x.rows, stream);
  CombineArgs c{};
  run_shared(to.shared, to.shared_gate, arrays ? &*arrays : nullptr, x, c, arena, stream);
}

// Runs gate, up, activation and down of some experts; the rows are sorted by expert, or are those
// of x.
void Moe::run_experts(Experts& e, const RowSelection& rows, const TokenTile* tiles, int max_tiles,
                      const CudaRows& x, float* y, Arena arena, cudaStream_t stream) {
  const size_t n = static_cast<size_t>(rows.rows), H = spec_.hidden, I = e.I;
  const PlainMatrix *gate = spec_.gated ? e.gate.table() : nullptr, *up = e.up.table(),
                    *down = e.down.table();
  const int groups = groups_;
  const size_t values = arena.add<float>(n * std::max(H, I)), scales = arena.add<float>(n * groups),
               zeros = arena.add<int32_t>(n * groups);
  const size_t g_at = arena.add<float>(spec_.gated ? n * I : 0), u_at = arena.add<float>(n * I);
  arena.reserve(stream);
  Prepared prepared{arena.at<float>(values), arena.at<float>(scales), arena.at<int32_t>(zeros),
                    static_cast<int>(H), groups};
  const auto multiply = [&](const Projection& p, const PlainMatrix* table, float* out,
                            size_t outputs) {
    PlainGemm g{};
    g.matrices = table, g.tiles = tiles, g.max_tiles = max_tiles, g.rows = rows.rows,
    g.outputs = static_cast<int>(outputs);
    g.x = prepared, g.y = out, g.y_type = XType::kF32, g.stride = outputs;
    for (const PlainMode m : {PlainMode::kFloat, PlainMode::kInteger, PlainMode::kVllm})
      if (p.modes >> static_cast<unsigned>(m) & 1u) plain_gemm(m, g, stream);
  };
  float *gates = arena.at<float>(g_at), *ups = arena.at<float>(u_at);
  prepare_rows(up, rows, x, prepared, stream);
  multiply(e.up, up, ups, I);
  if (spec_.gated) {
    if (!e.one_input) prepare_rows(gate, rows, x, prepared, stream);
    multiply(e.gate, gate, gates, I);
  }
  activate_rows(e.activation, spec_.gated ? gates : nullptr, ups, ups, rows, I, stream);
  RowSelection own = rows;
  own.source = nullptr, own.weight = nullptr;
  prepared.K = static_cast<int>(I);
  prepare_rows(down, own, CudaRows{ups, XType::kF32, n, I}, prepared, stream);
  multiply(e.down, down, y, H);
}

void Moe::run_plain(const CudaRows& x, const CudaRouting& routing, const Output& to,
                    cudaStream_t stream) {
  const size_t T = x.rows, H = spec_.hidden, n = T * routing.slots;
  // Long calls are cut, so that the memory between the products stays small; rows are independent.
  constexpr size_t kMostRows = 32768;
  const size_t most = std::max<size_t>(1, kMostRows / routing.slots);
  if (T > most && to.divided != nullptr) refuse("too many rows in one call of a divided layer");
  if (T > most) {
    for (size_t t = 0; t < T; t += most) {
      const size_t count = std::min(most, T - t);
      const auto rows = [&](const CudaRows& r) {
        return CudaRows{static_cast<uint8_t*>(r.data) + t * r.stride * x_bytes(r.type), r.type,
                        count, r.stride};
      };
      CudaRouting part = routing;
      part.ids += t * routing.slots, part.weights += t * routing.slots;
      if (part.zero_weights != nullptr) part.zero_weights += t;
      run_plain(rows(x), part, {rows(to.y)}, stream);
    }
    return;
  }
  Arena arena(scratch().of(stream));
  const Rows rows(arena, spec_, T, routing.slots, kPlainTile);
  const size_t yo = arena.add<float>(to.divided != nullptr ? 0 : n * H);
  const SharedRows shared(arena, shared_.count != 0 && to.divided == nullptr ? T : 0, H);
  std::optional<TileArrays> shared_arrays;
  if (shared_tiles_) shared_arrays.emplace(arena, *shared_tiles_, x, T, T);
  reserve_experts(arena, std::max(n, T), stream);
  float* out = to.divided != nullptr ? to.divided->own.rows : arena.at<float>(yo);
  const RoutingArgs r = rows.args(arena, spec_, map_, routing, T, kPlainTile, to);
  const size_t bytes = 3 * sizeof(int32_t) * spec_.experts;
  if (bytes > 48 * 1024) refuse("more than 4096 experts");
  launch(route_kernel, 1, 1024, bytes, /*early=*/false, stream, "sorting rows", r);
  launch(scatter_kernel, blocks_of(T, 128), 128, 0, /*early=*/false, stream, "sorting rows", r);
  RowSelection sorted;
  sorted.source = r.source, sorted.expert = r.expert, sorted.total = r.total, sorted.rows = rows.n;
  if (spec_.weight_on_input) sorted.weight = r.input_weight;
  run_experts(routed_, sorted, r.tiles, r.max_tiles, x, out, arena, stream);
  CombineArgs c = combine_args(r, out, x, to.y, routing, H);
  run_shared(shared.rows(arena, to), shared.gates(arena, to),
             shared_arrays ? &*shared_arrays : nullptr, x, c, arena, stream);
  if (to.divided == nullptr) combine_rows(c, /*early=*/false, stream);
}

}  // namespace moebius::cuda
