// SPDX-License-Identifier: Apache-2.0
// Slices of a matrix decode to the same numbers as the whole, for every code type, granularity,
// phase and start.
#include "quant/slice.h"

#include <random>

#include "base/error.h"
#include "quant/quant_access.h"
#include "unit/checkpoint/formats_util.h"

namespace moebius::test::formats_slice_test {
namespace {

// A random matrix together with the memory it views.
struct Matrix {
  Bytes codes, scales, supers;
  std::vector<int8_t> zero_points;
  std::vector<int32_t> g_idx;
  QuantMatrix w;
};

Matrix make(CodeType code, size_t N, size_t K, size_t block_n, size_t block_k, bool zero_points,
            bool act_order, unsigned seed) {
  std::mt19937 random(seed);
  Matrix m;
  QuantMatrix& w = m.w;
  w.N = N;
  w.K = K;
  w.code = code;
  w.bits = static_cast<uint8_t>(code_bits(code));
  w.row_bytes = (K * code_bits(code) + 7) / 8 + 3;
  m.codes.resize(N * w.row_bytes);
  for (auto& b : m.codes) b = static_cast<uint8_t>(random() % 0x70);
  w.codes = m.codes.data();
  w.block_n = block_n;
  w.block_k = block_k;
  w.groups = (K - 1) / block_k + 1;
  w.scale_stride = w.groups + 1;
  if (!is_dense_code(code)) {
    w.scale_type = code == CodeType::kFp4    ? ScaleType::kE8m0
                   : code == CodeType::kLut4 ? ScaleType::kTwoLevel
                                             : ScaleType::kF32;
    if (code == CodeType::kLut4) {
      w.lut = Lut::kIq4;
      w.super_groups = 2;
      w.scale_stride += w.scale_stride % 2;
    }
    const size_t rows = (N - 1) / block_n + 1;
    m.scales.resize(rows * w.scale_stride * scale_bytes(w.scale_type));
    for (size_t i = 0; i < rows * w.scale_stride; ++i) {
      const float s = 0.25f + static_cast<float>(random() % 1000) / 512.0f;
      if (w.scale_type == ScaleType::kF32)
        std::memcpy(&m.scales[4 * i], &s, 4);
      else
        m.scales[i] = static_cast<uint8_t>(100 + random() % 50);
    }
    w.scales = m.scales.data();
    if (code == CodeType::kLut4) {
      m.supers.resize(rows * w.scale_stride / 2 * sizeof(float));
      for (size_t i = 0; i < m.supers.size(); i += sizeof(float)) {
        const float s = static_cast<float>(random() % 1000) / 512.0f - 1.0f;
        std::memcpy(&m.supers[i], &s, sizeof s);
      }
      w.super_scales = m.supers.data();
      if (zero_points) w.offsets = w.scales, w.super_offsets = w.super_scales;
    } else if (zero_points) {
      for (size_t i = 0; i < rows * w.scale_stride; ++i)
        m.zero_points.push_back(static_cast<int8_t>(random() % 16) - 8);
      w.zero_points = m.zero_points.data();
    }
    if (act_order) {
      for (size_t c = 0; c < K; ++c) m.g_idx.push_back(static_cast<int32_t>(c / block_k));
      std::shuffle(m.g_idx.begin(), m.g_idx.end(), random);
      w.g_idx = m.g_idx.data();
    }
  }
  return m;
}

void expect_same(const QuantMatrix& whole, const QuantMatrix& part, size_t r0, size_t c0) {
  for (size_t r = 0; r < part.N; ++r)
    for (size_t c = 0; c < part.K; ++c)
      ASSERT_EQ(weight_at(part, r, c), weight_at(whole, r0 + r, c0 + c))
          << "slice at " << r0 << "," << c0 << " element " << r << "," << c;
}

TEST(Slice, DecodesLikeTheWhole) {
  const struct {
    size_t block_n, block_k;
  } grains[] = {{24, 40}, {1, 40}, {1, 8}, {1, 20}, {7, 9}, {128, 128}};
  unsigned seed = 1;
  for (const CodeType code :
       {CodeType::kInt8, CodeType::kInt8Offset, CodeType::kInt4Offset, CodeType::kFp4,
        CodeType::kLut4, CodeType::kFp8, CodeType::kBf16, CodeType::kF32})
    for (const auto& grain : grains)
      for (const bool zero_points : {false, true}) {
        const Matrix m =
            make(code, 24, 40, grain.block_n, grain.block_k, zero_points, false, seed++);
        SliceMemory memory;
        for (size_t r0 = 0; r0 < 24; r0 += 5)
          for (size_t r1 = r0 + 1; r1 <= 24; r1 += 6)
            for (size_t c0 = 0; c0 < 40; c0 += 3)
              for (size_t c1 = c0 + 1; c1 <= 40; c1 += 7) {
                const QuantMatrix part = slice(m.w, r0, r1, c0, c1, memory);
                ASSERT_EQ(part.N, r1 - r0);
                ASSERT_EQ(part.K, c1 - c0);
                expect_same(m.w, part, r0, c0);
                if (part.K < 6) continue;  // a slice of a slice
                const QuantMatrix inner = slice(part, 0, part.N, 3, part.K, memory);
                expect_same(m.w, inner, r0, c0 + 3);
              }
      }
}

TEST(Slice, ActOrderKeepsAllGroups) {
  const Matrix m = make(CodeType::kInt4Offset, 8, 64, 1, 16, true, true, 7);
  SliceMemory memory;
  for (size_t rank = 0; rank < 4; ++rank) {
    const auto [c0, c1] = parallel_range(64, rank, 4, "inputs");
    const QuantMatrix part = slice_columns(m.w, c0, c1, memory);
    EXPECT_EQ(part.groups, 4u);
    EXPECT_EQ(part.block_k, 16u);
    expect_same(m.w, part, 0, c0);
  }
}

TEST(Slice, IsAViewExceptForOddNibbles) {
  const Matrix m = make(CodeType::kInt4Offset, 8, 64, 1, 16, false, false, 9);
  SliceMemory memory;
  const QuantMatrix even = slice_columns(m.w, 2, 64, memory);
  EXPECT_EQ(even.codes, m.w.codes + 1);
  EXPECT_EQ(memory.bytes(), 0u);
  EXPECT_EQ(even.k_phase, 2u);
  const QuantMatrix odd = slice_columns(m.w, 3, 10, memory);
  EXPECT_GT(memory.bytes(), 0u);
  EXPECT_EQ(odd.row_bytes, 4u);
  EXPECT_EQ(odd.codes[3] >> 4, 0);  // nothing after the last nibble
}

TEST(Slice, OneGroupBecomesPerChannel) {
  const Matrix m = make(CodeType::kInt8, 8, 64, 1, 32, false, false, 11);
  SliceMemory memory;
  const QuantMatrix part = slice_columns(m.w, 40, 64, memory);
  EXPECT_EQ(part.groups, 1u);
  EXPECT_EQ(part.k_phase, 0u);
  EXPECT_EQ(part.block_k, 24u);
}

TEST(Slice, RefusesWhatIsNotThere) {
  const Matrix m = make(CodeType::kInt8, 8, 64, 1, 32, false, false, 13);
  SliceMemory memory;
  EXPECT_THROW(slice_rows(m.w, 3, 9), Error);
  EXPECT_THROW(slice_rows(m.w, 3, 3), Error);
  EXPECT_THROW(slice_columns(m.w, 0, 65, memory), Error);
  EXPECT_THROW(parallel_range(10, 0, 4, "outputs"), Error);
  EXPECT_THROW(parallel_range(8, 4, 4, "outputs"), Error);
  EXPECT_EQ(parallel_range(12, 2, 3, "outputs"), (std::pair<size_t, size_t>{8, 12}));
}

}  // namespace
}  // namespace moebius::test::formats_slice_test
