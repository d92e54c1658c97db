// SPDX-License-Identifier: Apache-2.0
#include "model/ranks/cuda_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

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

// As device/cuda/cuda_divided.cpp runs them.
bool can_divide(const MoeBlock& block) {
  constexpr uint64_t kMostChosen = 64;
  const RouterSpec& r = block.spec.router;
  return block.experts.size() > 1 && r.shared_slots == 0 && r.method != RouterMethod::kTable &&
         r.top_k <= kMostChosen;
}

// Whether a module is of an expert that a divided layer has on the CPU.
bool is_elsewhere(const Module& m, const DevicePlacement& placement) {
  const auto here = placement.divided.find(static_cast<size_t>(m.layer));
  return m.expert >= 0 && here != placement.divided.end() &&
         !std::binary_search(here->second.begin(), here->second.end(),
                             static_cast<uint32_t>(m.expert));
}

}  // namespace

bool is_of_experts(const Module& m) {
  return m.kind == ModuleKind::kExpert || m.kind == ModuleKind::kRouter || m.expert >= 0 ||
         m.shared_expert || m.projection != Projection::kNone;
}

std::vector<double> shares_of(const ExpertLoads& loads, size_t layer, size_t experts) {
  const auto known = loads.find(layer);
  const double rows = known == loads.end() || known->second.size() != experts
                          ? 0.0
                          : static_cast<double>(std::accumulate(known->second.begin(),
                                                                known->second.end(), uint64_t{0}));
  std::vector<double> out(experts, 1.0 / static_cast<double>(std::max<size_t>(1, experts)));
  for (size_t e = 0; e < experts && rows > 0; ++e)
    out[e] = static_cast<double>(known->second[e]) / rows;
  return out;
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
  out.layers.resize(spec.layers.size()), out.each.resize(spec.layers.size());
  out.divisible.resize(spec.layers.size());
  for (const MoeBlock& b : checkpoint.moe_blocks())
    if (b.layer >= 0 && static_cast<size_t>(b.layer) < spec.layers.size() && can_divide(b))
      out.divisible[static_cast<size_t>(b.layer)] = b.experts.size();
  const size_t number = options.type == XType::kF32 ? 4 : 2;
  std::map<std::pair<int, int>, uint64_t> one;  // bytes of an expert, by layer and number
  for (const Module& m : checkpoint.modules()) {
    if (!m.loaded() || !m.supported || m.layer >= static_cast<int>(spec.layers.size())) continue;
    const bool in_layer = m.layer >= 0;
    if (in_layer ? static_cast<size_t>(m.layer) < layers.begin ||
                       static_cast<size_t>(m.layer) >= layers.end
                 : layers.begin > 0)
      continue;
    const bool experts = in_layer && is_of_experts(m);
    const DevicePlacement::Rule& rule = placement.of(in_layer ? static_cast<size_t>(m.layer) : 0);
    std::string device = !in_layer ? placement.ends : experts ? rule.experts : rule.attention;
    if (in_layer && is_elsewhere(m, placement)) device = "cpu";
    uint64_t bytes = m.kind == ModuleKind::kEmbedding ? m.plan.N * m.plan.K * number : 0;
    if (has_product(checkpoint, m)) {
      const Problem problem = problem_of(m, options.act, options.type);
      bytes += choose_cuda(problem, target, policy).chosen->packed_bytes(problem);
    }
    if (experts) out.layers[static_cast<size_t>(m.layer)] += bytes;
    if (m.expert >= 0 && in_layer) one[{m.layer, m.expert}] += bytes;
    if (is_cuda_name(device)) {
      out.weights += bytes;
      if (experts) out.experts += bytes;
    } else {
      const ModuleMemory memory =
          module_memory(checkpoint, m, options.policy, options.act, options.type);
      out.host += memory.packed + memory.table;
    }
  }
  for (const auto& [expert, bytes] : one) {
    uint64_t& most = out.each[static_cast<size_t>(expert.first)];
    most = std::max(most, bytes);
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
                                 uint64_t allowed, const ExpertLoads* loads) {
  const size_t layers = need.layers.size();
  uint64_t used = device_bytes(need) - need.experts;
  const auto fits = [&](uint64_t bytes) {
    if (used + bytes > allowed) return false;
    used += bytes;
    return true;
  };
  std::vector<bool> whole(layers, false);
  std::vector<std::vector<uint32_t>> here(layers);
  // What a layer needs beside its routed experts.
  const auto base = [&](size_t i) {
    const uint64_t routed = need.divisible[i] * need.each[i];
    return need.layers[i] - std::min(routed, need.layers[i]);
  };
  const auto on_device = [&](size_t i) { return is_cuda_name(wanted.of(i).experts); };
  struct Routed {
    double share;
    uint32_t expert;
    size_t layer;
  };
  std::vector<Routed> candidates;
  bool divided = false;
  for (size_t i = 0; i < layers; ++i) {
    if (!on_device(i) || (loads != nullptr && need.divisible[i] > 0)) continue;
    whole[i] = fits(need.layers[i]);
    if (whole[i] || need.divisible[i] == 0 || divided) continue;
    divided = fits(base(i) + need.each[i]);  // and then as many as there is room for
    if (!divided) continue;
    here[i] = {0};
    while (here[i].size() < need.divisible[i] && fits(need.each[i]))
      here[i].push_back(static_cast<uint32_t>(here[i].size()));
  }
  for (size_t i = 0; i < layers && loads != nullptr; ++i) {
    if (!on_device(i) || need.divisible[i] == 0 || !fits(base(i) + need.each[i])) continue;
    const std::vector<double> shares = shares_of(*loads, i, need.divisible[i]);
    const auto first =
        static_cast<uint32_t>(std::max_element(shares.begin(), shares.end()) - shares.begin());
    here[i] = {first};
    for (uint32_t e = 0; e < shares.size(); ++e)
      if (e != first) candidates.push_back({shares[e], e, i});
  }
  std::stable_sort(candidates.begin(), candidates.end(), [](const auto& a, const auto& b) {
    return a.share != b.share ? a.share > b.share : a.expert < b.expert;
  });
  for (const Routed& c : candidates)
    if (fits(need.each[c.layer])) here[c.layer].push_back(c.expert);
  DevicePlacement placement = wanted;
  placement.rules.clear(), placement.divided.clear();
  for (size_t i = 0; i < layers; ++i) {
    DevicePlacement::Rule rule = wanted.of(i);
    rule.from = i;
    const bool all = whole[i] || (!here[i].empty() && here[i].size() == need.divisible[i]);
    if (on_device(i) && !all && here[i].empty()) rule.experts = "cpu";
    if (!all && !here[i].empty()) {
      std::sort(here[i].begin(), here[i].end());
      placement.divided[i] = std::move(here[i]);
    }
    placement.rules.push_back(std::move(rule));
  }
  return joined_rules(std::move(placement));
}

DevicePlacement place_experts(const Checkpoint& checkpoint, const ModelOptions& options) {
  const CudaModule& module = *options.cuda.module;
  const size_t context = options.context != 0 ? options.context : kUsualContext;
  const CudaBytes need = cuda_bytes(checkpoint, options, cuda_target(module.facts), context);
  const ExpertLoads loads = read_loads(options.loads_file);
  return experts_that_fit(options.placement, need, allowed_bytes(options.cuda),
                          options.loads_file.empty() ? nullptr : &loads);
}

PlacedExperts placed_experts(const Checkpoint& checkpoint, const DevicePlacement& placement,
                             const ExpertLoads& loads) {
  PlacedExperts out;
  size_t layers = 0;
  for (const MoeBlock& b : checkpoint.moe_blocks()) {
    if (b.layer < 0) continue;
    const auto layer = static_cast<size_t>(b.layer);
    const size_t n = b.experts.size();
    out.all += n, ++layers;
    if (const auto some = placement.divided.find(layer); some != placement.divided.end()) {
      const std::vector<double> shares = shares_of(loads, layer, n);
      ++out.divided, out.experts += some->second.size();
      for (const uint32_t e : some->second) out.load += shares.at(e);
    } else if (is_cuda_name(placement.of(layer).experts)) {
      ++out.layers, out.experts += n, out.load += 1;
    }
  }
  if (layers > 0) out.load /= static_cast<double>(layers);
  return out;
}

std::string describe(const PlacedExperts& p) {
  return fmt::format(
      "{} of {} experts on the GPU, for {:.0f} % of their rows: all of {} layers, "
      "some of {}",
      p.experts, p.all, 100 * p.load, p.layers, p.divided);
}

}  // namespace moebius
