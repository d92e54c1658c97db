// SPDX-License-Identifier: Apache-2.0
// Ends the processes of ranks together with their job.
#pragma once

namespace moebius {

// Asks the system to kill this process when its parent, the launcher, ends. Call early, from the
// process's first thread.
void end_with_parent();

}  // namespace moebius
