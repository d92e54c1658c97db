// SPDX-License-Identifier: Apache-2.0
// What a fuzz target is made with:  FUZZ_TARGET(name) { ... data, size ... return 0; }
// With libFuzzer (MOEBIUS_LIBFUZZER) it is the program's entry. Elsewhere all targets are part of the tests' program, which
// replays inputs (replay.h).
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef MOEBIUS_LIBFUZZER
#define FUZZ_TARGET(name) \
  extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size)
#else
#include "fuzz/replay.h"
#define FUZZ_TARGET(name)                                           \
  int run_##name(const std::uint8_t* data, std::size_t size);       \
  const moebius::test::FuzzTarget listed_##name(#name, run_##name); \
  int run_##name(const std::uint8_t* data, std::size_t size)
#endif
