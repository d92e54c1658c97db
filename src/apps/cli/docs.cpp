// SPDX-License-Identifier: Apache-2.0
// Prints tables for the documents.
#include "apps/cli/docs.h"

#include <fmt/core.h>
#include <fmt/format.h>

#include <iostream>
#include <memory>
#include <ostream>

#include "apps/cli/manual.h"
#include "apps/commands.h"
#include "base/error.h"
#include "checkpoint/formats/format.h"
#include "checkpoint/methods/method.h"
#include "quantize/schemes.h"

namespace moebius {
namespace {

void format_table(std::ostream& out) {
  for (const FormatReader& r : format_readers()) out << fmt::format("- `{}`\n", name_of(r.format));
  std::vector<std::string> run, refused;
  for (const QuantMethod& m : quant_methods())
    (m.parse != nullptr ? run : refused).push_back(fmt::format("`{}`", m.name));
  out << fmt::format(
      "\nMethods (`quant_method`) that are run: {}. Refused in one sentence that says what it is "
      "and "
      "which tool converts it: {}.\n",
      fmt::join(run, ", "), fmt::join(refused, ", "));
}

void quantize_schemes(std::ostream& out) {
  out << "| `--scheme` | makes | stored as |\n|---|---|---|\n";
  for (const SchemeName& s : scheme_names()) {
    QuantizeOptions options;
    options.scheme = s.name;
    out << fmt::format("| `{}` | {} | `{}` |\n", s.name, s.what,
                       name_of(scheme_of(options).format));
  }
}

}  // namespace

int run_docs(const std::string& table, std::ostream& out) {
  if (table == "formats")
    format_table(out);
  else if (table == "quantize-schemes")
    quantize_schemes(out);
  else if (table == "environment")
    out << markdown_environment(make_tool());
  else if (table == "exit-codes")
    out << markdown_exit_codes();
  else if (table == "man")
    out << man_page(make_tool());
  else
    fail("no table '{}'; there are formats, quantize-schemes, environment, exit-codes and man",
         printable(table));
  return 0;
}

Command docs_command() {
  auto table = std::make_shared<std::string>();
  Command c("docs", "prints tables for the documents");
  c.hidden = true;
  c.argument("TABLE", *table, "which table", {.required = true});
  c.examples = {"moebius docs formats"};
  c.action = [table](const Command&) { return run_docs(*table, std::cout); };
  return c;
}

}  // namespace moebius
