// SPDX-License-Identifier: Apache-2.0
// The front of the command line: parsing, help, names that do not exist, folders, the environment.
// The tests walk the table of commands, so an option added later is held to the same rules.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <sstream>

#include "apps/cli/command_line.h"
#include "apps/cli/help.h"
#include "apps/cli/manners.h"
#include "apps/cli/suggest.h"
#include "apps/commands.h"
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "runtime/cpu.h"
#include "unit/test_util.h"

namespace moebius::front_test {
namespace {

using test::CommandResult;
using test::run_tool;
using test::shell_quote;
namespace fs = std::filesystem;

// Calls see(command) for every command that does something.
template <class See>
void walk(Command& command, const See& see) {
  if (command.subjects.empty()) see(command);
  for (Command& c : command.subjects) walk(c, see);
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

// A value that the option takes.
std::string sample_value(const Option& o) {
  if (!o.choices.empty()) return o.choices.back();
  if (o.kind == ValueKind::kFolder) return test::bundled_model_dir().string();
  if (o.limits) return std::to_string(static_cast<int64_t>(std::max(1.0, o.limits->first)));
  return "1";
}

class Front : public testing::Test {
 protected:
  void SetUp() override { manners() = {}; }
  void TearDown() override { manners() = {}; }
};

std::string wrong_usage(const std::vector<std::string>& args) {
  Command tool = make_tool();
  try {
    parse_command_line(tool, args);
  } catch (const UsageError& e) {
    return e.what();
  }
  return "";
}

TEST_F(Front, NoOptionEatsAFollowingArgument) {
  Command table = make_tool();
  size_t lists = 0, options = 0;
  walk(table, [&](const Command& shown) {
    if (shown.positional.empty()) return;
    for (const Option& option : shown.options) {
      if (option.name().starts_with("--help")) continue;
      lists += option.is_list() ? 1 : 0, ++options;
      manners() = {};
      Command tool = make_tool();
      std::vector<std::string> args = words_of(shown.name);
      args.push_back(option.name());
      if (!option.value.empty()) args.push_back(sample_value(option));
      for (const Option& argument : shown.positional) args.push_back(sample_value(argument));
      // What else the command insists on.
      for (const Option& other : shown.options)
        if (other.required && other.name() != option.name())
          args.insert(args.end(), {other.name(), sample_value(other)});
      for (const OptionChoice& choice : shown.choices)
        if (choice.required && std::find(choice.names.begin(), choice.names.end(), option.name()) ==
                                   choice.names.end())
          args.insert(args.end(), {choice.names[0], "1"});
      const Command& parsed = parse_command_line(tool, args);
      ASSERT_EQ(parsed.name, shown.name);
      for (size_t i = 0; i < parsed.positional.size(); ++i) {
        EXPECT_EQ(parsed.positional[i].given, 1u) << shown.name << " " << option.name();
        EXPECT_EQ(*std::get<std::string*>(parsed.positional[i].target),
                  sample_value(parsed.positional[i]))
            << shown.name << " " << option.name();
      }
      EXPECT_EQ(parsed.find(option.name())->given, 1u) << shown.name << " " << option.name();
    }
  });
  EXPECT_GE(lists, 12u);
  EXPECT_GE(options, 80u);
}

TEST_F(Front, ListsByCommaOrRepeated) {
  Command tool = make_tool();
  const std::vector<std::string> args{"run",    "--stop", "a,b", "--stop=c",
                                      "--stop", "-1",     "-n",  "-1"};
  Command& run = parse_command_line(tool, args);
  EXPECT_EQ(*std::get<std::vector<std::string>*>(run.find("--stop")->target),
            (std::vector<std::string>{"a,b", "c", "-1"}));
  EXPECT_EQ(*std::get<std::optional<int>*>(run.find("-n")->target), -1);
  Command again = make_tool();
  const std::vector<std::string> bench{"bench",    "moe", "--tokens", "1,2",
                                       "--tokens", "7",   "--scheme", "w4a8,fp8"};
  Command& moe = parse_command_line(again, bench);
  EXPECT_EQ(*std::get<std::vector<size_t>*>(moe.find("--tokens")->target),
            (std::vector<size_t>{1, 2, 7}));
  EXPECT_EQ(*std::get<std::vector<std::string>*>(moe.find("--scheme")->target),
            (std::vector<std::string>{"w4a8", "fp8"}));
}

TEST_F(Front, ForgottenAndWrongValues) {
  EXPECT_EQ(wrong_usage({"run", "--prompt"}), "--prompt needs a value, TEXT");
  EXPECT_NE(wrong_usage({"run", "--prompt", "--json"}).find("write --prompt=--json"),
            std::string::npos);
  EXPECT_EQ(wrong_usage({"run", "--prompt=--json", "-n5", "-n=6"}), "--max-tokens is given twice");
  EXPECT_NE(wrong_usage({"run", "-n", "-2"}).find("from -1 to"), std::string::npos);
  EXPECT_NE(wrong_usage({"run", "-n", "3x"}).find("'3x'"), std::string::npos);
  EXPECT_NE(wrong_usage({"run", "--policy", "fast"}).find("expected one of declared, exact"),
            std::string::npos);
  for (const char* command : {"run", "serve", "logits", "perplexity", "explain", "apply", "verify"})
    EXPECT_EQ(wrong_usage({command, "--activations", "int4"}),
              "--activations is 'int4'; expected one of declared, int8");
  for (const char* what : {"linear", "moe", "model"})
    EXPECT_EQ(wrong_usage({"bench", what, "--activations", "fp8"}),
              "--activations is 'fp8'; expected one of declared, int8");
  EXPECT_NE(wrong_usage({"bench", "moe", "--tokens", "1,,2"}).find("--tokens"), std::string::npos);
  EXPECT_EQ(wrong_usage({"run", "--json=yes"}), "--json takes no value");
  EXPECT_NE(wrong_usage({"run", "-q", "-v"}).find("exclude each other"), std::string::npos);
  EXPECT_NE(wrong_usage({"run", ".", "more"}).find("'more' is one too many"), std::string::npos);
  EXPECT_NE(wrong_usage({"logits", "."}).find("needs --out"), std::string::npos);
  EXPECT_NE(wrong_usage({"logits", ".", "--out", "x"}).find("one of --tokens"), std::string::npos);
  EXPECT_NE(wrong_usage({"run", "-p", "a", "-f", "b"}).find("exclude each other"),
            std::string::npos);
  EXPECT_NE(wrong_usage({"bench"}).find("roof, kernel, linear, moe, attention, model"),
            std::string::npos);
}

// Any words whatever are parsed, or answered with a sentence.
TEST_F(Front, RandomWords) {
  std::vector<std::string> pool{"1",  "-1",  "1,2", "x",   "",    "-",
                                "--", "--=", "=",   "-n5", "-iq", "."};
  Command table = make_tool();
  walk(table, [&](const Command& c) {
    for (const std::string& word : words_of(c.name)) pool.push_back(word);
    for (const Option& o : c.options) {
      pool.insert(pool.end(), o.names.begin(), o.names.end());
      pool.push_back(o.name() + "=" + (o.choices.empty() ? "7" : o.choices[0]));
    }
  });
  std::minstd_rand random(1);
  size_t understood = 0, refused = 0;
  for (unsigned round = 0; round < 4000 / test::thinning(); ++round) {
    manners() = {};
    manners().quiet = true;
    std::vector<std::string> args{table.subjects[random() % table.subjects.size()].name};
    for (size_t n = random() % 5; n > 0; --n) args.push_back(pool[random() % pool.size()]);
    Command tool = make_tool();
    try {
      parse_command_line(tool, args);
      ++understood;
    } catch (const UsageError& e) {
      EXPECT_STRNE(e.what(), "");
      ++refused;
    } catch (const Error& e) {
      EXPECT_STRNE(e.what(), "");
      ++refused;
    }
  }
  EXPECT_GT(understood, 10u);
  EXPECT_GT(refused, 10u);
}

TEST_F(Front, NearestNames) {
  EXPECT_EQ(edit_distance("rnu", "run"), 1u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  const auto answers = [](const std::vector<std::string>& args, const char* words) {
    EXPECT_NE(wrong_usage(args).find(words), std::string::npos)
        << testing::PrintToString(args) << ": " << wrong_usage(args);
  };
  answers({"rnu"}, "did you mean `run`?");
  answers({"bench", "modle"}, "did you mean `bench model`?");
  answers({"run", "--promt", "x"}, "did you mean `--prompt`?");
  answers({"run", "--propmt=x"}, "did you mean `--prompt`?");
  answers({"inspect", "--tensor"}, "did you mean `--tensors`?");
  answers({"inspect", "--threads", "2"}, "it belongs to run,");
  answers({"."}, "did you mean `run .`?");
  EXPECT_EQ(wrong_usage({"run", "--xyzzyqq"}), "`run` has no option `--xyzzyqq`");
  const CommandResult r = run_tool("rnu");
  EXPECT_EQ(r.status, 2);
  EXPECT_TRUE(r.out.empty());
  EXPECT_EQ(r.err, "moebius: there is no command `rnu`; did you mean `run`?\n");
  EXPECT_EQ(run_tool("run --promt x").status, 2);
  EXPECT_EQ(run_tool("help rnu").status, 2);
}

TEST_F(Front, HelpPages) {
  const CommandResult alone = run_tool(""), help = run_tool("help"), flag = run_tool("--help");
  EXPECT_EQ(alone.status, 0);
  EXPECT_EQ(help.status, 0);
  EXPECT_TRUE(alone.err.empty()) << alone.err;
  EXPECT_EQ(alone.out, help.out);
  EXPECT_EQ(alone.out, flag.out);
  for (const char* words : {"--device cuda", "H200", "by a factor of about 50"})
    EXPECT_NE(alone.out.find(words), std::string::npos) << alone.out;
  EXPECT_EQ(run_tool("help bench moe").out, run_tool("bench moe --help").out);
  EXPECT_EQ(run_tool("help run").out, run_tool("run DIR -n 3 -h").out);
  Command tool = make_tool();
  size_t pages = 0;
  walk(tool, [&](const Command& c) {
    ++pages;
    const std::string page = help_page(c, Shown::kAll);
    std::istringstream lines(page);
    for (std::string line; std::getline(lines, line);)
      EXPECT_LE(line.size(), 80u) << c.name << ": " << line;
    for (const char* jargon : {"UINT", "INT:", " in [", "TEXT:", "FLOAT", "Excludes"})
      EXPECT_EQ(page.find(jargon), std::string::npos) << c.name << ": " << jargon;
    EXPECT_FALSE(c.examples.empty()) << c.name;
    for (const std::string& e : c.examples) {
      EXPECT_NE(e.find("moebius " + c.name), std::string::npos) << c.name << ": " << e;
    }
    const auto states_default = [&](const Option& o) {
      bool chosen = false;  // one of several of which one must be given
      for (const OptionChoice& choice : c.choices)
        chosen = chosen || std::find(choice.names.begin(), choice.names.end(), o.name()) !=
                               choice.names.end();
      EXPECT_TRUE(o.value.empty() || o.required || chosen || !o.default_text.empty())
          << c.name << " " << o.name();
      EXPECT_FALSE(o.what.empty()) << c.name << " " << o.name();
    };
    for (const Option& o : c.options) states_default(o);
    for (const Option& o : c.positional) states_default(o);
  });
  EXPECT_GE(pages, 15u);
}

// --help has the common options, --help-all every one; both say so, and so do the man page and the
// completions, which the shell's tests hold against the whole list.
TEST_F(Front, CommonOptionsAndAll) {
  Command tool = make_tool();
  const auto rows = [](const std::string& page) {  // first names of the options that have a row
    std::vector<std::string> names;
    std::istringstream lines(page);
    for (std::string line; std::getline(lines, line);)
      if (const size_t at = line.find("--"); line.starts_with("  ") && at <= 6)
        names.push_back(line.substr(at, line.find_first_of(" \n", at) - at));
    return names;
  };
  const auto sorted = [](std::vector<std::string> names) {
    std::sort(names.begin(), names.end());
    return names;
  };
  walk(tool, [&](const Command& c) {
    std::vector<std::string> common, all;
    for (const Option& o : c.options) {
      all.push_back(o.name());
      if (!o.rare) common.push_back(o.name());
      EXPECT_FALSE(o.rare && o.required) << c.name << " " << o.name();
    }
    const std::string page = help_page(c, Shown::kCommon);
    EXPECT_EQ(sorted(rows(page)), sorted(common)) << c.name;
    EXPECT_EQ(sorted(rows(help_page(c, Shown::kAll))), sorted(all)) << c.name;
    EXPECT_LE(common.size(), 24u) << c.name;
    const std::string more = fmt::format("{} more option", all.size() - common.size());
    EXPECT_EQ(page.find(more) != std::string::npos, all.size() > common.size()) << c.name;
  });
  for (const std::string name : {"run", "serve"}) {
    const CommandResult brief = run_tool(name + " --help"), whole = run_tool(name + " --help-all");
    EXPECT_EQ(whole.status, 0);
    EXPECT_GT(rows(whole.out).size(), 45u);
    EXPECT_LT(rows(brief.out).size(), 24u);
    EXPECT_EQ(brief.out.find("--rank-timeout"), std::string::npos);
    EXPECT_NE(whole.out.find("--rank-timeout"), std::string::npos);
  }
}

// The examples of every page are usage that the parser takes.
TEST_F(Front, ExamplesParse) {
  Command table = make_tool();
  walk(table, [&](const Command& c) {
    for (const std::string& example : c.examples) {
      manners() = {};
      std::string text = example.substr(example.find("moebius "));
      text.resize(std::min(text.find_first_of("|<>)"), text.size()));
      std::vector<std::string> args;
      std::string word;
      bool quoted = false, any = false;
      for (const char ch : text + " ") {
        if (ch == '\'')
          quoted = !quoted, any = true;
        else if (ch != ' ' || quoted)
          word += ch, any = true;
        else if (any)
          args.push_back(word == "DIR" || word == "BASE" ? test::bundled_model_dir().string()
                                                         : word),
              word.clear(), any = false;
      }
      args.erase(args.begin());
      Command tool = make_tool();
      try {
        EXPECT_EQ(parse_command_line(tool, args).name, c.name) << example;
      } catch (const std::exception& e) {
        ADD_FAILURE() << example << ": " << e.what();
      }
    }
  });
}

// Every command that takes a folder says first that there is none.
TEST_F(Front, MissingFolders) {
  const test::TempDir dir;
  test::write_file(dir / "file", "x");
  Command table = make_tool();
  size_t commands = 0;
  walk(table, [&](const Command& c) {
    std::string args = c.name, more;
    bool folder = false;
    for (const Option& o : c.positional) folder = folder || o.kind == ValueKind::kFolder;
    if (!folder) return;
    ++commands;
    for (size_t i = 1; i < c.positional.size(); ++i) more += " x";
    for (const Option& o : c.options)
      if (o.required) more += " " + o.name() + " x";
    for (const OptionChoice& choice : c.choices)
      if (choice.required) more += " " + choice.names[0] + " 1";
    const CommandResult missing = run_tool(c.name + " /does/not/exist" + more);
    EXPECT_EQ(missing.status, 1) << c.name;
    EXPECT_EQ(missing.err, "moebius: /does/not/exist: there is no such folder\n") << c.name;
    EXPECT_TRUE(missing.out.empty());
    const CommandResult name = run_tool(c.name + " Qwen/Qwen3-30B-A3B" + more);
    EXPECT_EQ(name.status, 1) << c.name;
    EXPECT_NE(name.err.find("`hf download ORG/NAME --local-dir DIR`"), std::string::npos)
        << name.err;
    const CommandResult file = run_tool(c.name + " " + shell_quote((dir / "file").string()) + more);
    EXPECT_EQ(file.status, 1) << c.name;
    EXPECT_NE(file.err.find("is not a folder"), std::string::npos) << file.err;
  });
  EXPECT_GE(commands, 10u);
}

TEST_F(Front, Environment) {
  const CommandResult named = run_tool("explain --why", "MOEBIUS_KERNEL=generic");
  EXPECT_EQ(named.status, 0);
  EXPECT_EQ(named.err, "moebius: MOEBIUS_KERNEL sets --kernel to generic\n");
  EXPECT_NE(named.out.find("generic was requested"), std::string::npos);
  EXPECT_TRUE(run_tool("explain --quiet", "MOEBIUS_KERNEL=generic").err.empty());
  EXPECT_TRUE(run_tool("explain --kernel generic", "MOEBIUS_KERNEL=reference").err.empty());
  const CommandResult narrow = run_tool("explain", "MOEBIUS_CPU=reference");
  EXPECT_EQ(narrow.status, 0);
  EXPECT_EQ(narrow.err, "moebius: MOEBIUS_CPU narrows the CPU to no instruction set assumed\n");
  EXPECT_EQ(run_tool("explain --quiet", "MOEBIUS_CPU=reference").err, "");
  EXPECT_NE(run_tool("explain", "MOEBIUS_CPU=warp").err.find("the environment sets MOEBIUS_CPU: "),
            std::string::npos);
  // The library by itself never looks.
  const Cpu before = host_cpu();
  const char* of_this_run = std::getenv("MOEBIUS_CPU");
  const std::string narrowed = of_this_run == nullptr ? "" : of_this_run;
  ASSERT_EQ(setenv("MOEBIUS_KERNEL", "no_such_kernel", 1), 0);
  ASSERT_EQ(setenv("MOEBIUS_CPU", "no_such_feature", 1), 0);
  EXPECT_EQ(host_cpu().features, before.features);
  EXPECT_NO_THROW(Checkpoint::open(test::bundled_model_dir().string()));
  unsetenv("MOEBIUS_KERNEL"), unsetenv("MOEBIUS_CPU");
  if (!narrowed.empty()) setenv("MOEBIUS_CPU", narrowed.c_str(), 1);
  const CommandResult bad = run_tool("verify", "MOEBIUS_THREADS=many");
  EXPECT_EQ(bad.status, 2);
  EXPECT_NE(bad.err.find("the environment sets MOEBIUS_THREADS: --threads is 'many'"),
            std::string::npos)
      << bad.err;
}

TEST_F(Front, QuietAndVerbose) {
  const std::string run = "run -p 'The sea' -n 3 --temp 0 ";
  const CommandResult plain = run_tool(run), quiet = run_tool(run + "--quiet");
  EXPECT_EQ(quiet.status, 0);
  EXPECT_TRUE(quiet.err.empty()) << quiet.err;
  EXPECT_EQ(plain.out, quiet.out);
  const CommandResult verbose = run_tool("--verbose " + run);
  EXPECT_EQ(verbose.out, plain.out);
  for (const char* word : {"folder", "CPU", "threads"})
    EXPECT_NE(verbose.err.find(word), std::string::npos) << word << verbose.err;
}

}  // namespace
}  // namespace moebius::front_test
