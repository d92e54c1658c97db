// SPDX-License-Identifier: Apache-2.0
// Runs ranks as threads of one process.
#include <thread>

#include "base/out_of_memory.h"
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
  const auto run = [&](size_t r) {
    state_->threads.emplace_back([&comm = *state_->comms[r], split, follow] {
      try {
        Ranks ranks(comm, split);
        follow(ranks);
      } catch (const std::exception& e) {
        try {
          comm.abort(words_of(e));
        } catch (...) {
        }
      }
    });
  };
  try {
    for (size_t r = 1; r < split.ranks(); ++r) run(r);
    state_->leader = std::make_unique<Ranks>(*state_->comms[0], split);
  } catch (...) {
    try {
      state_->comms[0]->abort("rank 0 ended");
    } catch (...) {  // the others were told already
    }
    for (std::thread& t : state_->threads) t.join();
    throw;
  }
}

RankThreads::~RankThreads() {
  state_->leader->abort("rank 0 ended");
  for (std::thread& t : state_->threads) t.join();
}

Ranks& RankThreads::leader() { return *state_->leader; }

}  // namespace moebius
