// SPDX-License-Identifier: Apache-2.0
// Shapes that the general kernel tier is too small for: K long enough to be worked on in chunks,
// with and without a short last chunk, many rows, and groups longer than a chunk; and the largest
// sums there can be. Every kernel that claims a case must equal the reference.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kernels/kernel_cases.h"
#include "kernels/list.h"
#include "kernels/prepared_rows.h"

namespace moebius::test::long_k_test {
namespace {

struct LongShape {
  size_t N, K, M, group;
  bool largest = false;  // all codes of weights and rows as far from zero as they can be
};

SchemeCase int_case(uint8_t bits, size_t group, bool zero_points, bool symmetric_rows) {
  SchemeCase s;
  s.code = bits == 4 ? CodeType::kInt4Offset : CodeType::kInt8;
  s.bits = bits;
  s.block_k = group;
  s.zero_points = zero_points;
  s.act.code = ActCode::kInt;
  s.act.symmetric = symmetric_rows;
  return s;
}

void expect_equal_to_reference(const Kernel& k, const SchemeCase& s, const LongShape& shape) {
  Rng rng(test_seed());
  const MatrixCase m = make_matrix(s, shape.N, shape.K, rng);
  const GuardedBytes x = make_rows(s, shape.M, shape.K, shape.K, false, rng);
  if (shape.largest) {
    std::memset(m.codes.data(), s.bits == 4 ? 0 : 0x80, m.codes.size());
    for (size_t i = 0; i < shape.M * shape.K; ++i)
      x.as<float>()[i] = i / shape.K % 3 == 0 ? 1.0f : -1.0f;
  }
  const OwnedPackedMatrix packed(k, m.w, s.act, s.x_type, m.params);
  std::vector<float> y(shape.M * shape.N), expected(y.size());
  packed.multiply(x.as<float>(), shape.K, shape.M, y.data(), shape.N);
  const auto rows = quantize_rows(x.as<float>(), shape.K, shape.M, shape.K, s.act, m.params,
                                  quantizer_row_type(packed.problem()));
  reference_gemm(m.w, rows.rows, 0, shape.N, expected.data(), shape.N);
  if (k.numerics(packed.problem()) == Numerics::kExact) {
    EXPECT_EQ(std::memcmp(y.data(), expected.data(), y.size() * sizeof(float)), 0)
        << k.name << "/" << k.codec << " K=" << shape.K << " M=" << shape.M
        << " group=" << shape.group << " seed " << test_seed();
    return;
  }
  std::vector<double> bound(y.size());
  reordered_bound(m.w, rows.rows, 0, shape.N, bound.data(), shape.N);
  for (size_t i = 0; i < y.size(); ++i)
    ASSERT_LE(std::fabs(static_cast<double>(y[i]) - static_cast<double>(expected[i])), bound[i])
        << k.name << "/" << k.codec << " K=" << shape.K << " M=" << shape.M
        << " group=" << shape.group << " at " << i << " seed " << test_seed();
}

void for_every_kernel(const SchemeCase& s, const LongShape& shape) {
  const Cpu cpu = host_cpu();
  Rng rng(1);
  const MatrixCase probe = make_matrix(s, shape.N, shape.K, rng);
  const Problem p = make_problem(probe.w, s.act, s.x_type);
  for (const Kernel* k : kernel_list()) {
    if (k == &reference_kernel() || k->gemm == nullptr || !cpu.has(k->needs)) continue;
    if (k->supports(p) == nullptr) expect_equal_to_reference(*k, s, shape);
  }
}

TEST(LongK, IntegerKernelsWorkInChunks) {
  for (const LongShape& shape :
       {LongShape{11, 4099, 33, 0}, LongShape{8, 5120, 26, 128}, LongShape{9, 4608, 40, 32},
        LongShape{8, 6144, 25, 3072}, LongShape{57, 4112, 45, 0}, LongShape{49, 5137, 64, 0},
        LongShape{57, 4112, 37, 0}, LongShape{17, 768, 1, 256}, LongShape{17, 768, 2, 256},
        LongShape{9, 768, 4, 256}, LongShape{9, 768, 5, 256}, LongShape{9, 768, 8, 256},
        LongShape{19, 4160, 15, 32}, LongShape{9, 5376, 19, 256}, LongShape{17, 4100, 45, 0}})
    for (const uint8_t bits : {uint8_t{4}, uint8_t{8}})
      for (const bool zeros : {false, true})
        for (const bool symmetric : {true, false})
          for_every_kernel(int_case(bits, shape.group, zeros, symmetric), shape);
}

TEST(LongK, IntegerKernelsHoldTheLargestSums) {
  for (const size_t group : {size_t{0}, size_t{32}, size_t{128}, size_t{160}, size_t{512}})
    for (const size_t M : {1u, 2u, 5u, 8u, 13u, 26u})
      for (const uint8_t bits : {uint8_t{4}, uint8_t{8}})
        for (const bool symmetric : {true, false})
          for_every_kernel(int_case(bits, group, false, symmetric), {11, 2560, M, group, true});
}

TEST(LongK, FloatKernelsWorkInChunks) {
  for (const LongShape& shape : {LongShape{11, 4099, 33, 0}, LongShape{8, 5120, 26, 128},
                                 LongShape{9, 4608, 40, 32}, LongShape{8, 6144, 25, 3072}}) {
    SchemeCase s = int_case(4, shape.group, true, true);
    s.act = ActSpec{};
    s.x_type = XType::kBf16;
    for_every_kernel(s, shape);
    s = int_case(8, shape.group, false, true);
    s.code = CodeType::kFp8;
    s.act.code = ActCode::kFp8;
    for_every_kernel(s, shape);
  }
}

}  // namespace
}  // namespace moebius::test::long_k_test
