// SPDX-License-Identifier: Apache-2.0
#include "model/ranks/expert_moves.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/out_of_memory.h"
#include "model/ranks.h"
#include "runtime/affinity.h"

namespace moebius {
namespace {

constexpr uint64_t kSaveEvery = 1000;  // steps between two writes of the loads

// Returns memory that is large enough from the list, or none.
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

BalanceSettings settings_for(BalanceSettings settings, const RankSplit& split) {
  settings.ranks = split.ep;
  settings.spare = split.spare;
  return settings;
}

}  // namespace

ExpertReading::ExpertReading(const MoeLayer& layer, const ExpertSource& source,
                             std::vector<Wanted> wanted)
    : wanted_(std::move(wanted)),
      thread_([this, &layer, &source] { read([&] { read_wanted(layer, source); }); }) {}

ExpertReading::ExpertReading(const DividedExperts& layer, std::vector<uint32_t> expert_of)
    : thread_([this, &layer, expert_of = std::move(expert_of)] {
        read([&] { staged_ = layer.stage(expert_of); });
      }) {}

ExpertReading::~ExpertReading() {
  give_up();
  wait();
}

void ExpertReading::read(FunctionRef<void()> body) {
  lower_thread_priority();
  try {
    body();
  } catch (const std::exception& e) {
    trouble_ = words_of(e);
  }
  done_.store(true, std::memory_order_release);
}

void ExpertReading::read_wanted(const MoeLayer& layer, const ExpertSource& source) {
  for (const Wanted& w : wanted_) {
    if (stop_.load(std::memory_order_relaxed)) fail("given up");
    source.load(layer, *w.staged, w.expert);
  }
}

std::unique_ptr<DividedExperts::Staged> ExpertReading::take_staged() {
  wait();
  return std::move(staged_);
}

std::vector<ExpertReading::Wanted> ExpertReading::take() {
  wait();
  return std::move(wanted_);
}

ExpertMoves::ExpertMoves(const Checkpoint& checkpoint, const ModelPart& part,
                         const ModelOptions& options, Tell tell)
    : ranks_(*part.ranks),
      stages_(part.stages),
      own_(part.own),
      loads_file_(options.loads_file),
      say_(options.warn),
      tell_(std::move(tell)),
      balance_(settings_for(options.balance, ranks_.split())),
      reports_(ranks_.world()) {
  const ExpertLoads earlier = ranks_.leader() ? read_loads(loads_file_) : ExpertLoads();
  for (const MoeBlock& b : checkpoint.moe_blocks())
    if (b.layer >= 0 && static_cast<size_t>(b.layer) < part.spec.layers.size())
      balance_.add_layer(static_cast<size_t>(b.layer), b.experts.size(), earlier);
  if (balance_.settings().spare == 0) return;
  std::vector<uint32_t> places = places_of(balance_);
  Comm& world = ranks_.world();
  world.wait(world.start_broadcast(places.data(), places.size() * sizeof(uint32_t), 0),
             "places of experts");
  auto at = places.begin();
  for (const auto& [layer, rows] : balance_.loads()) {
    const auto n = static_cast<std::ptrdiff_t>(balance_.expert_of(layer).size());
    balance_.place(layer, {at, at + n});
    at += n;
  }
}

// Experts of float schemes stay on their devices: the form that suits some need not hold the
// numbers of others.
void ExpertMoves::set_layers(LayerSet& layers) {
  layers_ = &layers;
  for (const auto& [layer, rows] : balance_.loads())
    if (here(layer) && experts(layer).divided() != nullptr && !experts(layer).divided()->may_move())
      balance_.leave(layer);
}

// --- what a rank does when it is told ---

void ExpertMoves::begin_move(size_t index, std::vector<uint32_t> expert_of) {
  if (under_way_) fail("layer {} is to change while layer {} does", index, move_.layer);
  move_ = {index, std::move(expert_of)};
  under_way_ = true;
  answered_ = dropped_ = false;
  trouble_.clear();
  if (!here(index)) return;
  try {
    if (const DividedExperts* spread = experts(index).divided(); spread == nullptr)
      want(index);
    else if (spread->may_move())
      reading_ = std::make_unique<ExpertReading>(*spread, move_.expert_of);
    else
      fail("experts of this scheme stay where they are");
  } catch (const std::exception& e) {  // no memory, or no thread
    trouble_ = words_of(e);
  }
}

void ExpertMoves::want(size_t index) {
  const MoeBlockLayer& moe = block(index);
  const std::span<const uint32_t> before = moe.experts->expert_of();
  const size_t each = moe.experts->local_experts(), first = ranks_.ep_rank() * each;
  if (move_.expert_of.size() != before.size())
    fail("layer {}: {} places for experts; expected {}", index, move_.expert_of.size(),
         before.size());
  std::vector<ExpertReading::Wanted> wanted;
  for (size_t i = 0; i < each; ++i) {
    const size_t expert = move_.expert_of[first + i];
    if (expert == before[first + i]) continue;
    const size_t plan = moe.source->plan_of(expert);
    wanted.push_back(
        {i, expert,
         moe.experts->stage(plan, memory_for(memory_, moe.experts->expert_bytes(plan)))});
  }
  if (!wanted.empty())
    reading_ = std::make_unique<ExpertReading>(*moe.experts, *moe.source, std::move(wanted));
}

void ExpertMoves::end_move(bool change) {
  if (!under_way_) return;
  if (!change) {  // experts that are being read are dropped when they are done (look_after_move)
    dropped_ = true;
    if (reading_ != nullptr) reading_->give_up();
    return look_after_move();
  }
  const size_t index = move_.layer;
  if (DividedExperts* spread = here(index) ? experts(index).divided() : nullptr) {
    spread->change(reading_->take_staged());
  } else if (here(index)) {
    MoeLayer& layer = *block(index).experts;
    std::vector<std::unique_ptr<MoeLayer::StagedExpert>> changed(layer.local_experts());
    if (reading_ != nullptr)
      for (ExpertReading::Wanted& w : reading_->take()) changed[w.local] = std::move(w.staged);
    for (ExpertMemory& r : layer.place_experts(move_.expert_of, std::move(changed)))
      memory_.push_back(std::move(r));
  }
  balance_.place(index, move_.expert_of);
  reading_.reset();
  under_way_ = false;
}

// Called between plans: tells rank 0 once when this rank is ready; forgets moves that were dropped.
void ExpertMoves::look_after_move() {
  if (!under_way_ || !ready()) return;
  const bool mine = here(move_.layer);
  if (reading_ != nullptr && trouble_.empty()) trouble_ = reading_->trouble();
  if (!answered_ && mine && !leads()) reports_.send({trouble_.empty() ? 0u : 1u});
  if (!answered_ && !trouble_.empty() && !dropped_)
    warn(fmt::format("{} layer {}: {}", ranks_.label(), move_.layer, trouble_));
  answered_ = true;
  if (!dropped_) return;
  if (reading_ != nullptr)
    for (ExpertReading::Wanted& w : reading_->take())
      memory_.push_back(MoeLayer::take_memory(std::move(w.staged)));
  reading_.reset();
  under_way_ = false;
}

bool ExpertMoves::run_plan(const StepPlan& plan) {
  const bool known = balance_.has(plan.block_kind);
  switch (plan.kind) {
    case StepPlan::Kind::kLoads:
      report_loads();
      return true;
    case StepPlan::Kind::kMove:
      if (!known) fail("step plan {}: experts of layer {}", plan.serial, plan.block_kind);
      begin_move(plan.block_kind, plan.experts);
      look_after_move();
      return true;
    case StepPlan::Kind::kSwitch:
    case StepPlan::Kind::kDrop:
      if (!known || !under_way_ || move_.layer != plan.block_kind)
        fail("step plan {}: layer {} was not to change", plan.serial, plan.block_kind);
      end_move(plan.kind == StepPlan::Kind::kSwitch);
      return true;
    default:
      return false;
  }
}

void ExpertMoves::report_loads() {
  if (ranks_.stage() == 0 || ranks_.member() != 0) return;
  std::vector<uint64_t> numbers;
  for (const auto& [layer, rows] : balance_.loads())
    if (here(layer)) numbers.insert(numbers.end(), rows.begin(), rows.end());
  if (!numbers.empty()) reports_.send(std::move(numbers));
}

// --- what rank 0 decides ---

void ExpertMoves::end_step(StepStats& stats) {
  balance_.end_step();
  look_after_move();
  if (!leads()) return;
  switch (state_) {
    case State::kIdle:
      if (balance_.due()) ask_loads();
      break;
    case State::kAsking:
      if (reports_.here()) take_loads();
      break;
    default:
      lead_move();
  }
  if (balance_.steps() % kSaveEvery == 0) save_loads();
  stats.rank_imbalance = imbalance_;
  stats.layers_moved = moved_;
  stats.moves_given_up = given_up_;
}

void ExpertMoves::drop() {
  if (state_ != State::kMoving) return;
  tell_({.kind = StepPlan::Kind::kDrop, .block_kind = move_.layer});
  end_move(false);
}

void ExpertMoves::finish() {
  if (reading_ != nullptr) reading_->wait();
  look_after_move();
  reports_.finish();
}

// Asks other stages, which count their own layers.
void ExpertMoves::ask_loads() {
  std::vector<size_t> who, counts;
  asked_layers_.clear();
  for (size_t s = 1; s < ranks_.split().pp; ++s) {
    std::vector<size_t> layers;
    size_t count = 0;
    for (const auto& [layer, rows] : balance_.loads())
      if (layer >= stages_[s] && layer < stages_[s + 1]) {
        layers.push_back(layer);
        count += rows.size();
      }
    if (count == 0) continue;
    who.push_back(s * ranks_.members()), counts.push_back(count);
    asked_layers_.push_back(std::move(layers));
  }
  reports_.expect(who, counts);
  state_ = State::kAsking;
  if (who.empty()) return take_loads();
  tell_({.kind = StepPlan::Kind::kLoads});
}

void ExpertMoves::take_loads() {
  for (size_t i = 0; i < asked_layers_.size(); ++i) {
    auto at = reports_.numbers()[i].begin();
    for (const size_t layer : asked_layers_[i]) {
      const auto n = static_cast<std::ptrdiff_t>(balance_.load(layer).size());
      balance_.set_loads(layer, {at, at + n});
      at += n;
    }
  }
  imbalance_ = balance_.imbalance();
  state_ = State::kIdle;
  std::optional<ExpertBalance::Move> move = balance_.next_move();
  if (!move) return;
  tell_({.kind = StepPlan::Kind::kMove, .experts = move->expert_of, .block_kind = move->layer});
  std::vector<size_t> who;
  for (size_t s = 0; s < ranks_.split().pp; ++s)
    for (size_t m = 0; m < ranks_.members(); ++m)
      if (move->layer >= stages_[s] && move->layer < stages_[s + 1] && s + m > 0)
        who.push_back(s * ranks_.members() + m);
  reports_.expect(who, std::vector<size_t>(who.size(), 1));
  state_ = State::kMoving;
  since_ = std::chrono::steady_clock::now();
  begin_move(move->layer, std::move(move->expert_of));
}

void ExpertMoves::lead_move() {
  const size_t layer = move_.layer;
  const auto finish = [&](bool change) {
    tell_({.kind = change ? StepPlan::Kind::kSwitch : StepPlan::Kind::kDrop, .block_kind = layer});
    end_move(change);
  };
  const auto give_up = [&](const std::string& why) {
    warn(fmt::format("layer {}: its experts stay where they are: {}", layer, why));
    balance_.leave(layer);
    ++given_up_;
    finish(false);
    state_ = State::kDropping;
  };
  const bool all = reports_.here() && ready();
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - since_;
  if (!all) {
    if (state_ == State::kMoving && waited.count() > balance_.settings().patience)
      give_up(fmt::format("ranks were not ready after {:.0f} s", waited.count()));
    return;
  }
  if (state_ == State::kMoving) {
    bool well = trouble_.empty() && (reading_ == nullptr || reading_->trouble().empty());
    for (const std::vector<uint64_t>& answer : reports_.numbers()) well = well && answer[0] == 0;
    if (!well) {
      give_up("a rank could not read them");
    } else {
      finish(true);
      ++moved_;
      imbalance_ = balance_.imbalance();
    }
  }
  state_ = State::kIdle;
}

void ExpertMoves::save_loads() noexcept {
  if (leads() && balance_.steps() > 0) keep_loads(loads_file_, balance_.loads(), say_);
}

void ExpertMoves::warn(const std::string& text) noexcept {
  try {
    if (say_) say_(text);
  } catch (const std::exception&) {  // no rank receives it
  }
}

}  // namespace moebius
