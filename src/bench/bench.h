// SPDX-License-Identifier: Apache-2.0
// Entry points of `moebius bench`: they measure what the machine can do, and the speed of kernels,
// layers, whole models, token draws and disks.
// docs/bench.md explains the columns and keys.
#pragma once
#include <iosfwd>

#include "apps/bench_command.h"

namespace moebius {

extern const BenchActions kBenchActions;

// Run one benchmark each and print to `out`. Return the exit code: 0, or 130 after Ctrl-C, when
// finished cases were printed.
int run_bench_roof(const BenchOptions& options, std::ostream& out);
int run_bench_kernel(const BenchOptions& options, std::ostream& out);
int run_bench_linear(const BenchOptions& options, std::ostream& out);
int run_bench_moe(const BenchOptions& options, std::ostream& out);
// Measures a GPU, for --device cuda.
int run_bench_roof_cuda(const BenchOptions& options, std::ostream& out);
int run_bench_linear_cuda(const BenchOptions& options, std::ostream& out);
int run_bench_moe_cuda(const BenchOptions& options, std::ostream& out);
int run_bench_attention(const BenchOptions& options, std::ostream& out);
int run_bench_model(const BenchOptions& options, std::ostream& out);
int run_bench_sampler(const BenchOptions& options, std::ostream& out);
int run_bench_mask(const BenchOptions& options, std::ostream& out);
int run_bench_experts(const BenchOptions& options, std::ostream& out);
int run_bench_disk(const BenchOptions& options, std::ostream& out);

}  // namespace moebius
