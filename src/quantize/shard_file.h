// SPDX-License-Identifier: Apache-2.0
// Writes one file of the output: units of the plan in any order and from any thread; they are added
// to a checksum while they are in memory, so that nothing is read again. What the journal of an
// interrupted run says about a file is verified against the file's bytes.
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
  // begun: what an interrupted run has left of this file; if its bytes differ, the file is begun
  // anew. Throws Error.
  ShardFile(const OutputPlan& plan, size_t number, const std::string& folder,
            const std::optional<BegunShard>& begun);

  size_t done() const {
    return done_;
  }  // number of units at the beginning that are already written
  // Writes the tensors of a unit; thread-safe.
  void put(size_t unit, const std::vector<std::vector<uint8_t>>& tensors);
  BegunShard settle(size_t units);  // waits until the first `units` units are on the disk
  FinishedShard finish();           // waits until all units are on the disk, and renames the file

  // Returns true if the file of an interrupted run has the bytes that were written.
  static bool is_whole(const OutputPlan& plan, size_t number, const std::string& folder,
                       const FinishedShard& finished);

 private:
  const OutputPlan& plan_;
  const OutputPlan::Shard& shard_;
  std::string path_;
  std::vector<uint64_t> sums_;  // checksum of each unit
  size_t done_ = 0;
  std::optional<OutputFile> file_;
};

}  // namespace moebius
