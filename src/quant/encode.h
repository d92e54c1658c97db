// SPDX-License-Identifier: Apache-2.0
// THE SPECIFICATION of rounding weights to codes, the mirror of the decoders: scales from the range
// of a granule, codes from numbers and scale, codes into stored words. It gives the bytes of
// llmcompressor's round-to-nearest on a CPU: every scale, quotient and sum is rounded to the type of
// the source before the next operation reads it (docs/quantize.md). Readable scalar code; the row
// functions of kernels/ are judged against it.
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

float round_to(XType type, float x);  // the nearest number of a type, ties to even

// How granules of one weight matrix become codes.
struct EncodeRules {
  enum class Scales : uint8_t { kPlain, kFp8, kExponent };
  NumberKind kind = NumberKind::kInt;
  int bits = 8;
  bool symmetric = true;
  Scales scales = Scales::kPlain;  // kFp8: under a global scale (NVFP4)
  XType type = XType::kBf16;       // of the source
  bool one_rounding = false;       // quotients stay f32: only scales are rounded to the type
  float global = 1.0f;             // NVFP4
};
// Of weights that not_encodable() has nothing against; `global` is left to the caller.
EncodeRules encode_rules(const QuantArgs& weights, XType type);
// Nothing where weights can be encoded, else one sentence.
const char* not_encodable(const QuantArgs& weights);

// Zero is always inside. Infinity or NaN in w: not finite.
struct GranuleRange {
  float low = 0, high = 0;
  float amax() const { return -low > high ? -low : high; }
};
GranuleRange range_of(const float* w, size_t n);
GranuleRange joined(GranuleRange a, GranuleRange b);

struct GranuleScale {
  float scale = 1;     // as the product reads it, before the global scale
  int zero_point = 0;  // asymmetric integers
};
GranuleScale scale_of(const EncodeRules& rules, GranuleRange range);
// The same of many granules.
void scales_of(const EncodeRules& rules, const float* low, const float* high, size_t n,
               GranuleScale* out);
// As the file stores it: bits of the type, an e4m3 byte or an exponent.
uint32_t stored_scale(const EncodeRules& rules, float scale);

// The global scale of NVFP4 weights whose largest magnitude is amax.
float global_scale_of(XType type, float amax);

struct CodeLimits {
  float low, high;
};
CodeLimits code_limits(const EncodeRules& rules);
// What numbers are divided by.
float effective_scale(const EncodeRules& rules, float scale);

// One byte per code: a signed integer, e4m3, or e2m1 in the low four bits.
void encode(const EncodeRules& rules, const GranuleScale& scale, const float* w, size_t n,
            uint8_t* codes);
// What a code stands for.
float decode(const EncodeRules& rules, const GranuleScale& scale, uint8_t code);

// Integer codes of `bits` bits plus 2^(bits - 1) as one stream of bits in 32-bit words; code i stands
// at codes[i * step]. words: ceil(n * bits / 32).
void pack_words(const uint8_t* codes, size_t n, size_t step, int bits, uint32_t* words);
// Two e2m1 codes per byte, the first in the low four bits; n even.
void pack_nibbles(const uint8_t* codes, size_t n, uint8_t* bytes);

}  // namespace moebius
