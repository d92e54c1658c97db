// SPDX-License-Identifier: Apache-2.0
// Selects experts (router.h), and runs the router of a layer.
#include "router.h"

#include "launch.h"
#include "layers.h"
#include "numbers.cuh"
#include "rows.cuh"
#include "usual_router.cuh"

namespace moebius::cuda {
namespace {

struct WarpLanes {
  static constexpr int kCount = 32;
  __device__ int lane() const { return static_cast<int>(threadIdx.x); }
  __device__ void sync() const { __syncwarp(); }
  // Scores are never NaN; both zeros compare equal.
  __device__ RouterPick best(RouterPick p) const {
    const int32_t key = float_key(p.score == 0.0f ? 0.0f : p.score),
                  most = __reduce_max_sync(~0u, key);
    const int32_t id = __reduce_min_sync(~0u, key == most ? p.id : INT32_MAX);
    return {key_float(most), id};
  }
  __device__ float largest(float v) const {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
      const float other = __shfl_xor_sync(~0u, v, d);
      v = other > v ? other : v;
    }
    return v;
  }
};

__global__ void __launch_bounds__(32)
    router_kernel(const __grid_constant__ DeviceRouter r, CudaRows logits, int32_t* ids,
                  float* weights, float* zero_weights, uint32_t* counts) {
  wait_for_predecessor();
  let_successor_start();
  extern __shared__ float shared[];
  const WarpLanes lanes;
  const size_t t = blockIdx.x;
  const int n = static_cast<int>(r.spec.experts + r.spec.zero_experts);
  const size_t slots = r.spec.top_k + r.spec.shared_slots;
  for (int i = lanes.lane(); i < n; i += WarpLanes::kCount)
    shared[i] = number_at(logits.data, logits.type, t * logits.stride + i);
  RowRouter<WarpLanes> row(r, lanes, shared, shared + n);
  row.run(t, ids + t * slots, weights + t * slots,
          zero_weights != nullptr ? zero_weights + t : nullptr);
  if (counts == nullptr) return;
  for (size_t i = threadIdx.x; i < slots; i += WarpLanes::kCount)
    if (const int32_t id = ids[t * slots + i]; id >= 0 && static_cast<size_t>(id) < r.spec.experts)
      atomicAdd(counts + id, 1u);
}

constexpr unsigned kUsualRows = 4;  // rows of a block, one per warp

template <int kHeld>
__global__ void __launch_bounds__(32 * kUsualRows)
    usual_router_kernel(const __grid_constant__ UsualRouter u) {
  wait_for_predecessor();
  let_successor_start();
  __shared__ float shared[kUsualRows][kUsualExperts];
  const unsigned warp = threadIdx.x / 32;
  const size_t t = blockIdx.x * size_t{blockDim.x / 32} + warp;
  if (t < u.logits.rows) usual_route<kHeld>(u, t, shared[warp]);
}

size_t row_bytes(const RouterSpec& s) {
  return (s.experts + s.zero_experts + device_router_floats(s)) * sizeof(float);
}

}  // namespace

void route_rows(const DeviceRouter& router, const CudaRows& logits, int32_t* ids, float* weights,
                float* zero_weights, uint32_t* counts, cudaStream_t stream) {
  if (logits.rows == 0) return;
  if (is_usual_router(router)) {
    UsualRouter u = usual_router(router.spec);
    u.logits = logits, u.ids = ids, u.weights = weights, u.counts = counts;
    const unsigned rows = logits.rows < 512 ? 1 : kUsualRows;
    return launch_early(u.experts <= 64    ? usual_router_kernel<2>
                        : u.experts <= 128 ? usual_router_kernel<4>
                                           : usual_router_kernel<8>,
                        dim3(blocks_of(logits.rows, rows)), 32 * rows, 0, stream, "router", u);
  }
  launch_early(router_kernel, dim3(blocks_of(logits.rows)), 32, row_bytes(router.spec), stream,
               "router", router, logits, ids, weights, zero_weights, counts);
}

RouterWeights::RouterWeights(const CudaRouter& r) {
  const RouterSpec& s = r.spec;
  if (s.experts == 0 || s.top_k == 0 || s.top_k > s.experts + s.zero_experts)
    refuse("a router without experts, or with more choices than experts");
  if (s.method == RouterMethod::kTable)
    refuse("experts by a table of tokens are chosen on the CPU");
  if ((s.has_bias && r.bias == nullptr) || (s.per_expert_scale && r.expert_scale == nullptr))
    refuse("numbers of the router are missing");
  if (row_bytes(s) > device_limits().shared_bytes)
    refuse("a router of so many experts runs on the CPU alone");
  device.spec = s;
  if (s.has_bias) bias = Buffer(r.bias, width() * sizeof(float));
  if (s.per_expert_scale) expert_scale = Buffer(r.expert_scale, s.experts * sizeof(float));
  device.bias = bias.as<float>(), device.expert_scale = expert_scale.as<float>();
  const size_t n = width();
  device.grouped =
      s.method == RouterMethod::kTopK && s.groups > 1 && n > s.groups && n % s.groups == 0;
  if (r.matrix == nullptr) return;
  if (r.matrix->w.N != n) refuse("the router's matrix has another number of outputs than experts");
  matrix = std::make_unique<Linear>(r.matrix, 1, r.path);
}

void Moe::set_router(const CudaRouter& router) {
  if (router.matrix != nullptr && router.matrix->w.K != spec_.hidden)
    refuse("the router's matrix has another number of inputs than the layer");
  router_.emplace(router);
}

void Moe::choose(const CudaRows& logits, const CudaChosen& want, float* zero_weights,
                 cudaStream_t stream) {
  if (!router_) refuse("the layer has no router");
  const RouterWeights& r = *router_;
  if (logits.stride < r.width() || want.ids == nullptr || want.weights == nullptr ||
      (r.device.spec.zero_experts > 0) != (zero_weights != nullptr))
    refuse("a choice of experts without logits, or without room for what is chosen");
  route_rows(r.device, logits, want.ids, want.weights, zero_weights, want.counts, stream);
}

void Moe::run_routed(const CudaRows& x, const CudaRows* given, const CudaRows& y,
                     const CudaChosen& want, cudaStream_t stream) {
  if (!router_) refuse("the layer has no router");
  const RouterWeights& r = *router_;
  if (given == nullptr && r.matrix == nullptr)
    refuse("the experts were loaded without their router; give logits or ids");
  if (given != nullptr && (given->rows != x.rows || given->stride < r.width()))
    refuse("logits have other sizes than x and the router");
  const size_t T = x.rows, slots = r.slots();
  if (T == 0) return;
  const bool zero = r.device.spec.zero_experts > 0;
  Arena arena(scratch().of(stream, 1));
  const size_t logit_at = arena.add<float>(given == nullptr ? T * r.width() : 0);
  const size_t id_at = arena.add<int32_t>(want.ids == nullptr ? T * slots : 0),
               weight_at = arena.add<float>(want.weights == nullptr ? T * slots : 0),
               zero_at = arena.add<float>(zero ? T : 0);
  arena.reserve(stream);
  CudaRows logits{};
  if (given != nullptr) {
    logits = *given;
  } else {
    logits = {arena.at<void>(logit_at), XType::kF32, T, r.width()};
    r.matrix->run(x, logits, stream);
  }
  int32_t* chosen = want.ids != nullptr ? want.ids : arena.at<int32_t>(id_at);
  float* weighed = want.weights != nullptr ? want.weights : arena.at<float>(weight_at);
  float* zeros = zero ? arena.at<float>(zero_at) : nullptr;
  route_rows(r.device, logits, chosen, weighed, zeros, want.counts, stream);
  run(x, CudaRouting{chosen, weighed, zeros, slots}, y, {}, stream);
}

}  // namespace moebius::cuda
