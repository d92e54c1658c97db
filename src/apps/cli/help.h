// SPDX-License-Identifier: Apache-2.0
// Writes the help pages: plain text, at most 80 columns.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "apps/cli/command.h"

namespace moebius {

// Returns the text after the command's name in its usage line: "[DIR] [options]".
std::string usage_of(const Command& command);
// Returns an option's names and value: "-p, --prompt TEXT".
std::string left_column(const Option& option);
// Returns an option's description with its default, its choices and its variable: "most new tokens
// (default: 256)".
std::string description_of(const Option& option);

// Returns the last words of the names of a command's subcommands that help shows.
std::vector<std::string> shown_subjects(const Command& command);

// Returns a command's description as a sentence: "Continues a text, or chats."
std::string sentence_of(const Command& command);

// Name of the help page that lists the models that run, beside the pages of commands.
inline constexpr const char* kArchitecturesTopic = "architectures";

enum class Shown : uint8_t { kCommon, kAll };  // selects which options a page lists
std::string help_page(const Command& command, Shown shown);

}  // namespace moebius
