// SPDX-License-Identifier: Apache-2.0
// Counts what a thread asks of operator new, which the test program replaces
// (allocation_failure_test.cpp; not under sanitizers, where it stays 0).
#pragma once
#include <cstddef>

namespace moebius::test {

size_t allocations();  // of the calling thread so far

}  // namespace moebius::test
