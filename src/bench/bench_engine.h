// SPDX-License-Identifier: Apache-2.0
// `moebius bench engine`: runs a trace of requests through the engine, and the bare step loop for
// comparison.
#pragma once
#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "apps/bench_command.h"

namespace moebius {

struct TraceEntry {
  double arrival = 0;  // arrival of the request, in seconds after the start
  size_t prompt = 1, new_tokens = 1;
};
// Reads lines "arrival,prompt tokens,new tokens"; ignores empty lines and text after #. Throws
// Error that names file and line.
std::vector<TraceEntry> read_trace(const std::string& path);

std::vector<TraceEntry> make_trace(const BenchEngineOptions& options);

// Runs the benchmark and prints to `out`. Returns 0, or 130 after Ctrl-C.
int run_bench_engine(const BenchEngineOptions& options, std::ostream& out);

}  // namespace moebius
