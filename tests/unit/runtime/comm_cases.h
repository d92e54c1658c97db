// SPDX-License-Identifier: Apache-2.0
// What every communicator must do, whatever carries its messages: called on all ranks at once.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "runtime/comm.h"

namespace moebius::test {

inline size_t index_of(int rank) { return static_cast<size_t>(rank); }

// Bytes that tell who sent them to whom, and which.
inline char byte_of(int from, int to, size_t i) {
  return static_cast<char>(from * 31 + to * 7 + static_cast<int>(i % 101));
}
inline std::vector<char> text_of(int from, int to, size_t bytes) {
  std::vector<char> text(bytes);
  for (size_t i = 0; i < bytes; ++i) text[i] = byte_of(from, to, i);
  return text;
}

inline void expect_broadcast(Comm& comm) {
  for (int root = 0; root < comm.size(); ++root) {
    std::vector<char> data(1000);
    if (comm.rank() == root) data = text_of(root, 0, data.size());
    comm.wait(comm.start_broadcast(data.data(), data.size(), root), "broadcast");
    EXPECT_EQ(data, text_of(root, 0, data.size()));
  }
}

inline void expect_gather(Comm& comm, bool in_place) {
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

inline void expect_all_to_all(Comm& comm) {
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

// Round the ring, two tags that are received in the other order.
inline void expect_messages(Comm& comm) {
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

inline void expect_everything(Comm& comm) {
  expect_broadcast(comm);
  expect_gather(comm, false);
  expect_gather(comm, true);
  expect_all_to_all(comm);
  expect_messages(comm);
  comm.barrier("barrier");
}

// rows x columns of ranks: parts have their own ranks and messages.
inline void expect_parts(Comm& world, int columns) {
  const int rows = world.size() / columns;
  const int row = world.rank() / columns, column = world.rank() % columns;
  const std::unique_ptr<Comm> across = world.split(row, 0);
  const std::unique_ptr<Comm> down = world.split(column, -row);  // in reversed order
  ASSERT_EQ(across->size(), columns);
  ASSERT_EQ(down->size(), rows);
  EXPECT_EQ(across->rank(), column);
  EXPECT_EQ(down->rank(), rows - 1 - row);
  EXPECT_EQ(across->world_rank(columns - 1), row * columns + columns - 1);
  EXPECT_EQ(down->world_rank(0), (rows - 1) * columns + column);
  // Under way at the same time, waited for in another order.
  std::vector<int> a(index_of(columns)), b(index_of(rows)), c(index_of(world.size()));
  const std::vector<size_t> bytes(c.size(), sizeof(int));
  const int mine = world.rank();
  CommRequest ra = across->start_all_gather(&mine, a.data(), {bytes.data(), a.size()});
  CommRequest rb = down->start_all_gather(&mine, b.data(), {bytes.data(), b.size()});
  CommRequest rc = world.start_all_gather(&mine, c.data(), bytes);
  world.wait(rc, "world");
  down->wait(rb, "down");
  across->wait(ra, "across");
  for (int i = 0; i < columns; ++i) EXPECT_EQ(a[index_of(i)], row * columns + i);
  for (int i = 0; i < rows; ++i) EXPECT_EQ(b[index_of(i)], (rows - 1 - i) * columns + column);
  for (int i = 0; i < world.size(); ++i) EXPECT_EQ(c[index_of(i)], i);
  expect_everything(*across);
  expect_everything(*down);
  // Only one of the parts is cut again: numbers of communicators must still agree.
  if (column == 0) expect_everything(*down->split(0, 0));
  expect_everything(*world.split(0, 0));
}

}  // namespace moebius::test
