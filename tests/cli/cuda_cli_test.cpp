// SPDX-License-Identifier: Apache-2.0
// --device cuda without a GPU: what answers for one answers, what needs one says so in one sentence; models run on the emulated plugin.
#include <gtest/gtest.h>

#include "base/json.h"
#include "unit/device/cuda_util.h"
#include "unit/test_util.h"

namespace moebius::cuda_cli_test {
namespace {

using test::run_tool;

// No module, wherever the test runs.
const char* const kNoModule = "MOEBIUS_CUDA_MODULE=/nonexistent/libmoebius_cuda.so";

std::string golden(const char* name) {
  return test::shell_quote((test_data_dir() / "golden" / name).string());
}

TEST(CudaCli, ExplainAnswersForADeviceThatIsNotHere) {
  const test::CommandResult text =
      run_tool("explain --device cuda " + golden("qwen3moe-w4a16-g128"), kNoModule);
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_NE(text.out.find("NVIDIA H200 (assumed: this machine has no CUDA device)"),
            std::string::npos)
      << text.out;
  EXPECT_NE(text.out.find("cuda_plain/stored"), std::string::npos) << text.out;
  const test::CommandResult card =
      run_tool("explain --device cuda --gpu RTX3090 " + golden("qwen3moe-w4a16-g128"), kNoModule);
  EXPECT_NE(card.out.find("NVIDIA GeForce RTX 3090 (asked for; not measured on this card)"),
            std::string::npos)
      << card.out << card.err;
  EXPECT_NE(run_tool("explain --device cuda --gpu k80 " + golden("qwen3moe-w4a16-g128"), kNoModule)
                .err.find("rtx3060, rtx3070, rtx3090"),
            std::string::npos);
  const test::CommandResult why =
      run_tool("explain --json --device cuda " + golden("qwen3moe-w4a16-g128"), kNoModule);
  EXPECT_NE(why.out.find("size fills less than four fifths of a multiple of 256"),
            std::string::npos)
      << why.out;
  const test::CommandResult json =
      run_tool("explain --json --device cuda " + golden("qwen3moe-fp8-dynamic"), kNoModule);
  const Json j = parse_json(json.out, "explain");
  EXPECT_NE(j.find("device"), nullptr);
  EXPECT_EQ(j.find("cpu"), nullptr);
  for (const Json& m : j.find("modules")->items())
    EXPECT_EQ(m.find("chosen")->as_string().rfind("cuda_", 0), 0u);
  const auto& forecast = j.find("forecast")->items();
  ASSERT_EQ(forecast.size(), 2u) << json.out;  // all there, and experts on the CPU
  EXPECT_GT(forecast[0].find("decode")->items()[0].find("tokens_per_second")->as_double(), 0.0);
  EXPECT_NE(text.out.find("--device cuda --experts cpu"), std::string::npos) << text.out;
}

TEST(CudaCli, InspectCountsBytesOnTheDevice) {
  const test::CommandResult r =
      run_tool("inspect --json --device cuda " + golden("qwen3moe-fp8-dynamic"), kNoModule);
  EXPECT_EQ(r.status, 0) << r.err;
  const Json j = parse_json(r.out, "inspect");
  ASSERT_NE(j.find("device_bytes"), nullptr);
  EXPECT_GT(j.find("device_bytes")->as_uint(), 0u);
}

TEST(CudaCli, WhatNeedsADeviceSaysThatThereIsNone) {
  for (const std::string& command : {"verify --device cuda " + golden("qwen3moe-fp8-dynamic"),
                                     std::string("bench roof --device cuda"),
                                     std::string("bench moe --device cuda --scheme w4a8"),
                                     std::string("bench linear --device cuda --scheme w4a8")}) {
    const test::CommandResult r = run_tool(command, kNoModule);
    EXPECT_EQ(r.status, 1) << command;
    EXPECT_NE(r.err.find("--device cuda: the CUDA module does not open"), std::string::npos)
        << command << ": " << r.err;
    EXPECT_EQ(r.out, "") << command;
  }
}

TEST(CudaCli, KernelsOfTheDeviceAreNamed) {
  const test::CommandResult r = run_tool(
      "explain --device cuda --kernel arm_i8mm " + golden("qwen3moe-fp8-dynamic"), kNoModule);
  EXPECT_NE(r.status, 0);
  EXPECT_NE(r.err.find("cuda_plain/stored"), std::string::npos) << r.err;
}

TEST(CudaCli, ModelsNeedADeviceToo) {
  for (const std::string& command :
       {std::string("run --device cuda -p x"), std::string("run --device cuda:1 -p x"),
        std::string("run --device cuda --experts cpu -p x"),
        "logits --device cuda --tokens 1 --out x " + golden("qwen3moe-dense")}) {
    const test::CommandResult r = run_tool(command, kNoModule);
    EXPECT_EQ(r.status, 1) << command;
    EXPECT_NE(r.err.find("the CUDA module does not open"), std::string::npos) << r.err;
  }
  const test::CommandResult r = run_tool("run --experts cpu -p x");
  EXPECT_NE(r.status, 0);
  EXPECT_NE(r.err.find("--experts is for models on a GPU: --device cuda"), std::string::npos);
}

// The bundled model's products are integers: its text is the CPU's wherever its parts are.
TEST(CudaCli, ModelsRunOnTheEmulatedPlugin) {
  if (!test::has_emulated_plugin()) GTEST_SKIP() << "skipped: no emulated plugin in this bundle";
  const std::string prompt = " -p 'Once upon a time' -n 8 --temp 0 -q";
  const std::string emulated = "MOEBIUS_CUDA_MODULE=" + test::shell_quote(test::emulated_plugin());
  const std::string want = run_tool("run" + prompt).out;
  EXPECT_FALSE(want.empty());
  for (const char* device : {" --device cuda", " --device cuda --experts cpu",
                             " --device cuda --experts auto --gpu-memory 0.28"}) {
    const test::CommandResult r = run_tool("run" + prompt + device, emulated);
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_EQ(r.out, want) << device;
  }
  const test::CommandResult r = run_tool("run --device cuda --gpu-memory 0.2" + prompt, emulated);
  EXPECT_EQ(r.status, 1);
  EXPECT_NE(r.err.find("may be used (--gpu-memory)"), std::string::npos) << r.err;
}

// Ranks with whole layers, or whole experts, on a device each; here both share one.
TEST(CudaCli, RanksRunOnTheEmulatedPlugin) {
  if (!test::has_emulated_plugin()) GTEST_SKIP() << "skipped: no emulated plugin in this bundle";
  const std::string prompt = " -p 'Once upon a time' -n 3 --temp 0 -q";
  const std::string emulated = "MOEBIUS_CUDA_MODULE=" + test::shell_quote(test::emulated_plugin());
  const std::string want = run_tool("run" + prompt).out;
  for (const char* device :
       {" --device cuda --pp 2", " --device cuda --pp 2 --experts cpu --gpu-memory 1",
        " --device cuda --ep 2 --gpu-memory 1", " --device cuda --ep 2 --experts cpu",
        " --device cuda --ranks 2"}) {
    const test::CommandResult r = run_tool("run" + prompt + device, emulated);
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_EQ(r.out, want) << device;
  }
  const test::CommandResult cut = run_tool("run --device cuda --tp 2" + prompt, emulated);
  EXPECT_EQ(cut.status, 1);
  EXPECT_NE(cut.err.find("with GPUs every rank has whole ones: --pp 2"), std::string::npos)
      << cut.err;
  const test::CommandResult small =
      run_tool("run --device cuda --pp 2 --gpu-memory 0.1" + prompt, emulated);
  EXPECT_EQ(small.status, 1);
  EXPECT_NE(small.err.find("may be used (--gpu-memory)"), std::string::npos) << small.err;
  // A device that one of the ranks loses ends both, in its words.
  const test::CommandResult lost =
      run_tool("run --device cuda --ep 2" + prompt, emulated + " MOEBIUS_EMULATED_LOST=200");
  EXPECT_EQ(lost.status, 1) << lost.err;
  EXPECT_NE(lost.err.find("unspecified launch failure (emulated)"), std::string::npos) << lost.err;
  const test::CommandResult plan = run_tool("explain --device cuda --ranks 2", emulated);
  EXPECT_EQ(plan.status, 0) << plan.err;
  EXPECT_NE(plan.out.find("--device cuda --ep 2"), std::string::npos) << plan.out;
}

// A device that fails for good while it runs: words, and another start is as good as the first.
TEST(CudaCli, ALostDeviceIsSaid) {
  if (!test::has_emulated_plugin()) GTEST_SKIP() << "skipped: no emulated plugin in this bundle";
  const std::string emulated = "MOEBIUS_CUDA_MODULE=" + test::shell_quote(test::emulated_plugin()),
                    words = "run --device cuda -p 'Once' -n 2 --temp 0 -q";
  const test::CommandResult lost = run_tool(words, emulated + " MOEBIUS_EMULATED_LOST=60");
  EXPECT_EQ(lost.status, 1) << lost.err;
  EXPECT_NE(lost.err.find("unspecified launch failure (emulated)"), std::string::npos) << lost.err;
  EXPECT_EQ(run_tool(words, emulated).status, 0);
}

}  // namespace
}  // namespace moebius::cuda_cli_test
