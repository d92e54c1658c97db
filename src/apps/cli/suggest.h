// SPDX-License-Identifier: Apache-2.0
// The answer to a name that does not exist: the nearest one that does, or ours for one that users
// bring from another tool.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moebius {

struct Command;

// Insertions, deletions, replacements and swaps of neighbours that lead from one to the other.
size_t edit_distance(std::string_view a, std::string_view b);

// The nearest of `names`, or "" when none is near. The first wins a tie.
std::string nearest(std::string_view wanted, std::span<const std::string> names);

// Sentences, e.g. "there is no command `rnu`; did you mean `run`?"
std::string unknown_command(const Command& parent, std::string_view name);
bool is_foreign_option(std::string_view name);  // of another tool
std::string unknown_option(const Command& tool, const Command& command, std::string_view name);

}  // namespace moebius
