// SPDX-License-Identifier: Apache-2.0
// A program with the command line: `moebius`, and moebius-bench, which is its command `bench`.
#pragma once

namespace moebius {

struct BenchActions;

// Does the work of main and returns the exit status. With `bench`, the words are those after
// `moebius bench`.
int run_program(int argc, char** argv, const BenchActions* bench = nullptr);

}  // namespace moebius
