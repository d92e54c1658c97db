// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding: frequencies with their published scalings, and the rotation of q and k
// rows.
#pragma once
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/kernel.h"

namespace moebius {

enum class RopeScaling : uint8_t { kNone, kLinear, kDynamic, kYarn, kLlama3, kLongRope };

struct RopeSpec {
  size_t dims = 0;   // rotated features of a head (even); the rest pass through
  size_t still = 0;  // of the dims / 2 pairs so many, the last ones, do not turn
  double base = 10000.0;
  bool interleaved = false;  // pairs (2j, 2j+1) instead of (j, j + dims/2)
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  double original_length = 0;                        // positions of the unscaled model
  double beta_fast = 32, beta_slow = 1;              // YaRN
  bool truncate = true;                              // YaRN: whole correction range
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double attention_factor = 1.0;                     // multiplies cos and sin
  std::vector<double> factors;                       // of the frequencies, [dims/2]; empty: none
  std::vector<double> short_factor, long_factor;     // longrope, [dims/2]
  double short_mscale = 0, long_mscale = 0;  // longrope of Phi-MoE: replaces attention_factor
};

// inv_freq_j for j in [0, dims/2) in a sequence of `length` tokens: longrope takes its long factors
// beyond original_length, dynamic scaling grows the base with the length.
std::vector<double> rope_frequencies(const RopeSpec& spec, size_t length = 0);

class Rope {
 public:
  explicit Rope(RopeSpec spec);
  size_t dims() const { return spec_.dims; }
  // Makes cos and sin for positions [0, n); call before rotate(), not concurrently with it.
  void reserve(size_t n);
  // cos and sin of a token's pairs, [dims / 2] each; until the next call by this thread. May throw
  // std::bad_alloc where scaling is dynamic, as may the rotations.
  struct Turn {
    const float *cos, *sin;
  };
  Turn turn(size_t position, size_t length) const;
  // Rotates the first `dims` features of one head's row in place, for a token at `position` of a
  // sequence that is `length` long; the result is rounded to `type`.
  void rotate(float* x, size_t position, size_t length, XType type) const;
  void rotate_back(float* x, size_t position, size_t length, XType type) const;

 private:
  struct Table {
    std::vector<double> frequencies;
    float factor = 1;
    std::vector<float> cos, sin;  // [positions, dims/2]
  };
  Table make_table(size_t length) const;
  void fill(Table& table, size_t n) const;
  bool beyond(size_t length) const;
  RopeSpec spec_;
  uint64_t id_;         // of the spec in this process; copies share it
  Table table_, long_;  // long_: sequences beyond original_length (longrope)
};

}  // namespace moebius
