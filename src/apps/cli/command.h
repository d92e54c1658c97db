// SPDX-License-Identifier: Apache-2.0
// Describes a command: its name, its options with their defaults, its examples, and its action.
// Every command describes itself in its own file; commands.cpp lists them. The parser, help,
// completion, the man page, the nearest name and the documents read the descriptions, so they
// cannot disagree.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace moebius {

enum ExitCode : int {
  kExitDone = 0,
  kExitFailed = 1,  // a check failed, or the input is unusable
  kExitUsage = 2,
  kExitDied = 3,  // the engine or a rank failed
  kExitInterrupted = 130,
};

// Thrown for wrong usage; what() is a sentence without the program's name.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Refers to the variable that receives an option's value. Its content when the option is declared
// is the default that help shows.
using OptionTarget =
    std::variant<bool*, int*, unsigned*, size_t*, int64_t*, double*, std::optional<int>*,
                 std::optional<float>*, std::string*, std::optional<std::string>*,
                 std::vector<std::string>*, std::vector<size_t>*, std::vector<int64_t>*>;

// Tells a shell how to complete the value.
enum class ValueKind : uint8_t { kText, kFile, kFolder, kCommand };

// What a declaration may say about an option beside its names, its value and its target.
struct OptionDetails {
  std::optional<std::pair<double, double>> limits = {};
  std::vector<std::string> choices = {};  // values that are allowed; empty: any
  // The default as help shows it; empty: the content of the target, if there is any.
  std::string default_text = {};
  std::string environment = {};  // environment variable that is read if the option is not given
  ValueKind kind = ValueKind::kText;
  bool required = false;
  bool commas = false;  // true: commas separate the items of a list, as always in lists of numbers
  bool rare = false;    // true: only --help-all shows the option
};

struct Option : OptionDetails {
  // Names of the option, such as "--prompt", "-p"; messages use the first one. A positional
  // argument has one such as DIR.
  std::vector<std::string> names;
  std::string value;  // name of the value in help, such as "TEXT"; empty: a flag
  std::string what;
  std::string section;
  OptionTarget target;
  bool bundled = false;   // true: the bundled model is the default of a folder
  bool inverted = false;  // true: the flag clears its target
  size_t given = 0;       // number of times that the option was given

  const std::string& name() const { return names.front(); }
  bool is_list() const;
  bool is_positional() const { return names.front()[0] != '-'; }

  // Parses a value. Throws UsageError.
  void set(std::string_view text);
};

// Lists options of which at most one, or exactly one, may be given.
struct OptionChoice {
  std::vector<std::string> names;
  bool required = false;
};

struct Command {
  Command(std::string command_name, std::string does)
      : name(std::move(command_name)), what(std::move(does)) {}

  std::string name;  // full name: "run", "bench moe"
  std::string what;  // description in one line
  std::vector<std::string> examples;
  bool hidden = false;
  std::deque<Option> options;     // a deque keeps addresses stable
  std::deque<Option> positional;  // positional arguments in order
  std::vector<OptionChoice> choices;
  // Subcommands, such as "bench moe" of "bench"; a command that has some has no action.
  std::vector<Command> subjects;
  // Does the command's work and returns the exit code; empty: another program does it.
  std::function<int(const Command&)> action;
  // Owner of the variables to which options write; null: `action` owns them.
  std::shared_ptr<void> storage;
  // Runs on ranks other than 0 in a job that a launcher started; empty: every rank runs the action.
  std::function<int()> follow;

  // Declare options. names: text such as "--prompt,-p"; names after the first long and the first
  // short one are accepted but not shown.
  Option& flag(std::string_view names, bool& target, std::string what, OptionDetails details = {});
  Option& option(std::string_view names, std::string value, OptionTarget target, std::string what,
                 OptionDetails details = {});
  Option& argument(std::string name, std::string& target, std::string what,
                   OptionDetails details = {});
  // Declares the checkpoint folder DIR, whose default is the bundled model.
  Option& folder(std::string& target);
  // Puts options that are declared from here on under this heading; rare: only --help-all shows
  // them.
  void section(std::string title, bool rare = false) {
    section_ = std::move(title);
    section_rare_ = rare;
  }
  void at_most_one(std::vector<std::string> names) { choices.push_back({std::move(names), false}); }
  void exactly_one(std::vector<std::string> names) { choices.push_back({std::move(names), true}); }

  const Option* find(std::string_view name) const;  // finds an option by any of its names
  Option* find(std::string_view name);
  bool given(std::string_view name) const;

 private:
  std::string section_ = "Options";
  bool section_rare_ = false;
};

}  // namespace moebius
