// SPDX-License-Identifier: Apache-2.0
// Answers a name that does not exist with the nearest one that does.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moebius {

struct Command;

// Returns the number of insertions, deletions, replacements and swaps of neighbours that lead from
// one to the other.
size_t edit_distance(std::string_view a, std::string_view b);

// Returns the nearest of `names`, or "" if none is near. The first one wins a tie.
std::string nearest(std::string_view wanted, std::span<const std::string> names);

// Returns a message such as "there is no command `rnu`; did you mean `run`?"
std::string unknown_command(const Command& parent, std::string_view name);
std::string unknown_option(const Command& tool, const Command& command, std::string_view name);

}  // namespace moebius
