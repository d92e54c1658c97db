// SPDX-License-Identifier: Apache-2.0
// Exchanges between ranks, with ranks as threads: every kind, whole and cut messages, parts of a
// communicator; and what a rank says when another is slow, stalls, dies, throws or is out of step.
#include "runtime/comm.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "runtime/comm_threads.h"
#include "unit/runtime/comm_cases.h"

namespace moebius::comm_test {
namespace {

using test::expect_everything;
using test::expect_parts;
using test::index_of;

const int kSizes[] = {1, 2, 3, 4, 8};

// What run_thread_ranks throws; rank() of a CommError goes to *rank.
std::string error_of(const ThreadRanks& options, FunctionRef<void(Comm&)> fn, int* rank = nullptr) {
  try {
    run_thread_ranks(options, fn);
  } catch (const CommError& e) {
    if (rank != nullptr) *rank = e.rank();
    return e.what();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

TEST(Comm, EveryExchangeOnEverySize) {
  for (const int ranks : kSizes)
    run_thread_ranks({.ranks = ranks}, [&](Comm& comm) {
      EXPECT_EQ(comm.size(), ranks);
      EXPECT_FALSE(comm.host(0).empty());
      expect_everything(comm);
    });
}

TEST(Comm, LongMessagesAreCut) {
  run_thread_ranks({.ranks = 3, .largest_message = 7}, [](Comm& comm) { expect_everything(comm); });
}

TEST(Comm, PartsHaveTheirOwnRanksAndMessages) {
  run_thread_ranks({.ranks = 6}, [](Comm& world) { expect_parts(world, 2); });
}

TEST(Comm, ManyUnderWayInRandomOrder) {
  for (const int ranks : {2, 4})
    run_thread_ranks({.ranks = ranks}, [](Comm& comm) {
      SplitMix64 random(static_cast<uint64_t>(comm.rank()) + 1);
      constexpr int kRounds = 40;
      std::vector<std::vector<int>> got(kRounds, std::vector<int>(index_of(comm.size())));
      std::vector<int> mine(kRounds);
      std::vector<CommRequest> requests;
      const std::vector<size_t> bytes(index_of(comm.size()), sizeof(int));
      for (int i = 0; i < kRounds; ++i) {
        mine[index_of(i)] = comm.rank() * 1000 + i;
        requests.push_back(
            comm.start_all_gather(&mine[index_of(i)], got[index_of(i)].data(), bytes));
      }
      while (!requests.empty()) {
        const size_t pick = random.below(requests.size());
        comm.wait(requests[pick], "storm");
        std::swap(requests[pick], requests.back());
        requests.pop_back();
      }
      for (int i = 0; i < kRounds; ++i)
        for (int r = 0; r < comm.size(); ++r)
          EXPECT_EQ(got[index_of(i)][index_of(r)], r * 1000 + i);
    });
}

TEST(Comm, CountsBytesAndExchanges) {
  run_thread_ranks({.ranks = 2}, [](Comm& comm) {
    const char mine[20] = {};
    char all[30] = {};
    const size_t bytes[] = {10, 20};
    comm.wait(comm.start_all_gather(mine, all, bytes), "gather");
    EXPECT_EQ(comm.counters().exchanges, 1u);
    const int other = 1 - comm.rank();
    EXPECT_EQ(comm.counters().received[index_of(other)], bytes[other]);
    EXPECT_EQ(comm.counters().received[index_of(comm.rank())], 0u);
  });
}

TEST(CommFaults, SlowRanksChangeNothing) {
  run_thread_ranks({.ranks = 3,
                    .faults = {{.rank = 0, .at = 2, .microseconds = 300},
                               {.rank = 2, .at = 5, .microseconds = 700}}},
                   [](Comm& comm) { expect_everything(comm); });
}

TEST(CommFaults, AStalledRankIsNamedWithStepLayerAndPhase) {
  int rank = -1;
  const std::string text = error_of(
      {.ranks = 3, .timeout = 1, .faults = {{.rank = 2, .at = 4, .kind = RankFault::Kind::kStall}}},
      [](Comm& comm) {
        int mine = 0, all[3];
        const size_t bytes[] = {4, 4, 4};
        for (uint64_t step = 0; step < 5; ++step) {
          comm.set_step(step);
          comm.wait(comm.start_all_gather(&mine, all, bytes), {"gather of rows", 7});
        }
      },
      &rank);
  EXPECT_EQ(rank, 2);
  EXPECT_NE(text.find("rank 2 ("), std::string::npos) << text;
  EXPECT_NE(text.find("was silent for 1 s: step 1, layer 7, gather of rows, seen by rank "),
            std::string::npos)
      << text;
}

TEST(CommFaults, ADeadRankEndsTheOthersAtOnce) {
  for (const uint64_t at : {0u, 3u, 9u}) {
    int rank = -1;
    const std::string text = error_of(
        {.ranks = 4,
         .timeout = 1000,
         .faults = {{.rank = 1, .at = at, .kind = RankFault::Kind::kDie}}},
        [](Comm& comm) {
          for (int i = 0; i < 10; ++i) comm.barrier("barrier");
        },
        &rank);
    EXPECT_EQ(rank, 1);
    EXPECT_NE(text.find("is gone"), std::string::npos) << text;
  }
}

TEST(CommFaults, WhatARankThrowsEndsTheOthers) {
  EXPECT_EQ(error_of({.ranks = 3, .timeout = 1000},
                     [](Comm& comm) {
                       if (comm.rank() == 1) fail("no memory for {} layers", 5);
                       comm.barrier("barrier");
                     }),
            "no memory for 5 layers");
  std::string seen;
  (void)error_of({.ranks = 2, .timeout = 1000}, [&](Comm& comm) {
    if (comm.rank() == 1) comm.abort("that is enough");
    try {
      comm.barrier("barrier");
    } catch (const CommError& e) {
      seen = e.what();
      throw;
    }
  });
  EXPECT_EQ(seen, "that is enough");
}

TEST(CommFaults, RanksOutOfStepMeetTheDeadlineAndNeverTheWrongBytes) {
  char kept = 'k';
  const std::string text = error_of({.ranks = 2, .timeout = 0.2}, [&](Comm& comm) {
    char other = 'x';
    if (comm.rank() == 0) {
      comm.wait(comm.start_broadcast(&other, 1, 0), "broadcast");
    } else {
      char all[2] = {};
      comm.wait(comm.start_all_gather(&other, all, std::vector<size_t>{1, 1}), "gather");
      kept = 'w';
    }
  });
  EXPECT_NE(text.find("silent"), std::string::npos) << text;
  EXPECT_EQ(kept, 'k');
}

TEST(CommFaults, DifferentLengthsAreAnError) {
  const std::string text = error_of({.ranks = 2}, [](Comm& comm) {
    char data[8] = {};
    if (comm.rank() == 0) comm.wait(comm.start_send(1, 0, data, 4), "send");
    if (comm.rank() == 1) comm.wait(comm.start_receive(0, 0, data, 8), "receive");
  });
  EXPECT_NE(text.find("bytes where"), std::string::npos) << text;
}

TEST(CommFaults, ADroppedRequestLeavesItsBufferAlone) {
  run_thread_ranks({.ranks = 2}, [](Comm& comm) {
    char data[8] = "unread!";
    if (comm.rank() == 0) {
      CommRequest dropped = comm.start_receive(1, 5, data, 8);
    }
    comm.barrier("dropped");
    if (comm.rank() == 1) {
      CommRequest unread = comm.start_send(0, 5, "written", 8);
      EXPECT_FALSE(comm.test(unread));
    }
    comm.barrier("sent");
    EXPECT_STREQ(data, "unread!");
  });
}

TEST(CommFaults, WrongArgumentsAreNamed) {
  run_thread_ranks({.ranks = 2}, [](Comm& comm) {
    char c = 0;
    const size_t three[] = {1, 1, 1};
    EXPECT_THROW((void)comm.start_broadcast(&c, 1, 2), Error);
    EXPECT_THROW((void)comm.start_send(-1, 0, &c, 1), Error);
    EXPECT_THROW((void)comm.start_send(comm.rank(), 0, &c, 1), Error);
    EXPECT_THROW((void)comm.start_receive(1 - comm.rank(), Comm::kUserTags, &c, 1), Error);
    EXPECT_THROW((void)comm.start_all_gather(&c, &c, three), Error);
    EXPECT_THROW((void)comm.host(2), Error);
  });
  EXPECT_THROW(run_thread_ranks({.ranks = 0}, [](Comm&) {}), Error);
}

}  // namespace
}  // namespace moebius::comm_test
