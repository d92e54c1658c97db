// SPDX-License-Identifier: Apache-2.0
// Runs a layer whose routed experts are in a store (expert_store.h), as many at a time as the store
// has places for, while it reads the next ones.
#include <algorithm>

#include "base/checked.h"
#include "base/error.h"
#include "nn/moe_forward.h"

namespace moebius {

void MoeLayer::adopt_streamed(const PackedBlock& kept) {
  const size_t each = shape_.gated ? 3 : 2;
  const bool shared = plan_.shared && kept.memory.size() > 0;
  if (kept.slots.size() != (local_experts() + (shared ? 1 : 0)) * each ||
      (shared && kept.memory.size() < memory_.size()))
    fail("{}: {} packed bytes of {} matrices in its store", plan_.name, kept.memory.size(),
         kept.slots.size());
  const uint8_t* end = shared ? kept.memory.data() + kept.memory.size() - memory_.size() : nullptr;
  for (size_t e = 0; e < local_experts() + (shared ? 1 : 0); ++e) {
    const std::string what = fmt::format("{}.{}", plan_.name, e);
    const bool streamed = e < local_experts();
    const SlotFacts* facts = kept.slots.data() + e * each;
    const auto adopt = [&](PackedSlot& slot, size_t matrix) {
      slot.adopt(*facts++, streamed ? nullptr : end + offsets_[3 * e + matrix], what);
    };
    Expert& expert = experts_[e];
    if (shape_.gated) adopt(expert.gate, 0);
    adopt(expert.up, 1);
    adopt(expert.down, 2);
  }
}

void MoeLayer::read_from(std::shared_ptr<ExpertStore> store, ExpertStore::Source source) {
  size_t bytes = 0;
  for (size_t i = 0; i < plan_.plans.size(); ++i) bytes = std::max(bytes, expert_bytes(i));
  store_layer_ = store->add(local_experts(), bytes, plan_.spec.router.top_k, std::move(source));
  store_ = std::move(store);
}

void MoeLayer::run_streamed(const ConstRows& x, const Routing& routing, const Rows& y,
                            ThreadPool& pool, const MoeOptions& options) const {
  const std::span<const int32_t> ids(routing.ids, x.rows * routing.slots);
  const std::vector<uint32_t> wanted = wanted_experts(ids);
  ExpertStore::Call call(*store_, store_layer_);
  const size_t waves = std::max<size_t>(1, ceil_div(wanted.size(), call.most())),
               each = ceil_div(wanted.size(), waves);
  std::vector<int32_t> own(waves > 1 ? ids.size() : 0);
  std::vector<float> sums(waves > 1 ? x.rows * plan_.spec.hidden : 0);
  std::vector<uint8_t*> places;
  const auto part = [&](size_t w) {
    const size_t begin = std::min(wanted.size(), w * each);
    return std::span(wanted).subspan(begin, std::min(each, wanted.size() - begin));
  };
  for (size_t w = 0; w < waves; ++w) {
    const std::span<const uint32_t> experts = part(w);
    call.demand(experts, places);
    for (size_t i = 0; i < experts.size(); ++i) {
      Expert& e = experts_[experts[i]];
      const size_t* offset = &offsets_[size_t{3} * experts[i]];
      if (shape_.gated) e.gate.move_to(places[i] + offset[0]);
      e.up.move_to(places[i] + offset[1]);
      e.down.move_to(places[i] + offset[2]);
    }
    const bool last = w + 1 == waves;
    if (w == 0 && options.guess != nullptr) {
      std::vector<uint32_t> guessed;
      (*options.guess)(guessed);
      call.expect_of_next_layer(guessed);
    }
    if (!last) call.expect(part(w + 1));
    constexpr size_t kNearlyAll = 8;  // all but one in so many
    if (last && wanted.size() + local_experts() / kNearlyAll >= local_experts())
      call.expect_next_layer();
    Routing of_wave = routing;
    if (waves > 1) {
      for (size_t i = 0; i < ids.size(); ++i) {
        const int32_t id = ids[i];
        const int32_t local =
            id < 0 || plan_.expert_map.empty() ? id : plan_.expert_map[static_cast<size_t>(id)];
        const bool runs = local >= 0 && std::binary_search(experts.begin(), experts.end(),
                                                           static_cast<uint32_t>(local));
        own[i] = runs ? id : -1;
      }
      of_wave.ids = own.data();
    }
    const Wave wave{call, sums.data(), w == 0, last};
    Forward(*this, x, of_wave, y, pool, options, &wave).run();
    call.release();
  }
}

}  // namespace moebius
