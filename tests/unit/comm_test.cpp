// SPDX-License-Identifier: Apache-2.0
// Exchanges between ranks, with ranks as threads: every kind, whole and cut messages, parts of a
// communicator; and what a rank says when another is slow, stalls, dies, throws or is out of step.
#include "runtime/comm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "runtime/comm_threads.h"

namespace moebius {
namespace {

const int kSizes[] = {1, 2, 3, 4, 8};

size_t index_of(int rank) { return static_cast<size_t>(rank); }

// Bytes that tell who sent them to whom, and which.
char byte_of(int from, int to, size_t i) {
  return static_cast<char>(from * 31 + to * 7 + static_cast<int>(i % 101));
}
std::vector<char> text_of(int from, int to, size_t bytes) {
  std::vector<char> text(bytes);
  for (size_t i = 0; i < bytes; ++i) text[i] = byte_of(from, to, i);
  return text;
}

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

void expect_broadcast(Comm& comm) {
  for (int root = 0; root < comm.size(); ++root) {
    std::vector<char> data(1000);
    if (comm.rank() == root) data = text_of(root, 0, data.size());
    comm.wait(comm.start_broadcast(data.data(), data.size(), root), "broadcast");
    EXPECT_EQ(data, text_of(root, 0, data.size()));
  }
}

void expect_gather(Comm& comm, bool in_place) {
  std::vector<size_t> bytes(index_of(comm.size()));
  std::vector<char> expected;
  size_t own = 0;
  for (int r = 0; r < comm.size(); ++r) {
    bytes[index_of(r)] = r == 1 ? 0 : 17 * index_of(r) + 3;
    if (r == comm.rank()) own = expected.size();
    const std::vector<char> text = text_of(r, 1, bytes[index_of(r)]);
    expected.insert(expected.end(), text.begin(), text.end());
  }
  const std::vector<char> mine = text_of(comm.rank(), 1, bytes[index_of(comm.rank())]);
  std::vector<char> all(expected.size(), 'x');
  std::copy(mine.begin(), mine.end(), all.begin() + static_cast<std::ptrdiff_t>(own));
  comm.wait(comm.start_all_gather(in_place ? all.data() + own : mine.data(), all.data(), bytes),
            "gather");
  EXPECT_EQ(all, expected);
}

void expect_all_to_all(Comm& comm) {
  std::vector<size_t> out(index_of(comm.size())), in(out);
  std::vector<char> sent, expected;
  for (int r = 0; r < comm.size(); ++r) {
    out[index_of(r)] = index_of(comm.rank() * 5 + r);
    in[index_of(r)] = index_of(r * 5 + comm.rank());
    const std::vector<char> there = text_of(comm.rank(), r, out[index_of(r)]);
    const std::vector<char> here = text_of(r, comm.rank(), in[index_of(r)]);
    sent.insert(sent.end(), there.begin(), there.end());
    expected.insert(expected.end(), here.begin(), here.end());
  }
  std::vector<char> got(expected.size());
  comm.wait(comm.start_all_to_all(sent.data(), out, got.data(), in), "exchange");
  EXPECT_EQ(got, expected);
}

void expect_max(Comm& comm) {
  const float infinity = std::numeric_limits<float>::infinity();
  const auto r = static_cast<float>(comm.rank());
  float values[4] = {r, 10 - r, comm.rank() == comm.size() - 1 ? std::nanf("") : 1, 0};
  comm.wait(comm.start_max(values, 4), "maximum");
  EXPECT_EQ(values[0], static_cast<float>(comm.size() - 1));
  EXPECT_EQ(values[1], 10);
  EXPECT_EQ(values[2], infinity);
  EXPECT_EQ(values[3], 0);
}

// Round the ring, two tags that are received in the other order.
void expect_messages(Comm& comm) {
  if (comm.size() == 1) return;
  const int to = (comm.rank() + 1) % comm.size(),
            from = (comm.rank() + comm.size() - 1) % comm.size();
  const std::vector<char> a = text_of(comm.rank(), to, 40), b = text_of(comm.rank(), to, 70);
  std::vector<char> got_a(40), got_b(70);
  CommRequest send_a = comm.start_send(to, 3, a.data(), a.size());
  CommRequest send_b = comm.start_send(to, 255, b.data(), b.size());
  comm.wait(comm.start_receive(from, 255, got_b.data(), got_b.size()), "b");
  comm.wait(comm.start_receive(from, 3, got_a.data(), got_a.size()), "a");
  comm.wait(send_a, "a");
  comm.wait(send_b, "b");
  EXPECT_EQ(got_a, text_of(from, comm.rank(), 40));
  EXPECT_EQ(got_b, text_of(from, comm.rank(), 70));
}

void expect_everything(Comm& comm) {
  expect_broadcast(comm);
  expect_gather(comm, false);
  expect_gather(comm, true);
  expect_all_to_all(comm);
  expect_max(comm);
  expect_messages(comm);
  comm.barrier("barrier");
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

TEST(Comm, OneRankIsAlone) {
  const std::unique_ptr<Comm> comm = make_comm_none();
  expect_everything(*comm);
  EXPECT_EQ(comm->counters().exchanges, 0u);
  char c = 0;
  EXPECT_TRUE(comm->start_broadcast(&c, 1, 0).done());
  EXPECT_THROW((void)comm->start_send(0, 0, &c, 1), Error);
  EXPECT_EQ(comm->split(7, 0)->size(), 1);
}

TEST(Comm, PartsHaveTheirOwnRanksAndMessages) {
  run_thread_ranks({.ranks = 6}, [](Comm& world) {
    // 3 x 2: rows of two, columns of three in reversed order.
    const int row = world.rank() / 2, column = world.rank() % 2;
    const std::unique_ptr<Comm> across = world.split(row, 0);
    const std::unique_ptr<Comm> down = world.split(column, -row);
    ASSERT_EQ(across->size(), 2);
    ASSERT_EQ(down->size(), 3);
    EXPECT_EQ(across->rank(), column);
    EXPECT_EQ(down->rank(), 2 - row);
    EXPECT_EQ(across->world_rank(1), row * 2 + 1);
    EXPECT_EQ(down->world_rank(0), 4 + column);
    // Under way at the same time, waited for in another order.
    std::vector<int> a(2), b(3), c(6);
    const std::vector<size_t> bytes(6, sizeof(int));
    const int mine = world.rank();
    CommRequest ra = across->start_all_gather(&mine, a.data(), {bytes.data(), 2});
    CommRequest rb = down->start_all_gather(&mine, b.data(), {bytes.data(), 3});
    CommRequest rc = world.start_all_gather(&mine, c.data(), bytes);
    world.wait(rc, "world");
    down->wait(rb, "down");
    across->wait(ra, "across");
    EXPECT_EQ(a, (std::vector<int>{row * 2, row * 2 + 1}));
    EXPECT_EQ(b, (std::vector<int>{4 + column, 2 + column, column}));
    EXPECT_EQ(c, (std::vector<int>{0, 1, 2, 3, 4, 5}));
    expect_everything(*across);
    expect_everything(*down);
    // Only one of the parts is cut again: numbers of communicators must still agree.
    if (column == 0) expect_everything(*down->split(0, 0));
    expect_everything(*world.split(0, 0));
  });
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
    char all[30] = {};
    const size_t bytes[] = {10, 20};
    comm.wait(comm.start_all_gather(all, all, bytes), "gather");
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
      float f = 0;
      comm.wait(comm.start_max(&f, 1), "maximum");
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
}  // namespace moebius
