// SPDX-License-Identifier: Apache-2.0
// The completion scripts, asked in real shells, and the man page, rendered where groff is there.
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <sstream>

#include "apps/cli/completion.h"
#include "apps/cli/manual.h"
#include "apps/commands.h"
#include "unit/test_util.h"

namespace moebius::shell_files_test {
namespace {

namespace fs = std::filesystem;
using test::shell_quote;

struct Said {
  int status = -1;
  std::string out, err;
};

Said shell(const test::TempDir& dir, const std::string& command) {
  const std::string full =
      "cd " + shell_quote(dir.path().string()) + " && { " + command + "\n} >out 2>err </dev/null";
  Said said;
  said.status = std::system(full.c_str());
  said.out = test::read_file(dir / "out"), said.err = test::read_file(dir / "err");
  return said;
}

bool has_program(const test::TempDir& dir, const char* name) {
  return shell(dir, std::string("command -v ") + name).status == 0;
}

std::set<std::string> lines_of(const std::string& text) {
  std::set<std::string> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);)
    if (!line.empty()) out.insert(line);
  return out;
}

using Set = std::set<std::string>;

// A folder with a folder and a file to complete.
void make_names(const test::TempDir& dir) {
  fs::create_directory(dir / "model one");
  fs::create_directory(dir / "model_two");
  test::write_file(dir / "model.txt", "x");
}

class Bash : public testing::Test {
 protected:
  void SetUp() override {
    make_names(dir_);
    test::write_file(dir_ / "script", bash_completion(make_tool()));
  }
  // What bash offers for the last of the words.
  Set offers(const std::string& words) {
    const Said s =
        shell(dir_,
              "bash --norc -c 'set -u; source ./script; complete -p moebius >/dev/null || exit 9; "
              "COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _moebius moebius; "
              "[ ${#COMPREPLY[@]} = 0 ] || printf \"%s\\n\" \"${COMPREPLY[@]}\"' bash " +
                  words);
    EXPECT_EQ(s.status, 0) << words << "\n" << s.err;
    return lines_of(s.out);
  }
  test::TempDir dir_;
};

TEST_F(Bash, CommandsOptionsValuesFolders) {
  EXPECT_EQ(offers("moebius ru"), Set{"run"});
  EXPECT_EQ(offers("moebius bench mo"), (Set{"moe", "model"}));
  EXPECT_EQ(offers("moebius help de"), Set{"detokenize"});
  EXPECT_EQ(offers("moebius completion z"), Set{"zsh"});
  EXPECT_EQ(offers("moebius run --pol"), Set{"--policy"});
  EXPECT_EQ(offers("moebius run DIR --policy e"), Set{"exact"});
  EXPECT_EQ(offers("moebius run --policy = e"), Set{"exact"});
  EXPECT_EQ(offers("moebius run --policy ="), (Set{"declared", "exact", "approximate"}));
  EXPECT_EQ(offers("moebius bench moe --scheme w4a8,fp8_"),
            (Set{"w4a8,fp8_block", "w4a8,fp8_normal", "w4a8,fp8_static"}));
  EXPECT_EQ(offers("moebius inspect mod"), (Set{"model one", "model_two"}));
  EXPECT_EQ(offers("moebius run -p hi mod"), (Set{"model one", "model_two"}));
  EXPECT_EQ(offers("moebius run -f mod"), (Set{"model one", "model_two", "model.txt"}));
  EXPECT_EQ(offers("moebius run -p mod"), Set{});  // a text of the user's own
  EXPECT_TRUE(offers("moebius docs ''").empty() || !offers("moebius do").contains("docs"));
}

// Every option of every command is offered, and every choice of every option.
TEST_F(Bash, WholeTable) {
  const Command tool = make_tool();
  const auto check = [&](const Command& c) {
    const Set offered = offers("moebius " + c.name + " -");
    for (const Option& o : c.options)
      for (const std::string& name : o.names)
        EXPECT_TRUE(offered.contains(name)) << c.name << " " << name;
    for (const Option& o : c.options)
      if (!o.choices.empty()) {
        EXPECT_EQ(offers("moebius " + c.name + " " + o.name() + " ''"),
                  Set(o.choices.begin(), o.choices.end()))
            << c.name << " " << o.name();
      }
  };
  for (const Command& c : tool.subjects) {
    if (c.hidden) continue;
    if (c.subjects.empty()) check(c);
    for (const Command& s : c.subjects) check(s);
  }
}

// Types a line and a tab into an interactive zsh, and prints what its completion adds.
constexpr const char* kAskZsh = R"(
zmodload zsh/zpty || exit 3
zpty asked zsh -f -i
tell() { zpty -w asked "$1"; }
tell 'PROMPT= ; unsetopt zle_bracketed_paste; autoload -U compinit; compinit -u -D; source ./script'
tell 'compadd() { case " ${(j: :)@[1,(i)--]} " in *" -"[OAD]" "*) builtin compadd "$@"; return;; esac
  local -a hits; builtin compadd -A hits "$@"; local h; for h in $hits; do print -r -- "HIT<$h>" >> ./hits; done
  builtin compadd "$@" }'
tell 'finish() { print x > ./finished; zle kill-buffer; }; zle -N finish; bindkey "^X" finish; bindkey "^I" complete-word'
tell 'print ready > ./ready'
for i in {1..1200}; do [[ -e ready ]] && break; sleep 0.05; done
zpty -w -n asked "$1"$'\t'
zpty -w -n asked $'\x18'
for i in {1..1200}; do [[ -e finished ]] && break; zpty -rt asked >/dev/null 2>&1; sleep 0.05; done
zpty -d asked
)";

TEST(Zsh, CommandsOptionsValuesFolders) {
  const test::TempDir dir;
  make_names(dir);
  test::write_file(dir / "script", zsh_completion(make_tool()));
  if (!has_program(dir, "zsh")) GTEST_SKIP() << "zsh is not installed";
  const Said syntax = shell(dir, "zsh -n script");
  ASSERT_EQ(syntax.status, 0) << syntax.err;
  test::write_file(dir / "ask", kAskZsh);
  const auto offers = [&](const std::string& line) {
    for (const char* old : {"hits", "ready", "finished"}) fs::remove(dir / old);
    const Said s = shell(dir, "zsh -f ask " + shell_quote(line));
    EXPECT_EQ(s.status, 0) << line << "\n" << s.err;
    EXPECT_TRUE(fs::exists(dir / "finished")) << line;
    Set out;
    if (fs::exists(dir / "hits"))
      for (const std::string& hit : lines_of(test::read_file(dir / "hits")))
        out.insert(hit.substr(4, hit.size() - 5));
    return out;
  };
  EXPECT_TRUE(offers("moebius ru").contains("run"));
  EXPECT_TRUE(offers("moebius bench mo").contains("moe"));
  EXPECT_TRUE(offers("moebius run --pol").contains("--policy"));
  EXPECT_TRUE(offers("moebius run --policy e").contains("exact"));
  EXPECT_TRUE(offers("moebius bench moe --scheme w4a8,fp8_").contains("fp8_block"));
  const Set folders = offers("moebius inspect mod");
  EXPECT_TRUE(folders.contains("model_two"));
  EXPECT_FALSE(folders.contains("model.txt"));
}

TEST(ManPage, HoldsEveryCommandAndRenders) {
  const test::TempDir dir;
  const Command tool = make_tool();
  const std::string page = man_page(tool);
  for (const char* part : {".TH MOEBIUS 1", ".SH NAME", ".SH SYNOPSIS", ".SH COMMANDS",
                           ".SH ENVIRONMENT", ".SH \"EXIT STATUS\""})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  for (const std::string& line : lines_of(page))  // a request, or text that starts with none
    if (line[0] == '.') {
      const std::string request = line.substr(0, 3);
      EXPECT_TRUE(Set({".\\\"", ".TH", ".SH", ".SS", ".TP", ".PP", ".nf", ".fi", ".RS", ".RE",
                       ".br", ".B "})
                      .contains(request))
          << line;
    }
  if (!has_program(dir, "groff")) GTEST_SKIP() << "groff is not installed";
  test::write_file(dir / "moebius.1", page);
  const Said said = shell(dir, "groff -man -ww -Tascii -P-cbou moebius.1");
  EXPECT_EQ(said.status, 0);
  EXPECT_EQ(said.err, "");
  std::string text;  // hyphenated and broken as groff likes it
  for (const char c : said.out) text += c == '\n' ? ' ' : c;
  for (const Command& c : tool.subjects) {
    if (c.hidden) continue;
    EXPECT_NE(text.find("moebius " + c.name), std::string::npos) << c.name;
    for (const Option& o : c.options)
      EXPECT_NE(text.find(o.name()), std::string::npos) << c.name << " " << o.name();
  }
  EXPECT_NE(text.find("MOEBIUS_KERNEL"), std::string::npos);
}

}  // namespace
}  // namespace moebius::shell_files_test
