// SPDX-License-Identifier: Apache-2.0
// Rounding weights to codes on every instruction set that runs here: the bytes of quant/encode.cpp.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/numeric.h"
#include "base/random.h"
#include "kernels/list.h"
#include "kernels/row_functions.h"
#include "quant/encode.h"

namespace moebius::encode_rows_test {
namespace {

constexpr XType kTypes[] = {XType::kF32, XType::kBf16, XType::kF16};

std::vector<const RowFunctions*> runnable_tables() {
  std::vector<const RowFunctions*> found;
  for (const RowFunctions* f : row_function_list())
    if (missing_features(detect_cpu(), f->arch, f->needs).empty()) found.push_back(f);
  return found;
}

// Numbers of a type, as it stores them and as f32.
struct TypedRow {
  std::vector<uint8_t> stored;
  std::vector<float> values;
};
TypedRow typed_row(XType type, size_t n, SplitMix64& random, bool tiny) {
  TypedRow r;
  for (size_t i = 0; i < n; ++i) {
    float v = static_cast<float>(random.uniform() * 2 - 1);
    if (random.below(9) == 0) v = random.below(2) == 0 ? 0.0f : -0.0f;
    if (random.below(7) == 0) v *= 1e-3f;
    if (tiny) v *= type == XType::kF16 ? 1e-6f : 1e-38f;
    v = round_to(type, v);
    r.values.push_back(v);
    uint8_t bytes[4];
    const uint16_t half = type == XType::kBf16 ? f32_to_bf16(v) : f32_to_f16(v);
    std::memcpy(bytes, type == XType::kF32 ? static_cast<const void*>(&v) : &half,
                type == XType::kF32 ? 4 : 2);
    r.stored.insert(r.stored.end(), bytes, bytes + (type == XType::kF32 ? 4 : 2));
  }
  return r;
}

std::vector<QuantArgs> all_weights() {
  std::vector<QuantArgs> out;
  for (int bits = 2; bits <= 8; ++bits)
    for (const bool symmetric : {true, false}) {
      QuantArgs a;
      a.bits = bits, a.symmetric = symmetric;
      out.push_back(a);
    }
  for (const auto& [bits, group, scales, strategy] :
       {std::tuple(8, 0, "", Strategy::kChannel),
        {4, 16, "float8_e4m3fn", Strategy::kTensorGroup},
        {4, 32, "uint8", Strategy::kGroup},
        {8, 32, "uint8", Strategy::kGroup}}) {
    QuantArgs a;
    a.kind = NumberKind::kFloat;
    a.bits = bits, a.group_size = group, a.scale_dtype = scales, a.strategy = strategy;
    out.push_back(a);
  }
  return out;
}

TEST(EncodeRows, EveryTableGivesTheBytesOfTheReference) {
  for (const RowFunctions* f : runnable_tables()) {
    SplitMix64 random(5);
    for (const QuantArgs& args : all_weights())
      for (const XType type : kTypes)
        for (const size_t n : {1u, 16u, 31u, 64u, 200u})
          for (const size_t group : {16u, 24u, 128u})
            for (const bool tiny : {false, true})
              for (const bool once : {false, true}) {
                SCOPED_TRACE(std::string(f->name) + " " + describe(args) + " n " +
                             std::to_string(n));
                const TypedRow row = typed_row(type, n, random, tiny);
                EncodeRules rules = encode_rules(args, type);
                rules.one_rounding = once;
                rules.global = global_scale_of(type, range_of(row.values.data(), n).amax());
                const size_t groups = (n + group - 1) / group;
                std::vector<float> low(groups), high(groups), scales(groups), zeros(groups);
                f->group_ranges(type, row.stored.data(), n, group, low.data(), high.data());
                std::vector<uint8_t> expected(n), found(n);
                for (size_t g = 0; g < groups; ++g) {
                  const size_t k = g * group, count = std::min(group, n - k);
                  const GranuleRange range = range_of(row.values.data() + k, count);
                  ASSERT_EQ(range.low, low[g]);
                  ASSERT_EQ(range.high, high[g]);
                  const GranuleScale s = scale_of(rules, range);
                  scales[g] = effective_scale(rules, s.scale);
                  zeros[g] = static_cast<float>(s.zero_point);
                  encode(rules, s, row.values.data() + k, count, expected.data() + k);
                }
                RowEncode how;
                how.code = args.kind == NumberKind::kInt ? RowCode::kInt
                           : args.bits == 8              ? RowCode::kFp8
                                                         : RowCode::kFp4;
                const bool plain = rules.scales != EncodeRules::Scales::kFp8 && !once;
                how.type = type, how.rounding = plain ? type : XType::kF32, how.group = group;
                how.low = code_limits(rules).low, how.high = code_limits(rules).high;
                const float* z = args.symmetric ? nullptr : zeros.data();
                f->encode(how, row.stored.data(), n, scales.data(), z, found.data());
                ASSERT_EQ(found, expected);
                // A decoded row: f32 numbers, rounded as the type is.
                if (type != XType::kBf16) continue;
                how.type = XType::kF32;
                f->encode(how, row.values.data(), n, scales.data(), z, found.data());
                ASSERT_EQ(found, expected);
              }
  }
}

// Every quotient of two bf16 mantissas, near and far from 1: products with 1 / s round as quotients do.
TEST(EncodeRows, ProductsWithTheInverseGiveTheCodesOfQuotients) {
  QuantArgs int8, fp8;
  int8.bits = fp8.bits = 8;
  fp8.kind = NumberKind::kFloat, fp8.strategy = Strategy::kChannel;
  std::vector<uint16_t> row;
  std::vector<float> values;
  for (uint32_t m = 0; m < 128; ++m)
    for (const uint32_t e : {1u, 2u, 115u, 120u, 124u, 126u})
      for (const uint32_t sign : {0u, 0x8000u})
        row.push_back(static_cast<uint16_t>(sign | e << 7 | m));
  for (const uint32_t u : {0x0000u, 0x8000u, 0x0001u, 0x8001u, 0x007Fu})
    row.push_back(static_cast<uint16_t>(u));
  for (const uint16_t u : row) values.push_back(bf16_to_f32(u));
  std::vector<uint8_t> expected(row.size()), found(row.size());
  for (const QuantArgs& args : {int8, fp8}) {
    const EncodeRules rules = encode_rules(args, XType::kBf16);
    RowEncode how;
    how.code = args.kind == NumberKind::kInt ? RowCode::kInt : RowCode::kFp8;
    how.low = code_limits(rules).low, how.high = code_limits(rules).high, how.group = row.size();
    for (uint32_t m = 0; m < 128; ++m)
      for (const uint32_t e : {0u, 1u, 114u, 119u, 127u, 128u}) {
        const float scale = bf16_to_f32(static_cast<uint16_t>(e << 7 | m));
        if (scale == 0.0f) continue;
        encode(rules, {scale, 0}, values.data(), row.size(), expected.data());
        for (const RowFunctions* f : runnable_tables()) {
          f->encode(how, row.data(), row.size(), &scale, nullptr, found.data());
          ASSERT_EQ(found, expected) << f->name << " scale " << scale;
        }
      }
  }
}

TEST(EncodeRows, NibblesAreTheWordsOfTheReference) {
  SplitMix64 random(6);
  for (const RowFunctions* f : runnable_tables())
    for (const size_t words : {1u, 2u, 3u, 16u, 37u}) {
      std::vector<uint8_t> codes(8 * words), found(4 * words), pairs(4 * words);
      for (uint8_t& c : codes) c = static_cast<uint8_t>(random.below(16) - 8);
      std::vector<uint32_t> expected(words);
      pack_words(codes.data(), codes.size(), 1, 4, expected.data());
      f->pack_nibbles(codes.data(), 0x88, found.data(), found.size());
      EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size()), 0) << f->name;
      pack_nibbles(codes.data(), codes.size(), pairs.data());
      f->pack_nibbles(codes.data(), 0, found.data(), found.size());
      EXPECT_EQ(found, pairs) << f->name;
    }
}

// What the codes of a scale lose, in the words of row_functions.h.
double loss_of(const RowLosses& r, size_t c) {
  const float scale = r.scales[c], zero = r.zero_points != nullptr ? r.zero_points[c] : 0.0f;
  const float inverse = 1.0f / scale;
  float lanes[16] = {};
  for (size_t i = 0; i < r.n; ++i) {
    float y = r.x[i] * inverse;
    if (r.bf16) y = round_to(XType::kBf16, y);
    y = y + zero;
    if (r.bf16) y = round_to(XType::kBf16, y);
    const float q = rne(clamp_f32(y, r.low, r.high)), d = r.x[i] - (q - zero) * scale;
    lanes[i % 16] += (r.h != nullptr ? r.h[i] : 1.0f) * (d * d);
  }
  double sum = 0;
  for (const float v : lanes) sum += static_cast<double>(v);
  return sum;
}

TEST(EncodeRows, LossesOfScalesAreTheSameEverywhere) {
  SplitMix64 random(7);
  for (const size_t n : {1u, 15u, 16u, 31u, 64u, 128u})
    for (const bool bf16 : {false, true})
      for (const bool shifted : {false, true})
        for (const bool weighed : {false, true}) {
          std::vector<float> x(n), h(n), scales(5), zeros(5);
          for (float& v : x)
            v = round_to(XType::kBf16, static_cast<float>(random.uniform() * 2 - 1));
          for (float& v : h) v = static_cast<float>(random.uniform());
          for (size_t c = 0; c < 5; ++c) {
            scales[c] = round_to(XType::kBf16, 0.08f + 0.02f * static_cast<float>(c));
            zeros[c] = static_cast<float>(random.below(16)) - 8.0f;
          }
          RowLosses r;
          r.x = x.data(), r.h = weighed ? h.data() : nullptr, r.n = n;
          r.low = -8, r.high = 7, r.bf16 = bf16, r.scales = scales.data(), r.count = 5;
          r.zero_points = shifted ? zeros.data() : nullptr;
          for (const RowFunctions* f : runnable_tables()) {
            double found[5];
            f->integer_losses(r, found);
            for (size_t c = 0; c < 5; ++c)
              EXPECT_EQ(found[c], loss_of(r, c)) << f->name << " n " << n << " scale " << c;
          }
        }
}

TEST(EncodeRows, ColumnsOfGptqAreTheSameEverywhere) {
  SplitMix64 random(8);
  for (const size_t n : {1u, 4u, 15u, 16u, 127u, 128u, 129u, 300u}) {
    std::vector<float> w(n), scales(n), zeros(n);
    for (size_t i = 0; i < n; ++i) {
      w[i] = static_cast<float>(random.uniform() * 4 - 2);
      scales[i] = 0.05f + 0.3f * static_cast<float>(random.uniform());
      zeros[i] = static_cast<float>(random.below(16)) - 8.0f;
      if (i % 5 == 0) w[i] = scales[i] * (static_cast<float>(random.below(9)) - 3.5f);  // ties
    }
    for (const RowFunctions* f : runnable_tables()) {
      std::vector<int8_t> codes(n + 1, 99);
      std::vector<float> lost(n + 1, 99.0f);
      ColumnCodes c;
      c.w = w.data(), c.scales = scales.data(), c.zero_points = zeros.data(), c.n = n;
      c.low = -8, c.high = 7, c.divisor = 0.7f, c.codes = codes.data(), c.lost = lost.data();
      f->column_codes(c);
      for (size_t i = 0; i < n; ++i) {
        const float q = rne(clamp_f32(w[i] / scales[i] + zeros[i], -8, 7));
        ASSERT_EQ(codes[i], static_cast<int8_t>(q)) << f->name << " " << i;
        ASSERT_EQ(lost[i], (w[i] - (q - zeros[i]) * scales[i]) / 0.7f) << f->name << " " << i;
      }
      EXPECT_EQ(codes[n], 99);
      EXPECT_EQ(lost[n], 99.0f);
    }
  }
}

TEST(EncodeRows, RangesShowWhatIsNotFinite) {
  for (const RowFunctions* f : runnable_tables())
    for (const XType type : kTypes)
      for (const uint32_t bits : {0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffc00000u})
        for (size_t at = 0; at < 40; at += 3) {
          std::vector<uint32_t> wide(40, f32_bits(1.0f));
          std::vector<uint16_t> half(40,
                                     type == XType::kBf16 ? f32_to_bf16(1.0f) : f32_to_f16(1.0f));
          wide[at] = bits;
          half[at] = type == XType::kBf16 ? f32_to_bf16(f32_from_bits(bits))
                                          : f32_to_f16(f32_from_bits(bits));
          float low[2], high[2];
          f->group_ranges(type,
                          type == XType::kF32 ? static_cast<const void*>(wide.data()) : half.data(),
                          40, 20, low, high);
          const size_t g = at / 20;
          EXPECT_FALSE(std::isfinite(low[g]) && std::isfinite(high[g])) << f->name << " " << at;
          EXPECT_TRUE(std::isfinite(low[1 - g]) && std::isfinite(high[1 - g])) << f->name;
        }
}

}  // namespace
}  // namespace moebius::encode_rows_test
