// SPDX-License-Identifier: Apache-2.0
#include "model/ranks/rank_reports.h"

#include <utility>

namespace moebius {
namespace {

constexpr int kReportTag = 7;

}  // namespace

void RankReports::send(std::vector<uint64_t> numbers) {
  // Waits for the previous report, after which rank 0 has asked for this one.
  world_.wait(sending_, "a report to rank 0");
  sent_ = std::move(numbers);
  sending_ = world_.start_send(0, kReportTag, sent_.data(), sent_.size() * sizeof(uint64_t));
}

void RankReports::expect(std::span<const size_t> ranks, std::span<const size_t> counts) {
  receiving_.clear();
  received_.assign(ranks.size(), {});
  for (size_t i = 0; i < ranks.size(); ++i) {
    received_[i].resize(counts[i]);
    receiving_.push_back(world_.start_receive(static_cast<int>(ranks[i]), kReportTag,
                                              received_[i].data(), counts[i] * sizeof(uint64_t)));
  }
}

bool RankReports::here() {
  bool all = true;
  for (CommRequest& r : receiving_) all = world_.test(r) && all;
  return all;
}

void RankReports::finish() {
  for (CommRequest& r : receiving_) world_.wait(r, "reports of ranks");
  world_.wait(sending_, "a report to rank 0");
}

}  // namespace moebius
