// SPDX-License-Identifier: Apache-2.0
// Copies of busy experts on ranks that spread them (moe.h): which physical expert serves a token, and
// how a layer that runs comes to have other ones. A new expert is packed beside those that run; then,
// between two calls, it takes a place of the layer, and the room of the one before it becomes free.
#include <array>

#include "base/error.h"
#include "nn/moe_forward.h"
#include "quant/expert_copies.h"

namespace moebius {

namespace {

// Where the three matrices of an expert lie in its room.
std::array<size_t, 3> offsets_in_room(const ExpertPlan& p, bool gated, size_t* bytes) {
  ScratchLayout layout;
  std::array<size_t, 3> at{};
  if (gated) at[0] = layout.add(PackedSlot::bytes(p.gate));
  at[1] = layout.add(PackedSlot::bytes(p.up));
  at[2] = layout.add(PackedSlot::bytes(p.down));
  if (bytes != nullptr) *bytes = layout.bytes();
  return at;
}

}  // namespace

// Copies of an expert in ascending physical number, so that every rank counts them alike.
void MoeLayer::index_copies() {
  copies_at_.clear(), copies_.clear();
  if (plan_.expert_of.empty()) return;
  if (plan_.together.spread < 2 || plan_.spec.router.shared_slots > 0)
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

// Every rank finds the same copy for a token: rows are sent without asking.
std::span<const int32_t> MoeLayer::Forward::physical_ids(size_t tokens) {
  const size_t items = tokens * routing_.slots;
  if (layer_.copies_.empty()) return {routing_.ids, items};
  std::vector<int32_t>& out = schedule_->physical;
  out.resize(items);
  const MoeTogether& t = layer_.plan_.together;
  choose_copies({routing_.ids, items}, {layer_.copies_at_, layer_.copies_, t.rank_of, t.spread},
                out);
  return out;
}

size_t MoeLayer::room_bytes(size_t plan) const {
  if (plan >= plan_.plans.size())
    fail("{}: expert plan {} of {}", plan_.name, plan, plan_.plans.size());
  size_t bytes = 0;
  offsets_in_room(plan_.plans[plan], shape_.gated, &bytes);
  return bytes;
}

std::unique_ptr<MoeLayer::Spare> MoeLayer::spare(size_t plan, ExpertRoom room) const {
  const size_t bytes = room_bytes(plan);
  if (room.data == nullptr) {
    room.own = AlignedBuffer(bytes);
    room.data = room.own.data(), room.bytes = bytes;
  }
  if (room.bytes < bytes)
    fail("{}: room of {} bytes for an expert of {}", plan_.name, room.bytes, bytes);
  auto s = std::make_unique<Spare>();
  s->room = std::move(room);
  const ExpertPlan& p = plan_.plans[plan];
  const std::array<size_t, 3> at = offsets_in_room(p, shape_.gated, nullptr);
  if (shape_.gated) s->expert.gate.bind(&p.gate, s->room.data + at[0]);
  s->expert.up.bind(&p.up, s->room.data + at[1]);
  s->expert.down.bind(&p.down, s->room.data + at[2]);
  return s;
}

void MoeLayer::fill_spare(Spare& spare, const ExpertWeights& weights) const {
  fill_expert(spare.expert, weights, nullptr, plan_.name + ": an expert that comes");
}

ExpertRoom MoeLayer::take_room(std::unique_ptr<Spare> spare) { return std::move(spare->room); }

std::vector<ExpertRoom> MoeLayer::place_experts(std::vector<uint32_t> expert_of,
                                                std::vector<std::unique_ptr<Spare>> changed) {
  if (expert_of.size() != plan_.expert_of.size() || changed.size() != local_experts())
    fail("{}: places for {} experts, {} of them here; expected {} and {}", plan_.name,
         expert_of.size(), changed.size(), plan_.expert_of.size(), local_experts());
  for (size_t p = 0; p < expert_of.size(); ++p) {
    const int32_t local = plan_.expert_map[p];
    if (local < 0) continue;
    const Spare* spare = changed[static_cast<size_t>(local)].get();
    if ((expert_of[p] != plan_.expert_of[p]) != (spare != nullptr))
      fail("{}: place {} goes from expert {} to {}, {} a packed one", plan_.name, p,
           plan_.expert_of[p], expert_of[p], spare == nullptr ? "without" : "with");
    if (spare != nullptr && !spare->expert.down.ready())
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
  std::vector<ExpertRoom> free;
  for (size_t e = 0; e < changed.size(); ++e) {
    if (changed[e] == nullptr) continue;
    experts_[e] = std::move(changed[e]->expert);
    std::swap(rooms_[e], changed[e]->room);
    if (changed[e]->room.data != nullptr) free.push_back(std::move(changed[e]->room));
    settle_expert(e);
  }
  return free;
}

}  // namespace moebius
