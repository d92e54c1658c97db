// SPDX-License-Identifier: Apache-2.0
// Places the packed experts of a layer (moe.h): in memory of its own, spread over the nodes that
// read them, or in a mapped file.
#include <algorithm>

#include "base/error.h"
#include "nn/moe_forward.h"
#include "runtime/mapped_file.h"

namespace moebius {

// Allocates expert by expert. With several nodes, gate and up of all experts come first, because
// down, whose columns are shared by the nodes, needs pages on other nodes.
void MoeLayer::allocate(NodeMemory* nodes, PackedBlock* kept) {
  for (const ExpertPlan& p : plan_.plans) describe(p);
  if (plan_.shared) describe(*plan_.shared);
  for (size_t e = 0; e < experts_.size(); ++e)
    shape_.experts.push_back({plan_for(e).up.problem.N, 0, 0});
  keep_ = shared_amax_ || plan_.split.cut > 1;
  shape_.keep_intermediate = keep_;
  ScratchLayout layout;
  offsets_.resize(3 * experts_.size());
  const auto add_down = [&](size_t e) {
    offsets_[3 * e + 2] = layout.add(PackedSlot::bytes(plan_for(e).down));
  };
  for (size_t e = 0; e < experts_.size(); ++e) {
    if (plan_.streamed && e < local_experts()) {  // offsets in a place of the store
      const std::array<size_t, 3> at = offsets_in_memory(plan_for(e), shape_.gated, nullptr);
      std::copy(at.begin(), at.end(), offsets_.begin() + static_cast<std::ptrdiff_t>(3 * e));
      continue;
    }
    if (plan_.apart) layout.align(ExpertStore::kAlignment);
    if (shape_.gated) offsets_[3 * e] = layout.add(PackedSlot::bytes(plan_for(e).gate));
    offsets_[3 * e + 1] = layout.add(PackedSlot::bytes(plan_for(e).up));
    if (nodes == nullptr) add_down(e);
  }
  const size_t mixed = layout.bytes();
  if (nodes != nullptr)
    for (size_t e = 0; e < experts_.size(); ++e) add_down(e);
  const size_t slots = experts_.size() * (shape_.gated ? 3 : 2);
  if (plan_.apart) layout.align(ExpertStore::kAlignment);
  if (kept != nullptr && (kept->memory.size() != layout.bytes() || kept->slots.size() != slots))
    fail("{}: {} packed bytes of {} matrices; expected {} and {}", plan_.name, kept->memory.size(),
         kept->slots.size(), layout.bytes(), slots);
  if (kept != nullptr && nodes == nullptr) {
    memory_ = std::move(kept->memory);
    read_ahead_ = kept->read_ahead;
  } else
    memory_ = WeightMemory(layout.bytes());
  uint8_t* own = memory_.held() ? nullptr : memory_.own();
  const auto at = [&](size_t i) { return own == nullptr ? nullptr : own + offsets_[i]; };
  if (nodes != nullptr) nodes->mixed(own + mixed, memory_.size() - mixed);
  expert_memory_.resize(local_experts());
  const NodeShare down{nodes, 0, shape_.nodes, shape_.down.n_step};
  for (size_t e = 0; e < experts_.size(); ++e) {
    const ExpertPlan& p = plan_for(e);
    if (plan_.streamed && e < local_experts()) {
      stored_bytes_ += expert_bytes(plan_.plan_of.empty() ? 0 : plan_.plan_of[e]);
      if (shape_.gated) experts_[e].gate.bind(&p.gate, nullptr);
      experts_[e].up.bind(&p.up, nullptr);
      experts_[e].down.bind(&p.down, nullptr);
      continue;
    }
    const NodeShare up = e < local_experts()
                             ? NodeShare{nodes, shape_.node_of(e, 0), 1, shape_.up.n_step}
                             : NodeShare{nodes, 0, shape_.nodes, shape_.up.n_step};
    if (shape_.gated) experts_[e].gate.bind(&p.gate, at(3 * e), up);
    experts_[e].up.bind(&p.up, at(3 * e + 1), up);
    experts_[e].down.bind(&p.down, at(3 * e + 2), down);
    // Another expert may take the memory of this one later, if it is in one piece and belongs to
    // the layer.
    if (e >= local_experts() || nodes != nullptr || own == nullptr) continue;
    expert_memory_[e].data = at(3 * e + (shape_.gated ? 0 : 1));
    expert_memory_[e].bytes = expert_bytes(plan_.plan_of.empty() ? 0 : plan_.plan_of[e]);
  }
}

void MoeLayer::adopt_expert(size_t e, PackedBlock& kept) {
  const std::string what = fmt::format("{}.{}", plan_.name, e);
  if (e >= experts_.size()) fail("{}; this rank has {}", what, experts_.size());
  const uint8_t* from = memory_.held() ? memory_.data() : kept.memory.data();
  Expert& expert = experts_[e];
  const size_t each = shape_.gated ? 3 : 2;
  SlotFacts* facts = kept.slots.data() + e * each;
  if (shape_.gated) expert.gate.adopt(std::move(*facts++), from + offsets_[3 * e], what);
  expert.up.adopt(std::move(*facts++), from + offsets_[3 * e + 1], what);
  expert.down.adopt(std::move(*facts), from + offsets_[3 * e + 2], what);
}

std::vector<SlotFacts> MoeLayer::facts() const {
  std::vector<SlotFacts> all;
  for (const Expert& e : experts_) {
    if (shape_.gated) all.push_back(e.gate.facts());
    all.push_back(e.up.facts());
    all.push_back(e.down.facts());
  }
  return all;
}

void MoeLayer::move_to(PackedBlock kept) {
  if (shape_.nodes > 1) return;
  for (size_t e = 0; e < experts_.size(); ++e) {
    if (shape_.gated) experts_[e].gate.move_to(kept.memory.data() + offsets_[3 * e]);
    experts_[e].up.move_to(kept.memory.data() + offsets_[3 * e + 1]);
    experts_[e].down.move_to(kept.memory.data() + offsets_[3 * e + 2]);
  }
  for (ExpertMemory& m : expert_memory_) m = {};
  memory_ = std::move(kept.memory);
  read_ahead_ = kept.read_ahead;
}

std::vector<uint64_t> MoeLayer::expert_ends() const {
  std::vector<uint64_t> ends;
  for (size_t e = 1; e < experts_.size(); ++e)
    ends.push_back(offsets_[3 * e + (shape_.gated ? 0 : 1)]);
  ends.push_back(memory_.size());
  return ends;
}

std::vector<uint32_t> MoeLayer::wanted_experts(std::span<const int32_t> ids) const {
  std::vector<bool> wanted(local_experts());
  for (const int32_t id : ids) {
    const int32_t local =
        id < 0 || plan_.expert_map.empty() ? id : plan_.expert_map[static_cast<size_t>(id)];
    if (local >= 0 && static_cast<size_t>(local) < wanted.size())
      wanted[static_cast<size_t>(local)] = true;
  }
  std::vector<uint32_t> list;
  for (size_t e = 0; e < wanted.size(); ++e)
    if (wanted[e]) list.push_back(static_cast<uint32_t>(e));
  return list;
}

// Asks the system to read all wanted experts from disk, while the first ones are multiplied.
void MoeLayer::fetch_experts(std::span<const int32_t> ids) const {
  std::vector<uint32_t> wanted = wanted_experts(ids);
  if (plan_.shared) wanted.push_back(static_cast<uint32_t>(local_experts()));
  for (const uint32_t e : wanted) {
    const size_t begin = offsets_[3 * e + (shape_.gated ? 0 : 1)],
                 end = offsets_[3 * e + 2] + PackedSlot::bytes(plan_for(e).down);
    read_ahead(memory_.bytes().subspan(begin, end - begin));
  }
}

}  // namespace moebius
