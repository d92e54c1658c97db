// SPDX-License-Identifier: Apache-2.0
// One file of the output while it is made: units of the plan come in any order and from any thread,
// and are summed up while they are in memory, so that nothing is read again to know the file. What the
// journal says of a file that a stopped run began or finished is checked against its bytes here.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/folder_write.h"
#include "quantize/journal.h"
#include "quantize/output_plan.h"

namespace moebius {

class ShardFile {
 public:
  // begun: what a stopped run has left of this file; where its bytes are not as it says, the file
  // begins anew. Throws Error.
  ShardFile(const OutputPlan& plan, size_t number, const std::string& folder,
            const std::optional<BegunShard>& begun);

  size_t done() const { return done_; }  // the first units that are there already
  void put(size_t unit, const std::vector<std::vector<uint8_t>>& tensors);  // thread-safe
  BegunShard settle(size_t units);  // the first units are on the disk
  FinishedShard finish();           // all of them, and the file has its name

  // Whether the file of a stopped run has the bytes that it wrote.
  static bool is_whole(const OutputPlan& plan, size_t number, const std::string& folder,
                       const FinishedShard& finished);

 private:
  const OutputPlan& plan_;
  const OutputPlan::Shard& shard_;
  std::string path_;
  std::vector<uint64_t> sums_;  // of the units
  size_t done_ = 0;
  std::optional<OutputFile> file_;
};

}  // namespace moebius
