// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/command_line.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "apps/cli/commit.h"
#include "apps/cli/folder.h"
#include "apps/cli/help.h"
#include "apps/cli/manners.h"
#include "apps/cli/suggest.h"
#include "apps/commands.h"
#include "apps/rank_process.h"
#include "base/error.h"
#include "base/file.h"
#include "base/human.h"
#include "kernels/oracle.h"
#include "runtime/cpu.h"
#include "runtime/program_folder.h"
#include "runtime/thread_pool.h"

namespace moebius {
namespace {

using Words = std::span<const std::string>;

bool asks_for_a_page() { return manners().help || manners().help_all || manners().version; }

class Parser {
 public:
  Parser(Command& tool, Words args) : tool_(tool), command_(&tool), args_(args) {}

  Command& parse() {
    while (!args_.empty() && !done()) {
      const std::string word = take();
      if (word == "--" && !only_positional_)
        only_positional_ = true;
      else if (word.size() > 2 && word.starts_with("--") && !only_positional_)
        long_option(word);
      else if (word.size() > 1 && word[0] == '-' && !only_positional_)
        short_options(word);
      else
        positional(word);
    }
    return *command_;
  }

 private:
  static bool done() { return asks_for_a_page(); }

  std::string take() {
    std::string word = args_.front();
    args_ = args_.subspan(1);
    return word;
  }

  Option& require(const std::string& name) {
    Option* o = command_->find(name);
    if (o == nullptr || o->is_positional())
      throw UsageError(unknown_option(tool_, *command_, name));
    return *o;
  }

  // Takes the next word as a value, whatever it looks like; an option of this command means that
  // the value was forgotten.
  std::string value_of(const Option& o) {
    if (args_.empty()) throw UsageError(fmt::format("{} needs a value, {}", o.name(), o.value));
    const std::string& next = args_.front();
    if (next.size() > 1 && next[0] == '-' && command_->find(next) != nullptr)
      throw UsageError(fmt::format("{} needs a value, {}; to give '{}' as one write {}={}",
                                   o.name(), o.value, next, o.name(), next));
    return take();
  }

  void long_option(const std::string& word) {
    const size_t equals = word.find('=');
    Option& o = require(word.substr(0, equals));
    if (o.value.empty() && equals != std::string::npos)
      throw UsageError(fmt::format("{} takes no value", o.name()));
    if (o.value.empty())
      o.set("");
    else
      o.set(equals == std::string::npos ? value_of(o) : word.substr(equals + 1));
  }

  // Handles "-n 5", "-n5" and "-iq".
  void short_options(const std::string& word) {
    if (command_->find(word.substr(0, 2)) == nullptr)
      throw UsageError(unknown_option(tool_, *command_, word));
    for (size_t i = 1; i < word.size(); ++i) {
      Option& o = require(std::string("-") + word[i]);
      if (o.value.empty()) {
        o.set("");
        continue;
      }
      const std::string rest = word.substr(i + 1 + (word.substr(i + 1).starts_with('=') ? 1 : 0));
      o.set(rest.empty() ? value_of(o) : rest);
      return;
    }
  }

  void positional(const std::string& word) {
    if (!command_->subjects.empty()) {
      command_ = &subject_of(*command_, word);
      next_ = 0;
      return;
    }
    if (next_ == command_->positional.size())
      throw UsageError(fmt::format("`{}` takes {}; '{}' is one too many", command_->name,
                                   next_ == 0   ? std::string("no argument")
                                   : next_ == 1 ? "one argument, " + command_->positional[0].name()
                                                : fmt::format("{} arguments", next_),
                                   printable(word)));
    command_->positional[next_++].set(word);
  }

  Command& tool_;
  Command* command_;
  Words args_;
  size_t next_ = 0;  // index of the next positional argument
  bool only_positional_ = false;
};

void narrow_cpu_by_environment() {
  const char* list = std::getenv(kCpuVariable);
  if (list == nullptr || *list == '\0') return;
  try {
    narrow_host_cpu(list);
  } catch (const Error& e) {
    fail("the environment sets {}: {}", kCpuVariable, e.what());
  }
  note("{} narrows the CPU to {}", kCpuVariable, describe(host_cpu()));
  if (const auto names = left_out_kernels(host_cpu()); !names.empty())
    note("this build has no {} (CMake option MOEBIUS_KERNELS)", fmt::join(names, ", "));
}

// Sets options that were not given from their environment variables, and says so on stderr.
void read_environment(Command& command) {
  for (Option& o : command.options) {
    if (o.environment.empty() || o.given > 0) continue;
    const char* text = std::getenv(o.environment.c_str());
    if (text == nullptr || *text == '\0') continue;
    try {
      o.set(text);
    } catch (const UsageError& e) {
      throw UsageError(fmt::format("the environment sets {}: {}", o.environment, e.what()));
    }
    note("{} sets {} to {}", o.environment, o.name(), printable(text));
  }
}

void check_complete(const Command& command) {
  for (const std::deque<Option>* list : {&command.positional, &command.options})
    for (const Option& o : *list)
      if (o.required && o.given == 0)
        throw UsageError(fmt::format("`{}` needs {}{}", command.name, o.name(),
                                     o.is_positional() ? ", " + o.what : " " + o.value));
  for (const OptionChoice& choice : command.choices) {
    std::vector<std::string> found;
    for (const std::string& name : choice.names)
      if (command.given(name)) found.push_back(name);
    if (found.size() > 1)
      throw UsageError(fmt::format("{} and {} exclude each other", found[0], found[1]));
    if (found.empty() && choice.required)
      throw UsageError(
          fmt::format("`{}` needs one of {}", command.name, fmt::join(choice.names, ", ")));
  }
}

void settle_folders(Command& command) {
  for (std::deque<Option>* list : {&command.positional, &command.options})
    for (Option& o : *list) {
      if (o.kind != ValueKind::kFolder) continue;
      std::string& folder = *std::get<std::string*>(o.target);
      if (o.given > 0)
        folder = usable_folder(folder);
      else if (o.bundled)
        folder = bundled_folder();
    }
}

// Becomes the program of a command that has one of its own, beside this program: `moebius bench
// roof` is `moebius-bench roof`. Throws Error where it cannot be started.
int become_program_of(const Command& command, Words args) {
  const std::string word = command.name.substr(0, command.name.find(' ')), name = "moebius-" + word,
                    folder = program_folder(), path = join_path(folder, name);
  std::vector<std::string> words(args.begin(), args.end());
  words.erase(std::find(words.begin(), words.end(), word));
  words.insert(words.begin(), name);
  std::vector<char*> pointers;
  for (std::string& w : words) pointers.push_back(w.data());
  pointers.push_back(nullptr);
  execv(path.c_str(), pointers.data());
  if (errno == ENOENT)
    fail("`moebius {}` is a program of its own, {}, which is not in {}", word, name,
         printable(folder));
  fail("{}: cannot be started: {}", printable(path), std::strerror(errno));
}

// Writes what --verbose shows before the command starts.
void describe_run(const Command& command) {
  if (!manners().verbose) return;
  detail("version {} ({})", MOEBIUS_VERSION, kBuildCommit);
  detail("CPU {} ({})", cpu_model_name(), describe(host_cpu()));
  detail("{} unless --threads says otherwise", counted(default_thread_count(), "thread"));
  for (const Option& o : command.positional)
    if (o.kind == ValueKind::kFolder)
      detail("folder {}", printable(*std::get<std::string*>(o.target)));
}

}  // namespace

Manners& manners() {
  static Manners instance;
  return instance;
}

namespace {

// Returns the command that the words name, with its targets filled with what they say.
Command& parse_words(Command& tool, Words args) {
  Command& command = Parser(tool, args).parse();
  if (asks_for_a_page()) return command;
  if (!command.subjects.empty()) {
    if (args.empty()) {
      manners().help = true;
      return command;
    }
    throw UsageError(fmt::format("`{}` needs a command: {}", command.name,
                                 fmt::join(shown_subjects(command), ", ")));
  }
  return command;
}

// Adds what the command line does not say: environment variables and defaults.
void complete(Command& command) {
  narrow_cpu_by_environment();
  read_environment(command);
  check_complete(command);
  settle_folders(command);
}

}  // namespace

Command& parse_command_line(Command& tool, Words args) {
  Command& command = parse_words(tool, args);
  if (!asks_for_a_page()) complete(command);
  return command;
}

int run_command_line(Words args, const BenchActions* bench) {
  Command tool = make_tool(bench);
  try {
    Command& command = parse_words(tool, args);
    if (manners().help || manners().help_all) {
      std::cout << help_page(command, manners().help_all ? Shown::kAll : Shown::kCommon);
      return kExitDone;
    }
    if (manners().version) {
      std::cout << "moebius " MOEBIUS_VERSION "\n";
      return kExitDone;
    }
    if (!command.action) return become_program_of(command, args);
    complete(command);
    describe_run(command);
    return command.follow ? run_as_rank(command) : command.action(command);
  } catch (const UsageError& e) {
    put_on_stderr(fmt::format("moebius: {}\n", e.what()));
    return kExitUsage;
  }
}

}  // namespace moebius
