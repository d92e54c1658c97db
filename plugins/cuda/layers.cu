// SPDX-License-Identifier: Apache-2.0
// The layers (layers.h): weights to the device, and the launches of a call.
#include "layers.h"

#include <algorithm>

#include "quant/quant_access.h"

namespace moebius::cuda {
namespace {

__global__ void __launch_bounds__(1024) route_kernel(const __grid_constant__ RoutingArgs a) {
  extern __shared__ int32_t shared[];
  route_block(a, shared, false);
}
__global__ void __launch_bounds__(128) scatter_kernel(const __grid_constant__ RoutingArgs a) {
  const int t = static_cast<int>(blockIdx.x * 128 + threadIdx.x);
  if (t < a.T) scatter_token(a, t);
}

HopperQuestion question_of(const CudaMatrix& m) {
  const QuantMatrix& w = m.w;
  return {w.N,
          w.K,
          w.code,
          w.bits,
          w.scale_type,
          w.groups,
          w.block_n,
          w.block_k,
          w.zero_points != nullptr || w.offsets != nullptr || w.g_idx != nullptr ||
              w.k_phase != 0 || w.n_phase != 0,
          m.act,
          m.x_type};
}

// Numbers that the tensor-core forms do not hold.
void check_values(HopperScheme scheme, const QuantMatrix& w) {
  if (w.code == CodeType::kFp8)
    for (size_t n = 0; n < w.N; ++n)
      for (size_t k = 0; k < w.K; ++k)
        if ((w.codes[n * w.row_bytes + k] & 127) == 127)
          refuse("a weight is NaN: the tensor-core form has none");
  if (scheme == HopperScheme::kFp4Bf16)
    for (size_t n = 0; n < w.N; ++n)
      for (size_t g = 0; g < w.groups; ++g)
        if (const uint8_t s = w.scales[n * w.scale_stride + g]; s >= 127)
          refuse("a block scale is negative or NaN: the tensor-core form has none");
  if (scheme == HopperScheme::kInt4Channel || scheme == HopperScheme::kInt4Group)
    if (w.code == CodeType::kInt8)
      for (size_t n = 0; n < w.N; ++n)
        for (size_t k = 0; k < w.K; ++k)
          if (const int v = static_cast<int8_t>(w.codes[n * w.row_bytes + k]); v < -8 || v > 7)
            refuse("a 4-bit weight leaves its range");
}

// Tests compile two of the tiles (cmake/cuda.cmake).
uint32_t built_tile(uint32_t wanted) {
#if defined(MOEBIUS_CUDA_FEW_TILES)
  return wanted <= 8 ? 8 : 64;
#else
  return wanted;
#endif
}

int built_slabs(int wanted) {
#if defined(MOEBIUS_CUDA_FEW_TILES)
  static_cast<void>(wanted);
  return 1;
#else
  return wanted;
#endif
}

size_t x_bytes(XType type) { return type == XType::kF32 ? 4 : 2; }

void check_rows(const CudaRows& x, size_t columns, const char* what) {
  if (x.stride < columns || (x.rows > 0 && x.data == nullptr))
    refuse(std::string(what) + ": the rows are shorter than the layer is wide");
}

}  // namespace

Scratch& scratch() {
  static auto* all =
      new Scratch;  // outlives the driver, which is gone before static destructors run
  return *all;
}

// ---- tiles ----

void HopperWeights::plan(const CudaMatrix& first, const CudaMatrix* second, int count,
                         bool fp8_products) {
  const HopperAnswer answer = hopper_answer(question_of(first), fp8_products);
  if (answer.reason != nullptr) refuse(answer.reason);
  if (first.output_scale != 0.0f) refuse("outputs are quantized");
  scheme = answer.scheme, scaling = row_scaling(first.act), joined = second != nullptr,
  experts = count;
  N = static_cast<int>(first.w.N), K = static_cast<int>(first.w.K);
  const int rows = joined ? 2 * N : N;
  padded = (rows + 127) / 128 * 128;
  if (joined && padded != rows) refuse("the number of outputs is no multiple of 64");
  multiplies = first.w.global_scale.multiplies;
  const size_t tile_count =
      static_cast<size_t>(padded) / kTileOutputs * (static_cast<size_t>(K) / kTileInputs);
  tiles = Buffer(tile_count * hopper_tile_bytes(scheme) * static_cast<size_t>(count));
  channel = Buffer(sizeof(float) * static_cast<size_t>(count) *
                   (scheme == HopperScheme::kFp4Bf16 ? 2 : padded));
}

void HopperWeights::fill(int expert, const CudaMatrix& first, const CudaMatrix* second) {
  const CudaMatrix* matrices[2] = {&first, second != nullptr ? second : &first};
  std::vector<Buffer> memory;
  PackSource sources[2];
  for (int i = 0; i < (joined ? 2 : 1); ++i) {
    const CudaMatrix& m = *matrices[i];
    const QuantMatrix& w = m.w;
    const HopperAnswer answer = hopper_answer(question_of(m), scheme == HopperScheme::kFp8Bytes);
    if (answer.reason != nullptr || answer.scheme != scheme || static_cast<int>(w.N) != N ||
        static_cast<int>(w.K) != K || w.global_scale.multiplies != multiplies ||
        m.output_scale != 0.0f || !(m.act == first.act))
      refuse("experts are stored in different ways");
    if (m.bias != nullptr && joined) refuse("gate and up have biases");
    check_values(scheme, w);
    const size_t stored = (w.K * code_bits(w.code) + 7) / 8;
    memory.emplace_back(w.N * stored);
    check(cudaMemcpy2D(memory.back().as<void>(), stored, w.codes, w.row_bytes, stored, w.N,
                       cudaMemcpyHostToDevice),
          "copy to the device");
    sources[i] = {memory.back().as<uint8_t>(), stored, nullptr, w.scale_stride, w.code};
    if (hopper_tile(scheme).scale_bytes > 0) {
      memory.emplace_back(w.scales,
                          ((w.N - 1) * w.scale_stride + w.groups) * scale_bytes(w.scale_type));
      sources[i].scales = memory.back().as<uint8_t>();
    }
  }
  const size_t bytes = tiles.bytes() / static_cast<size_t>(experts);
  hopper_pack(scheme, sources, joined, N, padded, K,
              tiles.as<uint8_t>() + bytes * static_cast<size_t>(expert), nullptr);
  std::vector<float> scales(channel.bytes() / sizeof(float) / static_cast<size_t>(experts), 0.0f);
  if (scheme == HopperScheme::kFp4Bf16) {
    for (int i = 0; i < 2; ++i)
      scales[static_cast<size_t>(i)] = matrices[joined ? i : 0]->w.global_scale.value;
  } else if (hopper_tile(scheme).scale_bytes == 0) {
    for (int r = 0; r < (joined ? 2 * N : N); ++r) {
      const QuantMatrix& w = matrices[joined ? joined_half(static_cast<uint32_t>(r)) : 0]->w;
      const size_t n = joined ? joined_row(static_cast<uint32_t>(r)) : static_cast<uint32_t>(r);
      scales[static_cast<size_t>(r)] = scale_of(w, n, 0);
    }
  }
  check(cudaMemcpy(channel.as<float>() + scales.size() * static_cast<size_t>(expert), scales.data(),
                   scales.size() * sizeof(float), cudaMemcpyHostToDevice),
        "copy to the device");
  check(cudaDeviceSynchronize(), "packing");  // the stored form goes
}

// ---- linear ----

Linear::Linear(const CudaMatrix* parts, size_t count, CudaPath path) {
  if (count == 0) refuse("a linear layer needs a part");
  size_t at = 0;
  K_ = parts[0].w.K;
  for (size_t i = 0; i < count; ++i) {
    const CudaMatrix& m = parts[i];
    if (m.w.K != K_) refuse("parts of a linear layer take different numbers of inputs");
    Part p{};
    p.act = m.act, p.input = m.input, p.x_type = m.x_type;
    p.begin = at, p.n = m.w.N, p.padded = std::max(m.padded_n, m.w.N);
    at += p.padded;
    if (path == CudaPath::kPlain) {
      p.plain = std::make_unique<PlainWeights>(m);
      p.view = Buffer(&p.plain->view, sizeof p.plain->view);
    } else {
      p.hopper = std::make_unique<HopperWeights>();
      p.hopper->plan(m, nullptr, 1, path == CudaPath::kHopperFp8);
      p.hopper->fill(0, m, nullptr);
      if (m.bias != nullptr) p.bias = Buffer(m.bias, m.w.N * sizeof(float));
    }
    parts_.push_back(std::move(p));
  }
}

uint64_t Linear::bytes() const {
  uint64_t sum = 0;
  for (const Part& p : parts_) sum += p.plain != nullptr ? p.plain->bytes() : p.hopper->bytes();
  return sum;
}

void Linear::run(const CudaRows& x, const CudaRows& y, cudaStream_t stream) const {
  check_rows(x, K_, "x");
  check_rows(y, parts_.back().begin + parts_.back().padded, "y");
  if (x.rows != y.rows) refuse("x and y have different numbers of rows");
  if (x.rows == 0) return;
  for (const Part& p : parts_) {
    if (p.plain != nullptr)
      run_plain(p, x, y, stream);
    else
      run_hopper(p, x, y, stream);
    zero_columns(y, p.begin + p.n, p.begin + p.padded, stream);
  }
}

void Linear::run_plain(const Part& p, const CudaRows& x, const CudaRows& y,
                       cudaStream_t stream) const {
  Arena arena(scratch().of(stream));
  const int groups = act_groups_of(p.act, K_);
  const size_t values = arena.add<float>(x.rows * K_), scales = arena.add<float>(x.rows * groups),
               zeros = arena.add<int32_t>(x.rows * groups);
  arena.reserve(stream);
  RowSet rows;
  rows.rows = static_cast<int>(x.rows);
  PlainGemm g{};
  g.matrices = p.view.as<PlainMatrix>();
  g.rows = rows.rows, g.outputs = static_cast<int>(p.n);
  g.x = {arena.at<float>(values), arena.at<float>(scales), arena.at<int32_t>(zeros),
         static_cast<int>(K_), groups};
  g.y = y.data, g.y_type = y.type, g.stride = y.stride, g.column = p.begin;
  prepare_rows(g.matrices, rows, x, g.x, stream);
  plain_gemm(p.plain->view.mode, g, stream);
}

void Linear::run_hopper(const Part& p, const CudaRows& x, const CudaRows& y,
                        cudaStream_t stream) const {
  const HopperWeights& w = *p.hopper;
  const RowForm form = row_form(w.scheme);
  const uint32_t row_bytes = hopper_tile(w.scheme).row_bytes;
  const bool direct = form == RowForm::kBf16 && x.type == XType::kBf16 && x.stride == K_ &&
                      reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
  if (x.rows * K_ * row_bytes / 16 >= (size_t{1} << 31)) refuse("too many rows in one call");
  Arena arena(scratch().of(stream));
  const size_t operands = arena.add<uint8_t>(direct ? 0 : x.rows * K_ * row_bytes),
               scales = arena.add<float>(x.rows);
  arena.reserve(stream);
  if (!direct) {
    PrepareArgs a{};
    a.x = x, a.T = static_cast<int>(x.rows), a.H = static_cast<int>(K_), a.scaling = w.scaling;
    a.rows = arena.at<uint8_t>(operands), a.scales = arena.at<float>(scales);
    prepare_x(form, a, true, stream);
  }
  HopperGemm g{};
  const uint32_t tile = built_tile(hopper_row_tile(x.rows, static_cast<size_t>(w.padded)));
  g.w = w.tiles.as<uint8_t>(), g.channel = w.channel.as<float>();
  g.x = direct ? static_cast<const uint8_t*>(x.data) : arena.at<uint8_t>(operands),
  g.x_scale = arena.at<float>(scales);
  g.rows = static_cast<int>(x.rows), g.max_tiles = static_cast<int>((x.rows + tile - 1) / tile);
  g.K = w.K, g.n64 = w.padded / 64, g.multiplies = w.multiplies;
  g.out = y.data, g.out_type = y.type, g.out_stride = y.stride, g.column = p.begin, g.outputs = w.N;
  g.bias = p.bias.as<float>();
  g.slabs = built_slabs(hopper_row_slabs(tile, x.rows, static_cast<size_t>(w.padded)));
  hopper_gemm(w.scheme, false, tile, g, true, stream);
}

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

Moe::Moe(const CudaMoe& spec) : spec_(spec), hopper_(spec.path != CudaPath::kPlain) {
  if (spec.experts == 0 || spec.hidden == 0 || spec.intermediate == 0)
    refuse("a layer without experts or without size");
  if (spec.expert_map != nullptr) map_ = Buffer(spec.expert_map, spec.mapped * sizeof(int32_t));
  if (hopper_ && (!spec.gated || spec.activation.kind != 0 || spec.activation.has_limit))
    refuse("the tensor-core layer has silu alone");
  if (hopper_ && spec.weight_on_input) refuse("the tensor-core layer has no weighted input");
  if (hopper_ && (spec.intermediate % kStageInputs != 0 || spec.hidden % kStageInputs != 0))
    refuse("hidden or intermediate size is no multiple of 256");
  given_.assign(spec.experts + (spec.shared_intermediate != 0 ? 1 : 0), false);
  const auto size = [&](Experts& e, size_t count, size_t I) {
    e.count = count, e.I = I;
    if (spec.gated) e.gate.weights.resize(count);
    e.up.weights.resize(count), e.down.weights.resize(count);
  };
  size(routed_, spec.experts, spec.intermediate);
  size(shared_, spec.shared_intermediate != 0 ? 1 : 0, spec.shared_intermediate);
}

uint64_t Moe::bytes() const {
  uint64_t sum = gate_.bytes();
  for (const Experts* e : {&routed_, &shared_})
    sum += e->gate.bytes() + e->up.bytes() + e->down.bytes();
  if (up_) sum += up_->bytes() + down_->bytes();
  return sum;
}

void Moe::set(size_t local, const CudaExpert& e) {
  if (local >= given_.size() || given_[local])
    refuse("an expert that is not of this layer, or was given before");
  if (e.up == nullptr || e.down == nullptr || (e.gate != nullptr) != spec_.gated)
    refuse("a matrix of an expert is missing, or one too many");
  const bool shared = local == spec_.experts;
  const size_t I = shared ? spec_.shared_intermediate : spec_.intermediate;
  const bool fits = e.up->w.N == I && e.up->w.K == spec_.hidden && e.down->w.N == spec_.hidden &&
                    e.down->w.K == I &&
                    (e.gate == nullptr || (e.gate->w.N == I && e.gate->w.K == spec_.hidden));
  if (!fits) refuse("a matrix of an expert has other sizes than the layer");
  if (!hopper_ || shared) {  // the shared expert of a tensor-core layer is a plain one
    (shared ? shared_ : routed_).set(shared ? 0 : local, e);
  } else {
    if (e.down->bias != nullptr) refuse("down has a bias");
    if (!up_) {
      const bool fp8 = spec_.path == CudaPath::kHopperFp8;
      HopperWeights up, down;
      up.plan(*e.gate, e.up, static_cast<int>(spec_.experts), fp8);
      down.plan(*e.down, nullptr, static_cast<int>(spec_.experts), fp8);
      if (row_form(up.scheme) != row_form(down.scheme))
        refuse("down sees rows of another kind than gate and up");
      up_ = std::move(up), down_ = std::move(down);
    }
    up_->fill(static_cast<int>(local), *e.gate, e.up);
    down_->fill(static_cast<int>(local), *e.down, nullptr);
  }
  given_[local] = true;
  // Tables are on the device before the first call, which may be inside a graph.
  for (Projection* p :
       {&routed_.gate, &routed_.up, &routed_.down, &shared_.gate, &shared_.up, &shared_.down})
    if (p->complete()) p->table();
}

void Moe::set_shared_gate(const CudaMatrix& gate) {
  if (spec_.shared_intermediate == 0 || gate.w.N != 1 || gate.w.K != spec_.hidden)
    refuse("a gate without a shared expert, or of another size");
  gate_.weights.clear();
  gate_.weights.push_back(std::make_unique<PlainWeights>(gate));
  gate_.table();
}

void Moe::run(const CudaRows& x, const CudaRouting& routing, const CudaRows& y, CudaLaunch launch,
              cudaStream_t stream) {
  check_rows(x, spec_.hidden, "x");
  check_rows(y, spec_.hidden, "y");
  if (std::find(given_.begin(), given_.end(), false) != given_.end())
    refuse("an expert was not given");
  if (x.rows != y.rows) refuse("x and y have different numbers of rows");
  if (routing.slots == 0) refuse("no slots");
  if (x.rows == 0) return;
  if (x.rows * routing.slots > INT32_MAX / 4) refuse("too many rows in one call");
  if (hopper_)
    run_hopper(x, routing, y, launch, stream);
  else
    run_plain(x, routing, y, stream);
}

// Arrays that routing makes.
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
                   size_t T, uint32_t tile) const {
    RoutingArgs g{};
    g.ids = r.ids, g.weights = r.weights, g.map = map.as<int32_t>();
    g.T = static_cast<int>(T), g.slots = static_cast<int>(r.slots),
    g.experts = static_cast<int>(spec.experts);
    g.mapped = static_cast<int>(spec.mapped), g.tile = static_cast<int>(tile),
    g.weight_on_input = spec.weight_on_input;
    g.source = a.at<int32_t>(source), g.expert = a.at<int32_t>(expert),
    g.input_weight = a.at<float>(input_weight);
    g.weight = a.at<float>(weight), g.order = a.at<int32_t>(order),
    g.rows_of = a.at<int32_t>(rows_of);
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

// What the shared expert gives to the sum.
struct Moe::SharedRows {
  size_t y, gate;
  SharedRows(Arena& a, size_t T, size_t H) : y(a.add<float>(T * H)), gate(a.add<float>(T)) {}
};

// Room for the plain kernels behind what the arena has: it must not move between their passes.
void Moe::reserve_experts(Arena arena, size_t rows, cudaStream_t stream) {
  for (Projection* p : {&routed_.gate, &routed_.up, &routed_.down, &shared_.gate, &shared_.up,
                        &shared_.down, &gate_}) {
    if (p->complete()) p->table();
    groups_ = std::max(groups_, p->groups);
  }
  const size_t I = std::max(hopper_ ? 0 : routed_.I, shared_.I),
               groups = static_cast<size_t>(groups_);
  arena.add<float>(rows * std::max(spec_.hidden, I));
  arena.add<float>(rows * groups), arena.add<int32_t>(rows * groups);
  arena.add<float>(rows * I), arena.add<float>(rows * I);
  arena.reserve(stream);
}

void Moe::run_shared(const SharedRows& shared, const CudaRows& x, CombineArgs& c, Arena arena,
                     cudaStream_t stream) {
  if (shared_.count == 0) return;
  RowSet all;
  all.rows = static_cast<int>(x.rows);
  run_experts(shared_, all, nullptr, 0, x, arena.at<float>(shared.y), arena, stream);
  c.shared = arena.at<float>(shared.y);
  if (gate_.weights.empty()) return;
  const size_t T = x.rows, H = spec_.hidden, groups = static_cast<size_t>(groups_);
  const size_t values = arena.add<float>(T * H), scales = arena.add<float>(T * groups),
               zeros = arena.add<int32_t>(T * groups);
  PlainGemm g{};
  g.matrices = gate_.table(), g.rows = all.rows, g.outputs = 1;
  g.x = {arena.at<float>(values), arena.at<float>(scales), arena.at<int32_t>(zeros),
         static_cast<int>(H), groups_};
  g.y = arena.at<float>(shared.gate), g.y_type = XType::kF32, g.stride = 1;
  prepare_rows(g.matrices, all, x, g.x, stream);
  plain_gemm(gate_.weights[0]->view.mode, g, stream);
  c.shared_gate = arena.at<float>(shared.gate);
}

void Moe::run_hopper(const CudaRows& x, const CudaRouting& routing, const CudaRows& y,
                     CudaLaunch launch, cudaStream_t stream) {
  const size_t T = x.rows, H = spec_.hidden, I = spec_.intermediate, n = T * routing.slots;
  const uint32_t tile =
      built_tile(launch.tile != 0 ? launch.tile : hopper_token_tile(n, spec_.experts));
  const HopperScheme scheme = up_->scheme;
  const RowForm form = row_form(scheme);
  const uint32_t row_bytes = hopper_tile(scheme).row_bytes;
  const bool rows16 = form == RowForm::kBf16;
  const bool direct = rows16 && x.type == XType::kBf16 && x.stride == H &&
                      reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
  if (std::max(T * H, n * I) * row_bytes / 16 >= (size_t{1} << 31))
    refuse("too many rows in one call");
  Arena arena(scratch().of(stream));
  const Rows rows(arena, spec_, T, routing.slots, tile);
  if (tile >= 64 && rows.max_tiles >= 1 << 15) refuse("too many rows in one call");
  const size_t xq = arena.add<uint8_t>(direct ? 0 : T * H * row_bytes), xs = arena.add<float>(T);
  const size_t h = arena.add<uint8_t>(n * I * (rows16 ? 2 : 4)),
               hq = arena.add<uint8_t>(rows16 ? 0 : n * I * row_bytes), hs = arena.add<float>(n);
  const size_t yo = arena.add<float>(n * H);
  const SharedRows shared(arena, shared_.count != 0 ? T : 0, H);
  reserve_experts(arena, shared_.count != 0 ? T : 0, stream);
  const bool early = launch.early != CudaEarly::kNever;
  const bool early_down = launch.early == CudaEarly::kRule
                              ? hopper_early_down(n, spec_.experts, H * I, !rows16)
                              : launch.early == CudaEarly::kAlways;
  PrepareArgs a{};
  a.routing = rows.args(arena, spec_, map_, routing, T, tile);
  a.x = x, a.T = static_cast<int>(T), a.H = static_cast<int>(H), a.scaling = up_->scaling;
  a.rows = direct ? nullptr : arena.at<uint8_t>(xq), a.scales = arena.at<float>(xs);
  prepare_x(form, a, early, stream);
  HopperGemm g{};
  g.tiles = a.routing.tiles, g.max_tiles = rows.max_tiles;
  g.w = up_->tiles.as<uint8_t>(), g.channel = up_->channel.as<float>(),
  g.multiplies = up_->multiplies;
  g.x = direct ? static_cast<const uint8_t*>(x.data) : a.rows, g.x_scale = a.scales,
  g.source = a.routing.source;
  g.out = arena.at<void>(h), g.K = static_cast<int>(H), g.n64 = up_->padded / 64;
  const auto slabs = [&](int padded) {
    const auto outputs = static_cast<size_t>(padded);
    const int wanted =
        launch.slabs != 0 ? launch.slabs : hopper_slabs(tile, n, spec_.experts, outputs, row_bytes);
    return built_slabs(hopper_can_pair_slabs(tile, outputs) ? wanted : 1);
  };
  g.slabs = slabs(up_->padded);
  hopper_gemm(scheme, true, tile, g, early, stream);
  if (!rows16)
    requantize_h(form, arena.at<float>(h), a.routing.total, rows.n, static_cast<int>(I),
                 down_->scaling, arena.at<uint8_t>(hq), arena.at<float>(hs), early, stream);
  HopperGemm d{};
  d.tiles = g.tiles, d.max_tiles = g.max_tiles;
  d.w = down_->tiles.as<uint8_t>(), d.channel = down_->channel.as<float>(),
  d.multiplies = down_->multiplies;
  d.x = arena.at<uint8_t>(rows16 ? h : hq), d.x_scale = arena.at<float>(hs);
  d.out = arena.at<void>(yo), d.out_type = XType::kF32, d.out_stride = H,
  d.outputs = static_cast<int>(H);
  d.K = static_cast<int>(I), d.n64 = down_->padded / 64;
  d.slabs = slabs(down_->padded);
  hopper_gemm(down_->scheme, false, tile, d, early_down, stream);
  CombineArgs c = combine_args(a.routing, arena.at<float>(yo), x, y, routing, H);
  run_shared(shared, x, c, arena, stream);
  combine_rows(c, early && shared_.count == 0, stream);
}

// gate, up, activation, down of some experts; rows are sorted, or are those of x.
void Moe::run_experts(Experts& e, const RowSet& rows, const TokenTile* tiles, int max_tiles,
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
  activate_rows(spec_.activation, spec_.gated ? gates : nullptr, ups, ups, rows, I, stream);
  RowSet own = rows;
  own.source = nullptr, own.weight = nullptr;
  prepared.K = static_cast<int>(I);
  prepare_rows(down, own, CudaRows{ups, XType::kF32, n, I}, prepared, stream);
  multiply(e.down, down, y, H);
}

void Moe::run_plain(const CudaRows& x, const CudaRouting& routing, const CudaRows& y,
                    cudaStream_t stream) {
  const size_t T = x.rows, H = spec_.hidden, n = T * routing.slots;
  // Long calls are cut, so that what lies between the products stays small. Rows do not see each other.
  constexpr size_t kMostRows = 32768;
  const size_t most = std::max<size_t>(1, kMostRows / routing.slots);
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
      run_plain(rows(x), part, rows(y), stream);
    }
    return;
  }
  Arena arena(scratch().of(stream));
  const Rows rows(arena, spec_, T, routing.slots, kPlainTile);
  const size_t yo = arena.add<float>(n * H);
  const SharedRows shared(arena, shared_.count != 0 ? T : 0, H);
  reserve_experts(arena, std::max(n, T), stream);
  const RoutingArgs r = rows.args(arena, spec_, map_, routing, T, kPlainTile);
  const size_t bytes = 3 * sizeof(int32_t) * spec_.experts;
  if (bytes > 48 * 1024) refuse("more than 4096 experts");
  route_kernel<<<1, 1024, bytes, stream>>>(r);
  scatter_kernel<<<static_cast<unsigned>((T + 127) / 128), 128, 0, stream>>>(r);
  check_launch("sorting rows");
  RowSet sorted;
  sorted.source = r.source, sorted.expert = r.expert, sorted.total = r.total, sorted.rows = rows.n;
  if (spec_.weight_on_input) sorted.weight = r.input_weight;
  run_experts(routed_, sorted, r.tiles, r.max_tiles, x, arena.at<float>(yo), arena, stream);
  CombineArgs c = combine_args(r, arena.at<float>(yo), x, y, routing, H);
  run_shared(shared, x, c, arena, stream);
  combine_rows(c, false, stream);
}

}  // namespace moebius::cuda
