// SPDX-License-Identifier: Apache-2.0
// A model on several ranks: which layers and heads are this rank's, what rank 0 tells the others, and
// how these follow.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "model/decoder_balance.h"
#include "model/decoder_layer.h"
#include "model/ranks.h"

namespace moebius {

// Numbers of sequences whose memory the other ranks may drop; sequences can outlive the model.
class DecoderModel::Ended {
 public:
  void add(uint64_t id) {
    const std::lock_guard lock(mutex_);
    ids_.push_back(id);
  }
  std::vector<uint64_t> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(ids_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<uint64_t> ids_;
};

// A step between the stages: what it is made of, and where its rows come back to.
struct DecoderModel::Staged {
  std::vector<std::vector<Work>> groups;
  std::vector<std::shared_ptr<Ranks::Arrival>> arrivals;  // of the groups, in the first stage
  std::shared_ptr<const StepPlan> plan;                   // what the groups point into, or null
  static size_t rows(const std::vector<Work>& group) {
    size_t T = 0;
    for (const Work& w : group) T += w.item.tokens.size();
    return T;
  }
};

struct DecoderModel::Figures {
  std::mutex mutex;  // of `all`: who looks at it does not wait for a step
  std::vector<RankFigures> all;
  RankFigures mine;
};

void DecoderModel::note_step(double seconds, double exchange, double wait) {
  RankFigures& f = figures_->mine;
  f.step += seconds, f.exchange += exchange, f.wait += wait;
}

// Calls beat() on a thread of its own, again and again.
class DecoderModel::Beats {
 public:
  Beats(double seconds, std::function<void()> beat)
      : thread_([this, seconds, beat = std::move(beat)] {
          std::unique_lock lock(mutex_);
          while (!changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                                    [&] { return over_; }))
            beat();
        }) {}
  ~Beats() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  Beats(const Beats&) = delete;
  Beats& operator=(const Beats&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

std::vector<size_t> plan_stages(const Checkpoint& checkpoint, const DecoderSpec& spec,
                                size_t stages) {
  const size_t n = spec.layers.size();
  std::vector<uint64_t> bytes(n, 0);
  uint64_t ends = 0;  // embedding, final norm, output projection
  for (const Module& m : checkpoint.modules()) {
    if (m.tower) continue;
    if (m.layer >= 0 && static_cast<size_t>(m.layer) < n)
      bytes[static_cast<size_t>(m.layer)] += m.bytes;
    else if (m.layer < 0)
      ends += m.bytes;
  }
  // Layers that take keys of another, or what another's indexer chose, stay with it.
  std::vector<bool> may_begin(n, true);
  for (size_t i = 0; i < n; ++i) {
    const LayerSpec& layer = spec.layers[i];
    for (size_t back = 0; back < layer.kv_from; ++back) may_begin[i - back] = false;
    if (spec.indexer.top_k > 0 && layer.attends && !layer.indexes) may_begin[i] = false;
  }
  return stage_layers(bytes, ends, may_begin, stages);
}

namespace {

// Latents have a key and a value for every head.
HeadCut cut_heads(const DecoderSpec& whole, size_t layer, size_t members, size_t member) {
  const HeadSizes sizes = whole.sizes(layer);
  return head_cut(sizes.heads, whole.latent() ? sizes.heads : sizes.kv_heads, members, member);
}

bool has_heads(const LayerSpec& layer) { return layer.attends && !layer.recurrent; }

// The model as one of the ranks of a stage has it. Recurrent layers are repeated on all.
DecoderSpec cut_spec(const DecoderSpec& whole, size_t members, size_t member) {
  DecoderSpec s = whole;
  for (size_t i = 0; i < whole.layers.size(); ++i) {
    if (!has_heads(whole.layers[i])) continue;
    const HeadSizes sizes = whole.sizes(i);
    const HeadCut cut = cut_heads(whole, i, members, member);
    s.layers[i].sizes = {cut.heads.size(), cut.kv_heads.size(), sizes.head_dim, sizes.value_dim};
    if (whole.latent()) s.heads = s.kv_heads = cut.heads.size();
  }
  return s;
}

}  // namespace

void DecoderModel::cut_layer(size_t index, Layer& layer) const {
  const Ranks& ranks = *options_.ranks;
  if (!has_heads(whole_.layers[index])) return;
  layer.cut = cut_heads(whole_, index, ranks.members(), ranks.member());
  for (size_t m = 0; m < ranks.members(); ++m) {
    const Range given = cut_heads(whole_, index, ranks.members(), m).given;
    layer.values_of.push_back({given.begin * layer.all.value_dim, given.end * layer.all.value_dim});
  }
}

Range DecoderModel::heads_of(const Layer& layer, size_t each) const {
  if (!cuts_heads_) return {};
  return {layer.cut.heads.begin * each, layer.cut.heads.end * each};
}

Range DecoderModel::kv_heads_of(const Layer& layer, size_t each) const {
  if (!cuts_heads_) return {};
  return {layer.cut.kv_heads.begin * each, layer.cut.kv_heads.end * each};
}

LayerOptions DecoderModel::options_of(MoePart part, size_t layer) const {
  LayerOptions o = layer_options_;
  if (columns_.empty()) return o;
  const Ranks& ranks = *options_.ranks;
  o.rank.second = Cut::kOutputs;
  if (part == MoePart::kBlock) {
    o.rank.tp = ranks.split().tp, o.rank.tp_rank = ranks.tp_rank();
    o.rank.ep = ranks.split().ep, o.rank.ep_rank = ranks.ep_rank();
    if (balancing_ != nullptr) o.rank.expert_of = balancing_->balance.expert_of(layer);
  } else {  // dense layers too
    o.rank.tp = ranks.members(), o.rank.tp_rank = ranks.member();
  }
  return o;
}

void DecoderModel::gather_output(const float* mine, const std::vector<Range>& columns, float* y,
                                 size_t T, const char* phase, size_t index) {
  const Timer timer(profile_, Phase::kExchange);
  options_.ranks->gather(options_.type, mine, columns, y, hidden_, T, phase,
                         static_cast<int>(index));
}

bool DecoderModel::gather_logits(size_t rows) {
  Buffers& b = *buffers_;
  Ranks& ranks = *options_.ranks;
  const std::vector<Range> cuts = output_ranges(output_width_, ranks.members(), "logits");
  grow(b.part, rows * output_->out_features());
  run_linear(*output_, b.gathered.data(), b.part.data(), rows, false);
  const Timer timer(profile_, Phase::kExchange);
  ranks.compare(b.gathered.data(), rows * hidden_);
  if (ranks.leader() && b.router.size() < rows * output_width_)
    b.router.resize(rows * output_width_);
  ranks.gather_first(b.part.data(), cuts, b.router.data(), output_width_, rows);
  return ranks.leader();
}

void DecoderModel::take_part(const Checkpoint& checkpoint) {
  const Ranks* ranks = options_.ranks;
  own_ = {0, spec_.layers.size()};
  whole_ = spec_;
  const auto plan = [&](const DecoderSpec& spec, Range own) {
    return plan_kv(checkpoint, spec, options_, layer_options_.cpu, own);
  };
  if (ranks == nullptr) {
    kv_plan_ = plan(spec_, own_);
    kinds_ = kv_plan_.kinds;
    return;
  }
  stages_ = plan_stages(checkpoint, spec_, ranks->split().pp);
  own_ = {stages_[ranks->stage()], stages_[ranks->stage() + 1]};
  if (ranks->members() > 1) {
    columns_ = output_ranges(hidden_, ranks->members(), "hidden_size");
    for (size_t m = 0; m < ranks->members(); ++m) {
      const size_t tp = ranks->split().tp, ep_rank = m / tp;
      expert_columns_.push_back(
          moe_split(hidden_, tp, m % tp, ranks->split().ep, ep_rank, "hidden_size")
              .columns[ep_rank]);
    }
    cuts_heads_ = !ranks->split().repeat_attention;
    if (cuts_heads_) spec_ = cut_spec(whole_, ranks->members(), ranks->member());
  }
  kv_plan_ = plan(spec_, own_);
  kinds_ = kv_plan_.kinds;
  for (size_t m = 0; m < ranks->members() && ranks->leader(); ++m)
    for (size_t s = 0; s + 1 < stages_.size(); ++s) {
      const DecoderSpec theirs = cuts_heads_ ? cut_spec(whole_, ranks->members(), m) : whole_;
      const KvPlan other = plan(theirs, {stages_[s], stages_[s + 1]});
      for (size_t k = 0; k < kinds_.size(); ++k)
        kinds_[k].block_bytes = std::max(kinds_[k].block_bytes, other.kinds[k].block_bytes);
    }
  ended_ = std::make_shared<Ended>();
  figures_ = std::make_shared<Figures>();
}

DecoderModel::DecoderModel() = default;

DecoderModel::~DecoderModel() {
  if (!leads()) return;
  beats_.reset();
  save_loads();
  try {
    std::vector<float> nobodys;
    for (Batch& batch : batches_)
      if (batch.step != nullptr) land(*batch.step, nobodys, batch.stats);
    drop_move();
    StepPlan stop;
    stop.kind = StepPlan::Kind::kStop;
    tell(std::move(stop));
    finish_balance();
    options_.ranks->settle(0);
  } catch (const std::exception&) {  // the others have ended already
  }
}

SequenceState DecoderModel::new_sequence() const {
  SequenceState state(kv_plan_.kinds);
  if (!leads()) return state;
  state.id_ = std::shared_ptr<const uint64_t>(new uint64_t(next_sequence_++),
                                              [ended = ended_](const uint64_t* id) {
                                                ended->add(*id);
                                                delete id;
                                              });
  return state;
}

bool DecoderModel::lost() const { return options_.ranks != nullptr && options_.ranks->aborted(); }

bool DecoderModel::leads() const { return options_.ranks != nullptr && options_.ranks->leader(); }

void DecoderModel::start_beats() {
  const double pause = options_.ranks->beat_seconds();
  beats_ = std::make_unique<Beats>(pause / 2, [this, pause] {
    const std::lock_guard lock(mutex_);
    const auto now = std::chrono::steady_clock::now();
    const std::chrono::duration<double> idle = now - told_, old = now - beaten_;
    if (idle.count() >= pause / 2 || old.count() >= pause) beat();
  });
}

void DecoderModel::beat() {
  try {
    tell({});
    std::vector<RankFigures> all = options_.ranks->answer_beat(figures_->mine);
    beaten_ = told_;
    const std::lock_guard lock(figures_->mutex);
    figures_->all = std::move(all);
  } catch (const std::exception& e) {
    options_.ranks->abort(e.what());
  }
}

std::vector<RankFigures> DecoderModel::rank_figures(bool now) {
  if (!leads()) return {};
  if (now) {
    const std::lock_guard lock(mutex_);
    beat();
  }
  const std::lock_guard lock(figures_->mutex);
  return figures_->all;
}

void DecoderModel::tell(StepPlan plan) {
  told_ = std::chrono::steady_clock::now();
  plan.serial = ++serial_;
  try {
    options_.ranks->announce(encode(plan), plan.serial);
  } catch (const std::exception& e) {  // who knows how much of it the others have
    options_.ranks->abort(e.what());
    throw;
  }
}

void DecoderModel::tell_step(std::span<const Work> work) {
  StepPlan plan;
  plan.kind = StepPlan::Kind::kStep;
  plan.ended = ended_->take();
  for (const auto& [item, memory, sequence] : work)
    plan.items.push_back({sequence,
                          item.position,
                          item.length,
                          item.logits,
                          {item.tokens.begin(), item.tokens.end()},
                          *item.tables});
  tell(std::move(plan));
}

void DecoderModel::tell_blocks(StepPlan::Kind kind, size_t block_kind, uint64_t from, uint64_t to,
                               uint64_t count) {
  StepPlan plan;
  plan.kind = kind;
  plan.block_kind = block_kind, plan.from = from, plan.to = to, plan.count = count;
  tell(std::move(plan));
}

void DecoderModel::run_plan(StepPlan plan) {
  const auto id = [](uint64_t v) { return static_cast<BlockId>(v); };
  if (plan.serial != ++serial_) fail("step plan {}; expected number {}", plan.serial, serial_);
  options_.ranks->begin_step(plan.serial);
  if (run_balance_plan(plan)) return;
  const bool of_blocks = plan.kind >= StepPlan::Kind::kCopy && plan.kind <= StepPlan::Kind::kTrim;
  if (of_blocks && plan.block_kind >= kv_plan_.kinds.size())
    fail("step plan {}: blocks of kind {} of {}", plan.serial, plan.block_kind,
         kv_plan_.kinds.size());
  switch (plan.kind) {
    case StepPlan::Kind::kCopy:
      return copy_block(plan.block_kind, id(plan.from), id(plan.to), plan.count);
    case StepPlan::Kind::kCut:
      return cut_block(plan.block_kind, id(plan.from), plan.count);
    case StepPlan::Kind::kCommit:
      return commit_blocks(plan.block_kind, plan.count);
    case StepPlan::Kind::kTrim:
      return trim_blocks(plan.block_kind, plan.count);
    case StepPlan::Kind::kBeat:
      options_.ranks->answer_beat(figures_->mine);
      return;
    case StepPlan::Kind::kStop:
    case StepPlan::Kind::kLoads:
    case StepPlan::Kind::kMove:
    case StepPlan::Kind::kSwitch:
    case StepPlan::Kind::kDrop:
      return;
    case StepPlan::Kind::kStep:
      return run_plan_step(std::make_shared<StepPlan>(std::move(plan)));
    case StepPlan::Kind::kFinish:
      break;
  }
  if (options_.ranks->stage() != 0) return;
  if (begun_.empty()) fail("step plan {}: ends a step, and none has begun", plan.serial);
  const std::shared_ptr<Staged> step = std::move(begun_.front());
  begun_.pop_front();
  std::vector<float> logits;
  end_stages(*step, logits, last_step_);
}

void DecoderModel::run_plan_step(std::shared_ptr<const StepPlan> plan) {
  const std::lock_guard lock(mutex_);
  for (const uint64_t gone : plan->ended) sequences_.erase(gone);
  std::vector<Work> work;
  for (const StepPlan::Item& item : plan->items) {
    std::unique_ptr<KvMemory>& own = sequences_[item.sequence];
    if (own == nullptr && item.sequence != 0) own = std::make_unique<KvMemory>(kv_plan_.kinds, 1);
    KvMemory* memory = item.sequence == 0 ? kv_memory_.get() : own.get();
    work.push_back({{&item.tables, item.position, item.tokens, item.logits, item.length},
                    memory,
                    item.sequence});
    check(work.back().item);
    make_room(work.back());
  }
  std::vector<float> logits;
  if (!staged()) return step(work, logits, last_step_);
  last_step_ = {};
  std::shared_ptr<Staged> step = begin_stages(work, last_step_);
  options_.ranks->observe_step(static_cast<double>(last_step_.nanoseconds) * 1e-9);
  end_balance_step(last_step_);
  if (options_.ranks->stage() != 0) return;
  step->plan = std::move(plan);
  begun_.push_back(std::move(step));
}

void DecoderModel::follow() {
  for (;;) {
    StepPlan plan = decode_step_plan(options_.ranks->next_plan());
    if (plan.kind == StepPlan::Kind::kStop) break;
    run_plan(std::move(plan));
  }
  finish_balance();
  options_.ranks->settle(0);
}

void DecoderModel::begin_stage(size_t T) {
  Ranks& ranks = *options_.ranks;
  const Timer timer(profile_, Phase::kExchange);
  float* h = buffers_->h.data();
  if (ranks.stage() == 0)
    ranks.share(options_.type, h, T * hidden_);
  else
    ranks.take_over(options_.type, h, T * hidden_);
}

// A prompt in pieces, so that stages work at the same time: each piece is passed on while the next is
// computed. Rows do not depend on how a step is cut, so bytes stay as they are. States live where
// sequences ask for them, not behind any piece.
std::vector<std::vector<DecoderModel::Work>> DecoderModel::groups_of(
    std::span<const Work> work) const {
  constexpr size_t kGroupRows = 128, kGroupsPerStage = 4;
  size_t T = 0;
  for (const Work& w : work) T += w.item.tokens.size();
  const bool states = std::any_of(kv_plan_.kinds.begin(), kv_plan_.kinds.end(),
                                  [](const KvKind& k) { return !k.cuttable; });
  const size_t count =
      states ? 1
             : std::clamp<size_t>(T / kGroupRows, 1, kGroupsPerStage * options_.ranks->split().pp);
  const size_t most = (T + count - 1) / count;
  std::vector<std::vector<Work>> groups(1);
  size_t rows = 0;  // of the last group
  for (const Work& w : work) {
    const BatchItem& item = w.item;
    const size_t n = item.tokens.size();
    for (size_t at = 0; at < n;) {
      if (rows == most) groups.emplace_back(), rows = 0;
      const size_t take = std::min(n - at, most - rows);
      Work piece = w;
      piece.item.position += at;
      piece.item.tokens = item.tokens.subspan(at, take);
      piece.item.length = std::max(item.length, item.position + n);
      if (at + take < n && item.logits == LogitsOf::kLast) piece.item.logits = LogitsOf::kNone;
      groups.back().push_back(piece);
      at += take, rows += take;
    }
  }
  return groups;
}

bool DecoderModel::staged() const {
  return options_.ranks != nullptr && options_.ranks->split().pp > 1;
}

size_t DecoderModel::batches_in_flight() const { return leads() ? options_.ranks->split().pp : 1; }

// The layers of this stage. In the first one, rows will come back from the last.
std::shared_ptr<DecoderModel::Staged> DecoderModel::begin_stages(std::span<const Work> work,
                                                                 StepStats& stats) {
  Ranks& ranks = *options_.ranks;
  auto step = std::make_shared<Staged>();
  step->groups = groups_of(work);
  measured(stats, [&] {
    for (const std::vector<Work>& group : step->groups) {
      const size_t T = Staged::rows(group);
      run_layers(group, T);
      commit_states(group);
      const Timer timer(profile_, Phase::kExchange);
      ranks.pass_on(options_.type, buffers_->h.data(), T * hidden_);
      if (ranks.stage() == 0) step->arrivals.push_back(ranks.expect(options_.type, T * hidden_));
    }
  });
  // Rows of experts were counted piece by piece.
  std::vector<uint32_t>& counts = stats.expert_rows;
  const size_t each = counts.size() / step->groups.size();
  for (size_t i = each; i < counts.size(); ++i) counts[i % each] += counts[i];
  counts.resize(each);
  return step;
}

// In the first stage: logits of what came back.
void DecoderModel::end_stages(Staged& step, std::vector<float>& logits, StepStats& stats) {
  logits.clear();
  std::vector<float> some;
  measured(stats, [&] {
    for (size_t g = 0; g < step.groups.size(); ++g) {
      {
        const Timer timer(profile_, Phase::kExchange);
        options_.ranks->take_over(*step.arrivals[g], buffers_->h.data());
      }
      normalize_rows(final_norm_, Staged::rows(step.groups[g]));
      project_output(step.groups[g], step.groups.size() == 1 ? logits : some);
      if (step.groups.size() > 1) logits.insert(logits.end(), some.begin(), some.end());
    }
  });
}

// Rank 0 begins a step and ends it; others may begin in between.
std::shared_ptr<DecoderModel::Staged> DecoderModel::launch(std::span<const Work> work,
                                                           StepStats& stats) {
  try {
    tell_step(work);
    std::shared_ptr<Staged> step = begin_stages(work, stats);
    end_balance_step(stats);
    return step;
  } catch (const std::exception& e) {  // the others wait in the middle of the step
    options_.ranks->abort(e.what());
    throw;
  }
}

void DecoderModel::land(Staged& step, std::vector<float>& logits, StepStats& stats) {
  try {
    if (options_.ranks->members() > 1) tell_blocks(StepPlan::Kind::kFinish, 0, 0, 0, 0);
    end_stages(step, logits, stats);
    options_.ranks->observe_step(static_cast<double>(stats.nanoseconds) * 1e-9);
  } catch (const std::exception& e) {
    options_.ranks->abort(e.what());
    throw;
  }
}

}  // namespace moebius
