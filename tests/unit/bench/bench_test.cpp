// SPDX-License-Identifier: Apache-2.0
// The benchmark's promises that do not depend on speed: keys, counting rules, synthetic weights
// every scheme can run, routing, comparison with an earlier run, pictures, refusals, Ctrl-C.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <iterator>
#include <set>
#include <sstream>

#include "apps/cli/interrupt.h"
#include "base/error.h"
#include "bench/bench_folder.h"
#include "bench/bench_report.h"
#include "bench/bench_synthetic.h"
#include "cli/pty_util.h"
#include "kernels/packed_matrix.h"
#include "quant/reference.h"
#include "unit/test_util.h"

namespace moebius::bench_test {
namespace {

using test::run_tool;
using test::TempDir;

const std::string kSmall =
    "--experts 4 --top-k 2 --hidden 64 --intermediate 32 --seconds 0 --threads 1 ";

std::vector<Json> lines_of(const std::string& text) {
  std::vector<Json> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(parse_json(line, "bench"));
  return lines;
}
double number(const Json& j, const char* key) {
  const Json* v = j.find(key);
  EXPECT_NE(v, nullptr) << key;
  return v != nullptr && v->is_number() ? v->as_double() : -1;
}

// Numbers of any size stand apart.
TEST(BenchReport, ColumnsDoNotRunTogether) {
  for (const double scale : {1.0, 1e3, 1e6}) {
    BenchOptions options;
    std::ostringstream out;
    BenchReport report(options, out);
    BenchResult r;
    r.bench = "linear", r.scheme = "w4a8", r.kernel = "k/c", r.numerics = "exact";
    r.tokens = 1048576, r.threads = 1024;
    r.time = {.median = 0.0123456 * scale, .best = 0.01, .spread = 1.5, .repetitions = 3};
    r.operations = 1.23456e11 * scale * scale, r.code_bytes = 1.23456e10 * scale * scale;
    r.roof_gops = {900, 0.01}, r.roof_gbs = {20, scale == 1.0 ? 0.01 : 0.2};
    report.add(r);
    std::string line = out.str();
    line.pop_back();
    std::istringstream words(line.substr(line.rfind('\n') + 1));
    const std::vector<std::string> cells{std::istream_iterator<std::string>(words), {}};
    EXPECT_EQ(cells.size(), 8u) << line;
    EXPECT_EQ(line.find("e+"), std::string::npos) << line;
    EXPECT_NE(cells[5], "?");
    EXPECT_EQ(cells[7] == "?", scale != 1.0) << line;  // a limit that is not steady
  }
}

TEST(Bench, EverySchemeRunsWithAllKeys) {
  for (const std::string& scheme : bench_scheme_names()) {
    SCOPED_TRACE(scheme);
    const auto r = run_tool(
        "bench moe --tokens 3 --group 32 --json --experts 4 --top-k 2 --hidden 256 --intermediate "
        "128 --seconds 0 --threads 1 --scheme " +
        scheme);
    ASSERT_EQ(r.status, 0) << r.err;
    const std::vector<Json> lines = lines_of(r.out);
    ASSERT_EQ(lines.size(), 1u);
    for (const char* key :
         {"scheme",   "group",     "experts",  "top_k", "hidden",   "intermediate", "tokens",
          "threads",  "kernel",    "numerics", "ms",    "best_ms",  "gops",         "gbs",
          "gbs_read", "roof_gops", "roof_gbs", "cpu",   "features", "commit"})
      EXPECT_NE(lines[0].find(key), nullptr) << key;
    const double seconds = number(lines[0], "ms") * 1e-3;
    EXPECT_NEAR(number(lines[0], "gops") * seconds * 1e9, 2.0 * 3 * 2 * 3 * 256 * 128, 2e3);
    EXPECT_GE(number(lines[0], "repetitions"), 5);
    EXPECT_GE(number(lines[0], "ms"), number(lines[0], "best_ms"));
    EXPECT_GE(number(lines[0], "gbs_read"), number(lines[0], "gbs"));
  }
}

TEST(Bench, TheOptionsTakeWhatIsThere) {
  const std::span<const std::string_view> schemes = synthetic_scheme_names();
  EXPECT_EQ(bench_scheme_names(), std::vector<std::string>(schemes.begin(), schemes.end()));
  for (const std::string& name : bench_model_names()) EXPECT_GT(synthetic_layers(name), 0u);
}

// The tool starts the second program beside itself, with every word but its own, and says where it looked for it.
TEST(Bench, AProgramOfItsOwnBesideTheTool) {
  if (!test::plain_build()) GTEST_SKIP() << "runs a copy of the tool";
  const test::TempDir dir;
  const std::string folder = dir.path().string(), tool = test::shell_quote(folder + "/moebius");
  const auto run = [&](const std::string& args) {
    return test::run_tool("--version >/dev/null; " + tool + " " + args);
  };
  ASSERT_EQ(test::run_tool("--version >/dev/null; cp " + test::tool_command() + " " + tool).status,
            0);
  const test::CommandResult none = run("bench roof");
  EXPECT_EQ(none.status, 1);
  EXPECT_EQ(none.err,
            "moebius: `moebius bench` is a program of its own, moebius-bench, which is not in " +
                folder + "\n");
  EXPECT_EQ(run("bench roof --help").status, 0);
  EXPECT_EQ(run("bench rof").status, 2);
  test::write_file(dir / "moebius-bench", "#!/bin/sh\nprintf '<%s>' \"$@\"\nexit 7\n");
  std::filesystem::permissions(dir / "moebius-bench", std::filesystem::perms::owner_all);
  const test::CommandResult r = run("-q bench roof --threads '1,2'");
  EXPECT_EQ(r.status, 7);
  EXPECT_EQ(r.out, "<-q><roof><--threads><1,2>");
  EXPECT_EQ(r.err, "");
}

TEST(Bench, OutputsOfRandomWeightsAreOrdinaryNumbers) {
  for (const std::string_view name : synthetic_scheme_names()) {
    SCOPED_TRACE(name);
    const SyntheticScheme scheme = synthetic_scheme(name, 64, {});
    SyntheticMatrix matrix(scheme, 48, 512);
    BenchRandom random(7);
    matrix.refill(random);
    SyntheticRows x(XType::kF32, 4, 512);
    x.refill(random);
    const auto* values = static_cast<const float*>(x.view().data);
    const QuantRowsBuffer rows =
        quantize_rows(values, 512, 4, 512, scheme.act, matrix.act_params(), XType::kF32);
    std::vector<float> y(4 * 48);
    reference_gemm(matrix.view(), rows.rows, 0, 48, y.data(), 48);
    double square = 0;
    for (const float v : y) square += static_cast<double>(v) * v;
    const double size = std::sqrt(square / static_cast<double>(y.size()));
    EXPECT_GT(size, 0.02);
    EXPECT_LT(size, 20.0);
  }
}

TEST(Bench, RoutingIsWithoutRepetitionAndSkewMeansHalf) {
  for (const bool skew : {false, true})
    for (const size_t experts : {4u, 5u, 128u}) {
      SyntheticRouting routing(64, experts, 4, skew);
      BenchRandom random(3);
      routing.refill(random);
      std::vector<size_t> count(experts, 0);
      for (size_t t = 0; t < 64; ++t) {
        std::set<int32_t> row;
        for (size_t s = 0; s < 4; ++s) {
          const int32_t id = routing.ids()[t * 4 + s];
          ASSERT_GE(id, 0);
          ASSERT_LT(static_cast<size_t>(id), experts);
          row.insert(id), ++count[static_cast<size_t>(id)];
        }
        EXPECT_EQ(row.size(), 4u);
      }
      const size_t most = *std::max_element(count.begin(), count.end());
      if (skew && experts == 128) {
        EXPECT_EQ(most, 32u);
      }
      if (!skew && experts == 128) {
        EXPECT_LT(most, 16u);
      }
    }
}

TEST(Bench, PackingCountsBytesReadAndWritten) {
  const auto r = run_tool(
      "bench kernel --pack --kernel generic --scheme w4a8,bf16 --n 64 --k 64 --group 32 --seconds "
      "0 --json");
  ASSERT_EQ(r.status, 0) << r.err;
  const std::vector<Json> lines = lines_of(r.out);
  ASSERT_GE(lines.size(), 2u);
  for (const Json& line : lines) {
    EXPECT_EQ(line.find("bench")->as_string(), "pack");
    EXPECT_EQ(number(line, "read_bytes"),
              line.find("scheme")->as_string() == "bf16" ? 64 * 64 * 2 : 64 * 64 / 2 + 64 * 2 * 2);
    const double bytes = number(line, "read_bytes") + number(line, "written_bytes");
    EXPECT_NEAR(number(line, "gbs") * number(line, "ms") * 1e6, bytes, 0.001 * bytes);
    EXPECT_NEAR(number(line, "percent_gbs"), 100 * number(line, "gbs") / number(line, "roof_gbs"),
                0.001 * number(line, "percent_gbs"));
  }
  EXPECT_NE(run_tool("bench kernel --pack --tokens 1").status, 0);
}

TEST(Bench, PackingInNoOrderTakesIntegersWithGroups) {
  const auto r = run_tool(
      "bench kernel --pack --act-order --kernel generic --scheme w4a16,w8a16,bf16 --n 64 --k 64 "
      "--group 32,64 --seconds 0 --json");
  ASSERT_EQ(r.status, 0) << r.err;
  const std::vector<Json> lines = lines_of(r.out);
  EXPECT_EQ(lines.size(), 2u);
  for (const Json& line : lines) {
    EXPECT_TRUE(line.find("act_order")->as_bool());
    EXPECT_EQ(number(line, "group"), 32);
  }
  EXPECT_NE(run_tool("bench kernel --act-order").status, 0);
}

TEST(Bench, LinearKernelModelAndRoof) {
  const auto linear =
      run_tool("bench linear --n 64 --k 64 --group 32 --tokens 1 --threads 1 --seconds 0 --json");
  ASSERT_EQ(linear.status, 0) << linear.err;
  EXPECT_EQ(number(lines_of(linear.out).at(0), "n"), 64);
  const auto kernel = run_tool(
      "bench kernel --kernel generic --scheme w4a8 --n 64 --k 64 --group 32 --tokens 1 --seconds 0 "
      "--json");
  ASSERT_EQ(kernel.status, 0) << kernel.err;
  std::set<std::string> notes;
  for (const Json& line : lines_of(kernel.out)) notes.insert(line.find("note")->as_string());
  EXPECT_EQ(notes, (std::set<std::string>{"cached", "cold"}));
  const auto model =
      run_tool("bench model --prompts 4 --batches 1,2 --threads 1 --seconds 0 --json");
  ASSERT_EQ(model.status, 0) << model.err;
  for (const char* key : {"pp4_ms", "tg_b1_ms", "tg_b2_ms", "load_s", "load_peak_gib", "roof_gbs",
                          "profile_ms", "bytes_per_token"})
    EXPECT_NE(lines_of(model.out).at(0).find(key), nullptr) << key;
  const auto roof = run_tool("bench roof --threads 1 --json");
  ASSERT_EQ(roof.status, 0) << roof.err;
  EXPECT_NE(roof.out.find("dram_copy"), std::string::npos);
}

TEST(Bench, Fp8WeightsHoldEveryFiniteCode) {
  for (const char* name : {"fp8", "fp8_block", "fp8_static", "mxfp8"}) {
    SyntheticMatrix matrix(synthetic_scheme(name, std::nullopt, {}), 64, 1024);
    BenchRandom random(1);
    matrix.refill(random);
    const std::set<uint8_t> codes(matrix.view().codes, matrix.view().codes + 64 * 1024);
    EXPECT_EQ(codes.size(), 254u) << name;
    EXPECT_EQ(codes.count(0x7F) + codes.count(0xFF), 0u) << name << " holds a NaN";
  }
}

// As trained weights: few subnormal codes (1 to 7), a largest one that is reached.
TEST(Bench, NormalFp8WeightsHaveFewSubnormalCodes) {
  SyntheticMatrix matrix(synthetic_scheme("fp8_normal", std::nullopt, {}), 64, 4096);
  BenchRandom random(1);
  matrix.refill(random);
  size_t subnormal = 0, nan = 0, largest = 0;
  for (size_t i = 0; i < 64 * 4096; ++i) {
    const unsigned size = matrix.view().codes[i] & 0x7Fu;
    subnormal += size - 1 < 7 ? 1 : 0, nan += size == 0x7F ? 1 : 0;
    largest = std::max<size_t>(largest, size);
  }
  EXPECT_GT(subnormal, 5u);
  EXPECT_LT(subnormal, 100u);
  EXPECT_EQ(nan, 0u);
  EXPECT_GE(largest, 0x7Du);
}

TEST(Bench, SpeedupOverTheFirstNumberOfThreads) {
  const auto r = run_tool(
      "bench linear --n 64 --k 64 --scheme f16 --scheme f32 --tokens 1,2 --threads 1,2 --seconds 0 "
      "--json");
  ASSERT_EQ(r.status, 0) << r.err;
  const std::vector<Json> lines = lines_of(r.out);
  ASSERT_EQ(lines.size(), 8u);
  for (size_t i = 0; i < lines.size(); i += 2) {
    EXPECT_EQ(lines[i].find("speedup"), nullptr);
    const double expected = number(lines[i], "ms") / number(lines[i + 1], "ms");
    EXPECT_NEAR(number(lines[i + 1], "speedup"), expected, 0.01 * expected);
    for (const char* key : {"kernel", "percent_gbs_read", "percent_gops"})
      EXPECT_NE(lines[i].find(key), nullptr) << key;
  }
  EXPECT_EQ(lines[0].find("scheme")->as_string(), "f16");
  EXPECT_EQ(lines[4].find("scheme")->as_string(), "f32");
}

TEST(Bench, ListsDoNotEatTheFolder) {
  const std::string folder =
      test::shell_quote((test::test_data_dir() / "golden/qwen3moe-w4a8-g32-pack").string());
  const auto linear = run_tool(
      "bench linear --json --seconds 0 --threads 1 --module "
      "model.layers.0.self_attn.q_proj --tokens 1 " +
      folder);
  ASSERT_EQ(linear.status, 0) << linear.err;
  EXPECT_EQ(number(lines_of(linear.out).at(0), "k"), 64);
  const auto moe =
      run_tool("bench moe --json --seconds 0 --tokens 1 --tokens 2 --threads 1 " + folder);
  ASSERT_EQ(moe.status, 0) << moe.err;
  ASSERT_EQ(lines_of(moe.out).size(), 2u);
  EXPECT_EQ(number(lines_of(moe.out).at(1), "tokens"), 2);
  EXPECT_EQ(number(lines_of(moe.out).at(1), "hidden"), 64);
}

TEST(Bench, ModelPrintsATable) {
  const auto r = run_tool("bench model --prompts 4 --batches 1 --threads 1,2 --seconds 0");
  ASSERT_EQ(r.status, 0) << r.err;
  std::vector<std::string> rows;
  std::istringstream in(r.out);
  for (std::string line; std::getline(in, line);)
    if (line.rfind("moebius-tiny-w4a8", 0) == 0) rows.push_back(line);
  ASSERT_EQ(rows.size(), 4u) << r.out;
  for (const std::string& row : rows) EXPECT_NE(row.find("±"), std::string::npos) << row;
  for (const char* title : {"model", "size", "params", "threads", "test", "t/s", "speedup"})
    EXPECT_NE(r.out.substr(0, r.out.find('\n')).find(title), std::string::npos) << title;
  const auto json =
      run_tool("bench model --prompts 4 --batches 1 --threads 1,2 --seconds 0 --json");
  ASSERT_EQ(json.status, 0) << json.err;
  const std::vector<Json> lines = lines_of(json.out);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].find("pp4_speedup"), nullptr);
  EXPECT_GT(number(lines[1], "tg_b1_speedup"), 0);
}

TEST(Bench, Refusals) {
  for (const char* bad : {"moe --scheme w9a9", "moe --group 0", "moe --top-k 9 --experts 4",
                          "moe --tokens 0", "moe --threads 0", "nothing", "", "linear --module x"})
    EXPECT_EQ(run_tool(std::string("bench ") + bad).status, 2) << bad;
  for (const char* bad :
       {"moe --group 48", "moe /nonexistent", "model /nonexistent", "moe --kernel nonesuch"})
    EXPECT_EQ(run_tool(std::string("bench ") + bad).status, 1) << bad;
}

// Limits are sampled beside a warm kernel, and count only if they are steady.
TEST(Bench, RoofsAreSampledBesideTheKernel) {
  std::string order;
  repeat(
      0.01, [] {}, [&] { order += 'k'; }, [&] { order += 'r'; });
  EXPECT_EQ(std::count(order.begin(), order.end(), 'r'), 9);
  EXPECT_EQ(order.substr(0, 2), "kk") << order;  // warmed first
  EXPECT_TRUE(roof_of({10, 10, 10, 10, 10, 10, 10, 10, 11}).steady());
  EXPECT_FALSE(roof_of({10, 10, 10}).steady());
  EXPECT_FALSE(roof_of({5, 6, 7, 8, 10, 12, 14, 15, 16}).steady());
}

TEST(Bench, InterruptEndsCleanly) {
  interrupt_is_noted();
  EXPECT_FALSE(interrupt_seen());
  size_t runs = 0;
  const std::vector<double> times = repeat(
      60.0, [] {},
      [&] {
        if (++runs == 3) std::raise(SIGINT);
      });
  EXPECT_TRUE(interrupt_seen());
  EXPECT_EQ(runs, 3u);
  EXPECT_TRUE(times.empty());  // a case cut short is no result
}

TEST(Bench, MedianAndSpread) {
  const Timing t = summarize({5, 1, 3, 2, 4});
  EXPECT_EQ(t.median, 3);
  EXPECT_EQ(t.best, 1);
  EXPECT_DOUBLE_EQ(t.spread, 1.0 / 3);
  EXPECT_EQ(summarize({}).repetitions, 0u);
}

}  // namespace
}  // namespace moebius::bench_test
