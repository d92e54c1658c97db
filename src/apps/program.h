// SPDX-License-Identifier: Apache-2.0
// A program with the command line: `moebius`, and moebius-bench, which is its command `bench`.
#pragma once

namespace moebius {

struct BenchActions;

// What main does; returns the exit status. With `bench`, the words are those behind `moebius bench`.
int run_program(int argc, char** argv, const BenchActions* bench = nullptr);

}  // namespace moebius
