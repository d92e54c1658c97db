// SPDX-License-Identifier: Apache-2.0
// Implements matrices in tiles, and linear layers (layers.h).
#include <algorithm>
#include <numeric>

#include "few.h"
#include "launch.h"
#include "layers.h"
#include "quant/quant_access.h"

namespace moebius::cuda {
namespace {

HopperQuestion question_of(const CudaMatrix& m) {
  const QuantMatrix& w = m.w;
  HopperQuestion q;
  q.N = w.N, q.K = w.K, q.code = w.code, q.bits = w.bits, q.scale_type = w.scale_type;
  q.groups = w.groups, q.block_n = w.block_n, q.block_k = w.block_k;
  q.zero_points = w.zero_points != nullptr, q.act_order = w.g_idx != nullptr;
  q.other = w.offsets != nullptr || w.k_phase != 0 || w.n_phase != 0 ||
            w.scale_type == ScaleType::kTwoLevel || w.code == CodeType::kLut4;
  q.act = m.act, q.x_type = m.x_type;
  return q;
}

size_t scale_count(const QuantMatrix& w) {
  return (w.N - 1) / w.block_n * w.scale_stride + w.groups;
}

uint32_t largest_byte(const QuantMatrix& w) {
  uint32_t most = 0;
  for (size_t n = 0; n < w.N; ++n)
    for (size_t g = 0; g < w.groups; ++g)
      most = std::max<uint32_t>(most, w.scales[n * w.scale_stride + g]);
  return most;
}

void check_mx(const QuantMatrix& w) {
  const uint32_t most = largest_byte(w);
  for (size_t n = 0; n < w.N; ++n)
    for (size_t g = 0; g < w.groups; ++g) {
      if (holds_mx_scale(w.scales[n * w.scale_stride + g], most)) continue;
      const uint8_t* row = w.codes + n * w.row_bytes;
      for (size_t k = g * w.block_k; k < std::min(w.K, (g + 1) * w.block_k); ++k)
        if ((row[k / 2] >> (4 * (k % 2)) & 7) != 0)
          refuse("block scales lie too far apart for the tensor-core form");
    }
}

// Checks that with its block scale every e4m3 number is a normal number of bf16.
void check_widened(const QuantMatrix& w) {
  constexpr uint8_t kLeast = 10, kMost = 246;  // 2^-9 and 448 times 2^(byte - 127)
  for (size_t n = 0; n < w.N; ++n)
    for (size_t g = 0; g < w.groups; ++g) {
      const uint8_t s = w.scales[n * w.scale_stride + g];
      if (s >= kLeast && s <= kMost) continue;
      const uint8_t* row = w.codes + n * w.row_bytes;
      for (size_t k = g * w.block_k; k < std::min(w.K, (g + 1) * w.block_k); ++k)
        if ((row[k] & 127) != 0 || s == 255)
          refuse("a block scale is too large or too small for numbers of bf16");
    }
}

// Refuses numbers that the tensor-core forms cannot hold.
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
  if (scheme == HopperScheme::kMxfp4Bf16) check_mx(w);
  if (is_dense(scheme) && w.code == CodeType::kFp8) check_widened(w);
  const TileCodes codes = hopper_tile(scheme).codes;
  if ((codes == TileCodes::kInt4Bytes || codes == TileCodes::kInt4Half) &&
      w.code == CodeType::kInt8)
    for (size_t n = 0; n < w.N; ++n)
      for (size_t k = 0; k < w.K; ++k)
        if (const int v = static_cast<int8_t>(w.codes[n * w.row_bytes + k]); v < -8 || v > 7)
          refuse("a 4-bit weight leaves its range");
  if (w.zero_points != nullptr)
    for (size_t i = 0; i < scale_count(w); ++i)
      if (w.zero_points[i] < -8 || w.zero_points[i] > 7)
        refuse("a zero point of 4-bit weights leaves their range");
}

// Returns the columns sorted by group; every group must have an equal share of them.
std::vector<int32_t> columns_of(const QuantMatrix& w) {
  if (w.g_idx == nullptr) return {};
  std::vector<int32_t> order(w.K);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return w.g_idx[a] < w.g_idx[b]; });
  for (size_t i = 0; i < w.K; ++i)
    if (static_cast<size_t>(w.g_idx[order[i]]) != i / w.block_k)
      refuse("groups of columns have different sizes");
  return order;
}

}  // namespace

// Builds for tests contain only two tiles (cmake/cuda.cmake).
uint32_t HopperWeights::built_tile(uint32_t wanted) const {
  wanted = std::min(wanted, mma ? 64 : hopper_most_tile(device_limits().shared_bytes));
#if defined(MOEBIUS_CUDA_FEW_TILES)
  return wanted < 64 ? 8 : 64;
#else
  if (mma) return wanted;
  if (wanted == 16 && !hopper_has_form(scheme, 16, 1)) wanted = 32;
  for (uint32_t tile = wanted; tile > 8; tile /= 2)
    for (const int slabs : {1, 2})
      if (hopper_has_form(scheme, tile, slabs) &&
          (slabs == 1 || hopper_can_pair_slabs(tile, static_cast<size_t>(padded))))
        return tile;
  return 8;
#endif
}

uint32_t HopperWeights::row_tile(size_t count) const {
  const DeviceLimits limits = device_limits();
  const auto outputs = static_cast<size_t>(padded);
  return built_tile(mma ? mma_tile(scheme, count, 1, outputs, limits.card())
                        : hopper_row_tile(count, outputs, limits.multiprocessors));
}

int built_slabs(HopperScheme scheme, uint32_t tile, int wanted) {
#if defined(MOEBIUS_CUDA_FEW_TILES)
  static_cast<void>(scheme), static_cast<void>(tile), static_cast<void>(wanted);
  return 1;
#else
  return hopper_has_form(scheme, tile, wanted) ? wanted : 3 - wanted;
#endif
}

void check_rows(const CudaRows& x, size_t columns, const char* what) {
  if (x.stride < columns || (x.rows > 0 && x.data == nullptr))
    refuse(std::string(what) + ": the rows are shorter than the layer is wide");
}

// ---- tiles ----

void HopperWeights::plan(const CudaMatrix& first, const CudaMatrix* second, int count,
                         CudaPath path, int outputs, WeightMemory& memory) {
  const HopperAnswer answer = hopper_answer(question_of(first), path == CudaPath::kHopperFp8);
  if (answer.reason != nullptr) refuse(answer.reason);
  if (first.output_scale != 0.0f) refuse("outputs are quantized");
  scheme = answer.scheme, joined = second != nullptr, experts = count;
  mma = path == CudaPath::kMma;
  N = static_cast<int>(first.w.N), stored = static_cast<int>(first.w.K);
  K = static_cast<int>(hopper_inputs(first.w.K));
  padded = (N + outputs - 1) / outputs * outputs * (joined ? 2 : 1);
  multiplies = first.w.global_scale.multiplies;
  f16_scales = first.w.scale_type == ScaleType::kF16;
  first_ = first, first_.bias = nullptr, first_.w.codes = nullptr;
  rows.form = row_form(scheme), rows.scaling = row_scaling(first.act);
  rows.act = first.act, rows.x_type = first.x_type;
  const bool as_is = first.act.code == ActCode::kAsIs;
  // Stored scales belong to an expert.
  rows.by_expert =
      first.w.g_idx != nullptr ||
      (!as_is && (first.act.granule == ActGranule::kStatic || first.act.scale == ActScale::kFp8));
  rows.fast = !rows.by_expert && stored == K &&
              (as_is || first.act.granule == ActGranule::kRow || scheme == HopperScheme::kFp8Block);
  inputs_.assign(static_cast<size_t>(count), ActParams{});
  const auto n = static_cast<size_t>(count);
  rows.inputs = Buffer(n * sizeof(ActParams));
  if (first.w.g_idx != nullptr)
    rows.columns = Buffer(n * static_cast<size_t>(stored) * sizeof(int32_t));
  const size_t tile_count =
      static_cast<size_t>(padded) / kTileOutputs * (static_cast<size_t>(K) / kTileInputs);
  tiles = memory.take(tile_count * hopper_tile_bytes(scheme) * n);
  channel = memory.take(sizeof(float) * n *
                        (hopper_tile(scheme).codes == TileCodes::kFp4Half ? 2
                         : has_channel_scales(scheme) ? static_cast<size_t>(padded)
                                                      : 0));
}

void HopperWeights::fill(int expert, const CudaMatrix& first, const CudaMatrix* second) {
  const CudaMatrix* matrices[2] = {&first, second != nullptr ? second : &first};
  std::vector<Buffer> memory;
  PackSource sources[2];
  std::vector<int32_t> columns;
  for (int i = 0; i < (joined ? 2 : 1); ++i) {
    const CudaMatrix& m = *matrices[i];
    const QuantMatrix& w = m.w;
    const HopperAnswer answer = hopper_answer(question_of(m), scheme == HopperScheme::kFp8Bytes);
    if (answer.reason != nullptr || answer.scheme != scheme || static_cast<int>(w.N) != N ||
        static_cast<int>(w.K) != stored || w.global_scale.multiplies != multiplies ||
        m.output_scale != 0.0f || !(m.act == first_.act) || m.x_type != first_.x_type ||
        w.scale_type != first_.w.scale_type || (w.g_idx != nullptr) != (first_.w.g_idx != nullptr))
      refuse("experts are stored in different ways");
    check_values(scheme, w);
    std::vector<int32_t> own = columns_of(w);
    if (i == 1 && own != columns) refuse("gate and up have different orders of columns");
    columns = std::move(own);
    const size_t bytes = (w.K * code_bits(w.code) + 7) / 8;
    memory.emplace_back(w.N * bytes);
    check(cudaMemcpy2D(memory.back().as<void>(), bytes, w.codes, w.row_bytes, bytes, w.N,
                       cudaMemcpyHostToDevice),
          "copy to the device");
    PackSource& s = sources[i];
    s = {};
    s.codes = memory.back().as<uint8_t>(), s.row_bytes = bytes, s.code = w.code;
    s.scale_stride = w.scale_stride, s.block_n = w.block_n, s.block_k = w.block_k;
    s.scale_type = w.scale_type;
    const auto keep = [&](const void* from, size_t size) {
      memory.emplace_back(from, size);
      return memory.back().as<uint8_t>();
    };
    if (tile_scale_bytes(hopper_tile(scheme)) > 0 ||
        (is_dense(scheme) && w.scale_type != ScaleType::kNone))
      s.scales = keep(w.scales, scale_count(w) * scale_bytes(w.scale_type));
    if (w.zero_points != nullptr)
      s.zero_points = reinterpret_cast<const int8_t*>(keep(w.zero_points, scale_count(w)));
    if (!columns.empty())
      s.columns =
          reinterpret_cast<const int32_t*>(keep(columns.data(), columns.size() * sizeof(int32_t)));
    if (scheme == HopperScheme::kMxfp4Bf16) s.largest_scale = largest_byte(w);
  }
  const size_t bytes = tiles.bytes() / static_cast<size_t>(experts);
  hopper_pack(scheme, sources, joined, N, padded, stored, K,
              tiles.as<uint8_t>() + bytes * static_cast<size_t>(expert), nullptr);
  fill_scales(expert, matrices);
  fill_rows(expert, matrices, std::move(columns));
  check(cudaDeviceSynchronize(), "packing");  // packing is done: the stored form is freed
}

// Copies the scales beside the tiles, and the biases.
void HopperWeights::fill_scales(int expert, const CudaMatrix* const* matrices) {
  const auto e = static_cast<size_t>(expert);
  const auto copy = [&](const Buffer& to, const std::vector<float>& from) {
    check(cudaMemcpy(to.as<float>() + from.size() * e, from.data(), from.size() * sizeof(float),
                     cudaMemcpyHostToDevice),
          "copy to the device");
  };
  const auto half = [&](int r) { return joined ? joined_half(static_cast<uint32_t>(r)) : 0u; };
  const auto row = [&](int r) {
    return joined ? joined_row(static_cast<uint32_t>(r)) : static_cast<uint32_t>(r);
  };
  if (hopper_tile(scheme).codes == TileCodes::kFp4Half) {
    std::vector<float> scales(2);
    for (size_t i = 0; i < 2; ++i) {
      const CudaMatrix& m = *matrices[joined ? i : 0];
      const bool two_level = m.act.code == ActCode::kFp4 && m.act.scale == ActScale::kFp8;
      scales[i] = scheme == HopperScheme::kMxfp4Bf16 ? mx_factor(largest_byte(m.w))
                  : two_level ? both_scales(m.input.global_scale, m.w.global_scale).value
                              : m.w.global_scale.value;
    }
    copy(channel, scales);
  } else if (has_channel_scales(scheme)) {
    std::vector<float> scales(static_cast<size_t>(padded), 0.0f);
    for (int r = 0; r < padded; ++r)
      if (static_cast<int>(row(r)) < N)
        scales[static_cast<size_t>(r)] = scale_of(matrices[half(r)]->w, row(r), 0);
    copy(channel, scales);
  }
  const bool biased = matrices[0]->bias != nullptr || (joined && matrices[1]->bias != nullptr);
  if (!biased && bias.bytes() == 0) return;
  if (bias.bytes() == 0) {
    bias = Buffer(sizeof(float) * static_cast<size_t>(padded) * static_cast<size_t>(experts));
    check(cudaMemset(bias.as<void>(), 0, bias.bytes()), "memory of the device");
  }
  std::vector<float> biases(static_cast<size_t>(padded), 0.0f);
  for (int r = 0; r < padded; ++r)
    if (const float* from = matrices[half(r)]->bias;
        from != nullptr && static_cast<int>(row(r)) < N)
      biases[static_cast<size_t>(r)] = from[row(r)];
  copy(bias, biases);
}

// Copies the data that rows of this expert need to become operands.
void HopperWeights::fill_rows(int expert, const CudaMatrix* const* matrices,
                              std::vector<int32_t> columns) {
  const auto e = static_cast<size_t>(expert);
  if (joined && rows.by_expert && !(matrices[0]->input == matrices[1]->input))
    refuse("gate and up see different rows");
  check(cudaMemcpy(rows.inputs.as<ActParams>() + e, &matrices[0]->input, sizeof(ActParams),
                   cudaMemcpyHostToDevice),
        "copy to the device");
  if (!columns.empty())
    check(cudaMemcpy(rows.columns.as<int32_t>() + e * columns.size(), columns.data(),
                     columns.size() * sizeof(int32_t), cudaMemcpyHostToDevice),
          "copy to the device");
}

bool HopperWeights::takes(const CudaRows& x) const {
  const XType type = rows.form == RowForm::kF16 ? XType::kF16 : XType::kBf16;
  return rows.fast && is_as_is(rows.form) && rows.act.code == ActCode::kAsIs && x.type == type &&
         x.stride == static_cast<size_t>(K) && reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
}

HopperGemm HopperWeights::gemm() const {
  HopperGemm g{};
  g.w = tiles.as<uint8_t>(), g.channel = channel.as<float>();
  g.K = K, g.n64 = padded / 64, g.multiplies = multiplies, g.joined = joined;
  g.f16_scales = f16_scales, g.slabs = 1, g.outputs = joined ? padded : N;
  g.out_type = XType::kF32;
  return g;
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
      WeightMemory own;
      p.hopper->plan(m, nullptr, 1, path, 128, own);
      p.hopper->fill(/*expert=*/0, m, /*second=*/nullptr);
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
  RowSelection rows;
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
  const bool direct = w.takes(x), few = w.rows.fast && has_few_form(w.scheme, x.rows, w.K),
             inside = few && x.rows <= kFewInside, stretched = has_stretch_form(w.scheme, p.n);
  if (x.rows * w.row_bytes() / 16 >= (size_t{1} << 31)) refuse("too many rows in one call");
  Arena arena(scratch().of(stream));
  const size_t operands = arena.add<uint8_t>(direct || inside ? 0 : x.rows * w.row_bytes()),
               scales = arena.add<float>(x.rows * w.row_scales());
  arena.reserve(stream);
  bool early = true;
  if (!direct && !inside && w.rows.fast) {
    PrepareArgs a{};
    a.x = x, a.T = static_cast<int>(x.rows), a.H = static_cast<int>(K_), a.scaling = w.rows.scaling;
    a.rows = arena.at<uint8_t>(operands), a.scales = arena.at<float>(scales);
    prepare_x(w.rows.form, a, /*early=*/true, stream);
  } else if (!direct && !inside) {
    OperandArgs a{};
    a.rows.rows = static_cast<int>(x.rows);
    a.x = x, a.act = w.rows.act, a.inputs = w.rows.inputs.as<ActParams>(),
    a.columns = w.rows.columns.as<int32_t>(), a.x_type = w.rows.x_type, a.form = w.rows.form;
    a.K = w.stored, a.padded = w.K, a.to = arena.at<uint8_t>(operands),
    a.scales = arena.at<float>(scales);
    make_operands(a, stream);
    early = false;
  }
  if (few || stretched) {
    FewGemm g{};
    g.w = w.tiles.as<uint8_t>(), g.channel = w.channel.as<float>();
    g.K = w.K, g.outputs = static_cast<int>(p.n), g.rows = static_cast<int>(x.rows);
    g.x = stretched && !direct
              ? CudaRows{arena.at<void>(operands), w.rows.x_type, x.rows, static_cast<size_t>(w.K)}
              : x;
    g.codes = inside ? nullptr : arena.at<uint8_t>(operands), g.scales = arena.at<float>(scales);
    g.scaling = w.rows.scaling, g.bias = w.bias.as<float>();
    g.out = y.data, g.out_type = y.type, g.out_stride = y.stride, g.column = p.begin;
    return few ? few_gemm(w.scheme, g, stream) : stretch_gemm(w.scheme, g, stream);
  }
  HopperGemm g = w.gemm();
  const size_t multiprocessors = device_limits().multiprocessors;
  const uint32_t tile = w.row_tile(x.rows);
  g.x = direct ? static_cast<const uint8_t*>(x.data) : arena.at<uint8_t>(operands),
  g.x_scale = arena.at<float>(scales);
  g.rows = static_cast<int>(x.rows), g.max_tiles = static_cast<int>((x.rows + tile - 1) / tile);
  g.out = y.data, g.out_type = y.type, g.out_stride = y.stride, g.column = p.begin;
  g.bias = w.bias.as<float>();
  g.slabs =
      built_slabs(w.scheme, tile,
                  hopper_row_slabs(tile, x.rows, static_cast<size_t>(w.padded), multiprocessors));
  hopper_gemm(w.scheme, w.mma, /*gate_up=*/false, tile, g, early, stream);
}

}  // namespace moebius::cuda
