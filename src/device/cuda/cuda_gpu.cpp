// SPDX-License-Identifier: Apache-2.0
// CUDA devices as callers see them who run none of their operations (device/gpu.h).
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "device/cuda/cuda_choice.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_items.h"
#include "device/cuda/cuda_module.h"

namespace moebius {
namespace {

// Measures bytes per second from host memory to the device; 0: unknown.
double link_rate(const CudaApi& api) {
  constexpr size_t kBytes = size_t{32} << 20, kCopies = 4;
  void *here = nullptr, *there = nullptr;
  double rate = 0;
  if (api.allocate_host(kBytes, &here) == CudaStatus::kOk) {
    std::memset(here, 1, kBytes);
    if (api.allocate(kBytes, &there) == CudaStatus::kOk) {
      const auto copy = [&](size_t times) {
        for (size_t i = 0; i < times; ++i)
          if (api.upload(there, here, kBytes, nullptr) != CudaStatus::kOk) return false;
        return api.synchronize(nullptr) == CudaStatus::kOk;
      };
      if (copy(1)) {
        const auto start = std::chrono::steady_clock::now();
        if (copy(kCopies))
          rate = kBytes * kCopies /
                 std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      }
      api.release(there);
    }
    api.release_host(here);
  }
  return rate;
}

}  // namespace

bool is_gpu_name(std::string_view name) {
  if (name == "cuda") return true;
  if (!name.starts_with("cuda:") || name.size() > 7 || name.size() < 6) return false;
  return std::all_of(name.begin() + 5, name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

int gpu_number(std::string_view name) {
  int number = 0;
  if (name.size() > 5) std::from_chars(name.data() + 5, name.data() + name.size(), number);
  return number;
}

const GpuModule& open_gpu(const std::vector<std::string>& folders, int number) {
  return require_cuda(folders, number);
}

GpuTarget usual_gpu_target(const std::vector<std::string>& folders) {
  const CudaModule& m = cuda_module(folders);
  return m.ready() ? cuda_target(m.facts) : named_gpu_target("H200");
}

GpuTarget target_of(const GpuModule& module) { return cuda_target(module.facts); }

uint64_t free_gpu_bytes(const GpuModule& module) {
  uint64_t free = 0;
  check_cuda(*module.api, module.api->free_bytes(&free), "memory of the device");
  return free;
}

GpuRates measured_rates(const GpuModule& module) {
  CudaRoofs roofs{};
  const bool known = module.api->roofs(&roofs) == CudaStatus::kOk && roofs.read_tbs > 0;
  return {known ? roofs.read_tbs * 1e12 : 0, link_rate(*module.api)};
}

std::string normalize_gpu_kernel(std::string_view name) { return normalize_cuda_kernel(name); }

// These limits are those of cuda_divided.cpp.
bool can_divide(const MoeBlock& block) {
  constexpr uint64_t kMostChosen = 64;
  const RouterSpec& r = block.spec.router;
  return block.experts.size() > 1 && r.shared_slots == 0 && r.method != RouterMethod::kTable &&
         r.top_k <= kMostChosen;
}

uint64_t divided_bytes(const MoeBlock& block, size_t item_bytes) {
  return CudaItemsCall::most_bytes(block.spec.router.top_k, block.spec.hidden, item_bytes);
}

// The rank's own rows, other ranks', and those to send (cuda_spread.cpp).
uint64_t spread_bytes(const MoeBlock& block) {
  constexpr uint64_t kBuffers = 3;
  const size_t slots = block.spec.router.top_k, hidden = block.spec.hidden;
  return kBuffers * CudaItemsCall::most_rows(slots, hidden) * slots * hidden * sizeof(float);
}

ModuleUse CudaDevice::plan(const ModuleQuestion& q) const {
  ModuleUse use;
  if (q.module != nullptr && q.module->kind == ModuleKind::kEmbedding)
    use.table = q.module->plan.N * q.module->plan.K * (type_ == XType::kF32 ? 4 : 2);
  if (!q.problem) return use;
  use.choice = choose_cuda(*q.problem, target_, policy_,
                           q.block != nullptr ? plain_experts_reason(q.block->spec) : nullptr);
  const Kernel& kernel = *use.choice->chosen;
  use.numerics = use.choice->numerics;
  use.fast = path_of(kernel) != CudaPath::kPlain;
  use.packed = kernel.packed_bytes(*q.problem);
  return use;
}

}  // namespace moebius
