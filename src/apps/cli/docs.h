// SPDX-License-Identifier: Apache-2.0
// Prints tables for the documents from the lists that the program itself uses.
#pragma once
#include <iosfwd>
#include <string>

namespace moebius {

// Writes the table of that name ("formats", ..., or "man" for the man page) to `out` and
// returns 0. Fails for an unknown name with a list of the names.
int run_docs(const std::string& table, std::ostream& out);

}  // namespace moebius
