// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/expert_part.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace moebius {
namespace {

// Passes the rows of experts on instead of adding them. The layer takes the other device for a rank
// that owns all columns of the sum: it sends its rows there, and nothing comes back.
class RowsAway final : public MoeExchange {
 public:
  explicit RowsAway(CpuExpertPart::RowColumns place) : place_(place) {}
  size_t cut() const override { return 1; }
  size_t cut_place() const override { return 0; }
  size_t spread() const override { return 2; }
  size_t spread_place() const override { return 1; }
  void all_gather(const void*, std::span<const size_t>, void*) override {
    fail("experts of two devices are not cut");
  }
  void all_to_all(const void*, std::span<const size_t>, void*, std::span<const size_t>) override {
    fail("experts of two devices are not cut");
  }
  void start_exchange(const void* out, std::span<const size_t> out_bytes, void*,
                      std::span<const size_t>) override {
    if (out_bytes[0] > 0) std::memcpy(place_(out_bytes[0] / sizeof(float)), out, out_bytes[0]);
  }
  void finish_exchange() override {}
  void poll() noexcept override {}

 private:
  CpuExpertPart::RowColumns place_;
};

LayerLoadOptions second_of_two(const LayerLoadOptions& options,
                               const std::vector<uint32_t>& expert_of, size_t elsewhere) {
  LayerLoadOptions o = options;
  if (elsewhere == 0) return o;  // rank 0 has no experts
  o.rank.ep = 2, o.rank.ep_rank = 1, o.rank.second = Cut::kOutputs;
  o.rank.expert_of = expert_of;
  o.rank.first_places = elsewhere;
  return o;
}

bool all_exact(const Checkpoint& checkpoint, const MoeBlock& block, const LayerOptions& options) {
  const auto groups = [&](const Module& m) { return read_g_idx(checkpoint.store(), m.plan); };
  const auto is_exact = [&](const Module* m) {
    if (m == nullptr) return true;
    const ProjectionPlan p = plan_module(*m, Cut::kWhole, options, groups).projection;
    return numerics_of(*m, p.problem, *p.kernel) == Numerics::kExact;
  };
  return std::all_of(block.experts.begin(), block.experts.end(), [&](const auto& expert) {
    return std::all_of(expert.begin(), expert.end(), is_exact);
  });
}

}  // namespace

LayerOptions on_cpu(const CpuDevice& device, const LayerLoadOptions& options) {
  LayerOptions o;
  static_cast<LayerLoadOptions&>(o) = options;
  o.pool = &device.pool();
  o.cpu = device.cpu();
  o.packed = device.options().packed.get();
  o.experts = device.options().experts;
  return o;
}

CpuExpertPart::CpuExpertPart(CpuDevice& device, const Checkpoint& checkpoint, const MoeBlock& block,
                             const LayerLoadOptions& options, std::vector<uint32_t> expert_of,
                             size_t elsewhere)
    : device_(device),
      elsewhere_(elsewhere),
      expert_of_(std::move(expert_of)),
      exact_(all_exact(checkpoint, block, on_cpu(device, options))),
      layer_(load_moe(checkpoint, block,
                      on_cpu(device, second_of_two(options, expert_of_, elsewhere)),
                      MoePart::kExperts)) {
  if (adds() && !std::is_sorted(expert_of_.begin(), expert_of_.end()))
    fail("{}: experts that are all here have no other order", block.name);
  index_places();
}

void CpuExpertPart::index_places() {
  local_of_.assign(layer_.experts->spec().experts, -1);
  for (size_t p = elsewhere_; p < expert_of_.size(); ++p)
    local_of_[expert_of_[p]] = static_cast<int32_t>(p - elsewhere_);
}

// Numbers the rows by their experts' places; rows of one expert keep the order of tokens and slots
// (nn/moe_split.cpp). Writes the row of each item to `at`.
size_t CpuExpertPart::place_items(std::span<const int32_t> ids, std::span<int32_t> at) const {
  const auto local = [&](int32_t id) { return id < 0 ? -1 : local_of_[static_cast<size_t>(id)]; };
  std::vector<int32_t> next(expert_of_.size() - elsewhere_ + 1, 0);
  for (const int32_t id : ids)
    if (const int32_t l = local(id); l >= 0) ++next[static_cast<size_t>(l) + 1];
  for (size_t l = 1; l < next.size(); ++l) next[l] += next[l - 1];
  const auto rows = static_cast<size_t>(next.back());
  for (size_t i = 0; i < ids.size(); ++i) {
    const int32_t l = local(ids[i]);
    at[i] = l < 0 ? -1 : next[static_cast<size_t>(l)]++;
  }
  return rows;
}

void CpuExpertPart::run(std::span<const float> x, std::span<const int32_t> ids,
                        std::span<const float> weights, RowColumns place) const {
  const size_t tokens = x.size() / hidden(), own = adds() ? hidden() : 0;
  RowsAway away(place);
  MoeOptions options;
  if (!adds()) options.exchange = &away;
  float* y = adds() ? place(x.size()) : nullptr;
  device_.in_between([&] {
    layer_.experts->forward_ids({x.data(), DType::kF32, tokens, hidden(), hidden()}, ids, weights,
                                {y, DType::kF32, tokens, own, own}, device_.pool(), options);
  });
}

CpuExpertPart::Packed CpuExpertPart::pack(std::span<const uint32_t> expert_of) const {
  Packed packed(layer_.experts->local_experts());
  for (size_t p = elsewhere_; p < expert_of_.size(); ++p) {
    if (expert_of[p] == expert_of_[p]) continue;
    std::unique_ptr<MoeLayer::StagedExpert>& to = packed[p - elsewhere_];
    to = layer_.experts->stage(layer_.source->plan_of(expert_of[p]), {});
    layer_.source->load(*layer_.experts, *to, expert_of[p]);
  }
  return packed;
}

void CpuExpertPart::place(std::vector<uint32_t> expert_of, Packed packed) {
  layer_.experts->place_experts(expert_of, std::move(packed));
  expert_of_ = std::move(expert_of);
  index_places();
}

}  // namespace moebius
