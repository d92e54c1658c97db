// SPDX-License-Identifier: Apache-2.0
// Tables for the documents, printed from the lists that the program itself uses.
#pragma once
#include <iosfwd>
#include <string>

namespace moebius {

int run_docs(const std::string& table,
             std::ostream& out);  // "schemes", "commands" ...; man: the man page

}  // namespace moebius
