// SPDX-License-Identifier: Apache-2.0
#include "model/plan/model_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/human.h"
#include "device/cpu/layer_plan.h"
#include "model/arch/arch.h"
#include "model/backend.h"
#include "model/plan/cuda_memory.h"
#include "model/plan/cuda_stream_plan.h"
#include "model/plan/placement_plan.h"
#include "model/plan/predictor_plan.h"
#include "model/plan/rank_memory.h"
#include "model/plan/rank_plan.h"

namespace moebius {
namespace {

std::string text_of(uint64_t bytes) { return human_bytes(static_cast<double>(bytes)); }

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

uint64_t allowed_bytes(const Gpu& gpu, const CudaSettings& cuda) {
  return cuda.memory != 0 ? std::min(cuda.memory, gpu.usable) : gpu.usable;
}

// Decides which experts are on the GPU and which are streamed through it. share: the rank's part of
// the model.
void settle_experts(const Checkpoint& checkpoint, const Wish& wish, const Machine& machine,
                    const CudaShare& share, RankPlan& rank, std::vector<std::string>& words) {
  Wish w = wish;
  w.placement = rank.placement;
  const uint64_t allowed = allowed_bytes(*machine.gpu, wish.cuda);
  if (wish.cuda.fit_experts) {
    w.placement = fit_experts(checkpoint, w, machine.gpu->target, allowed, share);
    words.push_back(describe(placed_experts(checkpoint, w.placement, read_loads(wish.loads_file))));
  }
  if (wish.split.ranks() == 1 && parse_stream_rows(wish.cuda.stream) != SIZE_MAX) {
    const std::vector<RankMemory> nothing = {{"", 0, machine.memory}};
    StreamPlan streams =
        plan_streams(checkpoint, w, machine.gpu->target, allowed, memory_left(nothing));
    w.placement = std::move(streams.placement);
    rank.streamed = std::move(streams.streamed);
    words.insert(words.end(), streams.words.begin(), streams.words.end());
  }
  rank.placement = std::move(w.placement);
}

// Counts the packed weights of every rank in host memory, as the kernels of this CPU hold them.
void count_on_cpu(const Checkpoint& checkpoint, ModelPlan& plan) {
  const Wish& w = plan.wish;
  if (w.split.ranks() == 1) {
    plan.ranks[0].bytes = packed_weights(checkpoint, w);
  } else {
    uint64_t table = 0;
    const auto weigh = [&](const Module& m) {
      const ModuleMemory memory = module_memory(checkpoint, m, w.policy, w.act, w.type);
      table += w.split.members() == 1 ? memory.table : memory.table_of_cut;
      return memory.packed;
    };
    const std::vector<RankPart> parts = rank_parts(checkpoint, w.split, weigh);
    for (size_t r = 0; r < parts.size(); ++r) {
      const uint64_t first = r == 0 ? table : 0;
      add(plan.ranks[r].bytes, kWeightBytes, kHostMemory,
          parts[r].bytes - parts[r].experts + first);
      add(plan.ranks[r].bytes, kExpertBytes, kHostMemory, parts[r].experts);
    }
  }
  if (!w.predictor) return;
  const Checkpoint predictor = checkpoint.open_predictor();
  for (Bytes& b : packed_weights(predictor, w)) plan.ranks[0].bytes.push_back(std::move(b));
}

void count_on_gpu(const Checkpoint& checkpoint, const Wish& wish, const CudaTarget& target,
                  const CudaShare& share, RankPlan& rank) {
  Wish w = wish;
  w.placement = rank.placement;
  w.cuda.streamed = rank.streamed;
  const CudaBytes need = cuda_bytes(checkpoint, w, target, share);
  const std::string device = wish.placement.cuda();
  add(rank.bytes, kWeightBytes, device, need.weights - need.experts);
  add(rank.bytes, kExpertBytes, device, need.experts);
  add(rank.bytes, kKvBytes, device, need.kv);
  add(rank.bytes, kWorkBytes, device, need.work);
  add(rank.bytes, kWeightBytes, kHostMemory, need.host - rank.streamed.host_bytes);
  add(rank.bytes, kStreamedBytes, kHostMemory, rank.streamed.host_bytes);
}

KvPlan kv_of(const Checkpoint& checkpoint, const ModelPlan& plan) {
  const DeviceSet devices(plan.wish.placement, nullptr, host_cpu(),
                          {plan.wish.type, plan.wish.policy});
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
      "{} may be used{}{}", text_of(allowed), wish.cuda.memory != 0 ? " (--gpu-memory)" : "",
      experts > 0
          ? fmt::format("; with --experts cpu {} of experts stay on the CPU", text_of(experts))
          : "");
}

// Returns why one GPU is too small for all ranks, which are threads of this process and share it;
// "": it is not. Sets the bytes that each rank has left.
std::string judge_one_gpu(ModelPlan& plan, const std::string& device, const Gpu& gpu) {
  const uint64_t most = plan.wish.cuda.memory;
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
  const uint64_t allowed = allowed_bytes(gpu, plan.wish.cuda), need = rank.sum(device),
                 kv = rank.sum(device, kKvBytes);
  if (need > allowed)
    return fmt::format("needs {} on {} ({}), and {}", text_of(need), gpu.target.name,
                       need_text(rank, device, plan.wish),
                       room_text(rank, device, plan.wish, allowed));
  if (kv > 0) rank.left = allowed - (need - kv);
  return "";
}

}  // namespace

uint64_t sum_of(std::span<const Bytes> bytes) {
  uint64_t sum = 0;
  for (const Bytes& b : bytes) sum += b.bytes;
  return sum;
}

uint64_t RankPlan::sum(std::string_view where) const {
  uint64_t sum = 0;
  for (const Bytes& b : bytes) sum += b.where == where ? b.bytes : 0;
  return sum;
}

uint64_t RankPlan::sum(std::string_view where, std::string_view what) const {
  uint64_t sum = 0;
  for (const Bytes& b : bytes) sum += b.where == where && b.what == what ? b.bytes : 0;
  return sum;
}

std::vector<Bytes> packed_weights(const Checkpoint& checkpoint, const Wish& wish) {
  uint64_t dense = 0, experts = 0;
  for (const Module& m : checkpoint.modules()) {
    if (!m.supported || !m.loaded()) continue;
    const ModuleMemory memory = module_memory(checkpoint, m, wish.policy, wish.act, wish.type);
    (m.expert >= 0 ? experts : dense) += memory.packed + memory.table;
  }
  std::vector<Bytes> out;
  add(out, kWeightBytes, kHostMemory, dense);
  add(out, kExpertBytes, kHostMemory, experts);
  return out;
}

ModelPlan plan_model(const Checkpoint& checkpoint, const Wish& wish, const Cluster& cluster) {
  ModelPlan plan;
  plan.spec = decoder_spec(checkpoint.config());
  checkpoint.require_supported();
  if (wish.predictor && wish.split.ranks() > 1)
    fail("multi-token prediction runs in one process; leave out the ranks");
  plan.wish = wish;
  PlacedParts placed = place_parts(checkpoint, plan.spec, wish.kv(), wish.placement);
  plan.wish.placement = std::move(placed.placement);
  check_cuda_split(plan.wish);
  const bool cuda = !plan.wish.placement.cuda().empty();
  const std::vector<CudaShare> shares = cuda_shares(checkpoint, wish.split);
  plan.ranks.resize(shares.size());
  for (size_t r = 0; r < shares.size(); ++r) {
    RankPlan& rank = plan.ranks[r];
    rank.layers = shares[r].layers;
    rank.placement = plan.wish.placement;
    rank.streamed = wish.cuda.streamed;
    if (!cuda || r >= cluster.ranks.size() || !cluster.ranks[r].gpu) continue;
    if (cluster.one_gpu &&
        r > 0) {  // rank 0's choice covers the experts of the whole model, so all ranks take it
      rank.placement = plan.ranks[0].placement;
      continue;
    }
    settle_experts(checkpoint, plan.wish, cluster.ranks[r],
                   cluster.one_gpu ? CudaShare{} : shares[r], rank, plan.words);
  }
  plan.words.insert(plan.words.end(), placed.words.begin(), placed.words.end());
  if (!cuda) {
    count_on_cpu(checkpoint, plan);
  } else {
    for (size_t r = 0; r < shares.size(); ++r)
      if (const Gpu* gpu = gpu_like(cluster, r); gpu != nullptr)
        count_on_gpu(checkpoint, plan.wish, gpu->target, shares[r], plan.ranks[r]);
  }
  plan.kv = kv_of(checkpoint, plan);
  judge(plan, cluster);
  return plan;
}

void judge(ModelPlan& plan, const Cluster& cluster) {
  plan.refusal.clear();
  const size_t known = std::min(cluster.ranks.size(), plan.ranks.size());
  std::vector<RankMemory> host;
  for (size_t r = 0; r < known; ++r)
    host.push_back(
        {cluster.ranks[r].host, plan.ranks[r].sum(kHostMemory), cluster.ranks[r].memory});
  if (!plan.wish.pack_dir.empty()) let_weights_go(host);
  const uint64_t left = memory_left(host);
  for (RankPlan& rank : plan.ranks) rank.left = left;
  const std::string device = plan.wish.placement.cuda();
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
