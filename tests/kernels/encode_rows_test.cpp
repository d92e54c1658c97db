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

namespace moebius {
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
}  // namespace moebius
