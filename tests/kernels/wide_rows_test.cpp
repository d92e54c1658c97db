// SPDX-License-Identifier: Apache-2.0
// Rows that span more powers of two than activations do, times weights that hide the largest of
// them: what a kernel that writes rows as fixed point (arm_limbs) must hold and what it must keep
// beside it. Every kernel that claims a weight-only problem must stay within the bound, which is
// relative to what an output's own weights leave of the row, and give a row equal bytes alone and
// among others.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/numeric.h"
#include "kernels/kernel_cases.h"
#include "kernels/list.h"
#include "kernels/prepared_rows.h"

namespace moebius::test::wide_rows_test {
namespace {

constexpr size_t kKinds = 14;

float mantissa(Rng& rng) {  // 1 to 2, sign; the longest run of ones often
  const uint32_t bits = rng() % 3 == 0 ? 0x7fffffu : static_cast<uint32_t>(rng()) & 0x7fffffu;
  const float v = f32_from_bits(0x3f800000u | bits);
  return rng() % 2 == 0 ? v : -v;
}
int between(Rng& rng, int low, int high) {
  return low + static_cast<int>(rng() % static_cast<uint64_t>(high - low + 1));
}

// Element k of a row of a kind; f16 has fewer powers of two.
float element(size_t kind, size_t k, size_t K, bool f16, Rng& rng) {
  const int most = f16 ? 7 : 60, least = f16 ? -24 : -60;
  const float v = mantissa(rng);
  switch (kind) {
    case 0:  // one outlier
    case 1:
    case 2:
      return std::ldexp(v, k == K / 3 ? (f16 ? 10 : 8 * static_cast<int>(kind + 1)) : 0);
    case 3:  // some outliers
      return std::ldexp(v, rng() % 40 == 0 ? between(rng, 4, f16 ? 10 : 30) : 0);
    case 4:  // anything
      return std::ldexp(v, between(rng, least, most));
    case 5:  // at the edge of two limbs, of four, and beyond
      return std::ldexp(v, -between(rng, 0, 9));
    case 6:
      return std::ldexp(
          v, f16 ? -between(rng, 0, 20) : -between(rng, 13, 26) * static_cast<int>(k % 5 != 0));
    case 7:  // subnormal
      return f16 ? std::ldexp(v, -between(rng, 15, 24)) : std::ldexp(v, -between(rng, 120, 133));
    case 8:  // subnormal among others
      return k % 7 == 0 ? v : f16 ? std::ldexp(v, -20) : std::ldexp(v, -128);
    case 9:  // huge
      return std::ldexp(v, f16 ? 14 : 100);
    case 10:  // groups of zeros, and single numbers
      return k / 32 % 3 == 0 ? 0.0f : k % 13 == 0 ? v : 0.0f;
    case 11:  // all as large as the first: the largest sums
      return 0x1.fep0f;
    case 12:  // what a gate leaves: products of two small numbers
      return v * std::ldexp(mantissa(rng), -between(rng, 0, 12));
    default:
      return v * (static_cast<float>(rng() % 1000) / 1000.0f);
  }
}

// Zero, or the largest code there is.
void put_code(const SchemeCase& s, QuantMatrix& w, uint8_t* codes, size_t n, size_t c,
              bool largest) {
  uint8_t* row = codes + n * w.row_bytes;
  if (s.code == CodeType::kInt8 || s.code == CodeType::kInt8Offset) {
    const unsigned most = s.code == CodeType::kInt8 && s.bits == 8 ? 128 : 0;
    row[c] = static_cast<uint8_t>(largest ? most : s.code == CodeType::kInt8 ? 0 : 128);
    return;
  }
  const unsigned code = s.code == CodeType::kFp4 ? (largest ? 7 : 0)
                        : largest                ? 0
                                                 : 8,
                 shift = 4 * (c % 2);
  row[c / 2] = static_cast<uint8_t>((row[c / 2] & ~(15u << shift)) | code << shift);
}

SchemeCase scheme(CodeType code, uint8_t bits, size_t group, bool zeros, XType x) {
  SchemeCase s;
  s.code = code, s.bits = bits, s.block_k = group, s.zero_points = zeros, s.x_type = x;
  if (code == CodeType::kFp4) {
    s.scale = group == 16 ? ScaleType::kFp8 : ScaleType::kE8m0;
    s.global_scale = group == 16;
  }
  s.name = "code " + std::to_string(static_cast<int>(code)) + " g" + std::to_string(group) +
           (zeros ? " asym x" : " x") + std::to_string(static_cast<int>(x));
  return s;
}

void judge(const Kernel& k, const SchemeCase& s, size_t N, size_t K, size_t M, bool largest) {
  Rng rng(test_seed());
  MatrixCase m = make_matrix(s, N, K, rng);
  // Output n keeps one input in 2^(n % 8): the others' largest numbers must not show. Or all weights
  // are as large as they can be: the largest sums.
  for (size_t n = 0; n < N; ++n)
    for (size_t c = 0; c < K; ++c)
      if (largest || rng() % (1u << n % 8) != 0) put_code(s, m.w, m.codes.data(), n, c, largest);
  const Problem problem = make_problem(m.w, s.act, s.x_type);
  if (k.supports(problem) != nullptr) return;
  std::vector<float> x(M * K);
  for (size_t i = 0; i < M * K; ++i)
    x[i] = element(i / K % kKinds, i % K, K, s.x_type == XType::kF16, rng);
  round_to(s.x_type, x.data(), x.size());
  const OwnedPackedMatrix packed(k, m.w, s.act, s.x_type, m.params);
  std::vector<float> y(M * N), alone(N), expected(M * N);
  packed.multiply(x.data(), K, M, y.data(), N);
  const auto rows = quantize_rows(x.data(), K, M, K, s.act, m.params, quantizer_row_type(problem));
  reference_gemm(m.w, rows.rows, 0, N, expected.data(), N);
  std::vector<double> bound(M * N);
  reordered_bound(m.w, rows.rows, 0, N, bound.data(), N);
  for (size_t i = 0; i < y.size(); ++i) {
    if (std::isinf(bound[i]) || (std::isnan(y[i]) && std::isnan(expected[i]))) continue;
    const double error = std::fabs(static_cast<double>(y[i]) - static_cast<double>(expected[i]));
    ASSERT_LE(error, k.numerics(problem) == Numerics::kExact ? 0.0 : bound[i])
        << k.name << "/" << k.codec << ", " << s.name << ", N=" << N << " K=" << K << " M=" << M
        << ", row of kind " << i / N % kKinds << ", output " << i % N << ": " << y[i] << ", not "
        << expected[i] << ", seed " << test_seed();
  }
  for (size_t r = 0; r < M; ++r) {
    packed.multiply(x.data() + r * K, K, 1, alone.data(), N);
    for (size_t n = 0; n < N; ++n)
      ASSERT_TRUE(std::memcmp(&alone[n], &y[r * N + n], 4) == 0 ||
                  (std::isnan(alone[n]) && std::isnan(y[r * N + n])))
          << k.name << "/" << k.codec << ", " << s.name << ": row " << r << " alone";
  }
}

TEST(WideRows, StayWithinTheBoundWhateverTheWeights) {
  size_t judged = 0;
  for (const XType x : {XType::kBf16, XType::kF16})
    for (const SchemeCase& s :
         {scheme(CodeType::kInt4Offset, 4, 32, false, x),
          scheme(CodeType::kInt4Offset, 4, 128, true, x),
          scheme(CodeType::kInt4Offset, 4, 0, false, x),
          scheme(CodeType::kInt8Offset, 8, 64, true, x), scheme(CodeType::kInt8, 8, 256, false, x),
          scheme(CodeType::kInt8, 3, 64, false, x), scheme(CodeType::kFp4, 4, 16, false, x),
          scheme(CodeType::kFp4, 4, 32, false, x)}) {
      Rng rng(1);
      const MatrixCase probe = make_matrix(s, 19, 512, rng);
      const Problem p = make_problem(probe.w, s.act, s.x_type);
      for (const Kernel* k : kernel_list()) {
        if (k == &reference_kernel() || k->gemm == nullptr || !host_cpu().has(k->needs) ||
            k->supports(p) != nullptr)
          continue;
        for (const size_t M : {size_t{3}, size_t{kKinds}, size_t{2 * kKinds + 1}}) {
          judge(*k, s, 19, 512, M, false);
          judge(*k, s, 19, 512, M, true);
          if (HasFatalFailure()) return;
        }
        ++judged;
      }
    }
  EXPECT_GT(judged, 0u);
}

}  // namespace
}  // namespace moebius::test::wide_rows_test
