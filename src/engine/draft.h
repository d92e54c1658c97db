// SPDX-License-Identifier: Apache-2.0
// Drafts (speculative decoding): tokens that may come next. They run as rows of the step after the
// last token, and each row gets the logits that it would get alone, so that drafts change how many
// tokens a step produces and nothing else.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/step_cost.h"

namespace moebius {

inline constexpr size_t kMostDrafts = 16;  // most drafts of one sequence in one step
// Most drafts of a sequence and step that a backend makes; it computes each from the one before.
inline constexpr size_t kMostBackendDrafts = 4;

// Finds the latest earlier place where the last three tokens of a text, or its last two, occurred:
// the tokens that followed there are the drafts.
class PromptLookup {
 public:
  // Adds the new tokens of a text that only grows to the tables; 8 to 16 bytes of memory per token.
  void extend(std::span<const int32_t> text);
  // Returns the position after the latest run of tokens in `text` that equals the end of `tail`, or
  // text.size() if there is none. `text` must be what extend() has seen.
  size_t find(std::span<const int32_t> text, std::span<const int32_t> tail) const;

 private:
  struct Table {
    size_t tokens;  // length of the runs of tokens in this table
    // Table by the hash of a run: position after its latest occurrence; 0: none.
    std::vector<uint32_t> after;
  };
  void add(Table& table, std::span<const int32_t> text, size_t end);
  std::array<Table, 2> tables_{Table{3, {}}, Table{2, {}}};
  size_t seen_ = 0;  // runs that end before this position are in the tables
};

// Counts how often the drafts of one sequence were right, by their place after the last token.
class DraftRecord {
 public:
  // Chances of being right that are assumed before any draft was observed: for drafts found in
  // text, and for tokens that a constraint forces.
  static constexpr double kFound = 0.6, kForced = 0.9;
  explicit DraftRecord(double chance = kFound);
  // Returns the chance that the first `count` drafts are all right.
  double chance(size_t count) const;
  // Records that of `count` drafts of a step the first `right` were right.
  void observe(size_t count, size_t right);
  // Records that a step ran no draft although one was found. Returns true after several such steps
  // in a row: the next draft shall then run whatever is expected of it, and counts for more, so
  // that the record is refreshed.
  bool pass();

 private:
  struct Mean {
    double right, seen;  // counts; `seen` is bounded, so that older observations fade
  };
  std::array<Mean, kMostDrafts> means_;
  size_t passed_ = 0;
};

struct DraftInLine {
  size_t position = 0;  // position of the sequence's last token
  size_t found = 0;     // number of drafts that were found
  const DraftRecord* record = nullptr;
  bool due = false;  // true: one draft runs whatever is expected of it
  // true: the backend makes the drafts in the step, the first of all sequences together.
  bool by_backend = false;
};

// Returns how many drafts of each sequence to run beside `decode`: the numbers with the most
// expected tokens per predicted time; none if they gain less than 3 %. `replay`: a wrong draft
// makes the sequence's rows run again, because recurrent states cannot be cut. `pass`: nanoseconds
// in which the backend makes one draft for each sequence.
std::vector<size_t> plan_drafts(const StepCost& cost, const StepShape& decode,
                                std::span<const DraftInLine> drafts, bool replay, double pass = 0);

}  // namespace moebius
