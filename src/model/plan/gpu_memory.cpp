// SPDX-License-Identifier: Apache-2.0
#include "model/plan/gpu_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "base/checked.h"
#include "base/error.h"
#include "model/arch/arch.h"
#include "model/backend.h"
#include "model/plan/gpu_stream_plan.h"
#include "model/plan/placement_plan.h"
#include "model/plan/rank_plan.h"

namespace moebius {
namespace {

constexpr uint64_t kDeviceWork = uint64_t{256} << 20;  // bytes for rows and tables of steps

// Returns for each layer which experts a rank does not have.
std::map<int, std::vector<bool>> experts_elsewhere(const Checkpoint& checkpoint,
                                                   const GpuShare& share) {
  std::map<int, std::vector<bool>> out;
  for (const MoeBlock& b : checkpoint.moe_blocks()) {
    if (share.ep == 1 || b.experts.empty()) continue;
    std::vector<bool>& elsewhere = out[b.layer];
    const size_t n = b.experts.size();
    if (share.spare > 0) {  // as many experts as places, whichever they are
      const size_t each = std::min(n, ceil_div(n + share.spare, share.ep));
      elsewhere.assign(n, true);
      std::fill_n(elsewhere.begin(), each, false);
      continue;
    }
    for (const int32_t local :
         expert_map(b.experts.size(), share.ep, share.ep_rank, Placement::kLinear))
      elsewhere.push_back(local < 0);
  }
  return out;
}

// Returns whether a module belongs to an expert that a divided layer has on the CPU.
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

uint64_t divided_work(const Checkpoint& checkpoint, const GpuSettings& gpu) {
  constexpr uint64_t kBatches = 2;
  uint64_t most = 0;
  for (const MoeBlock& b : checkpoint.moe_blocks())
    if (can_divide(b)) most = std::max(most, divided_bytes(b, gpu.item_bytes));
  return kBatches * most;
}

uint64_t device_bytes(const GpuBytes& bytes) { return bytes.weights + bytes.kv + bytes.work; }

GpuBytes gpu_bytes(const Checkpoint& checkpoint, const Wish& options, const GpuTarget& target,
                   const GpuShare& share) {
  const Range& layers = share.layers;
  const size_t context = options.context != 0 ? options.context : kUsualContext;
  const DecoderSpec spec = decoder_spec(checkpoint.config());
  const DevicePlacement& placement = options.placement;
  const DeviceOptions planning = planning_options(options, &target);
  const DeviceSet devices(placement, nullptr, host_cpu(), planning);
  const std::string gpu = placement.gpu();
  const auto gpu_device = make_device(gpu.empty() ? "cuda" : gpu, nullptr, host_cpu(), planning),
             cpu_device = make_device("cpu", nullptr, host_cpu(), planning);
  ModulePlanner on_gpu(checkpoint, *gpu_device, options.act, options.type),
      on_cpu(checkpoint, *cpu_device, options.act, options.type);
  uint64_t exchanged = 0;
  for (const MoeBlock& b : checkpoint.moe_blocks())
    if (share.ep > 1) exchanged = std::max(exchanged, spread_bytes(b));
  GpuBytes out;
  const StreamedLayers& streamed = options.gpu.streamed;
  out.work = kDeviceWork + exchanged +
             (placement.divided.empty() ? 0 : divided_work(checkpoint, options.gpu)) +
             streamed.buffers * streamed.buffer_bytes;
  out.host = streamed.host_bytes;
  const std::map<int, std::vector<bool>> elsewhere = experts_elsewhere(checkpoint, share);
  out.layers.resize(spec.layers.size()), out.each.resize(spec.layers.size());
  out.divisible.resize(spec.layers.size());
  for (const MoeBlock& b : checkpoint.moe_blocks())
    if (b.layer >= 0 && static_cast<size_t>(b.layer) < spec.layers.size() && can_divide(b))
      out.divisible[static_cast<size_t>(b.layer)] = b.experts.size();
  std::map<std::pair<int, int>, uint64_t> one;  // bytes of an expert by layer and number
  for (const Module& m : checkpoint.modules()) {
    if (!m.loaded() || !m.supported || m.layer >= static_cast<int>(spec.layers.size())) continue;
    const bool in_layer = m.layer >= 0;
    if (in_layer ? static_cast<size_t>(m.layer) < layers.begin ||
                       static_cast<size_t>(m.layer) >= layers.end
                 : !share.has_ends())
      continue;
    if (const auto spread = elsewhere.find(m.layer);
        m.expert >= 0 && spread != elsewhere.end() &&
        static_cast<size_t>(m.expert) < spread->second.size() &&
        spread->second[static_cast<size_t>(m.expert)])
      continue;
    const bool experts = in_layer && is_of_experts(m);
    const DevicePlacement::Rule& rule = placement.of(in_layer ? static_cast<size_t>(m.layer) : 0);
    std::string device = !in_layer ? placement.ends : experts ? rule.experts : rule.attention;
    if (in_layer && is_elsewhere(m, placement)) device = "cpu";
    const bool here = is_gpu_name(device);
    PlannedModule planned{&m, Cut::kWhole, here ? device : "cpu", nullptr, 0};
    if (here || experts) {
      planned.use = on_gpu.use(m);
      planned.bytes = planned.use->bytes();
      if (experts) out.layers[static_cast<size_t>(m.layer)] += planned.bytes;
      if (m.expert >= 0 && in_layer) one[{m.layer, m.expert}] += planned.bytes;
    }
    if (here) {
      out.weights += planned.bytes;
      if (experts) out.experts += planned.bytes;
    } else {
      planned.use = on_cpu.use(m);
      planned.bytes = planned.use->bytes();
      out.host += planned.bytes;
    }
    out.modules.push_back(std::move(planned));
  }
  for (const auto& [expert, bytes] : one) {
    uint64_t& most = out.each[static_cast<size_t>(expert.first)];
    most = std::max(most, bytes);
  }
  const KvPlan plan = plan_kv(checkpoint, spec, options.kv(), devices, layers);
  const size_t blocks = (context + kBlockTokens - 1) / kBlockTokens;
  for (const DeviceKinds& d : plan.devices)
    for (size_t k = 0; k < d.block_bytes.size() && is_gpu_name(d.device->name()); ++k) {
      const size_t reach = plan.kinds[k].reach;
      const size_t held = reach > context ? blocks : std::min(blocks, reach / kBlockTokens + 2);
      out.kv += held * d.block_bytes[k];
    }
  return out;
}

std::vector<GpuShare> gpu_shares(const Checkpoint& checkpoint, const RankSplit& split) {
  std::vector<GpuShare> shares;
  for (const RankPart& part : rank_parts(checkpoint, split))
    shares.push_back({part.layers, split.ep, part.member / split.tp, split.spare});
  return shares;
}

void check_gpu_split(const Wish& options) {
  const RankSplit& split = options.split;
  const std::string device = options.placement.gpu();
  if (device.empty()) return;
  if (split.tp > 1)
    fail(
        "--device {}: {} cut layers, which CPUs do; with GPUs every rank has whole ones: --pp {}, "
        "or whole experts: --ep {}",
        device, describe(split), split.ranks(), split.ranks());
  if (split.ep == 1) return;
  if (options.gpu.fit_experts || !options.placement.divided.empty())
    fail(
        "--device {}: --experts auto is for one process or --pp; with --ep {} experts are spread "
        "over the GPUs, or lie on the CPUs (--experts cpu)",
        device, split.ep);
}

DevicePlacement experts_that_fit(const DevicePlacement& wanted, const GpuBytes& need,
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
  // Returns the bytes of a layer beside its routed experts.
  const auto base = [&](size_t i) {
    const uint64_t routed = need.divisible[i] * need.each[i];
    return need.layers[i] - std::min(routed, need.layers[i]);
  };
  const auto on_device = [&](size_t i) { return is_gpu_name(wanted.of(i).experts); };
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
    divided = fits(base(i) + need.each[i]);  // then as many experts as fit
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

DevicePlacement fit_experts(const Checkpoint& checkpoint, const Wish& options,
                            const GpuTarget& target, uint64_t allowed, const GpuShare& share) {
  GpuBytes need = gpu_bytes(checkpoint, options, target, share);
  if (device_bytes(need) <= allowed) return options.placement;
  // Some layers will be divided, and prompts may stream the experts that stay on the CPU.
  if (options.placement.divided.empty()) need.work += divided_work(checkpoint, options.gpu);
  const uint64_t rest = device_bytes(need) - need.experts;
  need.work += kept_for_streams(checkpoint, options, target, allowed - std::min(allowed, rest));
  const ExpertLoads loads = read_loads(options.loads_file);
  return experts_that_fit(options.placement, need, allowed,
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
    out.all += n;
    ++layers;
    if (const auto some = placement.divided.find(layer); some != placement.divided.end()) {
      if (some->second.empty()) continue;
      const std::vector<double> shares = shares_of(loads, layer, n);
      ++out.divided;
      out.experts += some->second.size();
      for (const uint32_t e : some->second) out.load += shares.at(e);
    } else if (is_gpu_name(placement.of(layer).experts)) {
      ++out.layers;
      out.experts += n;
      out.load += 1;
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
