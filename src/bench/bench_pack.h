// SPDX-License-Identifier: Apache-2.0
// One case of `bench kernel --pack`: a kernel packs weights of a scheme, beside copying memory
// (bench_pack.cpp).
#pragma once
#include <iosfwd>

#include "bench/bench_synthetic.h"
#include "bench/bench_timing.h"
#include "kernels/kernel.h"

namespace moebius {

// Writes a line (nothing if the kernel does not take the scheme).
void measure_packing(const Kernel& kernel, const SyntheticScheme& scheme,
                     const BenchOptions& options, BenchMachine& machine, std::ostream& out);

}  // namespace moebius
