// SPDX-License-Identifier: Apache-2.0
// Rounding weights to codes (quant/encode.h): numbers worked out by hand from the rules, where types
// round twice, tie or run out of range. unit/quantize/quantize_golden_test.cpp compares whole
// folders with llmcompressor's.
#include "quant/encode.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/numeric.h"
#include "base/random.h"

namespace moebius::encode_test {
namespace {

QuantArgs integer(int bits, bool symmetric = true) {
  QuantArgs a;
  a.kind = NumberKind::kInt;
  a.bits = bits;
  a.symmetric = symmetric;
  a.strategy = Strategy::kGroup;
  a.group_size = 32;
  return a;
}

QuantArgs floating(int bits, Strategy strategy, int64_t group, const char* scales) {
  QuantArgs a;
  a.kind = NumberKind::kFloat;
  a.bits = bits;
  a.strategy = strategy;
  a.group_size = group;
  a.scale_dtype = scales;
  return a;
}
const QuantArgs kNvfp4 = floating(4, Strategy::kTensorGroup, 16, "float8_e4m3fn");
const QuantArgs kMxfp4 = floating(4, Strategy::kGroup, 32, "uint8");
const QuantArgs kMxfp8 = floating(8, Strategy::kGroup, 32, "uint8");
const QuantArgs kFp8 = floating(8, Strategy::kChannel, 0, "");

int code_of(const EncodeRules& r, const GranuleScale& s, float w) {
  uint8_t c = 0;
  encode(r, s, &w, 1, &c);
  return r.kind == NumberKind::kInt ? static_cast<int8_t>(c) : c;
}

TEST(Encode, SymmetricIntegersRoundScaleAndQuotientToTheType) {
  const EncodeRules r = encode_rules(integer(4), XType::kBf16);
  // 1 / 7.5 = 0.13333, in bf16 0.1337890625 (8 bits of mantissa: 0x3e09).
  const GranuleScale s = scale_of(r, {-1.0f, 0.5f});
  EXPECT_EQ(stored_scale(r, s.scale), 0x3e09u);
  EXPECT_EQ(s.zero_point, 0);
  EXPECT_EQ(code_of(r, s, -1.0f), -7);  // -7.4745 -> bf16 -7.46875
  // Two roundings: 1.5009 is 1.5 in bf16, which ties to 2; 2.498 is 2.5 there, which ties to 2.
  GranuleScale unit;
  unit.scale = 1.0f;
  EXPECT_EQ(code_of(r, {0x1.ffp-1f, 0}, 2.490234375f), 2);
  EXPECT_EQ(code_of(r, unit, 2.5f), 2);
  EXPECT_EQ(code_of(r, unit, 3.5f), 4);
  EXPECT_EQ(code_of(r, unit, 100.0f), 7);
  EXPECT_EQ(code_of(r, unit, -100.0f), -8);
  // One rounding keeps what lies above the tie: 2.5 / (1 - 2^-9) = 2.5049, and in bf16 2.5.
  EncodeRules once = r;
  once.one_rounding = true;
  EXPECT_EQ(code_of(r, {0x1.ffp-1f, 0}, 2.5f), 2);
  EXPECT_EQ(code_of(once, {0x1.ffp-1f, 0}, 2.5f), 3);
}

TEST(Encode, AGranuleOfZerosHasTheTypesEpsilonAsScale) {
  for (const auto& [type, eps] :
       {std::pair(XType::kBf16, 0x1p-7f), {XType::kF16, 0x1p-10f}, {XType::kF32, 0x1p-23f}}) {
    EXPECT_EQ(scale_of(encode_rules(integer(4), type), {}).scale, eps);
    EXPECT_EQ(scale_of(encode_rules(kFp8, type), {}).scale, eps);
    const GranuleScale z = scale_of(encode_rules(integer(4, false), type), {});
    EXPECT_EQ(z.scale, eps);
    EXPECT_EQ(z.zero_point, 0);
    EXPECT_EQ(code_of(encode_rules(integer(4, false), type), z, 0.0f), 0);
  }
  EncodeRules r = encode_rules(kNvfp4, XType::kBf16);
  r.global = 2688;
  EXPECT_EQ(scale_of(r, {}).scale, 0.125f);
}

TEST(Encode, AsymmetricIntegersKeepZero) {
  for (const XType type : {XType::kBf16, XType::kF16, XType::kF32}) {
    const EncodeRules r = encode_rules(integer(4, false), type);
    const GranuleScale only_above = scale_of(r, {0.0f, 3.0f});
    EXPECT_EQ(only_above.zero_point, -8);
    const GranuleScale only_below = scale_of(r, {-3.0f, 0.0f});
    EXPECT_EQ(only_below.zero_point, 7);
    for (const GranuleScale& s : {only_above, only_below, scale_of(r, {-0.3f, 1.7f})}) {
      uint8_t code = 0;
      const float zero = 0;
      encode(r, s, &zero, 1, &code);
      EXPECT_EQ(decode(r, s, code), 0.0f);
    }
  }
  // bf(3 / 15) = 0.2001953125; 3 / 0.2001953125 = 14.985, in bf16 15; 15 - 8 = 7.
  const EncodeRules r = encode_rules(integer(4, false), XType::kBf16);
  const GranuleScale s = scale_of(r, {0.0f, 3.0f});
  EXPECT_EQ(s.scale, 0.2001953125f);
  EXPECT_EQ(code_of(r, s, 3.0f), 7);
}

TEST(Encode, Fp8SaturatesAndTies) {
  const EncodeRules r = encode_rules(kFp8, XType::kBf16);
  const GranuleScale s = scale_of(r, {-448.0f, 2.0f});
  EXPECT_EQ(s.scale, 1.0f);
  EXPECT_EQ(code_of(r, s, 448.0f), 0x7e);
  EXPECT_EQ(code_of(r, s, -1000.0f), 0xfe);
  EXPECT_EQ(code_of(r, s, 17.0f), 0x58);  // between 16 and 18: even mantissa
  EXPECT_EQ(code_of(r, s, 19.0f), 0x5a);
  EXPECT_EQ(code_of(r, s, -0.0f), 0x00);
  EXPECT_EQ(code_of(r, s, -0x1p-12f), 0x80);  // rounds to 0, and keeps its sign
}

TEST(Encode, NvfpGlobalScaleIsAReciprocalAndAProduct) {
  // bf(1/0.259765625) = 3.84375, times 2688 = 10332, in bf16 10304; a division would give 10368.
  EXPECT_EQ(global_scale_of(XType::kBf16, 3.0f), 896.0f);
  EXPECT_EQ(global_scale_of(XType::kBf16, 0.259765625f), 10304.0f);
  EXPECT_EQ(global_scale_of(XType::kF32, 2.0f), 1344.0f);
  EXPECT_EQ(global_scale_of(XType::kBf16, 0.0f), 1.0f);  // would be infinite
  EXPECT_EQ(global_scale_of(XType::kF16, 0.03f), 1.0f);  // beyond 65504
}

TEST(Encode, Fp4KeepsTheSignOfWhatRoundsToZero) {
  EncodeRules r = encode_rules(kNvfp4, XType::kBf16);
  const GranuleScale s{1.0f, 0};
  EXPECT_EQ(code_of(r, s, 0.0f), 0);
  EXPECT_EQ(code_of(r, s, -0.0f), 0);
  EXPECT_EQ(code_of(r, s, -0.1f), 8);
  const std::vector<std::pair<float, int>> steps = {
      {0.25f, 0}, {0.26f, 1}, {0.74f, 1}, {0.75f, 2}, {1.25f, 2}, {1.26f, 3}, {1.75f, 4},
      {2.5f, 4},  {2.51f, 5}, {3.5f, 6},  {5.0f, 6},  {5.01f, 7}, {90.0f, 7}};
  for (const auto& [x, code] : steps) {
    EXPECT_EQ(code_of(r, s, x), code) << x;
    EXPECT_EQ(code_of(r, s, -x), code + 8) << x;
  }
  r.global = 4.0f;  // codes are of w / (s / G)
  EXPECT_EQ(code_of(r, {8.0f, 0}, 2.0f), 2);
}

TEST(Encode, MxExponentsRoundUpFromSevenQuarters) {
  for (const XType type : {XType::kBf16, XType::kF32}) {
    const EncodeRules four = encode_rules(kMxfp4, type), eight = encode_rules(kMxfp8, type);
    const auto byte = [](const EncodeRules& r, float amax) {
      return stored_scale(r, scale_of(r, {-amax, 0.0f}).scale);
    };
    EXPECT_EQ(byte(four, 1.0f), 125u);
    EXPECT_EQ(byte(four, 1.734375f), 125u);
    EXPECT_EQ(byte(four, 1.75f), 126u);
    EXPECT_EQ(byte(eight, 1.0f), 119u);
    EXPECT_EQ(byte(eight, 1.9921875f), 120u);
    EXPECT_EQ(byte(four, 0.0f), 0u);
    EXPECT_EQ(byte(four, 0x1p-126f), 0u);
  }
  // f16 has no 2^-127: a granule of zeros gets the scale 1.
  const EncodeRules half = encode_rules(kMxfp4, XType::kF16);
  EXPECT_EQ(stored_scale(half, scale_of(half, {}).scale), 127u);
  EXPECT_EQ(stored_scale(half, scale_of(half, {0, 0.01f}).scale), 118u);  // 2^-7 - 2
}

TEST(Encode, RangesSayWhatIsNotFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = INFINITY;
  for (const float bad : {nan, inf, -inf}) {
    const std::vector<float> w = {1.0f, bad, -2.0f};
    const GranuleRange r = range_of(w.data(), w.size());
    EXPECT_FALSE(std::isfinite(r.low) && std::isfinite(r.high));
    EXPECT_FALSE(std::isfinite(joined({-1, 1}, r).high));
    EXPECT_FALSE(std::isfinite(joined(r, {-1, 1}).high));
  }
  const std::vector<float> w = {3.0f, 5.0f};
  EXPECT_EQ(range_of(w.data(), 2).low, 0.0f);
  EXPECT_EQ(range_of(w.data(), 2).amax(), 5.0f);
}

TEST(Encode, WordsHoldAStreamOfBits) {
  SplitMix64 random(1);
  for (int bits = 2; bits <= 8; ++bits)
    for (const size_t n : {1u, 7u, 32u, 45u}) {
      std::vector<uint8_t> codes(n * 3);
      for (uint8_t& c : codes)
        c = static_cast<uint8_t>(static_cast<int>(random.below(1u << bits)) - (1 << (bits - 1)));
      std::vector<uint32_t> words((n * static_cast<size_t>(bits) + 31) / 32 + 1, 0xabababab);
      pack_words(codes.data(), n, 3, bits, words.data());
      EXPECT_EQ(words.back(), 0xabababab);
      for (size_t i = 0; i < n; ++i) {
        uint32_t code = 0;
        for (size_t b = 0; b < static_cast<size_t>(bits); ++b) {
          const size_t at = i * static_cast<size_t>(bits) + b;
          code |= ((words[at / 32] >> (at % 32)) & 1u) << b;
        }
        EXPECT_EQ(static_cast<int>(code) - (1 << (bits - 1)), static_cast<int8_t>(codes[i * 3]));
      }
    }
  const std::vector<uint8_t> nibbles = {1, 0xf, 8, 7};
  uint8_t bytes[2];
  pack_nibbles(nibbles.data(), 4, bytes);
  EXPECT_EQ(bytes[0], 0xf1);
  EXPECT_EQ(bytes[1], 0x78);
}

}  // namespace
}  // namespace moebius::encode_test
