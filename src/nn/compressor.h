// SPDX-License-Identifier: Apache-2.0
// Compressed keys (DeepSeek-V4): one key stands for a window of m tokens. Of each token come values c and
// gates g (both projections of its row), and the key of window w is, feature by feature,
//
//   k = norm(sum over slots s, ascending, of  p_s c_s),   p = softmax over slots of (g_s + bias_s),
//
// rotated for position m w. Slots are the tokens of the window. With overlap a token has two values and
// two gates [a | b]: slots are a of the window before, then b of the window; the first window has b alone.
// Probabilities, the sum, the norm and the rotation are each rounded to the type of activations.
//
// A key is a function of at most 2 m rows: these are kept in blocks of their own (as a window of keys is),
// so that a sequence goes on wherever it was cut.
#pragma once
#include <cstddef>
#include <vector>

#include "nn/kv_layout.h"
#include "nn/norm.h"
#include "nn/rope.h"

namespace moebius {

struct CompressorSpec {
  size_t width = 0, ratio = 0;  // of a key; m, a divisor of 128
  bool overlaps = false;

  size_t parts() const { return overlaps ? 2 : 1; }
  size_t source_width() const { return 2 * parts() * width; }  // values, then gates of a token
  size_t reach() const { return parts() * ratio; }             // tokens that make a key
  size_t block_keys() const { return kKeyBlock / ratio; }
};

class Compressor {
 public:
  // bias: [ratio, parts * width]. Throws Error for sizes that do not fit.
  Compressor(const CompressorSpec& spec, std::vector<float> bias, Norm norm, XType type);
  const CompressorSpec& spec() const { return spec_; }
  // rows: [reach] sources, the oldest token first; with overlap the first half is null in window 0.
  // The key is not rotated. scratch: scratch_floats().
  void make(const float* const* rows, float* key, float* scratch) const noexcept;
  size_t scratch_floats() const { return (spec_.reach() + 2) * spec_.width; }

 private:
  CompressorSpec spec_;
  std::vector<float> bias_;
  Norm norm_;
  XType type_;
};

}  // namespace moebius
