// SPDX-License-Identifier: Apache-2.0
// How long a step will take, and how many prompt tokens it should therefore take along. The time of
// a step's rows is measured at a few numbers of rows and linear between; attention costs per key
// and row, logits by their rows; a running mean of measured over predicted corrects the sum, and
// another one the steps in which prompts run beside decoding: what decoding sequences share (the
// experts they read) prompts need not.
// Nothing of this changes what is computed: rows do not depend on the cut.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "model/backend.h"

namespace moebius {

struct StepShape {
  size_t rows = 0;
  size_t outputs = 0;   // rows of logits
  uint64_t keys = 0;    // that attention reads, summed over rows
  size_t decoding = 0;  // sequences of one row
  bool mixed() const { return decoding > 0 && rows > decoding; }
  void add(size_t position, size_t tokens, size_t logits) {
    rows += tokens;
    decoding += tokens == 1 ? 1 : 0;
    outputs += logits;
    keys += static_cast<uint64_t>(tokens) * position + static_cast<uint64_t>(tokens) * tokens / 2;
  }
};

class StepCost {
 public:
  bool known() const { return !rows_.points.empty(); }
  double predict(const StepShape& shape) const;  // nanoseconds
  // A step took so long; its phases say what attention and logits had of it.
  void observe(const StepShape& shape, uint64_t nanoseconds, const Profile& phases);
  // The same for a step at the start: its time is taken as it is.
  void measure(const StepShape& shape, uint64_t nanoseconds, const Profile& phases);
  double correction() const { return correction_; }

 private:
  struct Curve {
    std::vector<std::pair<size_t, double>> points;  // by rows
    double at(size_t rows) const;
    bool has_near(size_t rows) const;
    void set(size_t rows, double ns);
  };
  void learn(const StepShape& shape, uint64_t nanoseconds, const Profile& phases, bool replace);
  Curve rows_, outputs_;
  double per_key_ = 0, correction_ = 1;
  double mixed_ = 1;  // of mixed steps, times the correction
};

// A prompt that has tokens to run, in order of arrival.
struct PromptInLine {
  size_t position = 0;
  size_t left = 0;
  size_t most = SIZE_MAX;  // tokens of one step
};

struct PlanLimits {
  double stretch = 3;            // of a step with prompt tokens, times the step without them
  double max_step = 1e9;         // nanoseconds
  size_t least = 8, most = 512;  // prompt tokens of a step
};

// Tokens of every prompt that the next step runs: the most whose step is predicted to stay within
// the limits beside what decodes.
std::vector<size_t> plan_prompts(const StepCost& cost, const StepShape& decode,
                                 std::span<const PromptInLine> prompts, const PlanLimits& limits);
// `total` tokens: half to the oldest prompt, half to the one with the least left, what these do not
// need to the others by age.
std::vector<size_t> share_out(std::span<const PromptInLine> prompts, size_t total);

}  // namespace moebius
