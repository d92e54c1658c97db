// SPDX-License-Identifier: Apache-2.0
#include "model/decoder_balance.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "model/decoder_layer.h"
#include "model/ranks.h"
#include "runtime/affinity.h"

namespace moebius {
namespace {

constexpr uint64_t kMostLoadsBytes = uint64_t{1} << 26;
constexpr uint64_t kSaveEvery = 1000;  // steps

// A room that is large enough, or none.
ExpertMemory memory_for(std::vector<ExpertMemory>& memory, size_t bytes) {
  for (ExpertMemory& r : memory)
    if (r.bytes >= bytes) {
      ExpertMemory found = std::move(r);
      r = std::move(memory.back());
      memory.pop_back();
      return found;
    }
  return {};
}

std::vector<uint32_t> places_of(const ExpertBalance& balance) {
  std::vector<uint32_t> all;
  for (const auto& [layer, rows] : balance.loads()) {
    const std::vector<uint32_t>& places = balance.expert_of(layer);
    all.insert(all.end(), places.begin(), places.end());
  }
  return all;
}

}  // namespace

ExpertReading::ExpertReading(const MoeLayer& layer, const ExpertSource& source,
                             std::vector<Wanted> wanted)
    : wanted_(std::move(wanted)), thread_([this, &layer, &source] { read(layer, source); }) {}

ExpertReading::~ExpertReading() {
  give_up();
  wait();
}

void ExpertReading::read(const MoeLayer& layer, const ExpertSource& source) {
  lower_thread_priority();
  try {
    for (const Wanted& w : wanted_) {
      if (stop_.load(std::memory_order_relaxed)) fail("given up");
      source.load(layer, *w.staged, w.expert);
    }
  } catch (const std::exception& e) {
    trouble_ = e.what();
  }
  done_.store(true, std::memory_order_release);
}

std::vector<ExpertReading::Wanted> ExpertReading::take() {
  wait();
  return std::move(wanted_);
}

// Counting needs ranks that have some of the experts each; what rank 0 knows of earlier runs decides
// where copies are at first.
void DecoderModel::begin_balance(const Checkpoint& checkpoint) {
  Ranks* ranks = options_.ranks;
  if (ranks == nullptr || ranks->split().ep < 2) return;
  BalanceSettings settings = options_.balance;
  settings.ranks = ranks->split().ep, settings.spare = ranks->split().spare;
  balancing_ = std::make_unique<Balancing>(settings, ranks->world());
  ExpertBalance& balance = balancing_->balance;
  ExpertLoads earlier;
  if (ranks->leader() && !options_.loads_file.empty() && path_exists(options_.loads_file))
    earlier =
        parse_loads(read_text_file(options_.loads_file, kMostLoadsBytes), options_.loads_file);
  for (const MoeBlock& b : checkpoint.moe_blocks())
    if (b.layer >= 0 && static_cast<size_t>(b.layer) < spec_.layers.size())
      balance.add_layer(static_cast<size_t>(b.layer), b.experts.size(), earlier);
  if (settings.spare == 0) return;
  std::vector<uint32_t> places = places_of(balance);
  Comm& world = ranks->world();
  world.wait(world.start_broadcast(places.data(), places.size() * sizeof(uint32_t), 0),
             "places of experts");
  auto at = places.begin();
  for (const auto& [layer, rows] : balance.loads()) {
    const auto n = static_cast<std::ptrdiff_t>(balance.expert_of(layer).size());
    balance.place(layer, {at, at + n});
    at += n;
  }
}

void DecoderModel::count_rows(size_t layer, std::span<const uint32_t> rows) {
  if (balancing_ != nullptr) balancing_->balance.count(layer, rows);
}

// --- what a rank does when it is told ---

void DecoderModel::begin_move(size_t index, std::vector<uint32_t> expert_of) {
  Balancing& b = *balancing_;
  if (b.under_way) fail("layer {} is to change while layer {} does", index, b.move.layer);
  b.move = {index, std::move(expert_of)};
  b.under_way = true, b.answered = b.dropped = false;
  b.trouble.clear();
  if (index < own_.begin || index >= own_.end) return;
  const MoeBlockLayer& moe = layers_[index]->moe;
  const std::span<const uint32_t> before = moe.experts->expert_of();
  const size_t each = moe.experts->local_experts(), first = options_.ranks->ep_rank() * each;
  if (b.move.expert_of.size() != before.size())
    fail("layer {}: {} places for experts; expected {}", index, b.move.expert_of.size(),
         before.size());
  std::vector<ExpertReading::Wanted> wanted;
  try {
    for (size_t i = 0; i < each; ++i) {
      const size_t expert = b.move.expert_of[first + i];
      if (expert == before[first + i]) continue;
      const size_t plan = moe.source->plan_of.at(expert);
      wanted.push_back(
          {i, expert,
           moe.experts->stage(plan, memory_for(b.memory, moe.experts->expert_bytes(plan)))});
    }
    if (!wanted.empty())
      b.reading = std::make_unique<ExpertReading>(*moe.experts, *moe.source, std::move(wanted));
  } catch (const std::exception& e) {  // no memory, no thread
    b.trouble = e.what();
  }
}

void DecoderModel::end_move(bool change) {
  Balancing& b = *balancing_;
  if (!b.under_way) return;
  if (!change) {  // what is being read goes when it is done (look_after_move)
    b.dropped = true;
    if (b.reading != nullptr) b.reading->give_up();
    return look_after_move();
  }
  const size_t index = b.move.layer;
  if (index >= own_.begin && index < own_.end) {
    MoeLayer& layer = *layers_[index]->moe.experts;
    std::vector<std::unique_ptr<MoeLayer::StagedExpert>> changed(layer.local_experts());
    if (b.reading != nullptr)
      for (ExpertReading::Wanted& w : b.reading->take()) changed[w.local] = std::move(w.staged);
    for (ExpertMemory& r : layer.place_experts(b.move.expert_of, std::move(changed)))
      b.memory.push_back(std::move(r));
  }
  b.balance.place(index, b.move.expert_of);
  b.reading.reset();
  b.under_way = false;
}

// Between plans: tells rank 0 when this rank is ready, once; forgets what was dropped.
void DecoderModel::look_after_move() {
  Balancing& b = *balancing_;
  if (!b.under_way || !b.ready()) return;
  const bool here = b.move.layer >= own_.begin && b.move.layer < own_.end;
  if (b.reading != nullptr && b.trouble.empty()) b.trouble = b.reading->trouble();
  if (!b.answered && here && !leads()) b.reports.send({b.trouble.empty() ? 0u : 1u});
  if (!b.answered && !b.trouble.empty() && !b.dropped)
    warn(fmt::format("{} layer {}: {}", options_.ranks->label(), b.move.layer, b.trouble));
  b.answered = true;
  if (!b.dropped) return;
  if (b.reading != nullptr)
    for (ExpertReading::Wanted& w : b.reading->take())
      b.memory.push_back(MoeLayer::take_memory(std::move(w.staged)));
  b.reading.reset();
  b.under_way = false;
}

bool DecoderModel::run_balance_plan(const StepPlan& plan) {
  const bool known = balancing_ != nullptr && balancing_->balance.has(plan.block_kind);
  switch (plan.kind) {
    case StepPlan::Kind::kLoads:
      if (balancing_ != nullptr) report_loads();
      return true;
    case StepPlan::Kind::kMove:
      if (!known) fail("step plan {}: experts of layer {}", plan.serial, plan.block_kind);
      begin_move(plan.block_kind, plan.experts);
      look_after_move();
      return true;
    case StepPlan::Kind::kSwitch:
    case StepPlan::Kind::kDrop:
      if (!known || !balancing_->under_way || balancing_->move.layer != plan.block_kind)
        fail("step plan {}: layer {} was not to change", plan.serial, plan.block_kind);
      end_move(plan.kind == StepPlan::Kind::kSwitch);
      return true;
    default:
      return false;
  }
}

void DecoderModel::report_loads() {
  if (options_.ranks->stage() == 0 || options_.ranks->member() != 0) return;
  std::vector<uint64_t> numbers;
  for (const auto& [layer, rows] : balancing_->balance.loads())
    if (layer >= own_.begin && layer < own_.end)
      numbers.insert(numbers.end(), rows.begin(), rows.end());
  if (!numbers.empty()) balancing_->reports.send(std::move(numbers));
}

// --- what rank 0 decides ---

void DecoderModel::end_balance_step(StepStats& stats) {
  if (balancing_ == nullptr) return;
  Balancing& b = *balancing_;
  b.balance.end_step();
  look_after_move();
  if (!leads()) return;
  switch (b.state) {
    case Balancing::State::kIdle:
      if (b.balance.due()) ask_loads();
      break;
    case Balancing::State::kAsking:
      if (b.reports.here()) take_loads();
      break;
    default:
      lead_move();
  }
  if (b.balance.steps() % kSaveEvery == 0) save_loads();
  stats.rank_imbalance = b.imbalance;
  stats.layers_moved = b.moved, stats.moves_given_up = b.given_up;
}

void DecoderModel::drop_move() {
  if (balancing_ == nullptr || balancing_->state != Balancing::State::kMoving) return;
  StepPlan plan;
  plan.kind = StepPlan::Kind::kDrop;
  plan.block_kind = balancing_->move.layer;
  tell(std::move(plan));
  end_move(false);
}

void DecoderModel::finish_balance() {
  if (balancing_ == nullptr) return;
  if (balancing_->reading != nullptr) balancing_->reading->wait();
  look_after_move();
  balancing_->reports.finish();
}

// Other stages have counted their own layers.
void DecoderModel::ask_loads() {
  Balancing& b = *balancing_;
  const Ranks& ranks = *options_.ranks;
  std::vector<size_t> who, counts;
  b.asked_layers.clear();
  for (size_t s = 1; s < ranks.split().pp; ++s) {
    std::vector<size_t> layers;
    size_t count = 0;
    for (const auto& [layer, rows] : b.balance.loads())
      if (layer >= stages_[s] && layer < stages_[s + 1])
        layers.push_back(layer), count += rows.size();
    if (count == 0) continue;
    who.push_back(s * ranks.members()), counts.push_back(count);
    b.asked_layers.push_back(std::move(layers));
  }
  b.reports.expect(who, counts);
  b.state = Balancing::State::kAsking;
  if (who.empty()) return take_loads();
  StepPlan plan;
  plan.kind = StepPlan::Kind::kLoads;
  tell(std::move(plan));
}

void DecoderModel::take_loads() {
  Balancing& b = *balancing_;
  for (size_t i = 0; i < b.asked_layers.size(); ++i) {
    auto at = b.reports.numbers()[i].begin();
    for (const size_t layer : b.asked_layers[i]) {
      const auto n = static_cast<std::ptrdiff_t>(b.balance.load(layer).size());
      b.balance.set_loads(layer, {at, at + n});
      at += n;
    }
  }
  b.imbalance = b.balance.imbalance();
  b.state = Balancing::State::kIdle;
  std::optional<ExpertBalance::Move> move = b.balance.next_move();
  if (!move) return;
  StepPlan plan;
  plan.kind = StepPlan::Kind::kMove;
  plan.block_kind = move->layer;
  plan.experts = move->expert_of;
  tell(std::move(plan));
  std::vector<size_t> who;
  const Ranks& ranks = *options_.ranks;
  for (size_t s = 0; s < ranks.split().pp; ++s)
    for (size_t m = 0; m < ranks.members(); ++m)
      if (move->layer >= stages_[s] && move->layer < stages_[s + 1] && s + m > 0)
        who.push_back(s * ranks.members() + m);
  b.reports.expect(who, std::vector<size_t>(who.size(), 1));
  b.state = Balancing::State::kMoving;
  b.since = std::chrono::steady_clock::now();
  begin_move(move->layer, std::move(move->expert_of));
}

void DecoderModel::lead_move() {
  Balancing& b = *balancing_;
  const size_t layer = b.move.layer;
  const auto finish = [&](bool change) {
    StepPlan plan;
    plan.kind = change ? StepPlan::Kind::kSwitch : StepPlan::Kind::kDrop;
    plan.block_kind = layer;
    tell(std::move(plan));
    end_move(change);
  };
  const auto give_up = [&](const std::string& why) {
    warn(fmt::format("layer {}: its experts stay where they are: {}", layer, why));
    b.balance.leave(layer);
    ++b.given_up;
    finish(false);
    b.state = Balancing::State::kDropping;
  };
  const bool all = b.reports.here() && b.ready();
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - b.since;
  if (!all) {
    if (b.state == Balancing::State::kMoving && waited.count() > b.balance.settings().patience)
      give_up(fmt::format("ranks were not ready after {:.0f} s", waited.count()));
    return;
  }
  if (b.state == Balancing::State::kMoving) {
    bool well = b.trouble.empty() && (b.reading == nullptr || b.reading->trouble().empty());
    for (const std::vector<uint64_t>& answer : b.reports.numbers()) well = well && answer[0] == 0;
    if (!well) {
      give_up("a rank could not read them");
    } else {
      finish(true);
      ++b.moved;
      b.imbalance = b.balance.imbalance();
    }
  }
  b.state = Balancing::State::kIdle;
}

void DecoderModel::save_loads() noexcept {
  if (balancing_ == nullptr || !leads() || options_.loads_file.empty()) return;
  if (balancing_->balance.steps() == 0) return;
  try {
    const std::string text = write_loads(balancing_->balance.loads());
    const std::span<const uint8_t> bytes{reinterpret_cast<const uint8_t*>(text.data()),
                                         text.size()};
    write_file_atomically(options_.loads_file, {&bytes, 1});
  } catch (const std::exception& e) {
    warn(fmt::format("loads of experts were not saved: {}", e.what()));
  }
}

void DecoderModel::warn(const std::string& text) noexcept {
  try {
    if (options_.warn) options_.warn(text);
  } catch (const std::exception&) {  // nobody listens
  }
}

}  // namespace moebius
