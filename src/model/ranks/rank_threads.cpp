// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of one process.
#include <thread>

#include "model/ranks.h"
#include "runtime/comm_threads.h"

namespace moebius {

struct RankThreads::State {
  std::vector<std::unique_ptr<Comm>> comms;
  std::vector<std::thread> threads;
  std::unique_ptr<Ranks> leader;
};

RankThreads::RankThreads(const RankSplit& split, Follow follow) : state_(new State) {
  check_split(split);
  ThreadRanks options;
  options.ranks = static_cast<int>(split.ranks());
  state_->comms = make_thread_comms(options);
  for (size_t r = 1; r < split.ranks(); ++r)
    state_->threads.emplace_back([&comm = *state_->comms[r], split, follow] {
      try {
        Ranks ranks(comm, split);
        follow(ranks);
      } catch (const std::exception& e) {
        try {
          comm.abort(e.what());
        } catch (...) {
        }
      }
    });
  try {
    state_->leader = std::make_unique<Ranks>(*state_->comms[0], split);
  } catch (...) {
    for (std::thread& t : state_->threads) t.join();
    throw;
  }
}

RankThreads::~RankThreads() {
  state_->leader->abort("rank 0 has ended");
  for (std::thread& t : state_->threads) t.join();
}

Ranks& RankThreads::leader() { return *state_->leader; }

}  // namespace moebius
