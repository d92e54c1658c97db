// SPDX-License-Identifier: Apache-2.0
// Scales of one byte (e4m3, e8m0) become what a kernel multiplies with when weights are packed, many
// at a time: every code, at every place of a block of outputs and groups and beyond the last block.
#include <gtest/gtest.h>

#include <vector>

#include "base/numeric.h"
#include "kernels/list.h"
#include "kernels/packed_matrix.h"
#include "runtime/cpu.h"

namespace moebius::test::byte_scales_test {
namespace {

struct Scheme {
  CodeType code;
  uint8_t bits, one;  // a byte of codes that are 1
  ScaleType scale;
  size_t group;
};

// All weights are 1: row g, which is 1 at the first input of group g and 0 elsewhere, gives its scales.
void expect_scales(const Kernel& kernel, const Scheme& s, size_t N, size_t groups) {
  const size_t K = groups * s.group;
  std::vector<uint8_t> codes(N * K * s.bits / 8, s.one), scales(N * groups);
  // e8m0 0 is below the normal numbers, and NaN would meet every row.
  const auto usable = [&](unsigned c) {
    return s.scale == ScaleType::kFp8 ? (c & 127) != 127 : c != 0 && c != 255;
  };
  unsigned next = 0;
  for (uint8_t& c : scales) {
    while (!usable(next % 256)) ++next;
    c = static_cast<uint8_t>(next++);
  }
  QuantMatrix w;
  w.N = N, w.K = K, w.code = s.code, w.bits = s.bits, w.codes = codes.data();
  w.row_bytes = K * s.bits / 8, w.scale_type = s.scale, w.scales = scales.data();
  w.scale_stride = w.groups = groups, w.block_k = s.group;
  const Problem problem = make_problem(w, {}, XType::kBf16);
  if (kernel.supports(problem) != nullptr) return;
  const OwnedPackedMatrix packed(kernel, w, {}, XType::kBf16);
  std::vector<float> x(groups * K, 0.0f), y(groups * N);
  for (size_t g = 0; g < groups; ++g) x[g * K + g * s.group] = 1.0f;
  packed.multiply(x.data(), K, groups, y.data(), N);
  for (size_t g = 0; g < groups; ++g)
    for (size_t n = 0; n < N; ++n) {
      const uint8_t c = scales[n * groups + g];
      const float expected = s.scale == ScaleType::kFp8 ? e4m3_to_f32(c) : e8m0_to_f32(c);
      ASSERT_EQ(y[g * N + n], expected) << kernel.name << "/" << kernel.codec << ": output " << n
                                        << ", group " << g << ", scale " << unsigned{c};
    }
}

TEST(ByteScales, AreExactWhereverTheyLie) {
  size_t kernels = 0;
  for (const Kernel* k : kernel_list()) {
    if (k->gemm == nullptr || !host_cpu().has(k->needs)) continue;
    ++kernels;
    for (const Scheme& s : {Scheme{CodeType::kFp4, 4, 0x22, ScaleType::kFp8, 16},
                            Scheme{CodeType::kFp4, 4, 0x22, ScaleType::kE8m0, 32},
                            Scheme{CodeType::kFp8, 8, 0x38, ScaleType::kE8m0, 32}})
      for (const size_t N : {size_t{32}, size_t{70}})
        for (const size_t groups : {size_t{16}, size_t{35}}) {
          expect_scales(*k, s, N, groups);
          if (HasFatalFailure()) return;
        }
  }
  EXPECT_GT(kernels, 1u);
}

}  // namespace
}  // namespace moebius::test::byte_scales_test
