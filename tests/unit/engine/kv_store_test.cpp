// SPDX-License-Identifier: Apache-2.0
// Blocks, the prefix tree and the tables of sequences, without an engine: a fake backend reads back
// what every table says, so that a block given away, shared or cut wrongly shows.
#include <gtest/gtest.h>

#include <numeric>

#include "engine/kv_store.h"
#include "unit/engine/fake_backend.h"

namespace moebius::kv_store_test {
namespace {

using test::FakeBackend;

std::vector<int32_t> counted(size_t n, size_t first = 0) {
  std::vector<int32_t> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<int32_t>((first + i * 7 + i / 50) % 64);
  return out;
}

struct Store {
  explicit Store(std::vector<KvKind> kinds, uint64_t budget, size_t tails = 4,
                 uint64_t mask = UINT64_MAX)
      : backend(std::move(kinds)),
        kv(backend, {budget, tails, mask, [this](size_t k, BlockId id) { backend.freed(k, id); }}) {
  }
  // Runs tokens [kv.length, length) and returns the logits of the last one.
  std::vector<float> run(SequenceKv& s, const std::vector<int32_t>& tokens, size_t length) {
    EXPECT_EQ(kv.grow(s, length), length);
    StepOutput out;
    const BatchItem item{&s.tables, s.length,
                         std::span(tokens).subspan(s.length, length - s.length), LogitsOf::kLast};
    backend.collect(backend.submit({&item, 1}), out);
    kv.advance(s, tokens, length);
    return out.logits;
  }
  std::vector<float> expected(const std::vector<int32_t>& tokens, size_t length) const {
    return backend.row(std::span(tokens).first(length));
  }
  FakeBackend backend;
  KvStore kv;
};

TEST(KvBlocks, TheLowestNumberFirstWithinOneBudget) {
  const std::vector<KvKind> kinds = {{"full", 100, SIZE_MAX, true}, {"state", 50, 1, false}};
  KvBlocks b(kinds, 300);
  EXPECT_EQ(b.take(0), 0u);
  EXPECT_EQ(b.take(0), 1u);
  EXPECT_EQ(b.take(1), 0u);
  EXPECT_EQ(b.take(0), kNoBlock);  // 250 of 300 are used
  EXPECT_EQ(b.take(1), 1u);
  EXPECT_EQ(b.take(1), kNoBlock);
  b.hold(0, 0);
  b.drop(0, 0);
  EXPECT_EQ(b.used_bytes(), 300u);  // one owner is left
  b.drop(0, 0);
  b.drop(0, 1);
  EXPECT_EQ(b.free_bytes(), 200u);
  EXPECT_EQ(b.take(0), 0u);
  b.cache(0, 0);
  EXPECT_EQ(b.evictable_bytes(), 0u);
  b.drop(0, 0);
  EXPECT_EQ(b.evictable_bytes(), 100u);
  EXPECT_TRUE(b.evictable(0, 0));
  b.hold(0, 0);
  EXPECT_EQ(b.evictable_bytes(), 0u);
  b.drop(0, 0);
  b.uncache(0, 0);
  EXPECT_EQ(b.evictable_bytes(), 0u);
  EXPECT_EQ(b.used(0), 0u);
  EXPECT_EQ(b.numbers(0), 2u);
  EXPECT_EQ(b.forget_free(0), 0u);
  EXPECT_EQ(b.number_bytes(), 100u);
  EXPECT_EQ(b.take(0), 0u);
}

TEST(PrefixTree, IdsDecideWhateverTheHash) {
  Store s(FakeBackend::full(), 100 * 1000, 4, 0);  // every hash is 0
  const std::vector<int32_t> a = counted(300), b = counted(300, 5);
  SequenceKv one, two, three, other_salt;
  s.kv.attach(one, "", a, a.size() - 1);
  s.run(one, a, 300);
  s.kv.attach(two, "", b, b.size() - 1);
  EXPECT_EQ(two.length, 0u);
  s.run(two, b, 300);
  s.kv.attach(three, "", a, a.size() - 1);
  EXPECT_EQ(three.length, 256u);
  EXPECT_EQ(three.tables[0][0], one.tables[0][0]);
  EXPECT_EQ(s.run(three, a, 300), s.expected(a, 300));
  s.kv.attach(other_salt, "another", a, a.size() - 1);
  EXPECT_EQ(other_salt.length, 0u);
  for (SequenceKv* q : {&one, &two, &three, &other_salt}) s.kv.end(*q, q == &two ? b : a);
  s.kv.tree().clear();
  EXPECT_EQ(s.kv.blocks().used_bytes(), 0u);
  EXPECT_EQ(s.kv.tree().nodes(), 0u);
  EXPECT_TRUE(s.backend.violations.empty()) << s.backend.violations[0];
}

TEST(PrefixTree, ATailIsCutAtAnyToken) {
  Store s(FakeBackend::full(), 100 * 1000);
  const std::vector<int32_t> a = counted(400);
  SequenceKv one;
  s.kv.attach(one, "", a, a.size() - 1);
  s.run(one, a, 400);
  s.kv.end(one, a);
  EXPECT_EQ(s.kv.tree().tails(), 1u);
  for (const size_t same : {400u, 399u, 385u, 384u, 383u, 300u, 256u, 129u, 128u, 127u, 1u}) {
    std::vector<int32_t> b(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(same));
    for (int i = 0; i < 20; ++i) b.push_back((b.back() + 11 + i) % 64 == a[same % 400] ? 1 : 2);
    if (same < 400 && b[same] == a[same]) b[same] = (b[same] + 1) % 64;
    SequenceKv two;
    s.kv.attach(two, "", b, b.size() - 1);
    EXPECT_EQ(two.length, same);
    EXPECT_EQ(s.run(two, b, b.size()), s.expected(b, b.size())) << same;
    s.kv.clear(two);
  }
  // A prompt that is wholly there still runs its last token.
  SequenceKv again;
  const std::vector<int32_t> c(a.begin(), a.begin() + 256);
  s.kv.attach(again, "", c, c.size() - 1);
  EXPECT_EQ(again.length, 255u);
  EXPECT_EQ(s.run(again, c, 256), s.expected(c, 256));
  s.kv.end(again, c);
  s.kv.tree().clear();
  EXPECT_EQ(s.kv.blocks().used_bytes(), 0u);
  EXPECT_TRUE(s.backend.violations.empty()) << s.backend.violations[0];
}

TEST(PrefixTree, AHitIsTheLongestThatEveryKindCanServe) {
  Store s(FakeBackend::all_kinds(), 100 * 2000);
  const std::vector<int32_t> a = counted(700);
  SequenceKv one;
  s.kv.attach(one, "", a, a.size() - 1);
  for (size_t n = 100; n <= 700; n += 100) EXPECT_EQ(s.run(one, a, n), s.expected(a, n));
  // A running sequence holds what it can still read: windows of 150 span two blocks here.
  EXPECT_EQ(one.tables[0][0] != kNoBlock, true);
  for (const size_t b : {0u, 1u, 2u, 3u}) EXPECT_EQ(one.tables[1][b], kNoBlock);
  EXPECT_NE(one.tables[1][4], kNoBlock);
  EXPECT_EQ(one.tables[2][4], kNoBlock);
  EXPECT_NE(one.tables[2][5], kNoBlock);
  s.kv.end(one, a);
  std::vector<int32_t> longer = a;
  for (int i = 0; i < 30; ++i) longer.push_back(i);
  SequenceKv two;
  s.kv.attach(two, "", longer, longer.size() - 1);
  EXPECT_EQ(two.length, 700u);  // the tail as a whole: its state was written there
  EXPECT_EQ(s.run(two, longer, 730), s.expected(longer, 730));
  s.kv.end(two, longer);
  // Cut anywhere else the state is missing: the last block end serves.
  std::vector<int32_t> branch(a.begin(), a.begin() + 690);
  branch.push_back((a[690] + 1) % 64);
  SequenceKv three;
  s.kv.attach(three, "", branch, branch.size() - 1);
  EXPECT_EQ(three.length, 640u);
  EXPECT_EQ(s.run(three, branch, 691), s.expected(branch, 691));
  s.kv.clear(three);
  s.kv.tree().clear();
  EXPECT_EQ(s.kv.blocks().used_bytes(), 0u);
  EXPECT_TRUE(s.backend.violations.empty()) << s.backend.violations[0];
}

TEST(PrefixTree, LeavesGoBeforeTheirStems) {
  Store s(FakeBackend::full(), 6 * 1000);
  const std::vector<int32_t> a = counted(256), b = counted(400, 3);
  SequenceKv one, two, three;
  s.kv.attach(one, "", a, a.size() - 1);
  s.run(one, a, 256);
  s.kv.end(one, a);
  s.kv.attach(two, "", b, b.size() - 1);
  s.run(two, b, 400);  // 2 + 4 blocks: all there are
  EXPECT_EQ(s.kv.tree().evictions(), 0u);
  EXPECT_EQ(s.kv.grow(two, 513), 513u);
  EXPECT_EQ(s.kv.tree().evictions(), 1u);
  s.kv.shrink(two);
  s.kv.attach(three, "", a, a.size() - 1);
  EXPECT_EQ(three.length, 128u);
  EXPECT_EQ(s.run(three, a, 256), s.expected(a, 256));
  EXPECT_EQ(s.kv.grow(two, 700), 512u);  // all the rest is in use
  s.kv.clear(three);
  s.kv.clear(two);
  s.kv.tree().clear();
  EXPECT_EQ(s.kv.blocks().used_bytes(), 0u);
  EXPECT_TRUE(s.backend.violations.empty()) << s.backend.violations[0];
}

TEST(PrefixTree, WhatIsOutOfReachGoesWithoutItsNode) {
  Store s({{"full", 100, SIZE_MAX, true}, {"window 64", 100, 64, true}}, 1600);
  const std::vector<int32_t> a = counted(512), b = counted(256, 3);
  SequenceKv one, two;
  s.kv.attach(two, "", b, b.size() - 1);
  s.run(two, b, 256);
  s.kv.end(two, b);  // 2 + 2 blocks of cache
  s.kv.attach(one, "", a, a.size() - 1);
  s.run(one, a, 512);  // 4 + 4, of which 3 windows are out of reach
  EXPECT_EQ(s.kv.blocks().evictable_bytes(), 400u + 300u);
  EXPECT_EQ(s.kv.grow(one, 512 + 256), 768u);  // 4 more: all that was free
  EXPECT_EQ(s.kv.tree().evictions(), 0u);
  EXPECT_EQ(s.kv.grow(one, 512 + 384), 896u);  // 2 more
  EXPECT_EQ(s.kv.tree().evictions(), 2u);      // a window of the older sequence, then its leaf
  EXPECT_EQ(s.kv.tree().nodes(), 5u);
  EXPECT_EQ(s.kv.grow(one, 512 + 512), 1024u);  // its stem, and windows of the running one
  EXPECT_EQ(s.kv.tree().nodes(), 4u);
  EXPECT_EQ(s.kv.blocks().used(0), 8u);
  EXPECT_EQ(s.kv.grow(one, 2000), 1024u + 128u);
  EXPECT_EQ(s.kv.blocks().evictable_bytes(), 0u);
  s.kv.clear(one);
  s.kv.tree().clear();
  EXPECT_EQ(s.kv.blocks().used_bytes(), 0u);
}

TEST(KvStore, ForksShareWhatIsFullAndCopyTheRest) {
  for (const size_t length : {128u, 200u, 256u, 300u})
    for (const bool kinds : {false, true}) {
      Store s(kinds ? FakeBackend::all_kinds() : FakeBackend::full(), 60 * 1000);
      std::vector<int32_t> a = counted(length);
      SequenceKv one, two;
      s.kv.attach(one, "", a, a.size() - 1);
      s.run(one, a, length);
      ASSERT_TRUE(s.kv.fork(one, two));
      EXPECT_EQ(two.length, length);
      if (length >= 128) {
        EXPECT_EQ(two.tables[0][0], one.tables[0][0]);
      }
      std::vector<int32_t> b = a;
      for (int i = 0; i < 150; ++i) {
        a.push_back(i % 60);
        b.push_back((i + 3) % 60);
        EXPECT_EQ(s.run(one, a, a.size()), s.expected(a, a.size()));
        EXPECT_EQ(s.run(two, b, b.size()), s.expected(b, b.size()));
      }
      s.kv.end(one, a);
      s.kv.end(two, b);
      s.kv.tree().clear();
      EXPECT_EQ(s.kv.blocks().used_bytes(), 0u);
      EXPECT_TRUE(s.backend.violations.empty()) << s.backend.violations[0];
    }
}

TEST(KvStore, AFailedStepLeavesTheSequenceAsItWas) {
  for (const size_t before : {64u, 128u, 200u}) {
    Store s(FakeBackend::all_kinds(), 60 * 1000);
    const std::vector<int32_t> a = counted(600);
    SequenceKv one;
    s.kv.attach(one, "", a, a.size() - 1);
    s.run(one, a, before);
    const uint64_t used = s.kv.blocks().used_bytes();
    s.backend.faults.collect = s.backend.calls.collect;
    s.kv.grow(one, 500);
    StepOutput out;
    const BatchItem item{&one.tables, one.length, std::span(a).subspan(before, 500 - before)};
    const auto ticket = s.backend.submit({&item, 1});
    EXPECT_THROW(s.backend.collect(ticket, out), Error);
    s.kv.shrink(one);
    s.kv.cut(one);
    EXPECT_EQ(s.kv.blocks().used_bytes(), used);
    EXPECT_EQ(s.run(one, a, 600), s.expected(a, 600));
    EXPECT_TRUE(s.backend.violations.empty()) << s.backend.violations[0];
    s.kv.clear(one);
  }
}

TEST(KvStore, ACopyThatFailsLeavesNothingBehind) {
  Store s(FakeBackend::full(), 60 * 1000);
  const std::vector<int32_t> a = counted(200);
  SequenceKv one, two;
  s.kv.attach(one, "", a, a.size() - 1);
  s.run(one, a, 200);
  s.backend.faults.copy = 0;
  EXPECT_THROW(s.kv.fork(one, two), Error);
  EXPECT_TRUE(two.empty());
  s.kv.end(one, a);
  s.backend.faults.copy = 1;
  EXPECT_THROW(s.kv.attach(two, "", a, a.size() - 1), Error);
  EXPECT_TRUE(two.empty());
  EXPECT_EQ(s.kv.blocks().used_bytes(), s.kv.blocks().evictable_bytes());
  s.kv.attach(two, "", a, a.size() - 1);
  EXPECT_EQ(two.length, 199u);
  EXPECT_EQ(s.run(two, a, 200), s.expected(a, 200));
  s.kv.clear(two);
}

// One long step leaves nine numbers of states behind; a sequence that needs more full blocks then
// outgrows the budget by numbers alone, and memory of states goes back.
TEST(KvStore, NumbersThatOutgrewTheBudgetAreGivenBack) {
  Store s({{"full", 100, SIZE_MAX, true}, {"state", 100, 1, false}}, 2000);
  const std::vector<int32_t> a = counted(128 * 9), b = counted(128 * 17, 3);
  SequenceKv one, two;
  s.kv.attach(one, "", a, 0);
  s.run(one, a, 128 * 9);
  EXPECT_EQ(s.backend.blocks_seen(1), 9u);
  s.kv.tidy();
  EXPECT_EQ(s.backend.blocks_seen(1), 9u);  // within the budget
  s.kv.clear(one);
  s.kv.tree().clear();
  EXPECT_EQ(s.kv.blocks().number_bytes(), 1800u);
  s.kv.attach(two, "", b, 0);
  for (size_t n = 1; n <= 15; ++n) EXPECT_EQ(s.run(two, b, 128 * n), s.expected(b, 128 * n));
  EXPECT_GT(s.kv.blocks().number_bytes(), 2000u);
  s.kv.tree().clear();  // all states but the last
  s.kv.tidy();
  EXPECT_LT(s.backend.blocks_seen(1), 9u);
  EXPECT_LE(s.kv.blocks().number_bytes(), 2400u);
  EXPECT_EQ(s.run(two, b, 128 * 16 + 5), s.expected(b, 128 * 16 + 5));
  s.kv.clear(two);
  EXPECT_TRUE(s.backend.violations.empty()) << s.backend.violations[0];
}

TEST(KvStore, TheWholeBudgetCanBeCommitted) {
  Store s({{"full", 100, SIZE_MAX, true}, {"state", 100, 1, false}}, 2000);
  s.kv.commit(128 * 9);
  EXPECT_EQ(s.backend.committed, 16u + 3u);  // 9 to 2 of 2000 bytes
}

}  // namespace
}  // namespace moebius::kv_store_test
