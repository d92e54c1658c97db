// SPDX-License-Identifier: Apache-2.0
// Runs one case of `bench kernel --pack`: the time in which a kernel packs the weights of a scheme,
// compared with copying memory.
#pragma once
#include <iosfwd>

#include "bench/bench_synthetic.h"
#include "bench/bench_timing.h"
#include "kernels/kernel.h"

namespace moebius {

// Measures and writes a line; nothing if the kernel does not support the scheme.
void measure_packing(const Kernel& kernel, const SyntheticScheme& scheme,
                     const BenchOptions& options, BenchMachine& machine, std::ostream& out);

}  // namespace moebius
