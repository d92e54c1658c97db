// SPDX-License-Identifier: Apache-2.0
// The options of `moebius bench`. What they ask for is done by a program of its own, moebius-bench (src/bench), which
// has the same table of commands; the tool parses, shows help and starts it.
#pragma once
#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "apps/cli/options.h"
#include "apps/engine_options.h"

namespace moebius {

struct BenchOptions {
  std::string folder,
      module;  // moe, linear: weights of a folder instead of random ones; model: the folder
  std::vector<std::string> schemes{"w4a8"};
  std::vector<int64_t> groups;  // empty: the scheme's default
  size_t experts = 128, top_k = 8, hidden = 2048, intermediate = 768;  // moe
  size_t n = 4096, k = 2048;                                           // linear, kernel
  size_t heads = 32, kv_heads = 4, head_dim = 128;                     // attention
  std::vector<size_t> tokens{1, 32, 512};
  std::vector<size_t> threads;                                            // empty: 1 and all cores
  std::vector<size_t> prompts{512, 2048}, batches{1, 8, 32}, depths{32};  // model
  size_t steps = 0;                                                       // model; 0: by batch
  bool invented = false;  // model: contexts that were not computed
  std::string synthetic;  // model: instead of a folder
  size_t layers = 6;      // of it
  size_t vocab = 151936;  // sampler
  std::string schemas;    // mask: a folder
  bool list = false;      // mask: what went wrong
  bool skew = false;
  bool pack = false;       // kernel: packing instead of products
  bool act_order = false;  // pack: columns in no order of groups
  double seconds = 1.5;    // aimed at per case
  std::string dtype = "bf16", kv_dtype = "auto";
  RunOptions run;        // kernel, policy, int8 activations
  RankOptions ranks;     // model
  std::string pack_dir;  // model: of weights that were packed before
  bool json = false;
  std::string compare;
};

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

// What each subject does; returns the exit code. The tool has none of them.
struct BenchActions {
  using Run = int (*)(const BenchOptions& options, std::ostream& out);
  Run roof = nullptr, kernel = nullptr, linear = nullptr, moe = nullptr, attention = nullptr,
      model = nullptr, sampler = nullptr, mask = nullptr;
  int (*engine)(const BenchEngineOptions& options, std::ostream& out) = nullptr;
  int (*follow_model)(const BenchOptions& options) = nullptr;  // ranks other than 0
};

std::vector<std::string> bench_scheme_names();  // all that --scheme takes
std::vector<std::string> bench_model_names();   // all that --synthetic takes

}  // namespace moebius
