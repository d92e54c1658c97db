// SPDX-License-Identifier: Apache-2.0
// Starts moebius-bench, the program that `moebius bench` runs.
#include "apps/program.h"
#include "bench/bench.h"

int main(int argc, char** argv) {
  return moebius::run_program(argc, argv, &moebius::kBenchActions);
}
