// SPDX-License-Identifier: Apache-2.0
// Which CUDA kernel runs which problem: a table, the same on every machine. And what the module says where there is no device.
#include "device/cuda/cuda_choice.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "device/cuda/cuda_module.h"
#include "quant/act_request.h"
#include "runtime/program_folder.h"

namespace moebius::cuda_choice_test {
namespace {

Problem problem(CodeType code, int bits, ScaleType scale, size_t block_k, ActSpec act,
                XType x = XType::kBf16) {
  Problem p;
  p.N = 768, p.K = 2048, p.code = code, p.bits = static_cast<uint8_t>(bits), p.scale_type = scale;
  p.block_k = block_k == 0 ? p.K : block_k, p.groups = p.K / p.block_k, p.act = act, p.x_type = x;
  return p;
}
ActSpec int8_rows() {
  ActSpec a;
  a.code = ActCode::kInt;
  return a;
}
ActSpec fp8_rows() {
  ActSpec a;
  a.code = ActCode::kFp8;
  return a;
}

template <class F>
std::string words_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}
bool says(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

std::string chosen(const Problem& p, const char* device = "H200", const char* kernel = "",
                   Accept accept = Accept::kDeclared) {
  Policy policy;
  policy.kernel = kernel, policy.accept = accept, policy.where_it_can = true;
  const Choice c = choose_cuda(p, named_gpu_target(device), policy);
  return fmt::format("{} {}", title_of(*c.chosen), name_of(c.numerics));
}

TEST(CudaChoice, Table) {
  const Problem w4a8 = problem(CodeType::kInt4Offset, 4, ScaleType::kBf16, 128, int8_rows());
  EXPECT_EQ(chosen(w4a8), "cuda_hopper/int4_g128 exact");
  EXPECT_EQ(chosen(w4a8, "H100"), "cuda_hopper/int4_g128 exact");
  EXPECT_EQ(chosen(w4a8, "H20"), "cuda_hopper/int4_g128 exact");
  EXPECT_EQ(chosen(w4a8, "A100"), "cuda_mma/int4_g128 exact");
  EXPECT_EQ(chosen(w4a8, "rtx3090"), "cuda_mma/int4_g128 exact");
  EXPECT_EQ(chosen(w4a8, "h200", "cuda-mma"), "cuda_mma/int4_g128 exact");
  EXPECT_EQ(chosen(problem(CodeType::kInt4Offset, 4, ScaleType::kF32, 0, int8_rows())),
            "cuda_hopper/int4 exact");
  EXPECT_EQ(chosen(problem(CodeType::kInt8, 8, ScaleType::kF32, 0, int8_rows())),
            "cuda_hopper/int8 exact");
  EXPECT_EQ(chosen(problem(CodeType::kInt4Offset, 4, ScaleType::kBf16, 32, int8_rows())),
            "cuda_hopper/int4_g32 exact");
  EXPECT_EQ(chosen(problem(CodeType::kInt4Offset, 4, ScaleType::kF16, 128, int8_rows())),
            "cuda_plain/stored exact");
  EXPECT_EQ(chosen(problem(CodeType::kInt4Offset, 4, ScaleType::kBf16, 128, {})),
            "cuda_hopper/int4_g128_bf16 reordered");
  EXPECT_EQ(chosen(problem(CodeType::kInt4Offset, 4, ScaleType::kBf16, 128, {}, XType::kF16)),
            "cuda_hopper/int4_g128_f16 reordered");
  EXPECT_EQ(chosen(problem(CodeType::kFp4, 4, ScaleType::kFp8, 16, {})),
            "cuda_hopper/nvfp4_bf16 reordered");
  EXPECT_EQ(chosen(problem(CodeType::kBf16, 16, ScaleType::kNone, 0, {})),
            "cuda_hopper/bf16 reordered");
  EXPECT_EQ(chosen(problem(CodeType::kBf16, 16, ScaleType::kNone, 0, {}, XType::kF32)),
            "cuda_plain/stored exact");
  const Problem fp8 = problem(CodeType::kFp8, 8, ScaleType::kF32, 0, fp8_rows());
  EXPECT_EQ(chosen(fp8), "cuda_hopper/fp8 reordered");
  EXPECT_EQ(chosen(fp8, "H200", "", Accept::kExact), "cuda_plain/stored exact");
  // Products of e4m3 are taken by name alone, even where the policy accepts approximate ones.
  EXPECT_EQ(chosen(fp8, "H200", "", Accept::kApproximate), "cuda_hopper/fp8 reordered");
  EXPECT_EQ(chosen(fp8, "H200", "cuda-hopper/fp8_products"),
            "cuda_hopper/fp8_products approximate");
  EXPECT_EQ(chosen(fp8, "H200", "cuda_plain"), "cuda_plain/stored exact");
  EXPECT_EQ(chosen(fp8, "rtx4090"), "cuda_mma/fp8 reordered");
  EXPECT_EQ(chosen(fp8, "rtx4090", "cuda-hopper/fp8_products"), "cuda_mma/fp8 reordered");
  EXPECT_EQ(chosen(w4a8, "H200", "cuda-hopper/fp8_products"), "cuda_hopper/int4_g128 exact");
}

ActSpec grouped_rows(ActCode code, uint32_t group, ActScale scale) {
  ActSpec a;
  a.code = code, a.granule = ActGranule::kGroup, a.group = group, a.scale = scale;
  return a;
}

// Groups, zero points, blocks, stored scales; and inputs that are padded.
TEST(CudaChoice, SchemesOfFolders) {
  Problem awq = problem(CodeType::kInt4Offset, 4, ScaleType::kF16, 128, {}, XType::kF16);
  awq.zero_points = true;
  EXPECT_EQ(chosen(awq), "cuda_hopper/int4_g128_f16 reordered");
  awq.act_order = true, awq.block_k = 64, awq.groups = 32, awq.x_type = XType::kBf16;
  EXPECT_EQ(chosen(awq), "cuda_hopper/int4_g64_bf16 reordered");
  awq.offsets = true;
  EXPECT_EQ(chosen(awq), "cuda_plain/stored exact");
  Problem block = problem(CodeType::kFp8, 8, ScaleType::kF32, 128,
                          grouped_rows(ActCode::kFp8, 128, ActScale::kF32));
  block.block_n = 128;
  EXPECT_EQ(chosen(block), "cuda_hopper/fp8_block reordered");
  ActSpec fixed = fp8_rows();
  fixed.granule = ActGranule::kStatic;
  EXPECT_EQ(chosen(problem(CodeType::kFp8, 8, ScaleType::kF32, 0, fixed)),
            "cuda_hopper/fp8 reordered");
  EXPECT_EQ(chosen(problem(CodeType::kFp4, 4, ScaleType::kFp8, 16,
                           grouped_rows(ActCode::kFp4, 16, ActScale::kFp8))),
            "cuda_hopper/nvfp4_bf16 reordered");
  fixed = int8_rows(), fixed.granule = ActGranule::kStatic;
  EXPECT_EQ(chosen(problem(CodeType::kInt8, 8, ScaleType::kF32, 0, fixed)),
            "cuda_plain/stored exact");
  const Problem mxfp8 = problem(CodeType::kFp8, 8, ScaleType::kE8m0, 32,
                                grouped_rows(ActCode::kFp8, 32, ActScale::kE8m0));
  EXPECT_EQ(chosen(mxfp8), "cuda_hopper/bf16 reordered");
  EXPECT_EQ(choose_cuda(mxfp8, named_gpu_target("H200"), {}).chosen->packed_bytes(mxfp8),
            2 * mxfp8.N * mxfp8.K);
  EXPECT_EQ(chosen(problem(CodeType::kFp8, 8, ScaleType::kE8m0, 32, {})),
            "cuda_hopper/bf16 reordered");
  Problem oss = problem(CodeType::kFp4, 4, ScaleType::kE8m0, 32, {});
  oss.N = 5760, oss.K = 2880, oss.groups = 90;
  EXPECT_EQ(chosen(oss), "cuda_hopper/mxfp4_bf16 reordered");
  oss.K = 128, oss.groups = 4;
  EXPECT_EQ(chosen(oss), "cuda_plain/stored exact");
}

TEST(CudaChoice, EveryKernelSaysWhyNot) {
  Problem odd = problem(CodeType::kInt4Offset, 4, ScaleType::kBf16, 128, int8_rows());
  odd.zero_points = true;
  const Choice c = choose_cuda(odd, named_gpu_target("H200"), {});
  EXPECT_EQ(c.candidates.size(), cuda_kernels().size());
  for (const Candidate& one : c.candidates)
    if (one.kernel != c.chosen) {
      EXPECT_EQ(one.reason, "zero points or an order of columns");
    }
  Policy exact;
  exact.kernel = "cuda_hopper";
  const std::string asked = words_of([&] { choose_cuda(odd, named_gpu_target("H200"), exact); });
  EXPECT_TRUE(says(asked, "cuda_hopper was requested") && says(asked, "cuda_plain runs everything"))
      << asked;
  EXPECT_TRUE(
      says(words_of([] { normalize_cuda_kernel("marlin"); }), "no CUDA kernel named 'marlin'"));
  EXPECT_TRUE(says(words_of([] { named_gpu_target("K80"); }), "h200, h100, h20, a100"));
}

// Bytes of a tile format: half a byte per weight, and a bf16 scale for 128.
TEST(CudaChoice, BytesAreThoseOfTheTiles) {
  const Problem p = problem(CodeType::kInt4Offset, 4, ScaleType::kBf16, 128, int8_rows());
  const Choice c = choose_cuda(p, named_gpu_target("H200"), {});
  EXPECT_EQ(c.chosen->packed_bytes(p), p.N * p.K / 2 + p.N * (p.K / 128) * 2);
}

TEST(CudaModule, SaysWhatIsMissing) {
  EXPECT_NE(open_cuda_module("").words.find("there is no CUDA module (libmoebius_cuda.so) here"),
            std::string::npos);
  EXPECT_NE(open_cuda_module("/nonexistent/libmoebius_cuda.so")
                .words.find("the CUDA module does not open"),
            std::string::npos);
  // Another library is no plugin.
  EXPECT_NE(open_cuda_module("libm.so.6").words.find("is no CUDA module of this build"),
            std::string::npos);
}

// The built module loads everywhere, and names the driver or device that is not there.
TEST(CudaModule, LoadsWithoutADriver) {
  const std::string file = program_folder() + "/" + kCudaFile;
  const CudaModule m = open_cuda_module(file);
  if (m.api == nullptr)
    GTEST_SKIP() << "skipped: the CUDA module was not built (" << m.words << ")";
  if (m.ready()) {
    EXPECT_GE(m.facts.major, kCudaLeastMajor);
    return;
  }
  EXPECT_TRUE(m.status == CudaStatus::kNoDriver || m.status == CudaStatus::kNoDevice ||
              m.status == CudaStatus::kTooOld)
      << m.words;
  EXPECT_EQ(m.words.rfind("the CUDA module is there, but ", 0), 0u) << m.words;
  GTEST_SKIP() << "skipped: no CUDA device (module loaded, " << m.words.substr(30) << ")";
}

}  // namespace
}  // namespace moebius::cuda_choice_test
