// SPDX-License-Identifier: Apache-2.0
// Declares the options of `moebius bench`. The measuring is done by a program of its own,
// moebius-bench (src/bench), which has the same table of commands; the tool parses, shows help and
// starts it.
#pragma once
#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "apps/cli/options.h"
#include "apps/engine_options.h"

namespace moebius {

struct BenchOptions {
  // Folder of a model, and, for moe and linear, a module in it that is used in place of random
  // weights.
  std::string folder, module;
  std::vector<std::string> schemes{"w4a8"};
  std::vector<int64_t> groups;  // group lengths; empty: the scheme's default
  // Sizes for moe.
  size_t experts = 128, top_k = 8, hidden = 2048, intermediate = 768;
  // Sizes for linear and kernel.
  size_t n = 4096, k = 2048;
  // Sizes for attention.
  size_t heads = 32, kv_heads = 4, head_dim = 128;
  std::vector<size_t> tokens{1, 32, 512};
  // Numbers of threads; empty: 1 and all cores.
  std::vector<size_t> threads;
  // Lengths for model.
  std::vector<size_t> prompts{512, 2048}, batches{1, 8, 32}, depths{32};
  // For model: number of decode steps; 0: chosen by the batch.
  size_t steps = 0;
  bool invented = false;  // for model: true: contexts have random keys instead of computed ones
  std::string synthetic;  // for model: name of a synthetic model, in place of a folder
  size_t layers = 6;      // layers of the synthetic model
  size_t vocab = 151936;  // size for sampler
  std::string schemas;    // for mask: folder of schemas
  bool list = false;      // for mask: true: list the failures
  // For experts: file of --route-trace, sizes of memory in GiB, tokens of a step.
  std::string trace;
  std::vector<std::string> gib;
  size_t sequences = 1;
  // For disk: the file, and bytes of a read.
  std::string file;
  size_t bytes = size_t{4} << 20;
  bool skew = false;
  bool pack = false;       // for kernel: true: measure packing instead of products
  bool act_order = false;  // for pack: true: columns are not in the order of groups
  double seconds = 1.5;    // time to measure per case
  std::string dtype = "bf16", kv_dtype = "auto";
  RunOptions run;        // options that are used: kernel, policy, int8 activations
  RankOptions ranks;     // how ranks share the model, for model
  std::string pack_dir;  // for model: folder that caches packed weights
  bool json = false;
};

struct BenchEngineOptions {
  ModelRunOptions model;
  std::string trace;  // file; empty: made up
  // Number of requests of a trace that is made up: Poisson arrivals, and lengths around these.
  size_t requests = 32;
  double rate = 16;  // requests per second
  size_t prompt = 128, new_tokens = 64;
  size_t seed = 1;
  size_t parallel = 32, rounds = 1;
  double stretch = 3;
  std::string predictions = "none";
  bool constrained = false;  // true: every run is repeated with answers in a form
  EngineRunOptions engine;
  bool json = false;
};

// Functions that run each subject of `moebius bench` and return the exit code. All are null in the
// tool itself.
struct BenchActions {
  using Run = int (*)(const BenchOptions& options, std::ostream& out);
  Run roof = nullptr, kernel = nullptr, linear = nullptr, moe = nullptr, attention = nullptr,
      model = nullptr, sampler = nullptr, mask = nullptr, experts = nullptr, disk = nullptr;
  int (*engine)(const BenchEngineOptions& options, std::ostream& out) = nullptr;
  int (*follow_model)(const BenchOptions& options) = nullptr;  // runs on ranks other than 0
};

std::vector<std::string> bench_scheme_names();  // returns all names that --scheme accepts
std::vector<std::string> bench_model_names();   // returns all names that --synthetic accepts

}  // namespace moebius
