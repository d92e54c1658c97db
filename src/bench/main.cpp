// SPDX-License-Identifier: Apache-2.0
// moebius-bench: what `moebius bench` starts.
#include "apps/program.h"
#include "bench/bench.h"

int main(int argc, char** argv) {
  return moebius::run_program(argc, argv, &moebius::kBenchActions);
}
