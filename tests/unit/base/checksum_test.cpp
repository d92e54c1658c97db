// SPDX-License-Identifier: Apache-2.0
// The checksum of files of our own: what it must tell apart, and that it stays what files hold.
#include "base/checksum.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <vector>

namespace moebius::checksum_test {
namespace {

std::vector<uint8_t> counted(size_t n) {
  std::vector<uint8_t> bytes(n);
  std::iota(bytes.begin(), bytes.end(), uint8_t{0});
  return bytes;
}

// Another answer is another format: raise the versions of kv_file, pack_file and the journal.
TEST(Checksum, KnownAnswers) {
  EXPECT_EQ(checksum({}), 0xfeac370bd61a2a8au);
  EXPECT_EQ(checksum(counted(75)), 0xdf90c010ab420afdu);
  Checksum sum;
  sum.add(counted(75));
  EXPECT_EQ(sum.hex(), "df90c010ab420afd");
}

TEST(Checksum, EveryBitAndLengthCounts) {
  std::vector<uint8_t> bytes(75);
  std::set<uint64_t> sums;
  for (size_t n = 0; n <= bytes.size(); ++n) sums.insert(checksum(std::span(bytes).first(n)));
  EXPECT_EQ(sums.size(), bytes.size() + 1);
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] = static_cast<uint8_t>(1u << (bit % 8));
    sums.insert(checksum(bytes));
    bytes[bit / 8] = 0;
  }
  EXPECT_EQ(sums.size(), bytes.size() + 1 + 8 * bytes.size());
}

TEST(Checksum, EveryCutGivesTheSameSum) {
  const std::vector<uint8_t> bytes = counted(101);
  const uint64_t whole = checksum(bytes);
  for (size_t first = 0; first <= bytes.size(); ++first)
    for (const size_t step : {size_t{1}, size_t{7}, size_t{32}, size_t{33}, bytes.size()}) {
      Checksum sum;
      sum.add(std::span(bytes).first(first));
      for (size_t at = first; at < bytes.size(); at += step)
        sum.add(std::span(bytes).subspan(at, std::min(step, bytes.size() - at)));
      EXPECT_EQ(sum.value(), whole) << first << " then by " << step;
    }
}

// Top bits of two and of three 32-bit numbers within two blocks: signs of weights that are turned.
TEST(Checksum, TurnedSignsDoNotUndoEachOther) {
  std::vector<uint8_t> bytes = counted(64);
  std::set<uint64_t> sums;
  size_t changes = 0;
  for (size_t i = 3; i < bytes.size(); i += 4)
    for (size_t j = i + 4; j < bytes.size(); j += 4)
      for (size_t k = j; k < bytes.size(); k += 4) {
        std::vector<uint8_t> other = bytes;
        for (const size_t at : {i, j}) other[at] ^= 0x80;
        if (k != j) other[k] ^= 0x80;
        sums.insert(checksum(other));
        ++changes;
      }
  EXPECT_EQ(sums.size(), changes);
  EXPECT_FALSE(sums.contains(checksum(bytes)));
}

}  // namespace
}  // namespace moebius::checksum_test
