// SPDX-License-Identifier: Apache-2.0
// A rank must not outlive the job it belongs to.
#pragma once

namespace moebius {

// From now on this process is killed when its parent, the launcher, is gone. Call it early: from the
// thread that was started with the process.
void end_with_parent();

}  // namespace moebius
