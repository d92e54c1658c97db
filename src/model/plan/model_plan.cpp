// SPDX-License-Identifier: Apache-2.0
#include "model/plan/model_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/checked.h"
#include "base/error.h"
#include "base/human.h"
#include "model/arch/arch.h"
#include "model/backend.h"
#include "model/plan/gpu_memory.h"
#include "model/plan/gpu_stream_plan.h"
#include "model/plan/placement_plan.h"
#include "model/plan/predictor_plan.h"
#include "model/plan/rank_memory.h"
#include "model/plan/rank_plan.h"
#include "nn/expert_store.h"

namespace moebius {
namespace {

std::string text_of(uint64_t bytes) { return human_bytes(bytes); }

void add(std::vector<Bytes>& list, std::string_view what, std::string_view where, uint64_t bytes) {
  if (bytes > 0) list.push_back({what, std::string(where), bytes});
}

// Returns the GPU of a rank; if that is unknown, another rank's, to count bytes with.
const Gpu* gpu_like(const Cluster& cluster, size_t rank) {
  if (rank < cluster.ranks.size() && cluster.ranks[rank].gpu) return &*cluster.ranks[rank].gpu;
  for (const Machine& m : cluster.ranks)
    if (m.gpu) return &*m.gpu;
  return nullptr;
}

uint64_t allowed_bytes(const Gpu& gpu, const GpuSettings& cuda) {
  return cuda.memory != 0 ? std::min(cuda.memory, gpu.usable) : gpu.usable;
}

// Decides which experts are on the GPU and which are streamed through it. share: the rank's part of
// the model.
void settle_experts(const Checkpoint& checkpoint, const Wish& wish, const Machine& machine,
                    const GpuShare& share, RankPlan& rank, std::vector<std::string>& words) {
  Wish w = wish;
  w.placement = rank.placement;
  const uint64_t allowed = allowed_bytes(*machine.gpu, wish.gpu);
  if (wish.gpu.fit_experts) {
    w.placement = fit_experts(checkpoint, w, machine.gpu->target, allowed, share);
    words.push_back(describe(placed_experts(checkpoint, w.placement, read_loads(wish.loads_file))));
  }
  if (wish.split.ranks() == 1 && parse_stream_rows(wish.gpu.stream) != SIZE_MAX) {
    const std::vector<RankMemory> nothing = {{"", 0, machine.memory}};
    StreamPlan streams =
        plan_streams(checkpoint, w, machine.gpu->target, allowed, memory_left(nothing));
    w.placement = std::move(streams.placement);
    rank.streamed = std::move(streams.streamed);
    words.insert(words.end(), streams.words.begin(), streams.words.end());
  }
  rank.placement = std::move(w.placement);
}

// Returns whether bytes of a module are experts': on a GPU also what is placed with them.
bool counts_as_expert(const PlannedModule& m) {
  const bool placed = is_gpu_name(m.device) && m.module->layer >= 0 && is_of_experts(*m.module);
  return placed || m.module->expert >= 0;
}

// Adds entries for the packed weights of a rank's modules.
void add_weights(RankPlan& rank) {
  std::map<std::pair<std::string_view, bool>, uint64_t> sums;
  for (const PlannedModule& m : rank.modules)
    sums[{is_gpu_name(m.device) ? m.device : kHostMemory, counts_as_expert(m)}] += m.bytes;
  for (const auto& [of, bytes] : sums)
    add(rank.bytes, of.second ? kExpertBytes : kWeightBytes, of.first, bytes);
}

// Lists the modules of every rank in host memory, as the kernels of its CPU hold them.
void plan_on_cpu(const Checkpoint& checkpoint, const Cluster& cluster, ModelPlan& plan) {
  const Wish& w = plan.wish;
  const Cpu cpu = cluster.ranks.empty() ? host_cpu() : cluster.ranks[0].cpu;
  const auto device = make_device("cpu", nullptr, cpu, planning_options(w));
  ModulePlanner planner(checkpoint, *device, w.act, w.type);
  const std::vector<RankPart> parts =
      rank_parts(checkpoint, w.split, [&](const Module& m) { return planner.use(m)->packed; });
  for (size_t r = 0; r < parts.size(); ++r)
    for (const RankPart::Held& held : parts[r].modules) {
      const std::shared_ptr<const ModuleUse> use = planner.use(*held.module);
      // The leader has the token table, or reads rows from its part of the packed one.
      const uint64_t table = r > 0 ? 0 : w.split.members() == 1 ? use->table : use->table_of_cut;
      plan.ranks[r].modules.push_back(
          {held.module, held.cut, std::string("cpu"), use, held.bytes + table});
    }
  for (RankPlan& rank : plan.ranks) add_weights(rank);
}

// Decides whether the output projection of one process has a copy that finds the best tokens.
void plan_shortlist(const Cluster& cluster, ModelPlan& plan) {
  constexpr uint64_t kShare = 4;  // a copy takes at most this part of free memory
  const std::optional<bool> wanted = std::exchange(plan.wish.shortlist, false);
  RankPlan& rank = plan.ranks[0];
  uint64_t bytes = 0;
  for (const PlannedModule& m : rank.modules) bytes = std::max(bytes, m.use->shortlist);
  if (plan.ranks.size() > 1 ||
      !wanted.value_or(bytes >= kLeastShortlist && plan.wish.pack_dir.empty()) || bytes == 0)
    return;
  std::vector<RankMemory> host;
  if (!cluster.ranks.empty()) host.push_back({"", rank.sum(kHostMemory), cluster.ranks[0].memory});
  const bool known = !host.empty() && !host[0].limits.empty();
  if (!wanted && known && memory_left(host) / kShare < bytes) {
    plan.words.push_back(
        fmt::format("no {} ({}): memory is short", kShortlistBytes, text_of(bytes)));
    return;
  }
  add(rank.bytes, kShortlistBytes, kHostMemory, bytes);
  plan.wish.shortlist = true;
}

// Returns the fewest bytes of memory that a store of a rank's experts can have.
uint64_t least_store(const ModelPlan& plan, const RankPlan& rank) {
  std::map<const Module*, uint64_t> packed;
  for (const PlannedModule& m : rank.modules) packed[m.module] = m.bytes;
  std::map<uint64_t, uint64_t> pools;  // bytes of the places of each size
  for (const MoeBlock& block : plan.checkpoint->moe_blocks()) {
    uint64_t largest = 0;
    for (const auto& expert : block.experts) {
      uint64_t bytes = 0;
      for (const Module* m : expert) bytes += round_up(m == nullptr ? 0 : packed[m], kCacheLine);
      largest = std::max(largest, bytes);
    }
    uint64_t& most = pools[round_up(largest, ExpertStore::kAlignment)];
    most = std::max(
        most, ExpertStore::least_bytes(largest, block.experts.size(), block.spec.router.top_k));
  }
  uint64_t sum = 0;
  for (const auto& [size, bytes] : pools) sum += bytes;
  return sum;
}

// Decides whether a rank's experts are read from disk when they are needed, and how much memory
// they get.
void plan_store(const Cluster& cluster, ModelPlan& plan) {
  const std::optional<uint64_t> wanted = std::exchange(plan.wish.expert_bytes, 0);
  const ExpertCache cache = plan.wish.expert_cache;
  const bool asked = wanted.has_value() || cache == ExpertCache::kPool;
  if (cache == ExpertCache::kPage) return;
  RankPlan& rank = plan.ranks[0];
  const uint64_t experts = rank.sum(kHostMemory, kExpertBytes);
  if (plan.ranks.size() > 1 || experts == 0) {
    if (asked)
      plan.words.push_back(experts == 0 ? "the model has no experts that a store could hold"
                                        : "experts of several ranks are not read from a store");
    return;
  }
  uint64_t left = 0;  // free memory beside everything but experts; 0: not known
  if (!cluster.ranks.empty() && !cluster.ranks[0].memory.empty()) {
    const std::vector<RankMemory> host = {
        {"", rank.sum(kHostMemory) - experts, cluster.ranks[0].memory}};
    left = memory_left(host);
  }
  if (!asked && (left == 0 || experts <= left)) return;
  // The rest is for keys and values and for other programs.
  const uint64_t allowed = wanted.value_or(left == 0 ? experts : std::min(experts, left / 4 * 3)),
                 least = least_store(plan, rank);
  if (allowed < least && !asked) return;  // judge() says what the whole model needs
  if (allowed < least) {
    plan.refusal =
        fmt::format("experts that are read from disk need at least {} of memory, and {} {}",
                    text_of(least), text_of(allowed),
                    wanted ? "are allowed (--expert-gib)" : "are free beside the other weights");
    return;
  }
  plan.wish.expert_bytes = allowed;
  std::erase_if(rank.bytes, [](const Bytes& b) { return b.what == kExpertBytes; });
  add(rank.bytes, kExpertBytes, kHostMemory, std::min(allowed, experts));
  add(rank.bytes, kExpertBytes, kDisk, experts);
  plan.words.push_back(fmt::format("experts: {} on disk, {} of them in memory at a time",
                                   text_of(experts), text_of(std::min(allowed, experts))));
}

void count_on_gpu(const Checkpoint& checkpoint, const Wish& wish, const GpuTarget& target,
                  const GpuShare& share, RankPlan& rank) {
  Wish w = wish;
  w.placement = rank.placement;
  w.gpu.streamed = rank.streamed;
  const GpuBytes need = gpu_bytes(checkpoint, w, target, share);
  const std::string device = wish.placement.gpu();
  rank.modules = need.modules;
  add_weights(rank);
  add(rank.bytes, kKvBytes, device, need.kv);
  add(rank.bytes, kWorkBytes, device, need.work);
  add(rank.bytes, kStreamedBytes, kHostMemory, rank.streamed.host_bytes);
}

// Sets the rates of the entries, as far as the machines' are known.
void add_rates(const Cluster& cluster, ModelPlan& plan) {
  for (size_t r = 0; r < std::min(cluster.ranks.size(), plan.ranks.size()); ++r) {
    const Machine& m = cluster.ranks[r];
    for (Bytes& b : plan.ranks[r].bytes)
      b.rate = b.where == kDisk         ? 0
               : b.where == kHostMemory ? m.read_rate
               : m.gpu                  ? m.gpu->read_rate
                                        : 0;
  }
}

KvPlan kv_of(const Checkpoint& checkpoint, const ModelPlan& plan) {
  const DeviceSet devices(plan.wish.placement, nullptr, host_cpu(), planning_options(plan.wish));
  KvPlan kv = plan_kv(checkpoint, plan.spec, plan.wish.kv(), devices);
  if (plan.wish.predictor) plan_predictor(checkpoint, plan.wish.kv(), devices, kv);
  kv.devices.clear();  // the devices end here
  return kv;
}

std::string need_text(const RankPlan& rank, const std::string& device, const Wish& wish) {
  return fmt::format("{} of weights, {} of keys and values for {} tokens, {} for work",
                     text_of(rank.sum(device, kWeightBytes) + rank.sum(device, kExpertBytes)),
                     text_of(rank.sum(device, kKvBytes)),
                     wish.context != 0 ? wish.context : kUsualContext,
                     text_of(rank.sum(device, kWorkBytes)));
}

std::string room_text(const RankPlan& rank, const std::string& device, const Wish& wish,
                      uint64_t allowed) {
  const uint64_t experts = rank.sum(device, kExpertBytes);
  return fmt::format(
      "{} may be used{}{}", text_of(allowed), wish.gpu.memory != 0 ? " (--gpu-memory)" : "",
      experts > 0
          ? fmt::format("; with --experts cpu {} of experts stay on the CPU", text_of(experts))
          : "");
}

// Returns why one GPU is too small for all ranks, which are threads of this process and share it;
// "": it is not. Sets the bytes that each rank has left.
std::string judge_one_gpu(ModelPlan& plan, const std::string& device, const Gpu& gpu) {
  const uint64_t most = plan.wish.gpu.memory;
  uint64_t all = 0, fixed = 0;
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    const RankPlan& rank = plan.ranks[r];
    const uint64_t need = rank.sum(device);
    if (most != 0 && need > most)
      return fmt::format("rank {} of {} needs {} on {} ({}), and {}", r, plan.ranks.size(),
                         text_of(need), gpu.target.name, need_text(rank, device, plan.wish),
                         room_text(rank, device, plan.wish, most));
    all += need;
    fixed += need - rank.sum(device, kKvBytes);
  }
  if (all > gpu.usable)
    return fmt::format("{} ranks together need {} on {}, and {} may be used", plan.ranks.size(),
                       text_of(all), gpu.target.name, text_of(gpu.usable));
  // The GPU holds no keys and values: host memory decides what is left.
  if (all == fixed) return "";
  uint64_t left = (gpu.usable - fixed) / plan.ranks.size();
  for (const RankPlan& rank : plan.ranks)
    if (most != 0) left = std::min(left, most - (rank.sum(device) - rank.sum(device, kKvBytes)));
  for (RankPlan& rank : plan.ranks) rank.left = left;
  return "";
}

// Returns why a rank's own GPU is too small for it; "": it is not. Sets the bytes that the rank has
// left.
std::string judge_own_gpu(const ModelPlan& plan, const std::string& device, const Gpu& gpu,
                          RankPlan& rank) {
  const uint64_t allowed = allowed_bytes(gpu, plan.wish.gpu), need = rank.sum(device),
                 kv = rank.sum(device, kKvBytes);
  if (need > allowed)
    return fmt::format("needs {} on {} ({}), and {}", text_of(need), gpu.target.name,
                       need_text(rank, device, plan.wish),
                       room_text(rank, device, plan.wish, allowed));
  if (kv > 0) rank.left = allowed - (need - kv);
  return "";
}

}  // namespace

uint64_t bytes_to_load(const Checkpoint& checkpoint, bool predictor) {
  uint64_t bytes = predictor ? bytes_to_load(checkpoint.open_predictor(), false) : 0;
  for (const Module& m : checkpoint.modules()) bytes += m.loaded() ? m.bytes : 0;
  return bytes;
}

uint64_t sum_of(std::span<const PlannedModule> modules) {
  uint64_t sum = 0;
  for (const PlannedModule& m : modules) sum += m.bytes;
  return sum;
}

DeviceOptions planning_options(const Wish& wish, const GpuTarget* gpu) {
  DeviceOptions options{wish.type, wish.policy, wish.gpu};
  if (gpu != nullptr) options.target = *gpu;
  return options;
}

uint64_t RankPlan::sum(std::string_view where) const {
  uint64_t sum = 0;
  for (const Bytes& b : bytes) sum += b.where == where ? b.bytes : 0;
  return sum;
}

double RankPlan::rate(std::string_view where) const {
  double rate = 0;
  for (const Bytes& b : bytes)
    if (b.where == where) rate = b.rate;
  return rate;
}

uint64_t RankPlan::sum(std::string_view where, std::string_view what) const {
  uint64_t sum = 0;
  for (const Bytes& b : bytes) sum += b.where == where && b.what == what ? b.bytes : 0;
  return sum;
}

std::vector<PlannedModule> plan_modules(const Checkpoint& checkpoint, const ActRequest& act,
                                        XType type, const Device& device) {
  ModulePlanner planner(checkpoint, device, act, type);
  std::vector<PlannedModule> out;
  for (const Module& m : checkpoint.modules()) {
    if (!m.supported || !m.loaded()) continue;
    const std::shared_ptr<const ModuleUse> use = planner.use(m);
    out.push_back({&m, Cut::kWhole, std::string(device.name()), use, use->bytes()});
  }
  return out;
}

std::vector<PlannedModule> plan_modules_on_cpu(const Checkpoint& checkpoint, const Wish& wish) {
  const auto device = make_device("cpu", nullptr, host_cpu(), planning_options(wish));
  return plan_modules(checkpoint, wish.act, wish.type, *device);
}

ModelPlan plan_model(const Checkpoint& checkpoint, const Wish& wish, const Cluster& cluster) {
  ModelPlan plan;
  plan.checkpoint = &checkpoint;
  plan.spec = decoder_spec(checkpoint.config());
  checkpoint.require_supported();
  if (wish.predictor && wish.split.ranks() > 1)
    fail("multi-token prediction runs in one process; leave out the ranks");
  plan.wish = wish;
  PlacedParts placed = place_parts(checkpoint, plan.spec, wish.kv(), wish.placement);
  plan.wish.placement = std::move(placed.placement);
  check_gpu_split(plan.wish);
  const bool gpu = !plan.wish.placement.gpu().empty();
  const std::vector<GpuShare> shares = gpu_shares(checkpoint, wish.split);
  plan.ranks.resize(shares.size());
  for (size_t r = 0; r < shares.size(); ++r) {
    RankPlan& rank = plan.ranks[r];
    rank.layers = shares[r].layers;
    rank.placement = plan.wish.placement;
    rank.streamed = wish.gpu.streamed;
    if (!gpu || r >= cluster.ranks.size() || !cluster.ranks[r].gpu) continue;
    if (cluster.one_gpu &&
        r > 0) {  // rank 0's choice covers the experts of the whole model, so all ranks take it
      rank.placement = plan.ranks[0].placement;
      continue;
    }
    settle_experts(checkpoint, plan.wish, cluster.ranks[r],
                   cluster.one_gpu ? GpuShare{} : shares[r], rank, plan.words);
  }
  plan.words.insert(plan.words.end(), placed.words.begin(), placed.words.end());
  if (!gpu) {
    plan_on_cpu(checkpoint, cluster, plan);
    plan_shortlist(cluster, plan);
    plan_store(cluster, plan);
  } else {
    plan.wish.expert_bytes = 0;
    plan.wish.shortlist = false;
    for (size_t r = 0; r < shares.size(); ++r)
      if (const Gpu* one = gpu_like(cluster, r); one != nullptr)
        count_on_gpu(checkpoint, plan.wish, one->target, shares[r], plan.ranks[r]);
  }
  if (wish.predictor && !gpu) {
    const Checkpoint predictor = checkpoint.open_predictor();
    add(plan.ranks[0].bytes, kDraftBytes, kHostMemory,
        sum_of(plan_modules_on_cpu(predictor, wish)));
  }
  add_rates(cluster, plan);
  plan.kv = kv_of(checkpoint, plan);
  const std::string refusal = plan.refusal;
  judge(plan, cluster);
  if (!refusal.empty()) plan.refusal = refusal;
  return plan;
}

void judge(ModelPlan& plan, const Cluster& cluster) {
  plan.refusal.clear();
  const size_t known = std::min(cluster.ranks.size(), plan.ranks.size());
  std::vector<RankMemory> host;
  for (size_t r = 0; r < known; ++r)
    host.push_back(
        {cluster.ranks[r].host, plan.ranks[r].sum(kHostMemory), cluster.ranks[r].memory});
  // Weights beside a store are read by every step.
  const bool store = plan.wish.expert_bytes.value_or(0) > 0;
  if (!plan.wish.pack_dir.empty() && !store) let_weights_go(host);
  const uint64_t left = memory_left(host);
  for (RankPlan& rank : plan.ranks) rank.left = left;
  const std::string device = plan.wish.placement.gpu();
  if (!device.empty() && cluster.one_gpu && known > 0 && cluster.ranks[0].gpu)
    plan.refusal = judge_one_gpu(plan, device, *cluster.ranks[0].gpu);
  for (size_t r = 0; r < known && !device.empty() && !cluster.one_gpu && plan.refusal.empty(); ++r)
    if (cluster.ranks[r].gpu)
      plan.refusal = judge_own_gpu(plan, device, *cluster.ranks[r].gpu, plan.ranks[r]);
  if (plan.refusal.empty()) plan.refusal = memory_refusal(host);
}

void require_fit(const ModelPlan& plan, const std::string& folder) {
  if (!plan.refusal.empty())
    fail_at({"memory", folder, "", "", ""}, "{}: {}", folder, plan.refusal);
}

}  // namespace moebius
