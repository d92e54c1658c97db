// SPDX-License-Identifier: Apache-2.0
// Predicts the time of a step, and so decides how many prompt tokens it may run. The time of rows
// is measured at a few row counts and interpolated linearly; attention costs time per key and row,
// logits per row of them. A running mean of measured over predicted time corrects the sum; a second
// one corrects steps in which prompts run beside decoding, because rows of prompts use other
// experts than decoding sequences share. Predictions change the speed only: rows do not depend on
// how prompts are cut.
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
  size_t outputs = 0;   // number of rows whose logits are computed
  uint64_t keys = 0;    // number of keys that attention reads, summed over rows
  size_t decoding = 0;  // number of sequences that run one row
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
  double predict(const StepShape& shape) const;  // returns the predicted nanoseconds of a step
  // Learns from a step that took `nanoseconds`; its phases give the shares of attention and logits.
  void observe(const StepShape& shape, uint64_t nanoseconds, const Profile& phases);
  // Learns from a calibration step, whose time replaces what was known instead of entering the
  // mean.
  void measure(const StepShape& shape, uint64_t nanoseconds, const Profile& phases);
  double correction() const { return correction_; }

 private:
  struct Curve {
    std::vector<std::pair<size_t, double>> points;  // measured times: (rows, nanoseconds), by rows
    double at(size_t rows) const;
    bool has_near(size_t rows) const;
    void set(size_t rows, double ns);
  };
  void learn(const StepShape& shape, uint64_t nanoseconds, const Profile& phases, bool replace);
  Curve rows_, outputs_;
  double per_key_ = 0, correction_ = 1;
  // Running mean of measured over predicted time of mixed steps, in units of correction_.
  double mixed_ = 1;
};

// A prompt that has tokens to run. Lists of prompts are in order of arrival.
struct PromptInLine {
  size_t position = 0;
  size_t left = 0;
  size_t most = SIZE_MAX;  // most tokens in one step
};

struct PlanLimits {
  // Limit for the time of a step with prompt tokens, as a multiple of the step without them.
  double stretch = 3;
  double max_step = 1e9;         // limit for the time of a step with prompt tokens, in nanoseconds
  size_t least = 8, most = 512;  // bounds of the prompt tokens of a step
};

// Returns for each prompt how many tokens the next step runs beside `decode`: the most for which
// the step is predicted to stay within the limits.
std::vector<size_t> plan_prompts(const StepCost& cost, const StepShape& decode,
                                 std::span<const PromptInLine> prompts, const PlanLimits& limits);
// Divides `total` tokens: half to the oldest prompt, half to the one with the fewest left; what
// these do not need goes to the others by age.
std::vector<size_t> share_out(std::span<const PromptInLine> prompts, size_t total);

}  // namespace moebius
