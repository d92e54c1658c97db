// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/help.h"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <memory>

#include "apps/cli/layout.h"
#include "apps/commands.h"
#include "base/error.h"
#include "model/arch/arch.h"

namespace moebius {
namespace {

constexpr size_t kWidth = 79, kColumn = 26;

std::string row(const std::string& left, const std::string& right) {
  const std::string start = "  " + left;
  // The columns are at least two spaces apart.
  const bool beside = start.size() + 2 <= kColumn;
  return (beside ? "" : start + "\n") + labelled(beside ? start : "", right, kColumn, kWidth);
}

std::string section(const std::string& title, const std::deque<Option>& options, Shown shown) {
  std::string out;
  for (const Option& o : options)
    if (o.section == title && (shown == Shown::kAll || !o.rare))
      out += row(left_column(o), description_of(o));
  return out;
}

}  // namespace

std::vector<std::string> shown_subjects(const Command& command) {
  std::vector<std::string> names;
  for (const Command& c : command.subjects)
    if (!c.hidden) names.push_back(last_word(c.name));
  return names;
}

std::string usage_of(const Command& command) {
  std::string out;
  if (!command.subjects.empty()) return command.name == "moebius" ? "COMMAND ..." : "WHAT ...";
  for (const Option& o : command.positional)
    out += (out.empty() ? "" : " ") + (o.required ? o.name() : "[" + o.name() + "]");
  for (const Option& o : command.options)
    if (o.required) out += fmt::format("{}{} {}", out.empty() ? "" : " ", o.name(), o.value);
  return out + (out.empty() ? "" : " ") + "[OPTIONS]";
}

std::string left_column(const Option& o) {
  std::string brief, full;
  for (const std::string& name : o.names) {
    if (name.starts_with("--") || name[0] != '-')
      full = full.empty() ? name : full;
    else
      brief = brief.empty() ? name : brief;
  }
  const std::string names =
      brief.empty() ? (o.is_positional() ? full : "    " + full) : brief + ", " + full;
  return o.value.empty() || o.is_positional() ? names : names + " " + o.value;
}

std::string description_of(const Option& o) {
  std::vector<std::string> notes;
  if (!o.choices.empty())
    notes.push_back(fmt::format("{} {}", o.commas ? "of" : "one of", fmt::join(o.choices, ", ")));
  if (o.is_list())
    notes.push_back(o.commas ? "comma-separated list" : "may be given several times");
  if (o.required) notes.push_back("required");
  const std::string variable = o.environment.empty() ? "" : "$" + o.environment + ", else ";
  if (!o.default_text.empty()) notes.push_back("default: " + variable + o.default_text);
  return notes.empty() ? o.what : fmt::format("{} ({})", o.what, fmt::join(notes, "; "));
}

std::string sentence_of(const Command& command) {
  std::string text = command.what + ".";
  if (text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text;
}

std::string help_page(const Command& command, Shown shown) {
  const bool top = command.name == "moebius";
  std::string out = labelled(
      "", fmt::format("{}{}: {}.", top ? "" : "moebius ", command.name, command.what), 0, kWidth);
  out +=
      fmt::format("\nUsage: {}{} {}\n\n", top ? "" : "moebius ", command.name, usage_of(command));
  for (const Option& o : command.positional) out += row(left_column(o), description_of(o));
  if (!command.positional.empty()) out += '\n';
  for (const Command& c : command.subjects)
    if (!c.hidden) out += row(last_word(c.name), c.what);
  if (!command.subjects.empty()) out += '\n';
  std::vector<std::string> seen;
  for (const Option& o : command.options) {
    if (std::find(seen.begin(), seen.end(), o.section) != seen.end()) continue;
    seen.push_back(o.section);
    if (const std::string rows = section(o.section, command.options, shown); !rows.empty())
      out += fmt::format("{}:\n{}\n", o.section, rows);
  }
  const auto rare = std::count_if(command.options.begin(), command.options.end(),
                                  [](const Option& o) { return o.rare; });
  if (shown == Shown::kCommon && rare > 0)
    out += fmt::format("{} more option{}: moebius {} --help-all\n\n", rare, rare == 1 ? "" : "s",
                       command.name);
  out += command.examples.size() > 1 ? "Examples:\n" : "Example:\n";
  for (const std::string& e : command.examples) out += "  " + e + "\n";
  if (!top) return out;
  out += "\nExit codes:\n";
  for (const NamedText& code : exit_codes()) out += row(code.name, code.what);
  return out +
         "\n`moebius help COMMAND` has the options and examples of a command,\n"
         "`moebius help architectures` the models that run.\n";
}

namespace {

std::string architectures_page() {
  std::string out = "Models that run, by the family of their config.json:\n\n";
  for (const Architecture& a : architectures())
    out += row(std::string(a.family), std::string(a.title));
  return out + "\n`moebius inspect DIR` says whether a folder will run.\n";
}

}  // namespace

Command help_command() {
  struct Words {
    std::string command, subject;
  };
  auto o = std::make_shared<Words>();
  Command c("help", "shows the help of a command, or the models that run");
  c.argument("COMMAND", o->command, "the command, or `architectures`",
             {.default_text = "the list of commands", .kind = ValueKind::kCommand});
  c.argument("WHAT", o->subject, "for bench: what it measures", {.default_text = "all of them"});
  c.examples = {"moebius help run", "moebius help bench moe", "moebius help architectures"};
  c.action = [o](const Command&) {
    if (o->command == kArchitecturesTopic) {
      if (!o->subject.empty())
        throw UsageError(fmt::format("help {} lists all of them; nothing may follow, found '{}'",
                                     kArchitecturesTopic, printable(o->subject, 60)));
      std::cout << architectures_page();
      return kExitDone;
    }
    Command tool = make_tool();
    Command* found = &tool;
    for (const std::string& word : {o->command, o->subject})
      if (!word.empty()) found = &subject_of(*found, word);
    std::cout << help_page(*found, Shown::kCommon);
    return kExitDone;
  };
  return c;
}

}  // namespace moebius
