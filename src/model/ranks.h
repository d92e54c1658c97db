// SPDX-License-Identifier: Apache-2.0
// Runs one model on several ranks (processes, or threads of one process), seen from one of them:
// which part it has, and the exchanges of a step. Results equal those of one process to the byte,
// because nothing is ever added over ranks: rows are passed on whole (pp), or their columns are
// computed apart and put side by side (tp, ep).
//
// Ranks are numbered stage by stage: rank = stage * members + member. The members of a stage run
// the same layers together and hold equal rows between them. Of the members those with the same
// experts (tp) are neighbours: member = ep rank * tp + tp rank.
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
#include "model/rank_split.h"
#include "nn/moe_exchange.h"
#include "quant/activation.h"
#include "runtime/cpu.h"

namespace moebius {

class Comm;

// Holds where a rank's time went since it loaded, in seconds, and what it received.
struct RankFigures {
  double step = 0;      // seconds of all steps
  double exchange = 0;  // the part of these for exchanging rows, including waits
  double wait = 0;      // the part of these for waiting
  std::vector<std::pair<std::string, double>> phases;  // waits by phase, also between steps
  std::vector<uint64_t> received;                      // [rank] bytes received from each rank
};
constexpr size_t kRankFiguresBytes = 16384;  // most bytes of an encoded RankFigures
std::string encode(const RankFigures& figures);
// Throws Error for text that encode() does not write.
RankFigures decode_figures(const std::string& text);

class Ranks {
 public:
  // Makes a rank of the split. All ranks of `world` must call the constructor: they wait for each
  // other. `world` outlives the object.
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
  std::string label() const;  // returns "[rank 2 host]", for lines on stderr
  std::string host() const;
  std::vector<size_t> ranks_of_host() const;  // ranks of this host, this one included

  Comm& world() { return world_; }

  // All ranks call it after loading: waits until all are there, however long that takes.
  void meet();

  // Exchange plans of steps: rank 0 announces one, the others wait for the next one. No plan may
  // come later than the timeout of waits: rank 0 sends beats (empty plans) while it is idle.
  void announce(std::span<const uint8_t> plan, uint64_t serial);
  std::vector<uint8_t> next_plan();
  void begin_step(uint64_t serial);  // for ranks other than 0: sets the step that messages name
  // Answers a beat; all ranks call it after the plan of a beat: rank 0 learns that the others are
  // there, and what they did.
  std::vector<RankFigures> answer_beat(RankFigures mine);
  double exchange_seconds() const { return exchange_seconds_; }  // seconds in exchanges of experts
  double wait_seconds() const;
  double beat_seconds() const;  // seconds between beats
  // Reports the seconds of a step: waits may take 20 usual steps if that is longer than the
  // timeout.
  void observe_step(double seconds);

  // Pass rows from stage to stage: pass_on() sends numbers that are exact in `type` to the same
  // member of the next stage (from the last stage: of the first) without waiting; take_over()
  // receives those of the stage before, in the order in which they were sent.
  void pass_on(XType type, std::span<const float> x);
  void take_over(XType type, std::span<float> x);
  // Receives rows in two parts: expect() provides memory, so that rows can arrive while others are
  // computed, and take_over() waits for them.
  class Arrival;
  std::shared_ptr<Arrival> expect(XType type, size_t n);
  void take_over(Arrival& arrival, std::span<float> x);
  // Frees messages that have been sent, and waits until at most `most` are under way.
  void settle(size_t most);
  void poll();  // lets messages under way proceed
  // Sends member 0's numbers to all members of its stage.
  void share(XType type, std::span<float> x);
  // Joins columns of T rows: member m has the columns cuts[m] as a matrix of their own; `all`
  // becomes the whole rows of `width` columns on every member.
  void gather(XType type, std::span<const float> mine, std::span<const Range> cuts,
              std::span<float> all, size_t width, size_t T, const char* phase, int layer);
  // Joins columns on member 0 alone, in f32; other members ignore `all`.
  void gather_first(std::span<const float> mine, std::span<const Range> cuts, std::span<float> all,
                    size_t width, size_t T);
  // Throws Error if members do not hold the same numbers, and names the rank that differs from this
  // one.
  void compare(std::span<const float> x);

  // Return the exchanges for layers that all members cut (dense layers) and for experts.
  MoeExchange& for_dense() { return *for_dense_; }
  MoeExchange& for_experts() { return *for_experts_; }

  // Ends all ranks. Never throws; returns only if ranks are threads.
  void abort(const std::string& why) noexcept;
  bool aborted() const { return aborted_; }  // true if this rank called abort()

 private:
  Comm& world_;
  RankSplit split_;
  size_t rank_;
  // stage_: all ranks of this stage; line_: the rank of each stage with this rank's member().
  std::unique_ptr<Comm> stage_, line_;
  // Members of the stage with the same experts, and members with the same outputs.
  std::unique_ptr<Comm> cut_, spread_;
  std::unique_ptr<MoeExchange> for_dense_, for_experts_;
  std::vector<uint8_t> send_, receive_;
  std::vector<uint8_t> plan_;
  double exchange_seconds_ = 0;
  double timeout_;                    // seconds of waiting that the caller allowed
  std::vector<double> step_seconds_;  // durations of the last steps
  size_t steps_ = 0;
  std::atomic<bool> aborted_{false};
  struct Passing;
  std::deque<std::unique_ptr<Passing>> passing_;  // messages to other ranks, the oldest first
};

// Runs ranks 1 and up as threads of this process, each executing follow(ranks); rank 0 is the
// caller's. An exception of a follower ends all ranks. The destructor waits for the threads, and
// ends followers that have not been told to stop.
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
