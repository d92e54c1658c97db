// SPDX-License-Identifier: Apache-2.0
// Where drafts come from and how many run; that they change no answer is in engine_random_test.cpp.
#include <gtest/gtest.h>

#include "base/random.h"
#include "engine/draft.h"

namespace moebius::draft_test {
namespace {

// The definition: the latest run of three, then of two, with something behind it.
size_t find_slowly(std::span<const int32_t> text, std::span<const int32_t> tail) {
  for (const size_t n : {3u, 2u}) {
    if (tail.size() < n) continue;
    const auto run = tail.last(n);
    for (size_t end = text.size() - std::min<size_t>(text.size(), 1); end >= n; --end)
      if (std::equal(run.begin(), run.end(), text.begin() + static_cast<std::ptrdiff_t>(end - n)))
        return end;
  }
  return text.size();
}

TEST(Draft, LookupFindsTheLatestRun) {
  SplitMix64 random(1);
  size_t found = 0, missed = 0;
  for (int round = 0; round < 20; ++round) {
    std::vector<int32_t> text;
    PromptLookup lookup;
    for (int i = 0; i < 400; ++i) {
      const size_t more = 1 + random.below(i == 0 ? 300 : 3);
      for (size_t k = 0; k < more; ++k) text.push_back(static_cast<int32_t>(random.below(12)));
      lookup.extend(text);
      const size_t got = lookup.find(text, text), expected = find_slowly(text, text);
      // Slots of the table are shared: a run can be forgotten, what is found is always equal.
      if (got == text.size() && expected != got) {
        ++missed;
        continue;
      }
      ASSERT_TRUE(got == text.size() ||
                  std::equal(text.end() - 2, text.end(),
                             text.begin() + static_cast<std::ptrdiff_t>(got - 2)));
      found += got == expected ? 1 : 0;
    }
  }
  EXPECT_GT(found, 6000u);
  EXPECT_LT(missed, 1000u);
}

TEST(Draft, ATextWithoutRunsHasNone) {
  PromptLookup lookup;
  std::vector<int32_t> text;
  for (int32_t i = 0; i < 500; ++i) text.push_back(i);
  lookup.extend(text);
  EXPECT_EQ(lookup.find(text, text), text.size());
  EXPECT_EQ(lookup.find(text, std::vector<int32_t>{7}), text.size());
  EXPECT_EQ(lookup.find(text, std::vector<int32_t>{7, 8}), 9u);
  EXPECT_EQ(lookup.find({}, text), 0u);
}

// A step of n rows costs one unit and `row` for each after the first.
StepCost cost_of(double row) {
  StepCost cost;
  for (const size_t rows : {1u, 2u, 8u, 32u, 64u}) {
    StepShape shape;
    for (size_t i = 0; i < rows; ++i) shape.add(0, 1, 1);
    cost.measure(shape, static_cast<uint64_t>(1e6 * (1 + row * static_cast<double>(rows - 1))), {});
  }
  return cost;
}
StepShape decoding(size_t sequences) {
  StepShape s;
  for (size_t i = 0; i < sequences; ++i) s.add(100, 1, 1);
  return s;
}

TEST(Draft, RowsRunWhileTheyPay) {
  DraftRecord good, bad;
  for (int i = 0; i < 64; ++i) good.observe(8, 8), bad.observe(8, 0);
  const DraftInLine lines[] = {{100, 8, &good}, {100, 8, &bad}};
  EXPECT_EQ(plan_drafts(cost_of(0.05), decoding(2), lines, false), (std::vector<size_t>{8, 0}));
  EXPECT_EQ(plan_drafts(cost_of(1.0), decoding(2), lines, false), (std::vector<size_t>{0, 0}));
  EXPECT_EQ(plan_drafts(StepCost(), decoding(2), lines, false), (std::vector<size_t>{0, 0}));
  // The first row is right three times of four, the second once of three: that does not pay.
  DraftRecord half;
  for (size_t i = 0; i < 400; ++i) half.observe(8, i % 4 == 0 ? 8 : i % 2);
  const DraftInLine one[] = {{100, 8, &half}};
  const size_t some = plan_drafts(cost_of(0.3), decoding(1), one, false)[0];
  EXPECT_EQ(some, 1u);
  // Where a wrong draft means to run again, it pays less.
  EXPECT_LE(plan_drafts(cost_of(0.3), decoding(1), one, true)[0], some);
}

TEST(Draft, AWrongDrafterIsTriedAgainSeldom) {
  DraftRecord record;
  size_t tried = 0;
  bool due = false;
  const StepCost cost = cost_of(0.4);
  for (int step = 0; step < 6400; ++step) {
    const DraftInLine line[] = {{100, 8, &record, due}};
    const size_t n = plan_drafts(cost, decoding(1), line, false)[0];
    due = n == 0 && record.pass();
    if (n == 0) continue;
    tried += n;
    record.observe(n, 0);
  }
  EXPECT_GT(tried, 50u);
  EXPECT_LT(tried, 130u);  // 2 % of the steps
  // One that has become right is believed after some tries.
  size_t rows = 0;
  for (int step = 0; step < 640; ++step) {
    const DraftInLine line[] = {{100, 8, &record, due}};
    const size_t n = plan_drafts(cost, decoding(1), line, false)[0];
    due = n == 0 && record.pass();
    if (n > 0) record.observe(n, n);
    rows += n;
  }
  EXPECT_GT(rows, 2000u);
}

}  // namespace
}  // namespace moebius::draft_test
