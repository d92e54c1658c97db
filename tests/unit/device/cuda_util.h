// SPDX-License-Identifier: Apache-2.0
// Where the emulated CUDA plugin of this build is.
#pragma once
#include <string>

namespace moebius::test {

// Of a bundle of tests that is run elsewhere: $MOEBIUS_TEST_EMULATED.
std::string emulated_plugin();
bool has_emulated_plugin();

}  // namespace moebius::test
