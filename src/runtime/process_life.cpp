// SPDX-License-Identifier: Apache-2.0
#include "runtime/process_life.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>

namespace moebius {

void end_with_parent() {
  const pid_t parent = getppid();
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(128 + SIGKILL);  // the parent ended before the call above
}

}  // namespace moebius
