// SPDX-License-Identifier: Apache-2.0
// What people see: every line of every view fits 80 columns, verify reads every payload and says
// how much it ran, equal lines are folded, results and progress bars never share a line.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <regex>
#include <set>
#include <sstream>

#include "apps/cli/layout.h"
#include "base/json.h"
#include "checkpoint/tensor_store.h"
#include "unit/test_util.h"

namespace moebius::views_test {
namespace {

using test::CommandResult;
using test::run_tool;
using test::shell_quote;
using test::TempDir;
namespace fs = std::filesystem;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

void expect_narrow(const std::string& text, const std::string& what, size_t width = 80) {
  for (const std::string& line : lines_of(text))
    EXPECT_LE(display_width(line), width) << what << ": " << line;
}

// Every golden folder, and "" for the bundled model.
std::vector<std::string> folders() {
  std::vector<std::string> list{""};
  for (const auto& entry : fs::directory_iterator(test_data_dir() / "golden"))
    if (fs::exists(entry.path() / "config.json")) list.push_back(entry.path().string());
  std::sort(list.begin(), list.end());
  return list;
}

std::string golden(const char* name) { return (test_data_dir() / "golden" / name).string(); }

// What families call the output projection of attention.
constexpr std::pair<const char*, const char*> kOtherOutputs[] = {
    {"bailinghybrid", "*layers.0.*.dense"},
    {"mistrallarge4", "*layers.0.*.wo"},
    {"inkling-", "*layers.0.*.wo_ud"},
    {"dbrx", "*blocks.0.*.out_proj"},
    {"deepseekv4", "*layers.0.*.wo_b"}};

// One folder of each architecture; all folders with ./test --full.
TEST(Views, FitEightyColumns) {
  size_t looked_at = 0;
  std::set<std::string> seen;
  for (const std::string& folder : folders()) {
    const std::string name = fs::path(folder).filename().string();
    if (!seen.insert(name.substr(0, name.find('-'))).second && !test::full_run()) continue;
    if (looked_at++ % test::thinning() != 0) continue;
    const std::string dir = folder.empty() ? "" : shell_quote(folder);
    for (const char* command : {"inspect", "inspect --layer 0 --deep", "inspect --tensors",
                                "explain", "explain --why --cpu amx_int8,amx_bf16", "verify",
                                "verify --module '*layers.0.*.o*_proj'"}) {
      std::string words = command;
      for (const auto& [family, output] : kOtherOutputs)
        if (folder.find(family) != std::string::npos)
          words = std::regex_replace(words, std::regex("\\*layers\\.0\\.\\*\\.o\\*_proj"), output);
      const CommandResult r = run_tool(words + " " + dir, "COLUMNS=80");
      const std::string what = words + " " + folder;
      EXPECT_EQ(r.status, 0) << what << ": " << r.err;
      EXPECT_GE(lines_of(r.out).size(), 3u) << what;
      expect_narrow(r.out, what);
    }
  }
  EXPECT_GT(looked_at, 50u);
  expect_narrow(run_tool("inspect --ep 4 --tp 2", "COLUMNS=80").out, "inspect --ep 4 --tp 2");
}

// The narrowest output: kernels with long names, failures, and the bundled model.
TEST(Views, FitSixtyColumns) {
  for (const std::string& folder :
       {std::string(), golden("llama4-fp8-dynamic"), golden("qwen3moe-w4a8-g32-pack")}) {
    for (const char* command :
         {"explain", "explain --why", "explain --cpu neon,dotprod", "explain --ranks 2", "verify",
          "verify --module '*layers.0.*.o*_proj'"}) {
      const CommandResult r = run_tool(
          std::string(command) + " " + (folder.empty() ? "" : shell_quote(folder)), "COLUMNS=60");
      EXPECT_EQ(r.status, 0) << command << ": " << r.err;
      expect_narrow(r.out, std::string(command) + " " + folder, 60);
    }
  }
}

TEST(Views, WhyShowsKernelsOfTheArchitecture) {
  const std::string arm = run_tool("explain --why --cpu neon,dotprod").out,
                    x86 = run_tool("explain --why --cpu avx2,fma,f16c").out;
  for (const char* name : {"arm_i8mm/int4", "generic/", "reference/"})
    EXPECT_NE(arm.find(name), std::string::npos) << name;
  EXPECT_EQ(arm.find("x86_"), std::string::npos);
  EXPECT_EQ(x86.find("arm_"), std::string::npos);
  // A space at least stands between a kernel and what is said of it.
  EXPECT_NE(arm.find("arm_dotprod/int4_lanes  "), std::string::npos) << arm;
}

TEST(Views, BenchFitsEightyColumns) {
  const std::string small = " --threads 1,2 --seconds 0 --tokens 1,3 ";
  for (const std::string& command :
       {"bench moe --experts 4 --top-k 2 --hidden 256 --intermediate 128 --scheme "
        "w4a8,fp8,nvfp4,mxfp4a16,bf16" +
            small,
        "bench linear --n 256 --k 256 --scheme w4a8,fp8_block,f32" + small,
        std::string("bench kernel --n 128 --k 128 --tokens 1 --seconds 0 --scheme w4a8,fp8"),
        std::string("bench kernel --pack --n 128 --k 128 --seconds 0"),
        std::string("bench roof --threads 1"),
        "bench attention --heads 4 --kv-heads 2 --head-dim 32 --depths 130" + small,
        std::string("bench sampler --vocab 1000 --batches 2 --seconds 0"),
        "bench disk " + shell_quote((test::bundled_model_dir() / "model.safetensors").string()) +
            " --bytes 4096 --depths 64 --seconds 0",
        std::string("bench model --prompts 4 --batches 1,2 --seconds 0 --threads 1,2")}) {
    const CommandResult r = run_tool(command, "COLUMNS=80");
    ASSERT_EQ(r.status, 0) << command << ": " << r.err;
    EXPECT_GE(lines_of(r.out).size(), 3u) << command;
    expect_narrow(r.out, command);
  }
}

// One folder of each architecture: a call measures the machine's memory, which takes a second.
TEST(Views, BenchModelFitsOnEveryArchitecture) {
  std::set<std::string> seen;
  for (const std::string& folder : folders()) {
    const std::string name = fs::path(folder).filename().string();
    if (!seen.insert(name.substr(0, name.find('-'))).second) continue;
    if (seen.size() % test::thinning() != 0) continue;
    const CommandResult r =
        run_tool("bench model --prompts 2 --batches 1 --seconds 0 --threads 1 " +
                     (folder.empty() ? "" : shell_quote(folder)),
                 "COLUMNS=80");
    EXPECT_EQ(r.status, 0) << folder << ": " << r.err;
    expect_narrow(r.out, "bench model " + folder);
  }
  EXPECT_GT(seen.size(), 12u);
}

TEST(Views, WiderTerminalsGetMore) {
  const std::string dir = shell_quote(golden("llama4-fp8-dynamic"));
  const auto lines = [&](const char* columns) {
    return lines_of(run_tool("inspect " + dir, std::string("COLUMNS=") + columns).out).size();
  };
  EXPECT_LT(lines("160"), lines("80"));
}

TEST(Layout, WrapsAtSpacesThenPunctuationThenAnywhere) {
  EXPECT_EQ(wrapped("one two three", 8), (std::vector<std::string>{"one two", "three"}));
  EXPECT_EQ(wrapped("model.layers.mlp", 10), (std::vector<std::string>{"model.", "layers.mlp"}));
  EXPECT_EQ(wrapped("abcdefgh", 3), (std::vector<std::string>{"abc", "def", "gh"}));
  EXPECT_EQ(wrapped("± ± ±", 3), (std::vector<std::string>{"± ±", "±"}));
  EXPECT_EQ(wrapped("", 3), (std::vector<std::string>{""}));
  EXPECT_EQ(display_width("±x"), 2u);
}

TEST(Layout, FoldsNamesThatShareAStem) {
  EXPECT_EQ(fold_names({"a.b.q_proj", "lm_head", "a.b.k_proj", "a.c.up"}),
            (std::vector<std::string>{"a.b.{q,k}_proj", "lm_head", "a.c.up"}));
  EXPECT_EQ(fold_names({"a.gate", "a.up_proj"}), (std::vector<std::string>{"a.{gate,up_proj}"}));
}

TEST(Layout, ATableThatDoesNotFitIsWrittenRowByRow) {
  Table table("lrr", 24);
  table.header({"", "modules", "largest difference"});
  table.add({"ok", "12", "1e-9"});
  table.note("names");
  EXPECT_EQ(table.text(), "ok  modules 12, largest\n    difference 1e-9\n    names\n");
}

TEST(Layout, TableWrapsItsFlexibleColumn) {
  Table table("wr", 24);
  table.add({"model.layers.*.self_attn.q_proj", "12"});
  table.add({"lm_head", "1"});
  EXPECT_EQ(table.text(), "model.layers.*.       12\nself_attn.q_proj\nlm_head                1\n");
}

// A copy of a golden folder with one 16-bit element of a tensor replaced.
void copy_with(const fs::path& from, const fs::path& to, const std::string& tensor, size_t element,
               uint16_t value) {
  fs::create_directories(to);
  for (const auto& e : fs::directory_iterator(from))
    fs::copy_file(e.path(), to / e.path().filename());
  std::string bytes = test::read_file(to / "model.safetensors");
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  const Json j = parse_json(std::string_view(bytes).substr(8, header), "header");
  const Json* info = j.find(tensor);
  ASSERT_NE(info, nullptr) << tensor;
  const int64_t begin = *info->find("data_offsets")->items()[0].as_int();
  std::memcpy(bytes.data() + 8 + header + static_cast<size_t>(begin) + 2 * element, &value, 2);
  fs::remove(to / "model.safetensors");
  test::write_file(to / "model.safetensors", bytes);
}

TEST(Verify, ReadsEveryPayload) {
  const TempDir dir;
  const fs::path broken = dir / "broken";
  const std::string tensor = "model.layers.1.mlp.experts.1.up_proj.weight_scale";
  copy_with(golden("qwen3moe-w4a16-g32"), broken, tensor, 3, 0x7FC0);
  const CommandResult r = run_tool("verify " + shell_quote(broken.string()));
  EXPECT_EQ(r.status, 1) << r.out;
  EXPECT_NE(r.out.find("nan"), std::string::npos) << r.out;
  EXPECT_TRUE(lines_of(r.out).back().ends_with(", 1 failed: FAIL")) << r.out;
  EXPECT_EQ(lines_of(r.out)[1].rfind("FAIL", 0), 0u) << "worst first: " << r.out;
  const CommandResult json = run_tool("verify --json " + shell_quote(broken.string()));
  EXPECT_EQ(json.status, 1);
  const Json j = parse_json(json.out, "verify");
  EXPECT_EQ(*j.find("failed")->as_int(), 1);
  size_t named = 0;
  for (const Json& m : j.find("modules")->items())
    if (m.find("problem") != nullptr) {
      ++named;
      EXPECT_EQ(m.find("name")->as_string(), "model.layers.1.mlp.experts.1.up_proj");
      EXPECT_FALSE(m.find("ok")->as_bool());
    }
  EXPECT_EQ(named, 1u);
}

TEST(Verify, SaysHowManyModulesItRan) {
  const auto counts = [](const std::string& args) {
    const CommandResult r = run_tool("verify " + args);
    EXPECT_EQ(r.status, 0) << r.err;
    // The last line alone must not read as if the others had failed.
    std::smatch found;
    const std::string last = lines_of(r.out).back();
    const std::regex form("(\\d+) modules run( \\((\\d+) with --all\\))?, 0 failed: ok");
    EXPECT_TRUE(std::regex_match(last, found, form)) << r.out;
    const auto number = [&](size_t i) { return std::stoul("0" + found[i].str()); };
    return std::pair(number(1), found[2].matched ? number(3) : number(1));
  };
  // 6 layers of 4 attention projections, a router and 8 experts; the tied embedding.
  EXPECT_EQ(counts(""),
            std::pair(size_t{6 * (4 + 1 + 2 * 3) + 1}, size_t{6 * (4 + 1 + 8 * 3) + 1}));
  EXPECT_EQ(counts("--all"), std::pair(size_t{6 * 29 + 1}, size_t{6 * 29 + 1}));
  EXPECT_EQ(counts("--module '*.experts.3.up_proj'"), std::pair(size_t{6}, size_t{6}));
}

TEST(Verify, RunsATiedOutputProjection) {
  const CommandResult r = run_tool("verify --json --module model.embed_tokens");
  ASSERT_EQ(r.status, 0) << r.err;
  const Json j = parse_json(r.out, "verify");
  ASSERT_EQ(j.find("modules")->items().size(), 1u);
  EXPECT_FALSE(j.find("modules")->items()[0].find("kernel")->as_string().empty());
}

TEST(Verify, RefusesInputOfAnotherWidth) {
  const TempDir dir;
  const std::vector<float> x(3 * 100, 0.5f);
  const std::vector<TensorData> tensors{
      {"x", DType::kF32, {3, 100}, {reinterpret_cast<const uint8_t*>(x.data()), 1200}}};
  write_safetensors((dir / "x").string(), tensors);
  const std::string in = " --in " + shell_quote((dir / "x").string());
  for (const char* module : {"", "--module '*.q_proj'"}) {
    const CommandResult r = run_tool(std::string("verify ") + module + in);
    EXPECT_EQ(r.status, 1);
    EXPECT_TRUE(r.out.empty()) << r.out;
    EXPECT_NE(r.err.find("100"), std::string::npos) << r.err;
    EXPECT_NE(r.err.find("384 features"), std::string::npos) << r.err;
  }
}

TEST(Views, FoldedByDefaultAndInFullWithWhy) {
  for (const char* command : {"verify", "explain"}) {
    const CommandResult folded = run_tool(command);
    EXPECT_LT(lines_of(folded.out).size(), 20u) << folded.out;
    EXPECT_NE(folded.out.find("{"), std::string::npos) << folded.out;
  }
  const CommandResult full = run_tool("explain --why");
  EXPECT_GT(lines_of(full.out).size(), 100u);
  EXPECT_NE(full.out.find("rejected"), std::string::npos);
}

// The kernel that stands last in the list comes first.
TEST(Views, ExplainPrintsTheSlowestFirst) {
  const CommandResult r = run_tool("explain --cpu neon,dotprod,i8mm");
  const size_t slow = r.out.find("\narm_neon/bf16"), fast = r.out.find("\narm_i8mm/int4");
  ASSERT_NE(slow, std::string::npos) << r.out;
  ASSERT_NE(fast, std::string::npos) << r.out;
  EXPECT_LT(slow, fast);
}

// Kernels that nobody measured have no column of shares.
TEST(Views, ExplainHasNoEmptyColumn) {
  const std::string arm = run_tool("explain --cpu neon,dotprod,i8mm", "COLUMNS=120").out,
                    x86 = run_tool("explain --cpu avx2,fma,f16c", "COLUMNS=120").out;
  const std::regex with("\n *kernel .* mem +scheme\n"), without("\n *kernel .* x file +scheme\n");
  EXPECT_TRUE(std::regex_search("\n" + arm, with)) << arm;
  EXPECT_NE(arm.find("mem: expected share"), std::string::npos) << arm;
  EXPECT_TRUE(std::regex_search("\n" + x86, without)) << x86;
  EXPECT_EQ(x86.find("mem: expected share"), std::string::npos) << x86;
}

TEST(Views, InspectsLegendReadsAsALegend) {
  const std::string out = run_tool("inspect").out;
  EXPECT_NE(out.find("\nby a:  no target matches\n"), std::string::npos) << out;
}

// Both standard streams on one terminal, as people have it.
std::string run_on_terminal(const std::string& args) {
  const int master = posix_openpt(O_RDWR | O_NOCTTY);
  if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) return "";
  const std::string terminal = ptsname(master);
  winsize size{};
  size.ws_row = 24, size.ws_col = 80;
  ioctl(master, TIOCSWINSZ, &size);
  const int slave = open(terminal.c_str(), O_RDWR | O_NOCTTY);
  const CommandResult r =
      run_tool(args + " > " + shell_quote(terminal) + " 2> " + shell_quote(terminal));
  EXPECT_EQ(r.status, 0) << args;
  close(slave);
  std::string text;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(master, buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(n));
  close(master);
  return text;
}

// What a line looks like in the end: carriage returns go back, ESC [ K erases the rest.
std::string as_shown(const std::string& line) {
  std::string cells;
  size_t at = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\r') {
      at = 0;
    } else if (line[i] == '\x1b') {
      const size_t end = line.find_first_not_of("[0123456789;", i + 1);
      if (end == std::string::npos) break;
      if (line[end] == 'K') cells.resize(std::min(cells.size(), line[end - 1] == '2' ? 0 : at));
      i = end;
    } else {
      if (cells.size() <= at) cells.resize(at + 1, ' ');
      cells[at++] = line[i];
    }
  }
  return cells;
}

TEST(Views, BarsAndResultsNeverShareALine) {
  for (const char* json : {"", " --json"}) {
    const std::string shown = run_on_terminal(
        std::string("bench model --prompts 64 --batches 1 --seconds 0.3 --threads 1") + json);
    if (shown.empty()) GTEST_SKIP() << "no pseudo terminal here";
    size_t results = 0;
    for (const std::string& raw : lines_of(shown)) {
      const std::string line = as_shown(raw);
      if (line.find("pp64") == std::string::npos) continue;
      ++results;
      for (const char* bar : {"measuring", "loading", "[=", "[ "})
        EXPECT_EQ(line.find(bar), std::string::npos) << raw;
    }
    EXPECT_GE(results, 1u) << shown;
  }
}

}  // namespace
}  // namespace moebius::views_test
