// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/expert_part.h"

#include <algorithm>

#include "base/error.h"

namespace moebius {
namespace {

// To the layer the other device is a rank that owns all columns of the sum: rows for it are all that it
// passes on, and nothing comes back.
class RowsAway final : public MoeExchange {
 public:
  explicit RowsAway(FunctionRef<void(std::span<const float>)> give) : give_(give) {}
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
    give_({static_cast<const float*>(out), out_bytes[0] / sizeof(float)});
  }
  void finish_exchange() override {}
  void poll() noexcept override {}

 private:
  FunctionRef<void(std::span<const float>)> give_;
};

LoadOptions second_of_two(const LoadOptions& options, std::vector<uint32_t> expert_of,
                          size_t elsewhere) {
  LoadOptions o = options;
  o.rank.ep = 2, o.rank.ep_rank = 1, o.rank.second = Cut::kOutputs;
  o.rank.expert_of = std::move(expert_of), o.rank.first_places = elsewhere;
  return o;
}

}  // namespace

LayerOptions on_cpu(const CpuDevice& device, const LoadOptions& options) {
  LayerOptions o;
  static_cast<LoadOptions&>(o) = options;
  o.pool = &device.pool(), o.cpu = device.cpu();
  o.packed = device.options().packed.get();
  return o;
}

CpuExpertPart::CpuExpertPart(CpuDevice& device, const Checkpoint& checkpoint, const MoeBlock& block,
                             const LoadOptions& options, std::vector<uint32_t> expert_of,
                             size_t elsewhere)
    : device_(device),
      elsewhere_(elsewhere),
      layer_(load_moe(checkpoint, block,
                      on_cpu(device, second_of_two(options, std::move(expert_of), elsewhere)),
                      MoePart::kExperts)) {
  index_places();
}

void CpuExpertPart::index_places() {
  const std::span<const uint32_t> places = expert_of();
  local_of_.assign(layer_.experts->spec().experts, -1);
  for (size_t p = elsewhere_; p < places.size(); ++p)
    local_of_[places[p]] = static_cast<int32_t>(p - elsewhere_);
}

bool CpuExpertPart::exact() const {
  const auto is_exact = [](const ModulePlan& p) {
    return p.module == nullptr ||
           numerics_of(*p.module, p.projection.problem, *p.projection.kernel) == Numerics::kExact;
  };
  return std::all_of(
      layer_.source->experts.begin(), layer_.source->experts.end(),
      [&](const ExpertModules& e) { return std::all_of(e.begin(), e.end(), is_exact); });
}

// Rows of experts in the order of their places, of each in the order of tokens and slots (nn/moe_split.cpp).
size_t CpuExpertPart::place_items(std::span<const int32_t> ids, std::span<int32_t> at) const {
  const auto local = [&](int32_t id) { return id < 0 ? -1 : local_of_[static_cast<size_t>(id)]; };
  std::vector<int32_t> next(expert_of().size() - elsewhere_ + 1, 0);
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
                        std::span<const float> weights,
                        FunctionRef<void(std::span<const float> rows)> give) const {
  const size_t tokens = x.size() / hidden();
  RowsAway away(give);
  MoeOptions options;
  options.exchange = &away;
  device_.in_between([&] {
    layer_.experts->forward_ids({x.data(), DType::kF32, tokens, hidden(), hidden()}, ids, weights,
                                {nullptr, DType::kF32, tokens, 0, 0}, device_.pool(), options);
  });
}

CpuExpertPart::Packed CpuExpertPart::pack(std::span<const uint32_t> expert_of) const {
  const std::span<const uint32_t> before = layer_.experts->expert_of();
  Packed packed(layer_.experts->local_experts());
  for (size_t p = elsewhere_; p < before.size(); ++p) {
    if (expert_of[p] == before[p]) continue;
    std::unique_ptr<MoeLayer::StagedExpert>& to = packed[p - elsewhere_];
    to = layer_.experts->stage(layer_.source->plan_of.at(expert_of[p]), {});
    layer_.source->load(*layer_.experts, *to, expert_of[p]);
  }
  return packed;
}

void CpuExpertPart::place(std::vector<uint32_t> expert_of, Packed packed) {
  layer_.experts->place_experts(std::move(expert_of), std::move(packed));
  index_places();
}

}  // namespace moebius
