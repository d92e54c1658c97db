// SPDX-License-Identifier: Apache-2.0
#include "model/ranks/cuda_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/human.h"
#include "checkpoint/summary.h"
#include "device/cpu/layer_plan.h"
#include "device/cuda/cuda_device.h"
#include "model/arch/arch.h"
#include "model/load/placement_plan.h"
#include "model/ranks/rank_memory.h"
#include "model/ranks/rank_plan.h"

namespace moebius {
namespace {

constexpr uint64_t kDeviceWork = uint64_t{256} << 20;  // rows and tables of steps

std::string device_size(uint64_t bytes) { return human_bytes(static_cast<double>(bytes)); }

uint64_t allowed_bytes(const CudaSettings& cuda) {
  uint64_t free = 0;
  check_cuda(*cuda.module->api, cuda.module->api->free_bytes(&free), "memory of the device");
  const uint64_t most = free > kReservedBytes ? free - kReservedBytes : 0;
  return cuda.memory != 0 ? std::min(cuda.memory, most) : most;
}

}  // namespace

bool is_of_experts(const Module& m) {
  return m.kind == ModuleKind::kExpert || m.kind == ModuleKind::kRouter || m.expert >= 0 ||
         m.shared_expert || m.projection != Projection::kNone;
}

uint64_t device_bytes(const CudaBytes& bytes) { return bytes.weights + bytes.kv + kDeviceWork; }

CudaBytes cuda_bytes(const Checkpoint& checkpoint, const ModelOptions& options,
                     const CudaTarget& target, size_t context, Range layers) {
  const DecoderSpec spec = decoder_spec(checkpoint.config());
  const DevicePlacement placement =
      place_parts(checkpoint, spec, options.kv(), options.placement).placement;
  Policy policy;
  policy.accept = options.policy.accept, policy.kernel = options.cuda.kernel;
  policy.where_it_can = true;
  CudaBytes out;
  out.layers.resize(spec.layers.size());
  const size_t number = options.type == XType::kF32 ? 4 : 2;
  for (const Module& m : checkpoint.modules()) {
    if (!m.loaded() || !m.supported || m.layer >= static_cast<int>(spec.layers.size())) continue;
    const bool in_layer = m.layer >= 0;
    if (in_layer ? static_cast<size_t>(m.layer) < layers.begin ||
                       static_cast<size_t>(m.layer) >= layers.end
                 : layers.begin > 0)
      continue;
    const bool experts = in_layer && is_of_experts(m);
    const DevicePlacement::Rule& rule = placement.of(in_layer ? static_cast<size_t>(m.layer) : 0);
    const std::string& device = !in_layer ? placement.ends
                                : experts ? rule.experts
                                          : rule.attention;
    uint64_t bytes = m.kind == ModuleKind::kEmbedding ? m.plan.N * m.plan.K * number : 0;
    if (has_product(checkpoint, m)) {
      const Problem problem = problem_of(m, options.act, options.type);
      bytes += choose_cuda(problem, target, policy).chosen->packed_bytes(problem);
    }
    if (experts) out.layers[static_cast<size_t>(m.layer)] += bytes;
    if (is_cuda_name(device)) {
      out.weights += bytes;
      if (experts) out.experts += bytes;
    } else {
      const ModuleMemory memory =
          module_memory(checkpoint, m, options.policy, options.act, options.type);
      out.host += memory.packed + memory.table;
    }
  }
  const DeviceSet devices(placement, nullptr, host_cpu(), {options.type, options.policy});
  const KvPlan plan = plan_kv(checkpoint, spec, options.kv(), devices, layers);
  const size_t blocks = (context + kBlockTokens - 1) / kBlockTokens;
  for (const DeviceKinds& d : plan.devices)
    for (size_t k = 0; k < d.block_bytes.size() && is_cuda_name(d.device->name()); ++k) {
      const size_t reach = plan.kinds[k].reach;
      const size_t held = reach > context ? blocks : std::min(blocks, reach / kBlockTokens + 2);
      out.kv += held * d.block_bytes[k];
    }
  return out;
}

uint64_t check_cuda_memory(const Checkpoint& checkpoint, const ModelOptions& options,
                           Range layers) {
  const CudaModule& module = *options.cuda.module;
  const size_t context = options.context != 0 ? options.context : kUsualContext;
  const CudaBytes need =
      cuda_bytes(checkpoint, options, cuda_target(module.facts), context, layers);
  const uint64_t allowed = allowed_bytes(options.cuda), all = device_bytes(need);
  if (all > allowed)
    fail(
        "{}: needs {} on {} ({} of weights, {} of keys and values for {} tokens, {} for work), and "
        "{} "
        "may be used{}{}",
        checkpoint.folder(), device_size(all), module.facts.name, device_size(need.weights),
        device_size(need.kv), context, device_size(kDeviceWork), device_size(allowed),
        options.cuda.memory != 0 ? " (--gpu-memory)" : "",
        need.experts > 0 ? fmt::format("; with --experts cpu {} of experts stay on the CPU",
                                       device_size(need.experts))
                         : "");
  std::vector<RankMemory> host = {{"", need.host, memory_limits()}};
  if (const std::string refusal = memory_refusal(host); !refusal.empty())
    fail("{}: {}", checkpoint.folder(), refusal);
  if (need.kv == 0) return memory_left(host);
  return allowed - need.weights - kDeviceWork;
}

std::vector<uint64_t> host_bytes_of_ranks(const Checkpoint& checkpoint, const RankSplit& split,
                                          const ModelOptions& options) {
  check_cuda_split(options.placement, split);
  const CudaTarget target = cuda_target(options.cuda.module->facts);
  std::vector<uint64_t> bytes;
  for (const RankPart& part : rank_parts(checkpoint, split))
    bytes.push_back(cuda_bytes(checkpoint, options, target, kUsualContext, part.layers).host);
  return bytes;
}

void check_cuda_split(const DevicePlacement& placement, const RankSplit& split) {
  if (!placement.cuda().empty() && split.members() > 1)
    fail("--device {}: {} cut layers, which CPUs do; with GPUs every rank has whole ones: --pp {}",
         placement.cuda(), describe(split), split.ranks());
}

DevicePlacement experts_that_fit(const DevicePlacement& wanted, const CudaBytes& need,
                                 uint64_t allowed) {
  uint64_t used = device_bytes(need) - need.experts;
  DevicePlacement placement = wanted;
  placement.rules.clear();
  for (size_t i = 0; i < need.layers.size(); ++i) {
    DevicePlacement::Rule rule = wanted.of(i);
    rule.from = i;
    if (is_cuda_name(rule.experts)) {
      if (used + need.layers[i] > allowed)
        rule.experts = "cpu";
      else
        used += need.layers[i];
    }
    placement.rules.push_back(std::move(rule));
  }
  return joined_rules(std::move(placement));
}

DevicePlacement place_experts(const Checkpoint& checkpoint, const ModelOptions& options) {
  const CudaModule& module = *options.cuda.module;
  const size_t context = options.context != 0 ? options.context : kUsualContext;
  const CudaBytes need = cuda_bytes(checkpoint, options, cuda_target(module.facts), context);
  return experts_that_fit(options.placement, need, allowed_bytes(options.cuda));
}

}  // namespace moebius
