// SPDX-License-Identifier: Apache-2.0
// The help pages: plain text, at most 80 columns.
#pragma once
#include <cstdint>
#include <string>

#include "apps/cli/command.h"

namespace moebius {

// "[DIR] [options]" after the command's name.
std::string usage_of(const Command& command);
// "-p, --prompt TEXT"
std::string left_column(const Option& option);
// What it does, with its default, its choices and its variable: "most new tokens (default: 256)".
std::string description_of(const Option& option);

// What a command does, as a sentence: "Continues a text, or chats."
std::string sentence_of(const Command& command);

// What `moebius help` knows beside the commands: the models that run.
inline constexpr const char* kArchitecturesTopic = "architectures";

enum class Shown : uint8_t { kCommon, kAll };  // which options
std::string help_page(const Command& command, Shown shown);

}  // namespace moebius
