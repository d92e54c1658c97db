// SPDX-License-Identifier: Apache-2.0
// Activation quantization of quant/reference: published vectors of every rule, granules that are
// zero, NaN, infinite, huge or tiny, and the canonical prepared rows of kernels/ against it, byte
// for byte.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/numeric.h"
#include "kernels/kernel_cases.h"
#include "kernels/prepared_rows.h"
#include "quant/reference.h"
#include "unit/quant/rows_util.h"

namespace moebius::reference_activation_test {
namespace {

using Row = std::vector<float>;
constexpr float kInf = std::numeric_limits<float>::infinity();

QuantRowsBuffer quantize(const Row& x, const ActSpec& spec, const ActParams& params = {},
                         XType type = XType::kF32) {
  return quantize_rows(x.data(), x.size(), 1, x.size(), spec, params, type);
}

std::vector<int> ints(const QuantRowsBuffer& b) {
  std::vector<int> out;
  for (const uint8_t c : b.codes) out.push_back(static_cast<int8_t>(c));
  return out;
}

Row dequantized(const QuantRowsBuffer& b) {
  Row out(b.rows.M * b.rows.K);
  dequantize_rows(b.rows, out.data());
  return out;
}

ActSpec int_spec(uint8_t bits = 8, bool symmetric = true, Int8Mode mode = Int8Mode::kDeclared) {
  ActSpec s;
  s.code = ActCode::kInt;
  s.bits = bits;
  s.symmetric = symmetric;
  s.mode = mode;
  return s;
}

ActSpec float_spec(ActCode code, ActGranule granule, uint32_t group = 0,
                   ActScale scale = ActScale::kF32) {
  ActSpec s;
  s.code = code;
  s.granule = granule;
  s.group = group;
  s.scale = scale;
  return s;
}

const ActSpec kVllmSpec = int_spec(8, false, Int8Mode::kVllm);
const ActSpec kNvfp4 = float_spec(ActCode::kFp4, ActGranule::kGroup, 16, ActScale::kFp8);

// ---- integers ----

TEST(ReferenceActivation, DeclaredInt8IsAmaxOver127) {
  const auto b = quantize({1.0f, -2.54f, 0.01f, 0.03f}, int_spec());
  EXPECT_EQ(b.scales[0], 2.54f / 127.0f);
  EXPECT_EQ(ints(b), (std::vector<int>{50, -127, 0, 2}));  // 0.5 goes to 0, 1.5 to 2: ties to even
}

TEST(ReferenceActivation, CompressedTensorsModeIsAmaxOver127AndAHalf) {
  const auto b = quantize({1.0f, -127.5f, 127.5f}, int_spec(8, true, Int8Mode::kCompressedTensors));
  EXPECT_EQ(b.scales[0], 1.0f);
  EXPECT_EQ(ints(b), (std::vector<int>{1, -128, 127}));  // +-127.5: clamped, then to even
  const auto b4 = quantize({1.0f, -7.5f}, int_spec(4, true, Int8Mode::kCompressedTensors));
  EXPECT_EQ(b4.scales[0], 1.0f);
  EXPECT_EQ(ints(b4), (std::vector<int>{1, -8}));
}

TEST(ReferenceActivation, Int4IsAmaxOver7) {
  const auto b = quantize({3.5f, -7.0f, 1.5f, 0.4f}, int_spec(4));
  EXPECT_EQ(b.scales[0], 1.0f);
  EXPECT_EQ(ints(b), (std::vector<int>{4, -7, 2, 0}));
}

TEST(ReferenceActivation, AsymmetricInt8) {
  const auto b = quantize({-1.0f, 0.0f, 1.55f, 0.5f}, int_spec(8, false));
  EXPECT_EQ(b.scales[0], 2.55f / 255.0f);
  EXPECT_EQ(b.zero_points[0], -28);
  EXPECT_EQ(ints(b), (std::vector<int>{-128, -28, 127, 22}));
  const auto positive =
      quantize({1.0f, 2.0f, 255.0f}, int_spec(8, false));  // zero stays inside the range
  EXPECT_EQ(positive.zero_points[0], -128);
  EXPECT_EQ(ints(positive), (std::vector<int>{-127, -126, 127}));
}

TEST(ReferenceActivation, StaticInt8WithAndWithoutZeroPoint) {
  ActSpec s = int_spec();
  s.granule = ActGranule::kStatic;
  EXPECT_EQ(ints(quantize({0.1f, -0.33f, 100.0f, -100.0f}, s, {0.05f, 0, {1.0f}})),
            (std::vector<int>{2, -7, 127, -128}));
  s.symmetric = false;
  const auto b = quantize({0.1f, -0.33f, 100.0f, -100.0f}, s, {0.05f, 10, {1.0f}});
  EXPECT_EQ(ints(b), (std::vector<int>{12, 3, 127, -128}));
  EXPECT_EQ(dequantized(b)[0], 2 * 0.05f);
}

TEST(ReferenceActivation, GroupsHaveTheirOwnScaleAndTheLastMayBeShort) {
  ActSpec s = int_spec();
  s.granule = ActGranule::kGroup;
  s.group = 2;
  const auto b = quantize({127.0f, 1.0f, 12.7f, 0.0f, -254.0f}, s);
  EXPECT_EQ(b.rows.groups, 3u);
  EXPECT_EQ(b.scales, (Row{1.0f, 12.7f / 127.0f, 2.0f}));
  EXPECT_EQ(ints(b), (std::vector<int>{127, 1, 127, 0, -127}));
}

TEST(ReferenceActivation, VllmVectors) {
  const Row first = {-1.0f, 0.5f, 2.0f, 0.25f, 0, 0, 0, 0};
  const auto a = quantize(first, kVllmSpec);
  EXPECT_EQ(a.zero_points[0], -43);
  EXPECT_EQ(a.scales[0], 1.0f / 85.0f);
  EXPECT_EQ(ints(a), (std::vector<int>{-128, 0, 127, -22, -43, -43, -43, -43}));
  EXPECT_EQ(ints(quantize(first, kVllmSpec, {}, XType::kBf16)),
            (std::vector<int>{-128, -1, 127, -22, -43, -43, -43, -43}));
  const auto b = quantize({1, 2, 3, 4, 5, 6, 7, 8}, kVllmSpec);
  EXPECT_EQ(b.zero_points[0], -128);
  EXPECT_FLOAT_EQ(b.scales[0], 0.0313725509f);
  EXPECT_EQ(ints(b), (std::vector<int>{-96, -64, -32, 0, 31, 63, 95, 127}));
  const auto c = quantize({-3, -2, -1, -.5f, -.25f, -.125f, -4, -5}, kVllmSpec);
  EXPECT_EQ(c.zero_points[0], 127);
  EXPECT_FLOAT_EQ(c.scales[0], 0.0196078438f);
  EXPECT_EQ(ints(c), (std::vector<int>{-26, 25, 76, 101, 114, 121, -77, -128}));
  const auto d = quantize({.1f, -.2f, .3f, -.4f, .5f, -.6f, .7f, -.8f}, kVllmSpec);
  EXPECT_EQ(d.zero_points[0], 8);
  EXPECT_FLOAT_EQ(d.scales[0], 0.00588235306f);
  EXPECT_EQ(ints(d), (std::vector<int>{25, -26, 59, -60, 93, -94, 127, -128}));
}

TEST(ReferenceActivation, VllmTailOfABf16RowRoundsAwayFromZero) {
  Row x(12, 0.0f);
  x[0] = -1.0f;
  x[1] = x[9] = 0.5f;  // 42.5 in the body and in the tail
  x[2] = 2.0f;
  const auto q = ints(quantize(x, kVllmSpec, {}, XType::kBf16));
  EXPECT_EQ(q[1], -1);
  EXPECT_EQ(q[9], 0);
}

TEST(ReferenceActivation, VllmZeroRow) {
  const auto b = quantize(Row(8, 0.0f), kVllmSpec);
  EXPECT_EQ(b.zero_points[0], 127);
  EXPECT_EQ(ints(b), std::vector<int>(8, 127));
  EXPECT_EQ(dequantized(b), Row(8, 0.0f));
}

// ---- fp8, fp4, MX ----

TEST(ReferenceActivation, Fp8Vector) {
  const auto b = quantize({.5f, -3.0f, 7.0f, .001f}, float_spec(ActCode::kFp8, ActGranule::kRow));
  EXPECT_EQ(b.scales[0], .015625f);
  EXPECT_EQ(b.codes, (std::vector<uint8_t>{0x60, 0xF4, 0x7E, 0x18}));
  EXPECT_EQ(dequantized(b), (Row{.5f, -3.0f, 7.0f, .0009765625f}));
}

TEST(ReferenceActivation, Fp8HasNoFloor) {
  const auto b = quantize({448e-12f, 1e-12f}, float_spec(ActCode::kFp8, ActGranule::kRow));
  EXPECT_EQ(b.scales[0], 448e-12f / 448.0f);
  EXPECT_EQ(b.codes[0], 0x7E);
}

TEST(ReferenceActivation, Fp8StaticSaturates) {
  const auto b = quantize({1000.0f, -1000.0f, 1.0f}, float_spec(ActCode::kFp8, ActGranule::kStatic),
                          {1.0f, 0, {1.0f}});
  EXPECT_EQ(b.codes, (std::vector<uint8_t>{0x7E, 0xFE, 0x38}));
}

TEST(ReferenceActivation, Nvfp4Vectors) {
  const Row x = {.1f, -.2f, .3f,   .4f,  -.5f, .6f,  .7f,    -.8f,
                 .9f, 1.0f, -1.1f, 1.2f, 0.0f, .05f, -.025f, 1.5f};
  const auto large = quantize(x, kNvfp4, {1.0f, 0, {1792.0f}});
  const auto small = quantize(x, kNvfp4, {1.0f, 0, {100.0f}});
  EXPECT_EQ(large.scales[0], 448.0f);
  EXPECT_EQ(small.scales[0], 24.0f);
  // With G = 100 the elements .3, .6 and 1.2 lie within an ulp of a tie: x / s with s = 24 / 100
  // goes up where x * (100 / 24) would go down. The rule is the division.
  const std::vector<uint8_t> large_bytes = {0xA1, 0x32, 0x4C, 0xD5, 0x66, 0x6E, 0x00, 0x78};
  const std::vector<uint8_t> small_bytes = {0xA1, 0x33, 0x5C, 0xD5, 0x66, 0x7E, 0x00, 0x78};
  for (size_t j = 0; j < 8; ++j) {
    EXPECT_EQ(large.codes[2 * j] | (large.codes[2 * j + 1] << 4), large_bytes[j]) << j;
    EXPECT_EQ(small.codes[2 * j] | (small.codes[2 * j + 1] << 4), small_bytes[j]) << j;
  }
  EXPECT_EQ(dequantized(large), (Row{.125f, -.25f, .25f, .375f, -.5f, .5f, .75f, -.75f, 1, 1, -1, 1,
                                     0, 0, -0.0f, 1.5f}));
  const Row expected = {.12f, -.24f, .36f,  .36f,  -.48f, .72f, .72f, -.72f,
                        .96f, .96f,  -.96f, 1.44f, 0,     0,    0,    1.44f};
  const Row got = dequantized(small);
  for (size_t i = 0; i < 16; ++i) EXPECT_FLOAT_EQ(got[i], expected[i]) << i;
}

TEST(ReferenceActivation, E4m3RoundsToNearestEven) {
  for (const auto& [x, y] : {std::pair{17.0f, 16.0f},
                             {18.0f, 18.0f},
                             {19.0f, 20.0f},
                             {21.0f, 20.0f},
                             {22.0f, 22.0f},
                             {0.0009765625f, 0.0f},
                             {0.0029296875f, 0.00390625f},
                             {447.0f, 448.0f}})
    EXPECT_EQ(e4m3_to_f32(f32_to_e4m3(x)), y) << x;
}

TEST(ReferenceActivation, Nvfp4BlockWhoseScaleRoundsToZeroHasZeroCodes) {
  const auto b = quantize(Row(16, -1e-6f), kNvfp4, {1.0f, 0, {1.0f}});
  EXPECT_EQ(b.scales[0], 0.0f);
  EXPECT_EQ(b.codes, std::vector<uint8_t>(16, 0));
}

TEST(ReferenceActivation, Nvfp4ScaleStopsAt448) {
  const auto b = quantize(Row(16, 1e30f), kNvfp4, {1.0f, 0, {1e20f}});
  EXPECT_EQ(b.scales[0], 448.0f);
  EXPECT_EQ(b.codes, std::vector<uint8_t>(16, 7));
}

TEST(ReferenceActivation, Mxfp4Exponents) {
  const ActSpec mx = float_spec(ActCode::kFp4, ActGranule::kGroup, 32, ActScale::kE8m0);
  for (const auto& [amax, e] : {std::pair{6.0f, 0}, {7.0f, 1}, {3.5f, 0}, {3.4f, -1}, {1.0f, -2}}) {
    Row x(32, 0.0f);
    x[3] = -amax;
    EXPECT_EQ(quantize(x, mx).scales[0], std::ldexp(1.0f, e)) << amax;
  }
  Row x(32, 0.0f);
  x[0] = 6.9f;  // 1.725 * 2^2: below 1.75, so the scale is 1 and the code saturates at 6
  EXPECT_EQ(quantize(x, mx).codes[0], 7);
  EXPECT_EQ(mx_exponent(0.0f, kMxEmaxE2m1), 0);
}

TEST(ReferenceActivation, Mxfp8ExponentsFollowTheSameRule) {
  const ActSpec mx = float_spec(ActCode::kFp8, ActGranule::kGroup, 32, ActScale::kE8m0);
  // 448 = 1.75 * 2^8 counts as the next power of two: byte 128, where plain "amax / 448, rounded
  // up" would say 127.
  for (const auto& [amax, byte] :
       {std::pair{5.0f, 121}, {448.0f, 128}, {447.0f, 127}, {.001f, 109}}) {
    Row x(32, 0.0f);
    x[31] = amax;
    EXPECT_EQ(quantize(x, mx).scales[0], std::ldexp(1.0f, byte - 127)) << amax;
  }
}

TEST(ReferenceActivation, PowersOfTwoAboveTheScale) {
  const ActSpec up = float_spec(ActCode::kFp8, ActGranule::kGroup, 128, ActScale::kE8m0Up);
  // 2^ceil(log2(amax / 448)): 448 itself is kept, the next number takes the next power.
  for (const auto& [amax, e] : {std::pair{448.0f, 0},
                                {448.1f, 1},
                                {447.0f, 0},
                                {224.0f, -1},
                                {5.0f, -6},
                                {.001f, -18},
                                {1e-40f, -126}}) {
    Row x(128, 0.0f);
    x[7] = -amax;
    EXPECT_EQ(quantize(x, up).scales[0], std::ldexp(1.0f, e)) << amax;
  }
  EXPECT_EQ(quantize(Row(128, 0.0f), up).scales[0], 1.0f);
  Row x(200, 1.0f);  // the last group is short and has its own scale
  x[199] = 896.0f;
  const auto b = quantize(x, up);
  EXPECT_EQ(b.scales, (std::vector<float>{std::ldexp(1.0f, -8), 2.0f}));
  EXPECT_EQ(e4m3_to_f32(b.codes[0]), 256.0f);
  EXPECT_EQ(e4m3_to_f32(b.codes[199]), 448.0f);
}

// ---- output fake quantization ----

TEST(ReferenceActivation, FakeQuantizeVectors) {
  const float s = 0.05f;
  for (const auto& [v, q] :
       {std::pair{.024f, 0}, {.1f, 2}, {-.33f, -7}, {1.0f, 20}, {6.4f, 127}, {-6.5f, -128}})
    EXPECT_EQ(fake_quantize(v, s), static_cast<float>(q) * s) << v;
  for (const auto& [v, y] : {std::pair{.1f, .10009766f},
                             {-.33f, -.34960938f},
                             {1.0f, 1.0f},
                             {7.0f, 6.34375f},
                             {-6.5f, -6.40625f}}) {
    const float x = bf16_to_f32(f32_to_bf16(v));
    EXPECT_FLOAT_EQ(fake_quantize(x, s, XType::kBf16), y) << v;
  }
}

// ---- granules that are not ordinary ----

std::vector<ActSpec> all_specs() {
  std::vector<ActSpec> specs;
  for (const test::SchemeCase& c : test::scheme_cases())
    if (std::find(specs.begin(), specs.end(), c.act) == specs.end()) specs.push_back(c.act);
  return specs;
}

TEST(ReferenceActivation, ZeroGranuleHasScaleOneAndZeroValues) {
  for (const ActSpec& s : all_specs()) {
    if (s.code == ActCode::kAsIs) continue;
    const auto b = quantize(Row(64, 0.0f), s);
    for (const float scale : b.scales) EXPECT_EQ(scale, s.scale == ActScale::kFp8 ? 0.0f : 1.0f);
    EXPECT_EQ(dequantized(b), Row(64, 0.0f));
  }
}

TEST(ReferenceActivation, UnderflowingScaleBecomesOne) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(quantize({tiny, -tiny}, int_spec()).scales[0], 1.0f);
  EXPECT_EQ(quantize({tiny, -tiny}, float_spec(ActCode::kFp8, ActGranule::kRow)).scales[0], 1.0f);
  EXPECT_EQ(ints(quantize({180 * tiny, 0.0f}, int_spec())),
            (std::vector<int>{127, 0}));  // a coarse scale saturates
}

TEST(ReferenceActivation, NanOrInfinityPoisonsItsGranuleOnly) {
  for (const ActSpec& s : all_specs()) {
    if (s.code == ActCode::kAsIs) continue;
    for (const float bad : {std::nanf(""), kInf, -kInf}) {
      Row x(256, 1.0f);
      x[5] = bad;
      const auto b = quantize(x, s);
      EXPECT_TRUE(std::isnan(b.scales[0]));
      EXPECT_EQ(b.codes[0], 0);
      const Row values = dequantized(b);
      EXPECT_TRUE(std::isnan(values[0]));
      if (s.granule == ActGranule::kGroup) {
        EXPECT_FALSE(std::isnan(values[255]));
      }
    }
  }
}

TEST(ReferenceActivation, RangeThatOverflowsIsNotANumber) {
  EXPECT_TRUE(std::isnan(quantize({3e38f, -3e38f}, int_spec(8, false)).scales[0]));
  EXPECT_TRUE(std::isnan(quantize({3e38f, -3e38f}, kVllmSpec).scales[0]));
  EXPECT_EQ(ints(quantize({3e38f, -3e38f}, int_spec())), (std::vector<int>{127, -127}));
}

// ---- the prepared rows of the kernels ----

TEST(PreparedRows, AreTheReferenceByteForByte) {
  test::Rng rng(test::test_seed());
  for (const test::SchemeCase& s : test::scheme_cases())
    for (const size_t K : {1u, 8u, 32u, 100u, 256u, 515u}) {
      if (s.code == CodeType::kFp4 && K % 32 != 0) continue;
      const size_t fit =
          s.columns == test::Columns::kShuffled ? (K + s.block_k - 1) / s.block_k * s.block_k : K;
      const test::MatrixCase m = test::make_matrix(s, 2, fit, rng);
      const Problem p = make_problem(m.w, s.act, s.x_type);
      const size_t M = 7;
      const test::GuardedBytes x = test::make_rows(s, M, fit, fit + 1, true, rng);
      const PreparedLayout l = prepared_layout(p);
      test::GuardedBytes rows(l.row_bytes * M);
      prepare_rows_canonical({&p, &m.params, x.as<float>(), fit + 1, M, rows.data()});
      const auto expected =
          quantize_rows(x.as<float>(), fit + 1, M, fit, s.act, m.params, quantizer_row_type(p));
      const size_t bytes = fit * act_code_bytes(s.act);
      for (size_t r = 0; r < M; ++r) {
        const uint8_t* row = rows.data() + r * l.row_bytes;
        ASSERT_EQ(std::memcmp(row + l.codes, expected.codes.data() + r * bytes, bytes), 0)
            << s.name << " row " << r;
        for (size_t g = 0; g < l.groups; ++g) {
          const float a = reinterpret_cast<const float*>(row)[g],
                      b = expected.scales[r * l.groups + g];
          ASSERT_TRUE(a == b || (std::isnan(a) && std::isnan(b))) << s.name << " " << a << " " << b;
        }
        if (l.zero_points != 0) {
          ASSERT_EQ(
              std::memcmp(row + 4 * l.groups, &expected.zero_points[r * l.groups], 4 * l.groups), 0)
              << s.name;
        }
      }
    }
}

// ---- from a scheme ----

Scheme scheme_with(QuantArgs input, int weight_bits = 4) {
  Scheme s;
  s.weights = QuantArgs{};
  s.weights->bits = weight_bits;
  s.input = std::move(input);
  return s;
}

TEST(ActSpecOfScheme, ModesBindOnlyWhatTheyAreFor) {
  QuantArgs token;
  token.strategy = Strategy::kToken;
  token.dynamic = Dynamic::kDynamic;
  EXPECT_EQ(act_spec_of(scheme_with(token), Int8Mode::kDeclared), int_spec());
  EXPECT_EQ(act_spec_of(scheme_with(token), Int8Mode::kVllm), kVllmSpec);
  EXPECT_EQ(act_spec_of(scheme_with(token, 8), Int8Mode::kVllm), int_spec());
  EXPECT_EQ(act_spec_of(scheme_with(token), Int8Mode::kCompressedTensors),
            int_spec(8, true, Int8Mode::kCompressedTensors));
  QuantArgs fixed;
  fixed.strategy = Strategy::kTensor;
  EXPECT_EQ(act_spec_of(scheme_with(fixed), Int8Mode::kVllm).granule, ActGranule::kStatic);
  EXPECT_EQ(act_spec_of(scheme_with(fixed), Int8Mode::kCompressedTensors).mode,
            Int8Mode::kDeclared);
  EXPECT_EQ(act_spec_of(Scheme{}, Int8Mode::kVllm).code, ActCode::kAsIs);
}

TEST(ActSpecOfScheme, DynamicTensorIsPerRow) {
  QuantArgs args;
  args.strategy = Strategy::kTensor;
  args.dynamic = Dynamic::kDynamic;
  EXPECT_EQ(act_spec_of(scheme_with(args), Int8Mode::kDeclared).granule, ActGranule::kRow);
}

TEST(ActSpecOfScheme, FloatKinds) {
  QuantArgs args;
  args.kind = NumberKind::kFloat;
  args.bits = 4;
  args.strategy = Strategy::kTensorGroup;
  args.group_size = 16;
  args.dynamic = Dynamic::kLocal;
  const ActSpec nvfp4 = act_spec_of(scheme_with(args), Int8Mode::kDeclared);
  EXPECT_EQ(nvfp4.code, ActCode::kFp4);
  EXPECT_EQ(nvfp4.scale, ActScale::kFp8);
  EXPECT_EQ(nvfp4.group, 16u);
  args.strategy = Strategy::kGroup;
  args.group_size = 32;
  args.dynamic = Dynamic::kDynamic;
  // Nothing is inferred from widths: the scale type is what the arguments state.
  EXPECT_EQ(act_spec_of(scheme_with(args), Int8Mode::kDeclared).scale, ActScale::kF32);
  args.scale_dtype = "uint8";
  EXPECT_EQ(act_spec_of(scheme_with(args), Int8Mode::kDeclared).scale, ActScale::kE8m0);
  args.scale_dtype = "";
  args.bits = 8;
  EXPECT_EQ(act_spec_of(scheme_with(args), Int8Mode::kDeclared).scale, ActScale::kF32);
  args.scale_dtype = "uint8";
  EXPECT_EQ(act_spec_of(scheme_with(args), Int8Mode::kDeclared).scale, ActScale::kE8m0);
  args.scale_dtype = "";
  args.group_size = 128;
  const ActSpec block = act_spec_of(scheme_with(args), Int8Mode::kDeclared);
  EXPECT_EQ(block.granule, ActGranule::kGroup);
  EXPECT_EQ(block.group, 128u);
  EXPECT_EQ(block.scale, ActScale::kF32);
}

}  // namespace
}  // namespace moebius::reference_activation_test
