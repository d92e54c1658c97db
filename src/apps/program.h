// SPDX-License-Identifier: Apache-2.0
// Runs a program with the command line: `moebius`, and moebius-bench, which is its command `bench`.
#pragma once

namespace moebius {

struct BenchActions;

// Does what main() has to do and returns the exit status. With `bench`, the words are those after
// `moebius bench`.
int run_program(int argc, char** argv, const BenchActions* bench = nullptr);

}  // namespace moebius
