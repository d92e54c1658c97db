// SPDX-License-Identifier: Apache-2.0
// Drafts: tokens that may come next. They run as rows of the step behind the last token, and each
// row's logits are those it would have alone, so that a draft changes how many tokens a step brings
// and nothing else.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/step_cost.h"

namespace moebius {

inline constexpr size_t kMostDrafts = 16;  // of a sequence and step
// Of those that a backend makes: each is made of the one before.
inline constexpr size_t kMostBackendDrafts = 4;

// Where the last three tokens of a text, or its last two, came before: what followed there.
class PromptLookup {
 public:
  // Takes in what is new of a text that only grows. 8 to 16 bytes per token.
  void extend(std::span<const int32_t> text);
  // Position of what followed the latest run equal to the end of `tail`; nowhere: text.size(). `text`
  // is what extend() has seen.
  size_t find(std::span<const int32_t> text, std::span<const int32_t> tail) const;

 private:
  struct Table {
    size_t tokens;                // of a run
    std::vector<uint32_t> after;  // by hash of the run: position behind its latest one; 0: none
  };
  void add(Table& table, std::span<const int32_t> text, size_t end);
  std::array<Table, 2> tables_{Table{3, {}}, Table{2, {}}};
  size_t seen_ = 0;  // runs that end before this position are in the tables
};

// How often the drafts of one sequence were right, by their place.
class DraftRecord {
 public:
  static constexpr double kFound = 0.6, kForced = 0.9;  // chances before anything is known
  explicit DraftRecord(double chance = kFound);
  // Chance that the first `count` drafts are right.
  double chance(size_t count) const;
  // Of `count` drafts of a step the first `right` were.
  void observe(size_t count, size_t right);
  // A step had no draft though there was one. True: after so many, the next one runs whatever is
  // expected of it, and counts for much.
  bool pass();

 private:
  struct Mean {
    double right, seen;  // the latter bounded: what was long ago counts less
  };
  std::array<Mean, kMostDrafts> means_;
  size_t passed_ = 0;
};

struct DraftInLine {
  size_t position = 0;  // of the sequence's last token
  size_t found = 0;     // drafts that there are
  const DraftRecord* record = nullptr;
  bool due = false;  // one runs whatever is expected of it
  bool by_backend =
      false;  // they are made as they are asked for, the first of all sequences together
};

// How many drafts of each run beside `decode`: those with which the expected tokens per predicted time
// are most; none where they gain less than 3 %. `replay`: a wrong draft makes the sequence's rows
// run again (recurrent states cannot be cut). `pass`: nanoseconds that a backend takes for one of each.
std::vector<size_t> plan_drafts(const StepCost& cost, const StepShape& decode,
                                std::span<const DraftInLine> drafts, bool replay, double pass = 0);

}  // namespace moebius
