// SPDX-License-Identifier: Apache-2.0
// Sends short answers of ranks to rank 0 beside the steps, without waiting.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/comm.h"

namespace moebius {

class RankReports {
 public:
  explicit RankReports(Comm& world) : world_(world) {}
  // Sends numbers to rank 0, which must expect as many.
  void send(std::vector<uint64_t> numbers);
  // For rank 0: says what these ranks will send, counts[i] numbers from ranks[i].
  void expect(std::span<const size_t> ranks, std::span<const size_t> counts);
  bool here();    // returns true when all expected numbers have arrived; does not wait
  void finish();  // waits for messages under way
  const std::vector<std::vector<uint64_t>>& numbers() const { return received_; }

 private:
  Comm& world_;
  std::vector<uint64_t> sent_;
  CommRequest sending_;
  std::vector<std::vector<uint64_t>> received_;
  std::vector<CommRequest> receiving_;
};

}  // namespace moebius
