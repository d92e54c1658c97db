// SPDX-License-Identifier: Apache-2.0
// The oracle: verdicts in words, requests by name, and the golden table of choices for a dozen CPUs
// and every scheme. MOEBIUS_UPDATE_GOLDEN=1 rewrites build/data/golden/oracle_choices.txt: a change of
// selection is then a diff to look at.
#include "kernels/oracle.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <tuple>

#include "base/error.h"
#include "kernels/kernel_cases.h"
#include "kernels/list.h"
#include "unit/test_util.h"

namespace moebius::oracle_test {
namespace {

using test::SchemeCase;

Problem problem_of(const SchemeCase& s, size_t N = 64, size_t K = 768) {
  test::Rng rng(7);
  if (s.columns == test::Columns::kShuffled) K = K / s.block_k * s.block_k;
  const test::MatrixCase m = test::make_matrix(s, N, K, rng);
  return make_problem(m.w, s.act, s.x_type);
}

SchemeCase case_named(std::string_view name) {
  for (const SchemeCase& s : test::scheme_cases())
    if (s.name == name) return s;
  ADD_FAILURE() << "no case " << name;
  return {};
}

const char* const kProfiles[] = {"reference",
                                 "neon",
                                 "neon,dotprod",
                                 "neon,dotprod,fp16",
                                 "neon,dotprod,i8mm",
                                 "neon,dotprod,i8mm,bf16",
                                 "neon,dotprod,i8mm,bf16,fhm",
                                 "neon,dotprod,i8mm,bf16,fp16,sve,sve2",
                                 "fma,f16c",
                                 "avx2,fma,f16c",
                                 "avx2,fma,f16c,avx_vnni",
                                 "avx512f,avx512bw",
                                 "avx512_vnni",
                                 "avx512_vnni,avx512_bf16",
                                 "amx_int8,amx_bf16,avx512_bf16"};

// One case of each kind that selection can tell apart.
const char* const kSchemes[] = {"w4a8 g0",
                                "w4a8 g30",
                                "w4a8 g32",
                                "w4a8 g64",
                                "w4a8 g128",
                                "w4a8 asym g32",
                                "w4a8 asym rows g32",
                                "w4a8 g32 columns 1",
                                "w4a8 g32 columns 2",
                                "w4a8 vllm g0 bf16",
                                "w4a8 vllm g128 f32",
                                "w4a8 ct g32",
                                "w4a8 static g32",
                                "w4a8 rows g64",
                                "w4a4 g128",
                                "w3a8 bytes g32",
                                "w8a8 bytes g0",
                                "w8a8 bytes g128",
                                "w8a8 tensor",
                                "w8a8 static",
                                "w8a8 static asym",
                                "w2a8 static (wna8o8)",
                                "fp8 tensor static",
                                "fp8 channel token",
                                "fp8 block 128x128",
                                "fp8 a16 g0",
                                "w4afp8 g128",
                                "nvfp4",
                                "nvfp4a16 x0",
                                "nvfp4a16 x1",
                                "mxfp4",
                                "mxfp4a16",
                                "w4a8-mxfp4 token",
                                "mxfp8",
                                "mxfp8a16",
                                "w4a16 g32 x0",
                                "w4a16 g32 x1",
                                "w4a16 g32 x2",
                                "w4a16 g128 x1 asym",
                                "w4a16 g32 columns 1",
                                "w4a16 g32 columns 2",
                                "w2a16 g32",
                                "w8a16 g32",
                                "two levels 4 bits g32 offsets",
                                "two levels 6 bits g16",
                                "table 1 two levels",
                                "dense bf16 x0",
                                "dense bf16 x1",
                                "dense f16 x2",
                                "dense f32 x0"};

std::string choice_table() {
  std::string out;
  std::vector<std::pair<std::string, Problem>> problems;
  for (const char* name : kSchemes) problems.emplace_back(name, problem_of(case_named(name)));
  for (const char* profile : kProfiles) {
    const Cpu cpu = parse_cpu(profile);
    out += fmt::format("# {}\n", profile);
    for (const auto& [name, problem] : problems) {
      const Choice c = choose_kernel(problem, cpu, {});
      out += fmt::format("{:<22} {:<16} {}\n", name, title_of(*c.chosen), name_of(c.numerics));
    }
  }
  return out;
}

TEST(Oracle, ChoicesAreThoseOfTheGoldenTable) {
  const auto path = test_data_dir() / "golden" / "oracle_choices.txt";
  const std::string table = choice_table();
  const char* update = std::getenv("MOEBIUS_UPDATE_GOLDEN");
  if (update != nullptr && std::string_view(update) == "1") {
    test::write_file(path, table);
    return;
  }
  const std::string golden = test::read_file(path);
  size_t at = 0, line = 1;
  while (at < table.size() && at < golden.size() && table[at] == golden[at])
    line += table[at++] == '\n' ? 1 : 0;
  EXPECT_TRUE(table == golden)
      << path << " differs from line " << line
      << " on; if the new choice is meant, run with MOEBIUS_UPDATE_GOLDEN=1";
}

TEST(Oracle, EveryCandidateHasAVerdictInWordsAndTheFirstThatFitsIsChosen) {
  for (const SchemeCase& s : test::scheme_cases()) {
    const Choice c = choose_kernel(problem_of(s), parse_cpu("neon,dotprod,i8mm,bf16"), {});
    ASSERT_EQ(c.candidates.size(), kernel_list().size());
    bool chosen = false;
    for (const Candidate& k : c.candidates) {
      EXPECT_FALSE(k.reason.empty()) << s.name << " " << title_of(*k.kernel);
      if (k.verdict == Verdict::kChosen) {
        EXPECT_FALSE(chosen);
        chosen = true;
        EXPECT_EQ(k.kernel, c.chosen);
      }
      if (k.verdict == Verdict::kFallback) {
        EXPECT_TRUE(chosen) << s.name;
      }
    }
    EXPECT_TRUE(chosen) << s.name;
    EXPECT_EQ(c.candidates.back().kernel, &reference_kernel());
    EXPECT_NE(c.candidates.back().verdict, Verdict::kRejected);
  }
}

TEST(Oracle, ACpuWithoutAnythingRunsEverySchemeOnGenericOrReference) {
  for (const SchemeCase& s : test::scheme_cases()) {
    const std::string name = choose_kernel(problem_of(s), parse_cpu("reference"), {}).chosen->name;
    EXPECT_TRUE(name == "generic" || name == "reference") << s.name << ": " << name;
  }
}

// Builds leave some kernels out (MOEBIUS_KERNELS); those of another architecture are left out of all.
TEST(Oracle, LeavesKernelsWithoutFunctionsToOtherMachines) {
  Cpu cpu = parse_cpu(kHostArch == Arch::kAarch64 ? "amx_int8,amx_bf16" : "i8mm,bf16");
  const Problem p = problem_of(case_named("w4a8 g32"));
  const Choice there = choose_kernel(p, cpu, {});
  EXPECT_EQ(there.chosen->gemm, nullptr) << title_of(*there.chosen);
  cpu.here = true;
  const Choice here = choose_kernel(p, cpu, {});
  EXPECT_EQ(here.chosen->arch, Arch::kOther) << title_of(*here.chosen);
  for (const Candidate& k : here.candidates) {
    if (k.kernel != there.chosen) continue;
    EXPECT_EQ(k.reason, "left out of this build (CMake option MOEBIUS_KERNELS)");
  }
  const auto names = left_out_kernels(cpu);
  EXPECT_NE(std::find(names.begin(), names.end(), there.chosen->name), names.end());
  EXPECT_TRUE(left_out_kernels(detect_cpu()).empty());  // builds with tests have all
}

// What MOEBIUS_KERNELS=native takes for granted (cmake/kernel_flags.cmake).
TEST(Oracle, TakesNoKernelOfASmallerCpuWithAvx512Vnni) {
  for (const SchemeCase& s : test::scheme_cases()) {
    const std::string name =
        choose_kernel(problem_of(s), parse_cpu("avx512_vnni"), {}).chosen->name;
    EXPECT_TRUE(name != "x86_avx2" && name != "x86_avxvnni") << s.name << ": " << name;
  }
}

TEST(Oracle, ExactPolicySkipsReorderedKernels) {
  const Problem p = problem_of(case_named("w4a16 g32 x0"));
  const Choice c = choose_kernel(p, parse_cpu("neon"), {Accept::kExact, ""});
  EXPECT_EQ(c.numerics, Numerics::kExact) << title_of(*c.chosen);
  bool skipped = false;
  for (const Candidate& k : c.candidates)
    skipped |= k.verdict == Verdict::kSkipped && k.reason.find("exact") != std::string::npos;
  EXPECT_TRUE(skipped);
}

// Sums leave tiles after every group: with 16 inputs vectors are faster, and tiles are a fallback.
TEST(Oracle, TilesComeFirstForGroupsThatPayForThem) {
  const Cpu cpu = parse_cpu("amx_int8,amx_bf16,avx512_bf16");
  for (const auto& [name, chosen, behind] :
       {std::tuple{"nvfp4", "x86_avx512/fp4", "x86_amx/fp4_16"},
        std::tuple{"mxfp4", "x86_amx/fp4", "x86_avx512/fp4"}}) {
    const Problem p = problem_of(case_named(name));
    const Choice c = choose_kernel(p, cpu, {});
    EXPECT_EQ(title_of(*c.chosen), chosen) << name;
    EXPECT_EQ(c.numerics, Numerics::kExact) << name;
    const auto next = std::find_if(c.candidates.begin(), c.candidates.end(),
                                   [](const auto& k) { return k.verdict == Verdict::kFallback; });
    EXPECT_EQ(title_of(*next->kernel), behind) << name;
    EXPECT_EQ(next->numerics, Numerics::kExact) << name;
    EXPECT_STREQ(choose_kernel(p, cpu, {Accept::kDeclared, "x86_amx"}).chosen->name, "x86_amx");
  }
}

TEST(Oracle, RequestedKernelIsTakenAndTheOthersSayWhyNot) {
  const Problem p = problem_of(case_named("w4a8 g32"));
  const Choice c = choose_kernel(p, parse_cpu("neon"), {Accept::kDeclared, "Reference"});
  EXPECT_EQ(c.chosen, &reference_kernel());
  for (const Candidate& k : c.candidates)
    EXPECT_NE(k.verdict, Verdict::kFallback) << title_of(*k.kernel);
  const Choice generic = choose_kernel(p, parse_cpu("neon"), {Accept::kDeclared, "generic"});
  EXPECT_EQ(title_of(*generic.chosen), "generic/int4");
  const Choice stored = choose_kernel(p, parse_cpu("neon"), {Accept::kDeclared, "GENERIC/stored"});
  EXPECT_EQ(title_of(*stored.chosen), "generic/stored");
}

std::string error_of(const Problem& p, const Cpu& cpu, const Policy& policy) {
  try {
    choose_kernel(p, cpu, policy);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Oracle, ImpossibleRequestSaysWhyAndWhatWouldWork) {
  const Problem dense = problem_of(case_named("dense bf16 x0"));
  const std::string message =
      error_of(dense, parse_cpu("neon"), {Accept::kDeclared, "generic/int4"});
  EXPECT_NE(message.find("generic/int4"), std::string::npos) << message;
  EXPECT_NE(message.find("integer"), std::string::npos) << message;
  EXPECT_NE(message.find("generic/stored"), std::string::npos) << message;
  EXPECT_NE(message.find("reference/stored"), std::string::npos) << message;
}

TEST(Oracle, UnknownNameListsTheNames) {
  const std::string message = error_of(problem_of(case_named("w4a8 g32")), parse_cpu("neon"),
                                       {Accept::kDeclared, "marlin"});
  EXPECT_NE(message.find("marlin"), std::string::npos) << message;
  for (const std::string& name : kernel_names())
    EXPECT_NE(message.find(name), std::string::npos) << message;
}

TEST(Oracle, NamesAreNormalized) {
  EXPECT_EQ(normalize_kernel_name("auto"), "");
  EXPECT_EQ(normalize_kernel_name("CPU"), "");
  EXPECT_EQ(normalize_kernel_name(""), "");
  EXPECT_EQ(normalize_kernel_name("REFERENCE"), "reference");
  EXPECT_EQ(normalize_kernel_name("generic/INT4"), "generic/int4");
  EXPECT_THROW(normalize_kernel_name("generic-int4"), Error);  // '-' is '_'
}

TEST(Oracle, PolicyNames) {
  EXPECT_EQ(accept_from_name("exact"), Accept::kExact);
  EXPECT_EQ(accept_from_name("declared"), Accept::kDeclared);
  EXPECT_EQ(accept_from_name("approximate"), Accept::kApproximate);
  EXPECT_THROW(accept_from_name("fast"), Error);
}

}  // namespace
}  // namespace moebius::oracle_test
