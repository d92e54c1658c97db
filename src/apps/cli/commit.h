// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moebius {

// The git revision from which this program was built; "unknown" if it was not built in a clone.
// Written by the build.
extern const char* const kBuildCommit;

}  // namespace moebius
