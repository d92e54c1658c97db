// SPDX-License-Identifier: Apache-2.0
// Compressed keys (DeepSeek-V4): one key stands for a window of m tokens. Of each token come values c and
// gates g (both projections of its row), and the key of window w is, feature by feature,
//
//   k = norm(sum over slots s, ascending, of  p_s c_s),   p = softmax over slots of (g_s + bias_s),
//
// rotated for position m w. Slots are the tokens of the window. With overlap a token has two values and
// two gates [a | b]: slots are a of the window before, then b of the window; the first window has b alone.
// Without gates p is 1 / m, and there is no bias; without weights there is no norm. An indexer of pooled keys
// (GLM-5.3, Qwen4) has keys of both kinds.
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
  bool gated = true;

  size_t parts() const { return overlaps ? 2 : 1; }
  // Values, then gates of a token.
  size_t source_width() const { return (gated ? 2 : 1) * parts() * width; }
  size_t reach() const { return parts() * ratio; }  // tokens that make a key
  size_t block_keys() const { return kKeyBlock / ratio; }
};

class Compressor {
 public:
  // bias: [ratio, parts * width]; without gates empty. Throws Error for sizes that do not fit.
  Compressor(const CompressorSpec& spec, std::vector<float> bias, Norm norm, XType type);
  const CompressorSpec& spec() const { return spec_; }
  // rows: [reach] sources, the oldest token first; with overlap the first half is null in window 0.
  // The key is not rotated. scratch: scratch_floats().
  void make(const float* const* rows, float* key, float* scratch) const noexcept;
  size_t scratch_floats() const { return (spec_.reach() + 2) * spec_.width; }

 private:
  void weigh(const float* const* rows, float* key, float* scratch) const noexcept;
  void average(const float* const* rows, float* key) const noexcept;
  CompressorSpec spec_;
  std::vector<float> bias_;
  Norm norm_;
  XType type_;
};

}  // namespace moebius
