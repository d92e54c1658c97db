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
  size_t dims = 0;  // rotated features of a head (even); the rest pass through
  double base = 10000.0;
  bool interleaved = false;  // pairs (2j, 2j+1) instead of (j, j + dims/2)
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  double original_length = 0;                        // positions of the unscaled model
  double beta_fast = 32, beta_slow = 1;              // YaRN
  bool truncate = true;                              // YaRN: whole correction range
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double attention_factor = 1.0;                     // multiplies cos and sin
  std::vector<double> short_factor, long_factor;     // longrope, [dims/2]
  double short_mscale = 0, long_mscale = 0;  // longrope of Phi-MoE: replaces attention_factor
  double context =
      0;  // longrope: long factors are used when the context may exceed original_length
};

// inv_freq_j for j in [0, dims/2).
std::vector<double> rope_frequencies(const RopeSpec& spec);

class Rope {
 public:
  explicit Rope(RopeSpec spec);
  size_t dims() const { return spec_.dims; }
  // Makes cos and sin for positions [0, n); call before rotate(), not concurrently with it.
  void reserve(size_t n);
  // Rotates the first `dims` features of one head's row in place; the result is rounded to `type`.
  void rotate(float* x, size_t position, XType type) const noexcept;

 private:
  RopeSpec spec_;
  std::vector<double> frequencies_;
  float factor_;
  std::vector<float> cos_, sin_;  // [positions, dims/2]
};

}  // namespace moebius
