// SPDX-License-Identifier: Apache-2.0
// `moebius bench roof|kernel|linear|moe|attention|model|sampler|mask`: what the machine can do, and what
// kernels, layers, whole models and draws of tokens make of it. docs/bench.md explains the columns and keys.
#pragma once
#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "apps/cli/options.h"

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

std::vector<std::string> bench_scheme_names();  // all that --scheme takes

// Each returns the exit code: 0, or 130 after Ctrl-C (finished cases were written).
int run_bench_roof(const BenchOptions& options, std::ostream& out);
int run_bench_kernel(const BenchOptions& options, std::ostream& out);
int run_bench_linear(const BenchOptions& options, std::ostream& out);
int run_bench_moe(const BenchOptions& options, std::ostream& out);
int run_bench_roof_cuda(const BenchOptions& options, std::ostream& out);  // --device cuda
int run_bench_linear_cuda(const BenchOptions& options, std::ostream& out);
int run_bench_moe_cuda(const BenchOptions& options, std::ostream& out);
int run_bench_moe_ranks(const BenchOptions& options, std::ostream& out);  // --tp, --ep
int run_bench_attention(const BenchOptions& options, std::ostream& out);
int run_bench_model(const BenchOptions& options, std::ostream& out);
int run_bench_sampler(const BenchOptions& options, std::ostream& out);
int run_bench_mask(const BenchOptions& options, std::ostream& out);

}  // namespace moebius
