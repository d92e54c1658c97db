// SPDX-License-Identifier: Apache-2.0
// Weights and products of quant/reference against vectors and sums worked out by hand, and
// unpacking against element access.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/math_functions.h"
#include "kernels/kernel_cases.h"
#include "kernels/unpack.h"
#include "quant/quant_access.h"
#include "quant/reference.h"

namespace moebius::reference_gemm_test {
namespace {

using Bytes = std::vector<uint8_t>;
using Row = std::vector<float>;

QuantMatrix matrix(CodeType code, uint8_t bits, size_t N, size_t K, const Bytes& codes,
                   size_t row_bytes) {
  QuantMatrix w;
  w.N = N;
  w.K = K;
  w.code = code;
  w.bits = bits;
  w.codes = codes.data();
  w.row_bytes = row_bytes;
  w.block_k = K;
  return w;
}

void set_scales(QuantMatrix& w, const Row& scales, size_t groups, size_t block_k) {
  w.scale_type = ScaleType::kF32;
  w.scales = reinterpret_cast<const uint8_t*>(scales.data());
  w.groups = w.scale_stride = groups;
  w.block_k = block_k;
}

Bytes word(uint32_t v) { return {uint8_t(v), uint8_t(v >> 8), uint8_t(v >> 16), uint8_t(v >> 24)}; }

Bytes words(std::initializer_list<uint32_t> list) {
  Bytes out;
  for (const uint32_t v : list)
    for (const uint8_t b : word(v)) out.push_back(b);
  return out;
}

std::vector<int> codes_of(const QuantMatrix& w) {
  std::vector<int> out;
  for (size_t c = 0; c < w.K; ++c) out.push_back(int_code(w, 0, c));
  return out;
}

float product(const QuantMatrix& w, const Row& x, const ActSpec& act,
              const ActParams& params = {}) {
  const auto rows = quantize_rows(x.data(), x.size(), 1, x.size(), act, params, XType::kF32);
  float y = 0.0f;
  reference_gemm(w, rows.rows, 0, 1, &y, 1);
  return y;
}

ActSpec int8_rows() {
  ActSpec s;
  s.code = ActCode::kInt;
  return s;
}

// ---- stored codes ----

TEST(ReferenceWeights, PackedVectors) {
  const Bytes four = word(0x2D4B78F0);
  EXPECT_EQ(codes_of(matrix(CodeType::kInt4Offset, 4, 1, 8, four, 4)),
            (std::vector<int>{-8, 7, 0, -1, 3, -4, 5, -6}));
  EXPECT_EQ(four, (Bytes{0xF0, 0x78, 0x4B, 0x2D}));
  EXPECT_EQ(codes_of(matrix(CodeType::kInt8Offset, 8, 1, 4, word(0x7F80FF00), 4)),
            (std::vector<int>{-128, 127, 0, -1}));
  EXPECT_EQ(codes_of(matrix(CodeType::kInt4Offset, 4, 1, 9, words({0xBFE98710, 0x0000000A}), 8)),
            (std::vector<int>{-8, -7, -1, 0, 1, 6, 7, 3, 2}));
  EXPECT_EQ(codes_of(matrix(CodeType::kInt8Offset, 8, 1, 5, words({0xFF807F00, 0x00000085}), 8)),
            (std::vector<int>{-128, -1, 0, 127, 5}));
}

TEST(ReferenceWeights, BytesBecomeTheSameNibbles) {
  const Bytes stored = {0xF8, 7, 0, 0xFF, 3, 0xFC, 5, 0xFA};  // -8 7 0 -1 3 -4 5 -6
  const QuantMatrix w = matrix(CodeType::kInt8, 4, 1, 8, stored, 8);
  Bytes packed(4);
  unpack_nibbles(w, 0, 0, 8, nullptr, packed.data());
  EXPECT_EQ(packed, (Bytes{0xF0, 0x78, 0x4B, 0x2D}));
}

TEST(ReferenceWeights, FloatCodes) {
  const Bytes pair = {0xF3};
  const QuantMatrix fp4 = matrix(CodeType::kFp4, 4, 1, 2, pair, 1);
  EXPECT_EQ(code_value(fp4, 0, 0), 1.5f);
  EXPECT_EQ(code_value(fp4, 0, 1), -6.0f);
  const Bytes fp8 = {0x7E, 0x38, 0x08, 0x01, 0xFE, 0x7F};
  const QuantMatrix w = matrix(CodeType::kFp8, 8, 1, 6, fp8, 6);
  const Row expected = {448.0f, 1.0f, 0x1p-6f, 0x1p-9f, -448.0f};
  for (size_t c = 0; c < expected.size(); ++c) EXPECT_EQ(code_value(w, 0, c), expected[c]);
  EXPECT_TRUE(std::isnan(code_value(w, 0, 5)));
  EXPECT_EQ(e8m0_to_f32(127), 1.0f);
  EXPECT_EQ(e8m0_to_f32(120), 0x1p-7f);
  EXPECT_EQ(e8m0_to_f32(0), 0x1p-127f);
}

TEST(ReferenceWeights, DequantizeAppliesZeroPointsGroupsAndGlobalScale) {
  const Bytes codes = {1, 2, 3, 4};
  const Row scales = {0.5f, 2.0f};
  const int8_t zeros[] = {1, -1};
  QuantMatrix w = matrix(CodeType::kInt8, 8, 1, 4, codes, 4);
  set_scales(w, scales, 2, 2);
  w.zero_points = zeros;
  Row out(4);
  dequantize(w, out.data());
  EXPECT_EQ(out, (Row{0.0f, 0.5f, 8.0f, 10.0f}));
  w.zero_points = nullptr;
  w.global_scale = {4.0f};
  dequantize(w, out.data());
  EXPECT_EQ(out, (Row{0.125f, 0.25f, 1.5f, 2.0f}));
}

// ---- products ----

const Bytes kEight = {0xF0, 0x78, 0x4B, 0x2D};  // -8 7 0 -1 3 -4 5 -6

TEST(ReferenceGemm, VllmChannelVector) {
  QuantMatrix w = matrix(CodeType::kInt4Offset, 4, 1, 8, kEight, 4);
  const Row scale = {0.02f};
  set_scales(w, scale, 1, 8);
  ActSpec act = int8_rows();
  act.symmetric = false;
  act.mode = Int8Mode::kVllm;
  EXPECT_FLOAT_EQ(product(w, {-1.0f, 0.5f, 2.0f, 0.25f, 0, 0, 0, 0}, act), 0.225882351f);
}

TEST(ReferenceGemm, VllmGroupsUseScalesRoundedToBf16) {
  QuantMatrix w = matrix(CodeType::kInt4Offset, 4, 1, 8, kEight, 4);
  const Row scales = {0.02f, 0.03f};
  set_scales(w, scales, 2, 4);
  ActSpec act = int8_rows();
  act.symmetric = false;
  act.mode = Int8Mode::kVllm;
  // q = -128 0 127 -22 -43 -43 -43 -43, zp = -43: sums q w are 1046 and 86, sums w are -2 and -2.
  const float c0 = bf16_to_f32(f32_to_bf16(0.02f)), c1 = bf16_to_f32(f32_to_bf16(0.03f));
  float f = std::fma(1046.0f, c0, 0.0f);
  f = std::fma(86.0f, c1, f);
  const float S = -2.0f * c0 + -2.0f * c1;
  f = std::fma(S, 43.0f, f);
  EXPECT_EQ(product(w, {-1.0f, 0.5f, 2.0f, 0.25f, 0, 0, 0, 0}, act), f * (1.0f / 85.0f));
}

TEST(ReferenceGemm, IntegerGroupsAreAddedByFmaInOrderThenScaled) {
  QuantMatrix w = matrix(CodeType::kInt4Offset, 4, 1, 8, kEight, 4);
  const Row scales = {0.1f, 0.3f};
  set_scales(w, scales, 2, 4);
  const int8_t zeros[] = {1, -2};
  w.zero_points = zeros;
  const Row x = {1, 2, 3, 127, -1, -2, -3, -4};  // scale 1: the codes are the numbers
  // w - zp: -9 6 -1 -2 | 5 -2 7 -4
  const float first = -9 + 12 - 3 - 254, second = -5 + 4 - 21 + 16;
  EXPECT_EQ(product(w, x, int8_rows()), std::fma(second, 0.3f, std::fma(first, 0.1f, 0.0f)) * 1.0f);
}

TEST(ReferenceGemm, StaticScaleGoesInside) {
  QuantMatrix w = matrix(CodeType::kInt4Offset, 4, 1, 8, kEight, 4);
  const Row scales = {0.1f, 0.3f};
  set_scales(w, scales, 2, 4);
  ActSpec act = int8_rows();
  act.granule = ActGranule::kStatic;
  const Row x = {0.05f, 0.1f, 0.15f, 0.2f, 0.25f, 0.3f, 0.35f, 0.4f};  // codes 1..8
  const float first = -8 + 14 + 0 - 4, second = 15 - 24 + 35 - 48;
  const float s = 0.05f;
  EXPECT_EQ(product(w, x, act, {s, 0, {1.0f}}),
            std::fma(second, 0.3f * s, std::fma(first, 0.1f * s, 0.0f)));
}

TEST(ReferenceGemm, StretchesEndWhereEitherScaleChanges) {
  const Bytes codes = {0x38, 0x38, 0x38, 0x38, 0x38, 0x38};  // six ones
  QuantMatrix w = matrix(CodeType::kFp8, 8, 1, 6, codes, 6);
  const Row scales = {2.0f, 3.0f};
  set_scales(w, scales, 2, 3);
  ActSpec act;
  act.code = ActCode::kFp8;
  act.granule = ActGranule::kGroup;
  act.group = 2;
  const Row x = {448, 1, 896, 2, 1792, 4};  // scales 1, 2, 4: codes 448 1 448 1 448 1
  // stretches [0,2) c=2 s=1, [2,3) c=2 s=2, [3,4) c=3 s=2, [4,6) c=3 s=4
  EXPECT_EQ(product(w, x, act), 449.0f * 2 + 448.0f * 4 + 1.0f * 6 + 449.0f * 12);
}

TEST(ReferenceGemm, ActOrderEqualsTheSortedMatrix) {
  test::Rng rng(3);
  const Bytes codes = {1, 2, 3, 4, 5, 6};
  QuantMatrix w = matrix(CodeType::kInt8, 8, 1, 6, codes, 6);
  const Row scales = {0.1f, 0.7f, 0.03f};
  set_scales(w, scales, 3, 2);
  const int32_t g_idx[] = {2, 0, 1, 0, 2, 1};
  w.g_idx = g_idx;
  const Row x = {3, -5, 7, 11, 13, 127};
  const Bytes sorted_codes = {2, 4, 3, 6, 1, 5};
  QuantMatrix sorted = matrix(CodeType::kInt8, 8, 1, 6, sorted_codes, 6);
  set_scales(sorted, scales, 3, 2);
  const Row sorted_x = {-5, 11, 7, 127, 3, 13};
  EXPECT_EQ(product(w, x, int8_rows()), product(sorted, sorted_x, int8_rows()));
  EXPECT_EQ(product(w, x, ActSpec{}), product(sorted, sorted_x, ActSpec{}));
}

TEST(ReferenceGemm, Nvfp4DividesByBothGlobalScalesAtTheEnd) {
  const Bytes codes = {0x72, 0x72, 0x72, 0x72, 0x72, 0x72, 0x72, 0x72};  // 1 6 1 6 ...
  QuantMatrix w = matrix(CodeType::kFp4, 4, 1, 16, codes, 8);
  const Bytes scale = {f32_to_e4m3(24.0f)};
  w.scale_type = ScaleType::kFp8;
  w.scales = scale.data();
  w.scale_stride = 1;
  w.block_k = 16;
  w.global_scale = {300.0f};
  ActSpec act;
  act.code = ActCode::kFp4;
  act.granule = ActGranule::kGroup;
  act.group = 16;
  act.scale = ActScale::kFp8;
  const ActParams params = {1.0f, 0, {1792.0f}};
  const Row x(16, 1.5f);  // s8 = 448, every code 6
  const float dot = 8 * (6.0f * 1.0f + 6.0f * 6.0f);
  EXPECT_EQ(product(w, x, act, params), std::fma(dot, 448.0f * 24.0f, 0.0f) / (1792.0f * 300.0f));
  EXPECT_EQ(product(w, x, ActSpec{}), (8 * (1.5f + 9.0f)) * 24.0f / 300.0f);
}

TEST(ReferenceGemm, Nvfp4FactorsMultiplyAtTheEnd) {
  // ModelOpt's example: -6 and 1 under the block scale 1 and weight_scale_2 = 0.25.
  const Bytes codes(8, 0x2F);
  QuantMatrix w = matrix(CodeType::kFp4, 4, 1, 16, codes, 8);
  const Bytes scale = {0x38};
  w.scale_type = ScaleType::kFp8;
  w.scales = scale.data();
  w.scale_stride = 1;
  w.block_k = 16;
  w.global_scale = {0.25f, true};
  EXPECT_EQ(weight_at(w, 0, 0), -1.5f);
  EXPECT_EQ(weight_at(w, 0, 1), 0.25f);
  const float g_w = 0.0137f, g_x = 0.0031f;  // no reciprocal gives the same numbers
  w.global_scale = {g_w, true};
  ActSpec act;
  act.code = ActCode::kFp4;
  act.granule = ActGranule::kGroup;
  act.group = 16;
  act.scale = ActScale::kFp8;
  const Row x(16, 1.5f);
  const float s8 = e4m3_to_f32(f32_to_e4m3((1.5f / 6.0f) / g_x));
  const float code = e2m1_to_f32(f32_to_e2m1(1.5f / (s8 * g_x)));
  const float dot = 8 * (code * -6.0f + code * 1.0f);
  EXPECT_EQ(product(w, x, act, {1.0f, 0, {g_x, true}}), (dot * s8) * (g_x * g_w));
  EXPECT_EQ(product(w, x, ActSpec{}), (8 * (1.5f * -6.0f + 1.5f)) * g_w);
}

TEST(ReferenceGemm, DenseIsOneSumInOrder) {
  Row values = {0.1f, 0.2f, -0.3f}, x = {3.0f, 1e-3f, 7.0f};
  Bytes bytes(12);
  std::memcpy(bytes.data(), values.data(), 12);
  const QuantMatrix w = matrix(CodeType::kF32, 32, 1, 3, bytes, 12);
  float dot = 0.0f;
  for (size_t i = 0; i < 3; ++i) dot = std::fma(x[i], values[i], dot);
  EXPECT_EQ(product(w, x, ActSpec{}), dot);
}

// Decoded weights times decoded rows, in double precision: offsets of every width, and FP4.
TEST(ReferenceGemm, Int8RowsTimesOffsetsAndFp4AreTheDecodedProduct) {
  constexpr size_t K = 96, kGroup = 32;
  const std::pair<CodeType, int> kinds[] = {{CodeType::kInt4Offset, 4},
                                            {CodeType::kInt8, 2},
                                            {CodeType::kInt8, 5},
                                            {CodeType::kInt8Offset, 8},
                                            {CodeType::kFp4, 4}};
  for (const auto& [code, bits] : kinds) {
    Bytes codes(K), offsets(3 * sizeof(float));
    for (size_t i = 0; i < K; ++i) {
      const auto any = static_cast<uint8_t>(i * 37 + 11);
      const int half = 1 << (bits - 1);
      codes[i] = code == CodeType::kInt8 ? static_cast<uint8_t>(any % (2 * half) - half) : any;
    }
    const Row scales = {0.25f, 1.7f, -0.3f}, b = {-3.1f, 0.01f, 7.3f};
    std::memcpy(offsets.data(), b.data(), offsets.size());
    QuantMatrix w = matrix(code, static_cast<uint8_t>(bits), 1, K, codes, K);
    set_scales(w, scales, 3, kGroup);
    if (code != CodeType::kFp4) w.offsets = offsets.data();
    Row x(K), decoded(K);
    for (size_t i = 0; i < K; ++i) x[i] = std::sin(static_cast<float>(i * i));
    dequantize(w, decoded.data());
    const auto rows = quantize_rows(x.data(), K, 1, K, int8_rows(), {}, XType::kF32);
    double expected = 0.0, size = 0.0;
    for (size_t i = 0; i < K; ++i) {
      const double term = static_cast<double>(row_code_value(rows.rows, 0, i)) *
                          static_cast<double>(rows.scales[0]) * static_cast<double>(decoded[i]);
      expected += term;
      size += std::fabs(term);
    }
    EXPECT_NEAR(static_cast<double>(product(w, x, int8_rows())), expected, 1e-6 * size)
        << bits << " bits";
  }
}

TEST(ReferenceGemm, SumsBeyondInt32AreStillExact) {
  const size_t K = 200000;  // 127 * 127 * K is above 2^31
  const Bytes codes(K, 127);
  QuantMatrix w = matrix(CodeType::kInt8, 8, 1, K, codes, K);
  const Row scale = {1.0f};
  set_scales(w, scale, 1, K);
  EXPECT_EQ(product(w, Row(K, 127.0f), int8_rows()),
            static_cast<float>(127.0 * 127.0 * static_cast<double>(K)));
  const Problem p = make_problem(w, int8_rows(), XType::kF32);
  EXPECT_FALSE(fits_int32(p));
}

TEST(ReferenceGemm, NanRowGivesNanAndLeavesTheOthers) {
  QuantMatrix w = matrix(CodeType::kInt4Offset, 4, 1, 8, kEight, 4);
  const Row scale = {0.5f};
  set_scales(w, scale, 1, 8);
  Row x(16, 1.0f);
  x[3] = std::nanf("");
  const auto rows = quantize_rows(x.data(), 8, 2, 8, int8_rows(), {}, XType::kF32);
  float y[2];
  reference_gemm(w, rows.rows, 0, 1, y, 1);
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_NEAR(y[1], -2.0f, 1e-6f);
}

TEST(ReferenceGemm, ActivationFunctionVectors) {
  EXPECT_FLOAT_EQ(swigluoai(1, 2), 2.5373873f);
  EXPECT_FLOAT_EQ(swigluoai(-1, 2), -0.4626127f);
  EXPECT_FLOAT_EQ(swigluoai(8, -9), -41.9997188f);
  EXPECT_EQ(swigluoai(0, 5), 0.0f);
  EXPECT_FLOAT_EQ(silu_and_mul(1, 2), 1.4621172f);
  EXPECT_FLOAT_EQ(silu_and_mul(-1, 2), -0.5378828f);
  EXPECT_FLOAT_EQ(silu_and_mul(8, -9), -71.9758548f);
  EXPECT_EQ(swiglustep(8, -9), -49.0f);
}

// ---- unpacking for packers ----

TEST(Unpack, AgreesWithElementAccess) {
  test::Rng rng(test::test_seed());
  for (const test::SchemeCase& s : test::scheme_cases()) {
    const size_t K = s.code == CodeType::kFp4 ? 96 : 97;
    const size_t fit = s.columns == test::Columns::kShuffled ? 96 : K;
    const test::MatrixCase m = test::make_matrix(s, 3, fit, rng);
    const ColumnOrder order = column_order(m.w);
    const int32_t* columns = order.columns_or_null();
    const size_t k0 = 5, k1 = fit - 2, r = 2;
    const auto column = [&](size_t i) {
      return columns != nullptr ? static_cast<size_t>(columns[i]) : i;
    };
    Row values(k1 - k0);
    unpack_f32(m.w, r, k0, k1, columns, values.data());
    for (size_t i = k0; i < k1; ++i)
      ASSERT_EQ(values[i - k0], code_value(m.w, r, column(i))) << s.name;
    if (s.code != CodeType::kF16 && s.code != CodeType::kF32) {
      std::vector<uint16_t> half(k1 - k0);
      unpack_bf16(m.w, r, k0, k1, columns, half.data());
      for (size_t i = 0; i < half.size(); ++i) ASSERT_EQ(bf16_to_f32(half[i]), values[i]) << s.name;
    }
    const bool fp4 = s.code == CodeType::kFp4;
    if (is_integer_code(s.code) || fp4) {
      std::vector<int8_t> bytes(k1 - k0);
      unpack_int8(m.w, r, k0, k1, columns, bytes.data());
      for (size_t i = 0; i < bytes.size(); ++i)
        ASSERT_EQ(static_cast<float>(bytes[i]), fp4 ? 2 * values[i] : values[i]) << s.name;
    }
    if (fp4 || (is_integer_code(s.code) && s.bits <= 4)) {
      Bytes nibbles((k1 - k0 + 1) / 2);
      unpack_nibbles(m.w, r, k0, k1, columns, nibbles.data());
      for (size_t i = 0; i < k1 - k0; ++i) {
        const unsigned code = (nibbles[i / 2] >> (4 * (i % 2))) & 15u;
        ASSERT_EQ(fp4 ? e2m1_to_f32(code) : static_cast<float>(code) - 8.0f, values[i]) << s.name;
      }
    }
    if (s.scale == ScaleType::kNone) continue;
    Row scales(m.w.groups);
    std::vector<int8_t> zeros(m.w.groups);
    row_scales_f32(m.w, r, scales.data());
    row_zero_points(m.w, r, zeros.data());
    if (s.scale != ScaleType::kTwoLevel) {
      Row raw(m.w.groups);
      Bytes stored(m.w.groups * scale_size(s.scale));
      row_scales_raw(m.w, r, stored.data());
      decode_scales(s.scale, stored.data(), m.w.groups, raw.data());
      EXPECT_EQ(scales, raw);
    }
    for (size_t c = 0; c < fit; ++c) {
      ASSERT_EQ(scales[group_of(m.w, c)], scale_of(m.w, r, c)) << s.name;
      ASSERT_EQ(zeros[group_of(m.w, c)], zero_point_of(m.w, r, c)) << s.name;
    }
  }
}

TEST(ColumnOrder, SortsStablyAndSeesRegularGroups) {
  const Bytes codes(8, 0);
  const Row scales(4, 1.0f);
  QuantMatrix w = matrix(CodeType::kInt8, 8, 1, 8, codes, 8);
  set_scales(w, scales, 4, 2);
  EXPECT_TRUE(column_order(w).columns.empty());
  EXPECT_TRUE(column_order(w).group_ends.empty());
  const int32_t regular[] = {3, 0, 2, 1, 1, 0, 2, 3};
  w.g_idx = regular;
  EXPECT_EQ(column_order(w).columns, (std::vector<int32_t>{1, 5, 3, 4, 2, 6, 0, 7}));
  EXPECT_TRUE(column_order(w).group_ends.empty());
  const int32_t partial[] = {3, 0, 3, 1, 1, 0, 3, 3};  // group 2 is empty
  w.g_idx = partial;
  EXPECT_EQ(column_order(w).columns, (std::vector<int32_t>{1, 5, 3, 4, 0, 2, 6, 7}));
  EXPECT_EQ(column_order(w).group_ends, (std::vector<int32_t>{2, 4, 4, 8}));
  w.g_idx = nullptr;
  w.k_phase = 1;
  w.K = 7;
  EXPECT_TRUE(column_order(w).columns.empty());
  EXPECT_EQ(column_order(w).group_ends, (std::vector<int32_t>{1, 3, 5, 7}));
  const int32_t outside[] = {0, 1, 2, 3, 4, 0, 0};
  w.g_idx = outside;
  EXPECT_ANY_THROW(column_order(w));
}

}  // namespace
}  // namespace moebius::reference_gemm_test
