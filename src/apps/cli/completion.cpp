// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/completion.h"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <memory>

#include "apps/cli/help.h"
#include "apps/commands.h"

namespace moebius {
namespace {

// Returns the words that can follow `moebius help`.
std::vector<std::string> help_words(const Command& tool) {
  std::vector<std::string> words = shown_subjects(tool);
  words.emplace_back(kArchitecturesTopic);
  return words;
}

// --- bash ---

// Returns a call of one of the script's functions that completes a value; empty: nothing completes
// it.
std::string bash_values(const Command& tool, const Option& o) {
  if (!o.choices.empty())
    return fmt::format("{} '{}'", o.commas ? "_moebius_list" : "_moebius_words",
                       fmt::join(o.choices, " "));
  if (o.kind == ValueKind::kFile) return "_moebius_paths -f";
  if (o.kind == ValueKind::kFolder) return "_moebius_paths -d";
  if (o.kind == ValueKind::kCommand)
    return fmt::format("_moebius_words '{}'", fmt::join(help_words(tool), " "));
  return "";
}

std::string bash_case(const Command& tool, const Command& c) {
  std::string out = fmt::format("    '{}')\n      case $before in\n", c.name), words;
  for (const Option& o : c.options) {
    words += fmt::format("{}{}", words.empty() ? "" : " ", fmt::join(o.names, " "));
    if (o.value.empty()) continue;
    const std::string values = bash_values(tool, o);
    out += fmt::format("        {}) {}return ;;\n", fmt::join(o.names, " | "),
                       values.empty() ? "" : values + "; ");
  }
  const std::string arguments =
      !c.subjects.empty()    ? fmt::format("_moebius_words '{}'", fmt::join(shown_subjects(c), " "))
      : c.positional.empty() ? ""
                             : bash_values(tool, c.positional[0]);
  out +=
      fmt::format("      esac\n      options='{}'\n      arguments=\"{}\" ;;\n", words, arguments);
  for (const Command& s : c.subjects)
    if (!s.hidden) out += bash_case(tool, s);
  return out;
}

constexpr std::string_view kBashStart =
    R"(# bash completion for moebius, made by `moebius completion bash`
_moebius_words() { mapfile -t COMPREPLY < <(compgen -W "$1" -- "$current"); }
_moebius_list() { # the last item of a list by comma
  local done=
  [[ $current == *,* ]] && done=${current%,*},
  mapfile -t COMPREPLY < <(compgen -P "$done" -W "$1" -- "${current##*,}")
  compopt -o nospace
}
_moebius_paths() {
  mapfile -t COMPREPLY < <(compgen "$1" -- "$current"
    [[ $1 == -d ]] && compgen -f -X '!*.gguf' -- "$current")
  compopt -o filenames
}
_moebius() {
  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
  local command=moebius options= arguments= word i
  COMPREPLY=()
  # "--policy=ex" comes as three words.
  [[ $before == = ]] && before=${COMP_WORDS[COMP_CWORD - 2]}
  [[ $current == = ]] && current=
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    [[ $word == -* ]] && continue
    case $command in
)";

constexpr std::string_view kBashEnd = R"(  esac
  if [[ $current == -* || -z $arguments ]]; then
    _moebius_words "$options"
  else
    eval "$arguments"
  fi
}
complete -F _moebius moebius
)";

// --- zsh ---

std::string zsh_quoted(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\'')
      out += "'\\''";
    else if (c == '[' || c == ']' || c == ':') {
      out += '\\';
      out += c;
    } else
      out += c;
  }
  return out;
}

std::string zsh_action(const Command& tool, const Option& o) {
  if (!o.choices.empty() && o.commas)
    return fmt::format("_values -s , {} {}", o.value, fmt::join(o.choices, " "));
  if (!o.choices.empty()) return fmt::format("({})", fmt::join(o.choices, " "));
  if (o.kind == ValueKind::kFile) return "_files";
  if (o.kind == ValueKind::kFolder) return "_files -/ -g \"*.gguf\"";
  if (o.kind == ValueKind::kCommand) return fmt::format("({})", fmt::join(help_words(tool), " "));
  return "";
}

std::string zsh_option(const Command& tool, const Option& o) {
  const std::string value =
      o.value.empty() ? "" : fmt::format(":{}:{}", o.value, zsh_action(tool, o));
  const std::string text = fmt::format("[{}]{}", zsh_quoted(o.what), value);
  const bool repeated = o.is_list();
  if (o.names.size() == 1) return fmt::format("    '{}{}{}'", repeated ? "*" : "", o.name(), text);
  if (repeated) return fmt::format("    '*'{{{}}}'{}'", fmt::join(o.names, ","), text);
  return fmt::format("    '({})'{{{}}}'{}'", fmt::join(o.names, " "), fmt::join(o.names, ","),
                     text);
}

std::string zsh_function_name(const Command& c) {
  std::string name = "_moebius";
  if (c.name != "moebius") name += "_" + c.name;
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

std::string zsh_function(const Command& tool, const Command& c) {
  std::string out;
  for (const Command& s : c.subjects)
    if (!s.hidden) out += zsh_function(tool, s);
  out += zsh_function_name(c) + "() {\n";
  if (!c.subjects.empty()) {
    out += "  local context state state_descr line\n  typeset -A opt_args\n  local -a names=(\n";
    for (const Command& s : c.subjects)
      if (!s.hidden) out += fmt::format("    '{}:{}'\n", last_word(s.name), zsh_quoted(s.what));
    out += "  )\n";
  }
  out += c.subjects.empty() ? "  _arguments -s -S \\\n" : "  _arguments -C -s -S \\\n";
  std::vector<std::string> specs;
  for (const Option& o : c.options) specs.push_back(zsh_option(tool, o));
  for (size_t i = 0; i < c.positional.size(); ++i)
    specs.push_back(fmt::format("    '{}:{}:{}'", i + 1, zsh_quoted(c.positional[i].what),
                                zsh_action(tool, c.positional[i])));
  if (!c.subjects.empty()) {
    specs.emplace_back("    '1:command:->command'");
    specs.emplace_back("    '*::argument:->argument'");
  }
  out += fmt::format("{}\n", fmt::join(specs, " \\\n"));
  if (!c.subjects.empty()) {
    out +=
        "  case $state in\n    command) _describe command names ;;\n    argument)\n      case "
        "$line[1] in\n";
    for (const Command& s : c.subjects)
      if (!s.hidden)
        out += fmt::format("        {}) {} ;;\n", last_word(s.name), zsh_function_name(s));
    out += "      esac ;;\n  esac\n";
  }
  return out + "}\n";
}

}  // namespace

std::string bash_completion(const Command& tool) {
  std::string out(kBashStart);
  out += fmt::format("      {}) command=$word ;;\n", tool.name);
  for (const Command& c : tool.subjects)
    if (!c.subjects.empty()) out += fmt::format("      {0}) command=\"{0} $word\" ;;\n", c.name);
  out += "    esac\n  done\n  case $command in\n";
  return out + bash_case(tool, tool) + std::string(kBashEnd);
}

std::string zsh_completion(const Command& tool) {
  return "#compdef moebius\n# zsh completion for moebius, made by `moebius completion zsh`\n" +
         zsh_function(tool, tool) +
         "if [[ $funcstack[1] == _moebius ]]; then\n  _moebius \"$@\"\nelse\n  compdef _moebius "
         "moebius\nfi\n";
}

Command completion_command() {
  auto shell = std::make_shared<std::string>();
  Command c("completion", "prints a script that completes commands, options and folders");
  c.argument("SHELL", *shell, "the shell", {.choices = {"bash", "zsh"}, .required = true});
  c.examples = {"source <(moebius completion bash)", "moebius completion zsh > ~/.zfunc/_moebius"};
  c.action = [shell](const Command&) {
    const Command tool = make_tool();
    std::cout << (*shell == "bash" ? bash_completion(tool) : zsh_completion(tool));
    return kExitDone;
  };
  return c;
}

}  // namespace moebius
