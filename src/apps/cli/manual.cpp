// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/manual.h"

#include <fmt/format.h>

#include "apps/cli/help.h"
#include "apps/commands.h"

namespace moebius {
namespace {

// Escapes text for roff, so that no character becomes a request, an escape or a hyphen.
std::string roff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else if (c == '\'')
      out += "\\(aq";
    else if (c == '`')
      out += "\\(ga";
    else
      out += c;
  }
  return out.starts_with('.') ? "\\&" + out : out;
}

// Returns an option's left column, such as "-p, --prompt TEXT", without alignment.
std::string bare_left(const Option& o) {
  const std::string left = left_column(o);
  return left.substr(left.find_first_not_of(' '));
}

std::string roff_option(const Option& o) {
  return fmt::format(".TP\n\\fB{}\\fR\n{}\n", roff(bare_left(o)), roff(description_of(o)));
}

constexpr std::string_view kCommon = "Every command";

void roff_command(const Command& c, std::string& out) {
  if (!c.subjects.empty()) {
    for (const Command& s : c.subjects)
      if (!s.hidden) roff_command(s, out);
    return;
  }
  out += fmt::format(".SS \"moebius {} {}\"\n{}\n", roff(c.name), roff(usage_of(c)),
                     roff(sentence_of(c)));
  for (const Option& o : c.positional) out += roff_option(o);
  for (const Option& o : c.options)
    if (o.section != kCommon) out += roff_option(o);
  out += fmt::format(".PP\nFor example:\n.PP\n.nf\n.RS\n");
  for (const std::string& e : c.examples) out += roff(e) + "\n";
  out += ".RE\n.fi\n";
}

std::string cell(std::string_view text) {  // a cell of a Markdown table
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

}  // namespace

std::string man_page(const Command& tool) {
  std::string out =
      ".\\\" Made by `moebius docs man` from the table of commands.\n"
      ".TH MOEBIUS 1 \"\" \"moebius " MOEBIUS_VERSION
      "\" \"User Commands\"\n.SH NAME\nmoebius \\- ";
  out += roff(tool.what) + "\n.SH SYNOPSIS\n.B moebius\n\\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n";
  out += ".br\n.B moebius help\n[\\fICOMMAND\\fR]\n.SH DESCRIPTION\n";
  out += roff(
      "Results go to standard output, everything else to standard error. Where DIR is left out, "
      "the "
      "bundled model is used. A list is one value with items by comma; --NAME=VALUE and --NAME "
      "VALUE "
      "mean the same, and after -- every word is an argument.\n");
  out += ".SH COMMANDS\n";
  for (const Command& c : tool.subjects)
    if (!c.hidden) roff_command(c, out);
  out += ".SH \"OPTIONS OF EVERY COMMAND\"\n";
  // The first command takes a folder, so it has all of them.
  const Command& first = tool.subjects.front();
  for (const Option& o : first.options)
    if (o.section == kCommon) out += roff_option(o);
  out += ".SH ENVIRONMENT\n";
  for (const NamedText& v : environment_variables(tool))
    out += fmt::format(".TP\n\\fB{}\\fR\n{}\n", roff(v.name), roff(v.what));
  out += ".SH \"EXIT STATUS\"\n";
  for (const NamedText& v : exit_codes())
    out += fmt::format(".TP\n\\fB{}\\fR\n{}\n", v.name, roff(v.what));
  return out;
}

std::string markdown_environment(const Command& tool) {
  std::string out = "| variable | does |\n|---|---|\n";
  for (const NamedText& v : environment_variables(tool))
    out += fmt::format("| `{}` | {} |\n", v.name, cell(v.what));
  return out;
}

std::string markdown_exit_codes() {
  std::string out = "| code | means |\n|---|---|\n";
  for (const NamedText& v : exit_codes()) out += fmt::format("| {} | {} |\n", v.name, v.what);
  return out;
}

}  // namespace moebius
