// SPDX-License-Identifier: Apache-2.0
// `moebius bench engine`: a trace of requests through the engine, and the bare step loop beside it.
#pragma once
#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "apps/cli/command.h"
#include "apps/engine_options.h"
#include "apps/model_commands.h"

namespace moebius {

struct TraceEntry {
  double arrival = 0;  // seconds
  size_t prompt = 1, new_tokens = 1;
};
// Lines "arrival,prompt tokens,new tokens"; empty lines and what follows # do not count. Throws
// Error naming file and line.
std::vector<TraceEntry> read_trace(const std::string& path);

struct BenchEngineOptions {
  ModelRunOptions model;
  std::string trace;  // file; empty: made up
  // Of a trace that is made up: Poisson arrivals, lengths around these.
  size_t requests = 32;
  double rate = 16;  // requests per second
  size_t prompt = 128, new_tokens = 64;
  size_t seed = 1;
  size_t parallel = 32, rounds = 1;
  double stretch = 3;
  std::string predictions = "none";
  bool constrained = false;  // every run is repeated with answers in a form
  EngineRunOptions engine;
  bool json = false;
};
std::vector<TraceEntry> make_trace(const BenchEngineOptions& options);

// 0, or 130 after Ctrl-C.
int run_bench_engine(const BenchEngineOptions& options, std::ostream& out);
Command bench_engine_subject();

}  // namespace moebius
