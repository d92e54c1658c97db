// SPDX-License-Identifier: Apache-2.0
// Tables for the documents, printed from the lists that the program itself uses.
#pragma once
#include <iosfwd>
#include <string>

namespace moebius {

// Writes the table of that name ("schemes", "formats", ..., or "man" for the man page) to `out`, and
// returns the exit code 0. Fails, with the names that exist, where there is no such table.
int run_docs(const std::string& table, std::ostream& out);

}  // namespace moebius
