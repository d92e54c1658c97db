// SPDX-License-Identifier: Apache-2.0
// `moebius bench engine`: a trace of requests through the engine, and the bare step loop beside it.
#pragma once
#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "apps/bench_command.h"

namespace moebius {

struct TraceEntry {
  double arrival = 0;  // seconds
  size_t prompt = 1, new_tokens = 1;
};
// Lines "arrival,prompt tokens,new tokens"; empty lines and what follows # do not count. Throws
// Error naming file and line.
std::vector<TraceEntry> read_trace(const std::string& path);

std::vector<TraceEntry> make_trace(const BenchEngineOptions& options);

// 0, or 130 after Ctrl-C.
int run_bench_engine(const BenchEngineOptions& options, std::ostream& out);

}  // namespace moebius
