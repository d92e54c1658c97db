// SPDX-License-Identifier: Apache-2.0
// Short answers of ranks to rank 0 beside the steps: nobody waits for them.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/comm.h"

namespace moebius {

class RankReports {
 public:
  explicit RankReports(Comm& world) : world_(world) {}
  // To rank 0, which expects as many numbers.
  void send(std::vector<uint64_t> numbers);
  // At rank 0: what these ranks will send, counts[i] numbers of ranks[i].
  void expect(std::span<const size_t> ranks, std::span<const size_t> counts);
  bool here();    // all that are expected
  void finish();  // waits for what is under way
  const std::vector<std::vector<uint64_t>>& numbers() const { return received_; }

 private:
  Comm& world_;
  std::vector<uint64_t> sent_;
  CommRequest sending_;
  std::vector<std::vector<uint64_t>> received_;
  std::vector<CommRequest> receiving_;
};

}  // namespace moebius
