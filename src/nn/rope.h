// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding: frequencies with their published scalings, and the rotation of rows of
// q and k.
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
  size_t dims = 0;   // rotated features of a head (even); the others pass through
  size_t still = 0;  // number of the last of the dims / 2 pairs that do not rotate
  double base = 10000.0;
  bool interleaved = false;  // true: pairs are (2j, 2j+1) instead of (j, j + dims/2)
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  double original_length = 0;                        // positions of the model before scaling
  double beta_fast = 32, beta_slow = 1;              // constants of YaRN
  bool truncate = true;                              // YaRN: the correction range has whole numbers
  double low_freq_factor = 1, high_freq_factor = 4;  // constants of llama3's scaling
  double attention_factor = 1.0;                     // multiplies cos and sin
  std::vector<double> factors;  // factors of the frequencies, [dims/2]; empty: none
  std::vector<double> short_factor, long_factor;  // [dims/2] factors of longrope
  // Used by Phi-MoE's longrope instead of attention_factor.
  double short_mscale = 0, long_mscale = 0;
};

// Returns inv_freq_j for j in [0, dims/2) in a sequence of `length` tokens: longrope uses its long
// factors beyond original_length, dynamic scaling increases the base with the length.
std::vector<double> rope_frequencies(const RopeSpec& spec, size_t length = 0);

class Rope {
 public:
  explicit Rope(RopeSpec spec);
  size_t dims() const { return spec_.dims; }
  // Computes the tables of cos and sin for positions [0, n). Call it before rotate(), and not while
  // other threads rotate.
  void reserve(size_t n);
  // The cos and sin of a token's pairs, [dims / 2] each, which turn() returns; valid until this
  // thread's next call. With dynamic scaling turn() may throw std::bad_alloc, as may the rotations.
  struct Turn {
    const float *cos, *sin;
  };
  Turn turn(size_t position, size_t length) const;
  // Rotate the first `dims` features of one head's row in place, for a token at `position` of a
  // sequence of `length` tokens, and round to `type`. rotate_back() undoes rotate(). Thread-safe.
  void rotate(float* x, size_t position, size_t length, XType type) const;
  void rotate_back(float* x, size_t position, size_t length, XType type) const;

 private:
  struct Table {
    std::vector<double> frequencies;
    float factor = 1;
    std::vector<float> cos, sin;  // [positions, dims/2] tables
  };
  Table make_table(size_t length) const;
  void fill(Table& table, size_t n) const;
  bool beyond(size_t length) const;
  RopeSpec spec_;
  uint64_t id_;         // identifies the spec in this process; copies share it
  Table table_, long_;  // long_: the table for sequences beyond original_length (longrope)
};

}  // namespace moebius
