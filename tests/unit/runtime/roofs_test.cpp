// SPDX-License-Identifier: Apache-2.0
// The roofs: which loop bounds which kernel, and that every loop this CPU has runs.
#include "runtime/roofs.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "base/error.h"

namespace moebius::roofs_test {
namespace {

std::string loop_of(const char* cpu, uint32_t needs, RoofKind kind) {
  const ComputeLoop* loop = roof_loop(parse_cpu(cpu), needs, kind);
  return loop == nullptr ? "none" : loop->name;
}

TEST(Roofs, KernelsGetTheLoopTheirFeaturesName) {
  constexpr uint32_t kAvx512 = kAvx2 | kFma | kAvx512f | kAvx512bw;
  constexpr const char* kServer = "amx_int8,amx_bf16,avx_vnni";
  if (kHostArch == Arch::kX86_64) {
    EXPECT_EQ(loop_of(kServer, kAvx512 | kAvx512vnni | kAmxInt8, RoofKind::kInt8), "amx_int8");
    EXPECT_EQ(loop_of(kServer, kAvx512 | kAvx512bf16 | kAmxBf16, RoofKind::kBf16), "amx_bf16");
    EXPECT_EQ(loop_of(kServer, kAvx512 | kAvx512vnni, RoofKind::kInt8), "vpdpbusd_512");
    EXPECT_EQ(loop_of(kServer, kAvx512, RoofKind::kInt8), "vpmaddubsw_512");
    EXPECT_EQ(loop_of(kServer, kAvx2 | kAvxVnni, RoofKind::kInt8), "vpdpbusd_256");
    EXPECT_EQ(loop_of(kServer, kAvx2, RoofKind::kInt8), "vpmaddubsw_256");
    EXPECT_EQ(loop_of(kServer, kAvx512 | kAvx512bf16, RoofKind::kBf16), "vdpbf16ps_512");
    EXPECT_EQ(loop_of(kServer, kAvx512, RoofKind::kBf16), "fma_f32_512");
    EXPECT_EQ(loop_of(kServer, kAvx2 | kFma | kF16c, RoofKind::kBf16), "fma_f32_256");
    // A portable kernel is measured by the best this CPU has.
    EXPECT_EQ(loop_of(kServer, 0, RoofKind::kInt8), "amx_int8");
    EXPECT_EQ(loop_of("avx2,fma", 0, RoofKind::kBf16), "fma_f32_256");
    EXPECT_EQ(loop_of("x86_64", 0, RoofKind::kInt8), "mul_add_f32_128");
  }
  if (kHostArch == Arch::kAarch64) {
    EXPECT_EQ(loop_of("i8mm,bf16", kNeon | kDotprod | kI8mm, RoofKind::kInt8), "smmla");
    EXPECT_EQ(loop_of("i8mm,bf16", kNeon | kDotprod, RoofKind::kInt8), "sdot");
    EXPECT_EQ(loop_of("i8mm,bf16", kNeon | kArmBf16, RoofKind::kBf16), "bfmmla");
    EXPECT_EQ(loop_of("i8mm,bf16", kNeon, RoofKind::kBf16), "fmla_f32");
    EXPECT_EQ(loop_of("dotprod", 0, RoofKind::kInt8), "sdot");
  }
}

TEST(Roofs, EveryLoopOfThisCpuRuns) {
  size_t run = 0;
  for (const ComputeLoop& loop : compute_loops()) {
    if (!runs_on(loop, detect_cpu())) continue;
    loop.run(1), loop.run(100);
    ++run;
  }
  EXPECT_GE(run, 1u);
}

TEST(Roofs, FiguresAreNumbers) {
  ThreadPool pool(2);
  RoofMemory memory(pool, RoofMemory::Effort::kBrief);
  for (const size_t streams : {1u, 2u, 4u, 8u}) {
    const double gbs = memory.read(streams);
    EXPECT_TRUE(std::isfinite(gbs) && gbs > 0) << gbs;
  }
  EXPECT_GT(memory.copy(), 0);
  EXPECT_THROW(memory.read(3), Error);
  if (const ComputeLoop* loop = roof_loop(detect_cpu(), 0, RoofKind::kF32)) {
    EXPECT_GT(measure_compute(*loop, pool), 0);
    EXPECT_GT(measure_scaling(pool), 0);
  }
}

// Tile state is asked for once per process; threads that exist already have it too.
TEST(Roofs, TilesRunInThreadsOlderThanThePermission) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process in which nobody asked yet
  EXPECT_EXIT(
      {
        std::atomic<int> go{0};
        std::thread older([&] {
          go.wait(0);
          for (const ComputeLoop& loop : compute_loops())
            if ((loop.needs & (kAmxInt8 | kAmxBf16)) != 0 && runs_on(loop, detect_cpu()))
              loop.run(3);
        });
        (void)detect_cpu();
        go = 1;
        go.notify_all();
        older.join();
        std::fputs("the older thread came back\n", stderr);
        std::_Exit(0);
      },
      // No regular expression: sanitizers take regcomp() of Oniguruma and regexec() of the C library.
      testing::ExitedWithCode(0), testing::Matcher<const std::string&>(testing::Ne("")));
}

}  // namespace
}  // namespace moebius::roofs_test
