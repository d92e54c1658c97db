// SPDX-License-Identifier: Apache-2.0
#include "runtime/process_life.h"

#if defined(__linux__)
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#endif

namespace moebius {

void end_with_parent() {
#if defined(__linux__)
  const pid_t parent = getppid();
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(128 + SIGKILL);  // the parent ended before the call above
#endif
}

}  // namespace moebius
