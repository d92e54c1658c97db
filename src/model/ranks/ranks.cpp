// SPDX-License-Identifier: Apache-2.0
// Implements the exchanges of a step over a communicator (ranks.h).
#include "model/ranks.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "base/grow.h"
#include "nn/ops.h"
#include "runtime/comm.h"

namespace moebius {
namespace {

constexpr size_t kPlanFirst = 4096;  // bytes of a plan that the first message holds
constexpr uint64_t kLongestPlan = uint64_t{1} << 32;
constexpr double kBeat = 5;         // seconds of idleness before a beat
constexpr size_t kUsualSteps = 15;  // steps whose median is the usual duration
constexpr double kStepsOfSilence = 20;
constexpr size_t kMostUnderWay = 8;  // messages under way per stage
constexpr int kRowsTag = 1, kLogitsTag = 2, kBeatTag = 3;

size_t width_of(XType type) { return bits_of(dtype_of(type)) / 8; }

// Convert numbers that are exact in `type` to its bytes and back.
void to_bytes(XType type, std::span<const float> x, uint8_t* to) {
  store_row({to, dtype_of(type), 1, x.size(), x.size()}, 0, 0, x.size(), x.data());
}
void from_bytes(XType type, const uint8_t* from, std::span<float> x) {
  load_row({from, dtype_of(type), 1, x.size(), x.size()}, 0, 0, x.size(), x.data());
}

uint64_t hash_of(std::span<const float> x) {
  uint64_t h = 0xcbf29ce484222325;
  for (const float v : x) h = (h ^ std::bit_cast<uint32_t>(v)) * 0x100000001b3;
  return h;
}

int to_int(size_t n) { return static_cast<int>(n); }

// Adds the seconds of its lifetime to a sum.
class Stopwatch {
 public:
  explicit Stopwatch(double& sum) : sum_(sum), start_(std::chrono::steady_clock::now()) {}
  ~Stopwatch() {
    sum_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& sum_;
  std::chrono::steady_clock::time_point start_;
};

// Implements the exchanges of a mixture of experts; null: there is no other rank.
class StageExchange : public MoeExchange {
 public:
  StageExchange(Comm* cut, Comm* spread, double& seconds)
      : cut_(cut), spread_(spread), seconds_(seconds) {}
  size_t cut() const override { return size_of(cut_); }
  size_t cut_place() const override { return place_of(cut_); }
  size_t spread() const override { return size_of(spread_); }
  size_t spread_place() const override { return place_of(spread_); }
  void all_gather(const void* mine, std::span<const size_t> bytes, void* all) override {
    const Stopwatch watch(seconds_);
    cut_->wait(cut_->start_all_gather(mine, all, bytes), "intermediate rows of experts");
  }
  void all_to_all(const void* out, std::span<const size_t> out_bytes, void* in,
                  std::span<const size_t> in_bytes) override {
    const Stopwatch watch(seconds_);
    cut_->wait(cut_->start_all_to_all(out, out_bytes, in, in_bytes),
               "intermediate rows of experts");
  }
  void start_exchange(const void* out, std::span<const size_t> out_bytes, void* in,
                      std::span<const size_t> in_bytes) override {
    const Stopwatch watch(seconds_);
    pass_ = spread_->start_all_to_all(out, out_bytes, in, in_bytes);
  }
  void finish_exchange() override {
    const Stopwatch watch(seconds_);
    spread_->wait(pass_, "rows of experts");
  }
  void poll() noexcept override {
    try {
      (void)spread_->test(pass_);
    } catch (const std::exception&) {  // the rank that waits will meet the error again
    }
  }

 private:
  static size_t size_of(const Comm* c) { return c == nullptr ? 1 : static_cast<size_t>(c->size()); }
  static size_t place_of(const Comm* c) {
    return c == nullptr ? 0 : static_cast<size_t>(c->rank());
  }
  Comm *cut_, *spread_;
  double& seconds_;  // seconds of exchanging
  CommRequest pass_;
};

}  // namespace

// Owns rows on their way to the next stage, or a plan.
struct Ranks::Passing {
  std::vector<uint8_t> bytes;
  Comm* comm;
  CommRequest request, rest;
};

class Ranks::Arrival {
 public:
  XType type;
  size_t n;
  std::vector<uint8_t> bytes;
  CommRequest request;
};

Ranks::Ranks(Comm& world, const RankSplit& split)
    : world_(world),
      split_(split),
      rank_(static_cast<size_t>(world.rank())),
      timeout_(world.timeout()) {
  check_split(split);
  if (split.ranks() != static_cast<size_t>(world.size()))
    fail("{} are {} ranks, but {} were started", describe(split), split.ranks(), world.size());
  stage_ = world.split(to_int(stage()), to_int(member()));
  line_ = world.split(to_int(member()), to_int(stage()));
  for_dense_ = std::make_unique<StageExchange>(stage_.get(), nullptr, exchange_seconds_);
  if (split.tp > 1 && split.ep > 1) {
    cut_ = stage_->split(to_int(ep_rank()), to_int(tp_rank()));
    spread_ = stage_->split(to_int(tp_rank()), to_int(ep_rank()));
  }
  Comm* cut = split.ep == 1 ? stage_.get() : cut_.get();
  Comm* spread = split.tp == 1 ? stage_.get() : spread_.get();
  for_experts_ = std::make_unique<StageExchange>(
      split.tp > 1 ? cut : nullptr, split.ep > 1 ? spread : nullptr, exchange_seconds_);
}

Ranks::~Ranks() = default;

std::string Ranks::host() const { return world_.host(world_.rank()); }

std::string Ranks::label() const { return fmt::format("[rank {} {}]", rank_, host()); }

std::vector<size_t> Ranks::ranks_of_host() const {
  std::vector<size_t> out;
  for (int r = 0; r < world_.size(); ++r)
    if (world_.host(r) == host()) out.push_back(static_cast<size_t>(r));
  return out;
}

void Ranks::meet() {
  const Patience patience(world_, kLoadingSeconds);
  world_.barrier("loading");
}

void Ranks::announce(std::span<const uint8_t> plan, uint64_t serial) {
  world_.set_step(serial);
  const uint64_t size = plan.size();
  auto out = std::make_unique<Passing>();
  out->comm = &world_;
  out->bytes.assign(std::max(kPlanFirst, plan.size() + sizeof size), 0);
  uint8_t* p = out->bytes.data();
  std::memcpy(p, &size, sizeof size);
  std::copy(plan.begin(), plan.end(), p + sizeof size);
  out->request = world_.start_broadcast(p, kPlanFirst, 0);
  if (out->bytes.size() > kPlanFirst)
    out->rest = world_.start_broadcast(p + kPlanFirst, out->bytes.size() - kPlanFirst, 0);
  passing_.push_back(std::move(out));  // the others receive it when they get there
  settle(kMostUnderWay * split_.pp);
}

std::vector<uint8_t> Ranks::next_plan() {
  uint64_t size = 0;
  plan_.assign(kPlanFirst, 0);
  world_.wait(world_.start_broadcast(plan_.data(), kPlanFirst, 0), CommPhase("next step").asleep());
  std::memcpy(&size, plan_.data(), sizeof size);
  if (size > kLongestPlan) fail("a step plan of {} bytes; expected at most {}", size, kLongestPlan);
  if (size + sizeof size > kPlanFirst) {
    plan_.resize(size + sizeof size);
    world_.wait(world_.start_broadcast(plan_.data() + kPlanFirst, plan_.size() - kPlanFirst, 0),
                "plan");
  }
  return {plan_.begin() + sizeof size,
          plan_.begin() + static_cast<std::ptrdiff_t>(size + sizeof size)};
}

void Ranks::begin_step(uint64_t serial) { world_.set_step(serial); }

std::vector<RankFigures> Ranks::answer_beat(RankFigures mine) {
  for (const auto& [what, seconds] : world_.counters().phase_seconds)
    mine.phases.emplace_back(what, seconds);
  mine.received = world_.counters().received;
  std::string text = encode(mine);
  text.resize(kRankFiguresBytes, 0);
  if (!leader()) {
    world_.wait(world_.start_send(0, kBeatTag, text.data(), text.size()), "answer to a beat");
    return {};
  }
  std::vector<std::string> texts(static_cast<size_t>(world_.size()), text);
  std::vector<CommRequest> requests;
  for (int r = 1; r < world_.size(); ++r)
    requests.push_back(
        world_.start_receive(r, kBeatTag, texts[static_cast<size_t>(r)].data(), text.size()));
  for (CommRequest& request : requests) world_.wait(request, "beat");
  std::vector<RankFigures> all;
  for (const std::string& t : texts) all.push_back(decode_figures(t.substr(0, t.find('\0'))));
  return all;
}

double Ranks::wait_seconds() const { return world_.counters().wait_seconds; }

double Ranks::beat_seconds() const { return std::min(kBeat, timeout_ / 4); }

void Ranks::observe_step(double seconds) {
  step_seconds_.resize(kUsualSteps, 0);
  step_seconds_[steps_++ % kUsualSteps] = seconds;
  if (steps_ < kUsualSteps) return;
  std::vector<double> sorted = step_seconds_;
  std::nth_element(sorted.begin(), sorted.begin() + kUsualSteps / 2, sorted.end());
  world_.set_timeout(std::max(timeout_, kStepsOfSilence * sorted[kUsualSteps / 2]));
}

void Ranks::pass_on(XType type, std::span<const float> x) {
  auto out = std::make_unique<Passing>();
  out->comm = line_.get();
  out->bytes.resize(x.size() * width_of(type));
  to_bytes(type, x, out->bytes.data());
  const int to = (line_->rank() + 1) % line_->size();
  out->request = line_->start_send(to, kRowsTag, out->bytes.data(), out->bytes.size());
  passing_.push_back(std::move(out));
  settle(kMostUnderWay * split_.pp);
}

void Ranks::settle(size_t most) {
  std::erase_if(passing_, [](const std::unique_ptr<Passing>& p) {
    return p->comm->test(p->request) && p->comm->test(p->rest);
  });
  for (; passing_.size() > most; passing_.pop_front()) {
    Passing& oldest = *passing_.front();
    const char* what = oldest.comm == &world_ ? "plan" : "rows to the next stage";
    oldest.comm->wait(oldest.request, what);
    oldest.comm->wait(oldest.rest, what);
  }
}

void Ranks::poll() { world_.poll(); }

std::shared_ptr<Ranks::Arrival> Ranks::expect(XType type, size_t n) {
  auto arrival = std::make_shared<Arrival>();
  arrival->type = type;
  arrival->n = n;
  arrival->bytes.resize(n * width_of(type));
  const int from = (line_->rank() + line_->size() - 1) % line_->size();
  arrival->request =
      line_->start_receive(from, kRowsTag, arrival->bytes.data(), arrival->bytes.size());
  return arrival;
}

void Ranks::take_over(Arrival& arrival, std::span<float> x) {
  line_->wait(arrival.request, "rows from the stage before");
  from_bytes(arrival.type, arrival.bytes.data(), x.first(arrival.n));
}

void Ranks::take_over(XType type, std::span<float> x) { take_over(*expect(type, x.size()), x); }

void Ranks::share(XType type, std::span<float> x) {
  if (members() == 1) return;
  const size_t bytes = x.size() * width_of(type);
  grow(send_, bytes);
  if (member() == 0) to_bytes(type, x, send_.data());
  stage_->wait(stage_->start_broadcast(send_.data(), bytes, 0), "embedding");
  if (member() != 0) from_bytes(type, send_.data(), x);
}

void Ranks::gather(XType type, std::span<const float> mine, std::span<const Range> cuts,
                   std::span<float> all, size_t width, size_t T, const char* phase, int layer) {
  const size_t unit = width_of(type), own = cuts[member()].size();
  std::vector<size_t> bytes;
  for (const Range& c : cuts) bytes.push_back(T * c.size() * unit);
  grow(send_, bytes[member()]);
  grow(receive_, std::accumulate(bytes.begin(), bytes.end(), size_t{0}));
  to_bytes(type, mine.first(T * own), send_.data());
  stage_->wait(stage_->start_all_gather(send_.data(), receive_.data(), bytes), {phase, layer});
  const uint8_t* from = receive_.data();
  for (size_t m = 0; m < cuts.size(); ++m) {
    const Range& c = cuts[m];
    for (size_t t = 0; t < T; ++t, from += c.size() * unit) {
      const std::span<float> to = all.subspan(t * width + c.begin, c.size());
      if (m == member())
        std::copy_n(mine.begin() + static_cast<std::ptrdiff_t>(t * own), own, to.begin());
      else
        from_bytes(type, from, to);
    }
  }
}

void Ranks::gather_first(std::span<const float> mine, std::span<const Range> cuts,
                         std::span<float> all, size_t width, size_t T) {
  if (member() != 0) {
    const size_t bytes = T * cuts[member()].size() * sizeof(float);
    stage_->wait(stage_->start_send(0, kLogitsTag, mine.data(), bytes), "logits");
    return;
  }
  std::vector<std::vector<float>> parts(cuts.size());
  std::vector<CommRequest> requests(cuts.size());
  for (size_t m = 1; m < cuts.size(); ++m) {
    parts[m].resize(T * cuts[m].size());
    requests[m] = stage_->start_receive(to_int(m), kLogitsTag, parts[m].data(),
                                        parts[m].size() * sizeof(float));
  }
  for (size_t m = 0; m < cuts.size(); ++m) {
    const Range& c = cuts[m];
    if (m > 0) stage_->wait(requests[m], "logits");
    const std::span<const float> from = m > 0 ? std::span<const float>(parts[m]) : mine;
    for (size_t t = 0; t < T; ++t)
      std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(t * c.size()), c.size(),
                  all.begin() + static_cast<std::ptrdiff_t>(t * width + c.begin));
  }
}

void Ranks::compare(std::span<const float> x) {
  if (members() == 1) return;
  const uint64_t mine = hash_of(x);
  std::vector<uint64_t> all(members());
  const std::vector<size_t> bytes(members(), sizeof mine);
  stage_->wait(stage_->start_all_gather(&mine, all.data(), bytes), "comparing rows");
  for (size_t m = 0; m < all.size(); ++m)
    if (all[m] != mine)
      fail("rank {} computed other rows than rank {}: the ranks' CPUs, builds or files differ",
           rank_ - member() + m, rank_);
}

void Ranks::abort(const std::string& why) noexcept {
  aborted_ = true;
  try {
    world_.abort(why);
  } catch (...) {  // ranks are threads: the others were told already
  }
}

}  // namespace moebius
