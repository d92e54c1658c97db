// SPDX-License-Identifier: Apache-2.0
// THE SPECIFICATION of rounding weights to codes, the mirror of the decoders: scales from the range
// of a granule, codes from numbers and scale, codes into stored words. It gives the bytes of
// llmcompressor's round-to-nearest on a CPU: every scale, quotient and sum is rounded to the type
// of the source before the next operation reads it (docs/quantize.md). Readable scalar code; tests
// compare the row functions of kernels/ with it.
//
//   int b symmetric    s = amax / ((2^b - 1) / 2)                     q = rint(clamp(w / s))
//   int b asymmetric   s = (high - low) / (2^b - 1), z = qmin - low / s   q = rint(clamp(w / s + z))
//   fp8                s = amax / 448                                 q = e4m3(clamp(w / s))
//   nvfp4              s = e4m3(G * (amax / 6))                       q = e2m1(w / (s / G)), in f32
//   mxfp4, mxfp8       s = 2^e, e8m0                                  q = e2m1 or e4m3 (w / s)
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "quant/activation.h"
#include "quant/scheme.h"

namespace moebius {

// Returns x rounded to the nearest number of the type, ties to even.
float round_to(XType type, float x);

// Says how the granules of one weight matrix are rounded to codes. A granule is the set of weights
// that share a scale.
struct EncodeRules {
  enum class Scales : uint8_t { kPlain, kFp8, kExponent };
  NumberKind kind = NumberKind::kInt;
  int bits = 8;
  bool symmetric = true;
  Scales scales = Scales::kPlain;  // kFp8: below a global scale (NVFP4)
  XType type = XType::kBf16;       // type of the source weights
  bool one_rounding = false;  // true: quotients stay f32, and only scales are rounded to the type
  float global = 1.0f;        // global scale of NVFP4
};
// Returns the rules for weights that not_encodable() accepts; the caller sets `global`.
EncodeRules encode_rules(const QuantArgs& weights, XType type);
// Returns null if weights can be encoded, else one sentence that says why not.
const char* not_encodable(const QuantArgs& weights);

// The smallest and the largest weight of a granule, zero included. Not finite if a weight is
// infinite or NaN.
struct GranuleRange {
  float low = 0, high = 0;
  float amax() const { return -low > high ? -low : high; }
};
GranuleRange range_of(const float* w, size_t n);
GranuleRange joined(GranuleRange a, GranuleRange b);

struct GranuleScale {
  float scale = 1;     // scale as the product reads it, before the global scale
  int zero_point = 0;  // zero point of asymmetric integers
};
GranuleScale scale_of(const EncodeRules& rules, GranuleRange range);
// Computes the scales of n granules from their ranges.
void scales_of(const EncodeRules& rules, const float* low, const float* high, size_t n,
               GranuleScale* out);
// Returns a scale as the file stores it: bits of the type, an e4m3 byte or an exponent.
uint32_t stored_scale(const EncodeRules& rules, float scale);

// Returns the global scale for NVFP4 weights whose largest magnitude is amax.
float global_scale_of(XType type, float amax);

struct CodeLimits {
  float low, high;
};
CodeLimits code_limits(const EncodeRules& rules);
// Returns the number by which weights are divided before they are rounded to codes.
float effective_scale(const EncodeRules& rules, float scale);

// Encodes n weights of one granule into one byte per code: a signed integer, e4m3, or e2m1 in the
// low four bits.
void encode(const EncodeRules& rules, const GranuleScale& scale, const float* w, size_t n,
            uint8_t* codes);
// Returns the weight that a code represents.
float decode(const EncodeRules& rules, const GranuleScale& scale, uint8_t code);

// Writes n integer codes, each plus 2^(bits - 1), as a stream of bits into 32-bit words; code i is
// read from codes[i * step]. words: ceil(n * bits / 32).
void pack_words(const uint8_t* codes, size_t n, size_t step, int bits, uint32_t* words);
// Writes two e2m1 codes per byte, the first in the low four bits; n must be even.
void pack_nibbles(const uint8_t* codes, size_t n, uint8_t* bytes);

}  // namespace moebius
