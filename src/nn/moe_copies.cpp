// SPDX-License-Identifier: Apache-2.0
// Serves tokens by copies of busy experts on ranks that spread them (moe.h), and exchanges the
// copies of a running layer. A new expert is packed beside the running ones; between two calls it
// takes a place of the layer, and the memory of the expert before it becomes free.
#include <array>

#include "base/error.h"
#include "nn/moe_forward.h"
#include "quant/expert_copies.h"

namespace moebius {

// Computes where the three matrices of an expert lie in its memory, and its size.
std::array<size_t, 3> offsets_in_memory(const ExpertPlan& p, bool gated, size_t* bytes) {
  ScratchLayout layout;
  std::array<size_t, 3> at{};
  if (gated) at[0] = layout.add(PackedSlot::bytes(p.gate));
  at[1] = layout.add(PackedSlot::bytes(p.up));
  at[2] = layout.add(PackedSlot::bytes(p.down));
  if (bytes != nullptr) *bytes = layout.bytes();
  return at;
}

// Lists the copies of each expert in ascending physical number, so that all ranks count them alike.
void MoeLayer::index_copies() {
  copies_at_.clear(), copies_.clear();
  if (plan_.expert_of.empty()) return;
  if (plan_.split.spread < 2 || plan_.spec.router.shared_slots > 0)
    fail("{}: copies of experts are for ranks that have some of the experts each", plan_.name);
  const size_t experts = plan_.spec.experts;
  std::vector<std::vector<uint32_t>> copies(experts);
  for (size_t p = 0; p < plan_.expert_of.size(); ++p) {
    const uint32_t e = plan_.expert_of[p];
    if (e >= experts) fail("{}: place {} holds expert {} of {}", plan_.name, p, e, experts);
    copies[e].push_back(static_cast<uint32_t>(p));
  }
  for (size_t e = 0; e < experts; ++e) {
    if (copies[e].empty()) fail("{}: no rank has expert {}", plan_.name, e);
    copies_at_.push_back(static_cast<uint32_t>(copies_.size()));
    copies_.insert(copies_.end(), copies[e].begin(), copies[e].end());
  }
  copies_at_.push_back(static_cast<uint32_t>(copies_.size()));
}

// Returns the physical expert of each item. Every rank finds the same copy for a token, so rows are
// sent without asking.
std::span<const int32_t> MoeLayer::Forward::physical_ids(size_t tokens) {
  const size_t items = tokens * routing_.slots;
  if (layer_.copies_.empty()) return {routing_.ids, items};
  std::vector<int32_t>& out = schedule_->physical;
  out.resize(items);
  const MoeSplit& t = layer_.plan_.split;
  choose_copies({routing_.ids, items}, {layer_.copies_at_, layer_.copies_, t.rank_of, t.spread},
                out);
  return out;
}

size_t MoeLayer::expert_bytes(size_t plan) const {
  if (plan >= plan_.plans.size())
    fail("{}: expert plan {} of {}", plan_.name, plan, plan_.plans.size());
  size_t bytes = 0;
  offsets_in_memory(plan_.plans[plan], shape_.gated, &bytes);
  return bytes;
}

std::unique_ptr<MoeLayer::StagedExpert> MoeLayer::stage(size_t plan, ExpertMemory memory) const {
  const size_t bytes = expert_bytes(plan);
  if (memory.data == nullptr) {
    memory.own = AlignedBuffer(bytes);
    memory.data = memory.own.data();
    memory.bytes = bytes;
  }
  if (memory.bytes < bytes)
    fail("{}: memory of {} bytes for an expert of {}", plan_.name, memory.bytes, bytes);
  auto s = std::make_unique<StagedExpert>();
  s->memory = std::move(memory);
  const ExpertPlan& p = plan_.plans[plan];
  const std::array<size_t, 3> at = offsets_in_memory(p, shape_.gated, nullptr);
  if (shape_.gated) s->expert.gate.bind(&p.gate, s->memory.data + at[0]);
  s->expert.up.bind(&p.up, s->memory.data + at[1]);
  s->expert.down.bind(&p.down, s->memory.data + at[2]);
  return s;
}

void MoeLayer::fill_staged(StagedExpert& staged, const ExpertWeights& weights) const {
  fill_expert(staged.expert, weights, nullptr, plan_.name + ": an expert that comes");
}

ExpertMemory MoeLayer::take_memory(std::unique_ptr<StagedExpert> staged) {
  return std::move(staged->memory);
}

std::vector<ExpertMemory> MoeLayer::place_experts(
    std::vector<uint32_t> expert_of, std::vector<std::unique_ptr<StagedExpert>> changed) {
  if (expert_of.size() != plan_.expert_of.size() || changed.size() != local_experts())
    fail("{}: places for {} experts, {} of them here; expected {} and {}", plan_.name,
         expert_of.size(), changed.size(), plan_.expert_of.size(), local_experts());
  for (size_t p = 0; p < expert_of.size(); ++p) {
    const int32_t local = plan_.expert_map[p];
    if (local < 0) continue;
    const StagedExpert* staged = changed[static_cast<size_t>(local)].get();
    if ((expert_of[p] != plan_.expert_of[p]) != (staged != nullptr))
      fail("{}: place {} goes from expert {} to {}, {} a packed one", plan_.name, p,
           plan_.expert_of[p], expert_of[p], staged == nullptr ? "without" : "with");
    if (staged != nullptr && !staged->expert.down.ready())
      fail("{}: expert {} was not packed", plan_.name, expert_of[p]);
  }
  std::swap(plan_.expert_of, expert_of);
  try {
    index_copies();
  } catch (const Error&) {
    std::swap(plan_.expert_of, expert_of);
    index_copies();
    throw;
  }
  std::vector<ExpertMemory> free;
  for (size_t e = 0; e < changed.size(); ++e) {
    if (changed[e] == nullptr) continue;
    experts_[e] = std::move(changed[e]->expert);
    std::swap(expert_memory_[e], changed[e]->memory);
    if (changed[e]->memory.data != nullptr) free.push_back(std::move(changed[e]->memory));
    settle_expert(e);
  }
  return free;
}

}  // namespace moebius
