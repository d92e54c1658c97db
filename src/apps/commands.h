// SPDX-License-Identifier: Apache-2.0
// Holds the one list of commands.
#pragma once
#include <string>
#include <string_view>

#include "apps/cli/command.h"

namespace moebius {

struct BenchActions;

// Returns the tool itself: a command whose subjects are the commands, in the order of the
// documents. Without `bench`, the subjects of `bench` have no action.
Command make_tool(const BenchActions* bench = nullptr);

std::string last_word(const std::string& name);  // returns "moe" of "bench moe"

// Returns the subject of that name. Throws UsageError that suggests the nearest name.
Command& subject_of(Command& parent, std::string_view name);

// Return the commands; each function is defined in the file of its command.
Command run_command();
Command serve_command();
Command logits_command();
Command perplexity_command();
Command quantize_command();
Command eval_command();
Command pack_command();
Command inspect_command();
Command explain_command();
Command verify_command();
Command apply_command();
Command bench_command(const BenchActions& actions);
Command tokenize_command();
Command detokenize_command();
Command help_command();
Command completion_command();
Command docs_command();  // prints tables for the documents; not shown in help

// Name of the environment variable that narrows the CPU's features; see environment_variables.
constexpr const char* kCpuVariable = "MOEBIUS_CPU";

struct NamedText {
  std::string name, what;
};
std::vector<NamedText> exit_codes();
std::vector<NamedText> environment_variables(const Command& tool);

}  // namespace moebius
