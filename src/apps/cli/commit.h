// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moebius {

// The git revision this program was built from, "unknown" outside of one (written by the build).
extern const char* const kBuildCommit;

}  // namespace moebius
