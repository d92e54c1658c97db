// SPDX-License-Identifier: Apache-2.0
// `moebius bench roof|kernel|linear|moe|attention|model|sampler|mask`: what the machine can do, and what
// kernels, layers, whole models and draws of tokens make of it. docs/bench.md explains the columns and keys.
#pragma once
#include <iosfwd>

#include "apps/bench_command.h"

namespace moebius {

extern const BenchActions kBenchActions;

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
