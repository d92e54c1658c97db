// SPDX-License-Identifier: Apache-2.0
// One model on several ranks (processes, or threads of one process), as one of them sees it: which
// part it has, and the exchanges of a step. Bytes are those of one process, because nothing is ever
// added over ranks: rows are passed on whole (pp), or their columns are computed apart and put side
// by side (tp, ep).
//
// Ranks are numbered stage by stage: rank = stage * members + member. The members of a stage run the
// same layers together and hold equal rows between them. Of the members those with the same experts
// (tp) are neighbours: member = ep rank * tp + tp rank.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/parallel.h"
#include "nn/moe_exchange.h"
#include "quant/activation.h"
#include "runtime/cpu.h"

namespace moebius {

class Comm;

struct RankSplit {
  size_t pp = 1;  // stages: layers in a row
  size_t tp = 1;  // outputs of every matrix
  size_t ep = 1;  // some of the experts; with tp these are cut, the rest is cut over both
  bool repeat_attention = false;  // with ep: every member runs all heads; two rounds less a layer
  size_t spare = 0;               // with ep: places per layer for copies of busy experts
  size_t members() const { return tp * ep; }
  size_t ranks() const { return pp * tp * ep; }
  bool operator==(const RankSplit&) const = default;
};
std::string describe(const RankSplit& split);  // "pp 2 x tp 2"
// Throws Error for sizes that nobody can mean, and for products that are not there.
void check_split(const RankSplit& split);

// Where a rank's time went since it loaded, in seconds, and what came to it.
struct RankFigures {
  double step = 0;      // of all steps
  double exchange = 0;  // of these, giving and taking rows, and waiting for them
  double wait = 0;      // of these, waiting
  std::vector<std::pair<std::string, double>> phases;  // of the waits, between steps too
  std::vector<uint64_t> received;                      // bytes, by rank
};
constexpr size_t kRankFiguresBytes = 16384;  // at most
std::string encode(const RankFigures& figures);
// Throws Error for a text that encode() does not write.
RankFigures decode_figures(const std::string& text);

class Ranks {
 public:
  // All ranks of `world` call it and wait for each other; `world` outlives it.
  Ranks(Comm& world, const RankSplit& split);
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  const RankSplit& split() const { return split_; }
  size_t rank() const { return rank_; }
  size_t stage() const { return rank_ / split_.members(); }
  size_t member() const { return rank_ % split_.members(); }
  size_t members() const { return split_.members(); }
  size_t tp_rank() const { return member() % split_.tp; }
  size_t ep_rank() const { return member() / split_.tp; }
  bool leader() const { return rank_ == 0; }
  std::string label() const;  // "[rank 2 host]", for lines on stderr
  std::string host() const;
  std::vector<size_t> ranks_of_host() const;  // this one among them

  Comm& world() { return world_; }

  // After loading, by all: waits until everybody is there, however long that takes.
  void meet();

  // Plans of steps: rank 0 gives, the others wait for the next one. It must not take longer than any
  // wait may: rank 0 sends beats while it is idle.
  void announce(std::span<const uint8_t> plan, uint64_t serial);
  std::vector<uint8_t> next_plan();
  void begin_step(uint64_t serial);  // of the others: for messages
  // By all, behind the plan of a beat: rank 0 learns that the others are there, and what they did.
  std::vector<RankFigures> answer_beat(RankFigures mine);
  double exchange_seconds() const { return exchange_seconds_; }  // in experts
  double wait_seconds() const;
  double beat_seconds() const;  // between beats
  // A step took so long: waits may take 20 usual steps, where that is longer than what was asked for.
  void observe_step(double seconds);

  // Numbers that are exact in `type`: to the same member of the next stage, behind the last one of
  // the first, without waiting; and from the stage before, in the order in which they were passed.
  void pass_on(XType type, std::span<const float> x);
  void take_over(XType type, std::span<float> x);
  // The same in two parts: memory is there from expect() on, so that rows come while others are
  // computed.
  class Arrival;
  std::shared_ptr<Arrival> expect(XType type, size_t n);
  void take_over(Arrival& arrival, std::span<float> x);
  // Forgets what has arrived of plans and rows, and waits until no more than `most` are under way.
  void settle(size_t most);
  void poll();  // lets what is under way proceed
  // Of member 0, to all members of its stage.
  void share(XType type, std::span<float> x);
  // Columns of T rows: member m has those of cuts[m] as a matrix of their own; `all` becomes the
  // whole rows of `width` columns, on every member.
  void gather(XType type, std::span<const float> mine, std::span<const Range> cuts,
              std::span<float> all, size_t width, size_t T, const char* phase, int layer);
  // The same to member 0 alone, in f32; `all` is looked at there only.
  void gather_first(std::span<const float> mine, std::span<const Range> cuts, std::span<float> all,
                    size_t width, size_t T);
  // Throws where members do not hold the same numbers, naming the rank that differs from this one.
  void compare(std::span<const float> x);

  // Of the members, for layers that all of them cut (dense), and for experts.
  MoeExchange& for_dense() { return *for_dense_; }
  MoeExchange& for_experts() { return *for_experts_; }

  // Ends all ranks; never throws, and returns where they are threads.
  void abort(const std::string& why) noexcept;
  bool aborted() const { return aborted_; }  // by this rank

 private:
  Comm& world_;
  RankSplit split_;
  size_t rank_;
  std::unique_ptr<Comm> stage_, line_;  // members of this stage; the same member of all stages
  std::unique_ptr<Comm> cut_,
      spread_;  // of the members: with the same experts, with the same outputs
  std::unique_ptr<MoeExchange> for_dense_, for_experts_;
  std::vector<uint8_t> send_, receive_;
  std::vector<uint8_t> plan_;
  double exchange_seconds_ = 0;
  double timeout_;                    // as asked for
  std::vector<double> step_seconds_;  // the last ones
  size_t steps_ = 0;
  std::atomic<bool> aborted_{false};
  struct Passing;
  std::deque<std::unique_ptr<Passing>> passing_;  // to others, the oldest first
};

// Ranks 1 and up as threads of this process, each executing follow(ranks); rank 0 is the caller's.
// What a follower throws ends all ranks. The destructor waits for the threads; followers that are
// not told to stop by then are ended.
class RankThreads {
 public:
  using Follow = std::function<void(Ranks&)>;
  RankThreads(const RankSplit& split, Follow follow);
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;
  Ranks& leader();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moebius
