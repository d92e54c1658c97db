// SPDX-License-Identifier: Apache-2.0
// Names of schemes, and the line between what runs and what is refused: both sides are tested.
#include "quant/scheme.h"

#include <gtest/gtest.h>

#include "checkpoint/quant_args_parse.h"

namespace moebius::scheme_test {
namespace {

QuantArgs args(NumberKind kind, int bits, Strategy strategy, int64_t group = 0,
               Dynamic dynamic = Dynamic::kStatic) {
  QuantArgs a;
  a.kind = kind;
  a.bits = bits;
  a.strategy = strategy;
  a.group_size = group;
  a.dynamic = dynamic;
  if (strategy == Strategy::kBlock) a.block_n = a.block_k = 128;
  return a;
}
constexpr auto kInt = NumberKind::kInt;
constexpr auto kFloat = NumberKind::kFloat;
constexpr auto kDyn = Dynamic::kDynamic;

Scheme scheme(Format format, QuantArgs weights, std::optional<QuantArgs> input = {},
              std::optional<QuantArgs> output = {}) {
  Scheme s;
  s.format = format;
  s.weights = std::move(weights);
  s.input = std::move(input);
  s.output = std::move(output);
  return s;
}

Scheme preset(std::string_view name) {
  const std::optional<Scheme> s = scheme_of_preset(name, "0.19.0");
  EXPECT_TRUE(s.has_value()) << name;
  return s.value_or(Scheme{});
}

const QuantArgs kInt8Token = args(kInt, 8, Strategy::kToken, 0, kDyn),
                kInt8Static = args(kInt, 8, Strategy::kTensor);
const QuantArgs kFp8Token = args(kFloat, 8, Strategy::kToken, 0, kDyn);

TEST(Scheme, FamiliesOfThePresets) {
  const std::pair<std::string_view, std::string_view> expected[] = {
      {"W4A16", "w4a16"},         {"W8A16", "w8a16"},       {"W3A16", "w3a16"},
      {"W4A8", "w4a8"},           {"W8A8", "w8a8"},         {"INT8", "w8a8"},
      {"W4A4", "w4a4"},           {"W2A8", "w2a8"},         {"W4A16_ASYM", "w4a16"},
      {"W4AFP8", "w4afp8"},       {"FP8", "fp8_static"},    {"FP8_DYNAMIC", "fp8"},
      {"FP8_BLOCK", "fp8_block"}, {"NVFP4", "nvfp4"},       {"NVFP4A16", "nvfp4a16"},
      {"MXFP4", "mxfp4"},         {"MXFP4A16", "mxfp4a16"}, {"MXFP8", "mxfp8"},
      {"MXFP8A16", "mxfp8a16"},   {"UNQUANTIZED", "dense"}, {"fp8_dynamic", "fp8"},
  };
  for (const auto& [name, family] : expected) {
    EXPECT_EQ(family_of(preset(name)), family) << name;
    EXPECT_EQ(unsupported_reason(preset(name)), std::nullopt) << name;
  }
}

TEST(Scheme, FamiliesWithoutAPreset) {
  EXPECT_EQ(
      family_of(scheme(Format::kIntQuantized, args(kInt, 8, Strategy::kChannel), kInt8Static)),
      "w8a8_static");
  EXPECT_EQ(family_of(scheme(Format::kPackQuantized, args(kInt, 2, Strategy::kGroup, 32),
                             kInt8Static, kInt8Static)),
            "w2a8o8");
  EXPECT_EQ(family_of(scheme(Format::kFloatQuantized, args(kFloat, 8, Strategy::kChannel))),
            "fp8a16");
  EXPECT_EQ(family_of(scheme(Format::kFloatQuantized, args(kFloat, 8, Strategy::kTensor),
                             args(kFloat, 8, Strategy::kTensor, 0, kDyn))),
            "fp8");
  EXPECT_EQ(
      family_of(scheme(Format::kFloatQuantized, args(kFloat, 8, Strategy::kGroup, 64), kFp8Token)),
      "fp8_group");
  EXPECT_EQ(family_of(scheme(Format::kMxfp4Pack, *preset("MXFP4").weights, kFp8Token)),
            "w4a8_mxfp4");
  EXPECT_EQ(family_of(scheme(Format::kGptOssMxfp4, *preset("MXFP4").weights)), "mxfp4a16");
}

TEST(Scheme, DescribesItselfInOneLine) {
  Scheme s = preset("W4A8");
  s.format = Format::kPackQuantized;
  EXPECT_EQ(describe(s), "w4a8 int4 g128 sym, int8 per token sym dynamic, pack-quantized");
  EXPECT_EQ(describe(preset("FP8_BLOCK")),
            "fp8_block e4m3 block 128x128, e4m3 g128 dynamic, float-quantized");
  EXPECT_EQ(describe(preset("NVFP4")), "nvfp4 e2m1 g16, e2m1 g16 local, nvfp4-pack-quantized");
  EXPECT_EQ(describe(Scheme{}), "dense");
}

TEST(Scheme, FormatNamesGoBothWays) {
  for (const Format f :
       {Format::kDense, Format::kIntQuantized, Format::kFloatQuantized, Format::kNaiveQuantized,
        Format::kPackQuantized, Format::kNvfp4Pack, Format::kMxfp4Pack, Format::kMxfp8})
    EXPECT_EQ(format_from_name(name_of(f)), f);
  EXPECT_EQ(format_from_name("marlin-24"), std::nullopt);
  EXPECT_EQ(format_from_name("mxfp4"), std::nullopt);  // a method, not a format of the section
}

TEST(Scheme, PredicatesTestTheType) {
  EXPECT_FALSE(is_nvfp4(args(kInt, 4, Strategy::kTensorGroup, 16)));
  EXPECT_FALSE(is_mxfp4(args(kInt, 4, Strategy::kGroup, 32)));
  EXPECT_FALSE(is_mxfp8(args(kFloat, 8, Strategy::kGroup, 32)));  // the scale type was not said
  EXPECT_TRUE(is_mxfp8(*preset("MXFP8").weights));
  EXPECT_FALSE(is_mxfp4(args(kFloat, 4, Strategy::kGroup, 16)));
}

TEST(Scheme, WhatTheHouseRulesMakeWork) {
  QuantArgs asym = args(kInt, 4, Strategy::kGroup, 96);
  asym.symmetric = false;
  QuantArgs asym_input = kInt8Token;
  asym_input.symmetric = false;
  QuantArgs asym_static = kInt8Static;
  asym_static.symmetric = false;
  QuantArgs odd_block = args(kFloat, 8, Strategy::kBlock);
  odd_block.block_n = 48;
  odd_block.block_k = 80;
  QuantArgs act_order = args(kInt, 4, Strategy::kGroup, 128);
  act_order.act_order = ActOrder::kGroup;
  const QuantArgs dynamic_tensor = args(kFloat, 8, Strategy::kTensor, 0, kDyn);
  const Scheme runs[] = {
      scheme(Format::kPackQuantized, asym),
      scheme(Format::kIntQuantized, asym, kInt8Token),
      scheme(Format::kPackQuantized, args(kInt, 4, Strategy::kChannel), asym_input),
      scheme(Format::kIntQuantized, args(kInt, 8, Strategy::kChannel), asym_static),
      scheme(Format::kIntQuantized, args(kInt, 8, Strategy::kTensor), kInt8Token),
      scheme(Format::kPackQuantized, args(kInt, 8, Strategy::kGroup, 48), kInt8Token),
      scheme(Format::kPackQuantized, args(kInt, 4, Strategy::kGroup, 32),
             args(kInt, 8, Strategy::kGroup, 64, kDyn)),
      scheme(Format::kPackQuantized, args(kInt, 4, Strategy::kGroup, 32),
             args(kInt, 8, Strategy::kTensor, 0, kDyn)),
      scheme(Format::kPackQuantized, args(kInt, 3, Strategy::kChannel),
             args(kInt, 4, Strategy::kToken, 0, kDyn)),
      scheme(Format::kPackQuantized, act_order),
      scheme(Format::kPackQuantized, act_order, kInt8Token),
      scheme(Format::kIntQuantized, args(kInt, 8, Strategy::kChannel)),
      scheme(Format::kFloatQuantized, args(kFloat, 8, Strategy::kTensor)),
      scheme(Format::kFloatQuantized, odd_block, args(kFloat, 8, Strategy::kGroup, 80, kDyn)),
      scheme(Format::kFloatQuantized, odd_block, args(kFloat, 8, Strategy::kTensor)),
      scheme(Format::kFloatQuantized, args(kFloat, 8, Strategy::kTensor), dynamic_tensor),
      scheme(Format::kNaiveQuantized, args(kFloat, 8, Strategy::kChannel)),
      scheme(Format::kMxfp4Pack, *preset("MXFP4").weights, kFp8Token),
      scheme(Format::kMxfp4Pack, *preset("MXFP4").weights, *preset("MXFP8").input),
      scheme(Format::kPackQuantized, args(kInt, 4, Strategy::kGroup, 128), kFp8Token),
      scheme(Format::kIntQuantized, args(kInt, 4, Strategy::kChannel), kInt8Static, kInt8Static),
      scheme(Format::kPackQuantized, args(kInt, 2, Strategy::kGroup, 32), kInt8Static, kInt8Static),
  };
  for (const Scheme& s : runs) EXPECT_EQ(unsupported_reason(s), std::nullopt) << describe(s);
}

struct Refused {
  Scheme scheme;
  std::string_view part;
};

TEST(Scheme, WhatStaysRefusedSaysTheField) {
  QuantArgs asym8 = kInt8Static;
  asym8.symmetric = false;
  QuantArgs asym_w = args(kInt, 8, Strategy::kChannel);
  asym_w.symmetric = false;
  QuantArgs asym_float = args(kFloat, 8, Strategy::kChannel);
  asym_float.symmetric = false;
  QuantArgs fp4_order = *preset("NVFP4").weights;
  fp4_order.act_order = ActOrder::kGroup;
  const QuantArgs w4 = args(kInt, 4, Strategy::kGroup, 128), nvfp4 = *preset("NVFP4").weights,
                  mxfp4 = *preset("MXFP4").weights;
  const Refused all[] = {
      {scheme(Format::kNvfp4Pack, nvfp4, kInt8Token), "NVFP4 weights need NVFP4 inputs or none"},
      {scheme(Format::kNvfp4Pack, nvfp4, kFp8Token), "NVFP4 weights need NVFP4 inputs or none"},
      {scheme(Format::kPackQuantized, w4, *preset("NVFP4").input),
       "NVFP4 inputs need NVFP4 weights"},
      {scheme(Format::kMxfp4Pack, mxfp4, kInt8Token),
       "MXFP4 weights need MXFP4 or 8-bit float inputs"},
      {scheme(Format::kPackQuantized, w4, *preset("MXFP4").input),
       "MXFP4 inputs are dynamic and need MXFP4 weights"},
      {scheme(Format::kFloatQuantized, args(kFloat, 8, Strategy::kChannel),
              args(kFloat, 8, Strategy::kTensor)),
       "per channel with dynamic per-token"},
      {scheme(Format::kFloatQuantized, args(kFloat, 8, Strategy::kTensor), kFp8Token),
       "per tensor in both"},
      {scheme(Format::kFloatQuantized, args(kFloat, 8, Strategy::kChannel), kInt8Token),
       "8-bit float weights need 8-bit float inputs"},
      {scheme(Format::kFloatQuantized, asym_float), "float weights have no zero points"},
      {scheme(Format::kNvfp4Pack, args(kFloat, 4, Strategy::kTensorGroup, 32)),
       "tensor_group of 16"},
      {scheme(Format::kMxfp4Pack, args(kFloat, 4, Strategy::kGroup, 16)), "group of 32"},
      {scheme(Format::kNvfp4Pack, args(kFloat, 4, Strategy::kChannel)), "4-bit floats are NVFP4"},
      {scheme(Format::kNvfp4Pack, fp4_order), "weights.actorder is group"},
      {scheme(Format::kPackQuantized, args(kInt, 4, Strategy::kTensorGroup, 16)),
       "weights.strategy is tensor_group"},
      {scheme(Format::kIntQuantized, args(kInt, 8, Strategy::kToken, 0, kDyn)), "weights.dynamic"},
      {scheme(Format::kIntQuantized, args(kInt, 8, Strategy::kAttnHead)),
       "weights.strategy is attn_head"},
      {scheme(Format::kIntQuantized, args(kInt, 8, Strategy::kToken)), "weights.strategy is token"},
      {scheme(Format::kFloatQuantized, args(kFloat, 6, Strategy::kChannel)),
       "weights.num_bits is 6"},
      {scheme(Format::kIntQuantized, args(kInt, 9, Strategy::kChannel)), "weights.num_bits is 9"},
      {scheme(Format::kPackQuantized, args(kFloat, 8, Strategy::kChannel)),
       "format is pack-quantized"},
      {scheme(Format::kNvfp4Pack, mxfp4), "format is nvfp4-pack-quantized"},
      {scheme(Format::kMxfp4Pack, nvfp4), "format is mxfp4-pack-quantized"},
      {scheme(Format::kMxfp8, args(kFloat, 8, Strategy::kGroup, 64)), "format is mxfp8-quantized"},
      {scheme(Format::kFloatQuantized, nvfp4), "format is float-quantized"},
      {scheme(Format::kDense, w4), "format is dense"},
      {scheme(Format::kIntQuantized, w4, args(kFloat, 8, Strategy::kTensor)),
       "static float inputs"},
      {scheme(Format::kIntQuantized, w4, args(kInt, 8, Strategy::kGroup, 32)),
       "a stored input scale is one per tensor"},
      {scheme(Format::kIntQuantized, w4, args(kInt, 8, Strategy::kAttnHead)),
       "input_activations.strategy is attn_head"},
      {scheme(Format::kIntQuantized, args(kInt, 3, Strategy::kChannel), kInt8Static, kInt8Static),
       "weights.num_bits is 3"},
      {scheme(Format::kIntQuantized, asym_w, kInt8Static, kInt8Static), "must be symmetric"},
      {scheme(Format::kIntQuantized, args(kInt, 8, Strategy::kChannel), asym8, kInt8Static),
       "must be symmetric"},
      {scheme(Format::kIntQuantized, args(kInt, 8, Strategy::kChannel), kInt8Token, kInt8Static),
       "output_activations are int8"},
      {scheme(Format::kIntQuantized, args(kInt, 8, Strategy::kChannel), {}, kInt8Static),
       "output_activations are int8"},
  };
  for (const Refused& r : all) {
    const std::optional<std::string> reason = unsupported_reason(r.scheme);
    ASSERT_TRUE(reason.has_value()) << describe(r.scheme);
    EXPECT_NE(reason->find(r.part), std::string::npos) << describe(r.scheme) << ": " << *reason;
    EXPECT_EQ(reason->find('\n'), std::string::npos);
  }
  Scheme inputs_only;
  inputs_only.input = kInt8Token;
  EXPECT_NE(unsupported_reason(inputs_only), std::nullopt);
}

TEST(Scheme, PlainLinearsTakeEveryPairOfFp8Strategies) {
  const Scheme s = scheme(Format::kFloatQuantized, args(kFloat, 8, Strategy::kTensor), kFp8Token);
  EXPECT_EQ(unsupported_reason(s, false), std::nullopt);
  EXPECT_NE(unsupported_reason(s, true), std::nullopt);
  EXPECT_EQ(unsupported_reason(scheme(Format::kFloatQuantized, args(kFloat, 8, Strategy::kChannel),
                                      args(kFloat, 8, Strategy::kTensor)),
                               false),
            std::nullopt);
}

}  // namespace
}  // namespace moebius::scheme_test
