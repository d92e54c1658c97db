// SPDX-License-Identifier: Apache-2.0
// Compressed keys (DeepSeek-V4): one key for each window of m tokens. Each token has values c and
// gates g (both projections of its row), and the key of window w is, feature by feature,
//
//   k = norm(sum over slots s, ascending, of  p_s c_s),   p = softmax over slots of (g_s + bias_s),
//
// rotated for position m w. Slots are the tokens of the window. With overlap a token has two values
// and two gates [a | b]: slots are a of the window before, then b of the window; the first window
// has b alone. Without gates p is 1 / m, and there is no bias; without weights there is no norm. An
// indexer of pooled keys (GLM-5.3, Qwen4) has keys of both kinds. Probabilities, the sum, the norm
// and the rotation are each rounded to the type of activations.
//
// A key is a function of at most 2 m rows: these are kept in blocks of their own (as a window of
// keys is), so that a sequence goes on wherever it was cut.
#pragma once
#include <cstddef>
#include <vector>

#include "nn/kv_layout.h"
#include "nn/norm.h"
#include "nn/rope.h"

namespace moebius {

struct CompressorSpec {
  size_t width = 0, ratio = 0;  // width: features of a key; ratio: m, a divisor of 128
  bool overlaps = false;
  bool gated = true;

  size_t parts() const { return overlaps ? 2 : 1; }
  // Returns the floats per token: values, then gates.
  size_t source_width() const { return (gated ? 2 : 1) * parts() * width; }
  size_t reach() const { return parts() * ratio; }  // number of tokens that a key depends on
  size_t block_keys() const { return kKeyBlock / ratio; }
};

class Compressor {
 public:
  // bias: [ratio, parts * width]; empty without gates. Throws Error for sizes that do not fit the
  // spec.
  Compressor(const CompressorSpec& spec, std::vector<float> bias, Norm norm, XType type);
  const CompressorSpec& spec() const { return spec_; }
  // Computes one key, without its rotation. rows: [reach] source rows, the oldest token first; with
  // overlap the first half is null in window 0. scratch: scratch_floats() floats. Thread-safe.
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
