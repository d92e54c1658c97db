// SPDX-License-Identifier: Apache-2.0
// Kernels that may start before the one before them ends: they wait themselves (wait_for_predecessor, numbers.cuh).
#pragma once
#include "check.h"

namespace moebius::cuda {

// Set behind a mark of time: the next kernel waits for it, since no kernel stands before it.
inline thread_local bool launch_after_mark = false;

struct LaunchConfig {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attribute{};
  LaunchConfig(dim3 blocks, size_t threads, size_t bytes, bool early, cudaStream_t stream) {
    config.gridDim = blocks, config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = bytes, config.stream = stream;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute, config.numAttrs = early && !launch_after_mark ? 1 : 0;
    launch_after_mark = false;
  }
  LaunchConfig(const LaunchConfig&) = delete;
};

template <class... Parameters, class... Arguments>
void launch_early(void (*kernel)(Parameters...), dim3 blocks, size_t threads, size_t bytes,
                  cudaStream_t stream, const char* what, const Arguments&... arguments) {
  const LaunchConfig l(blocks, threads, bytes, true, stream);
  check(cudaLaunchKernelEx(&l.config, kernel, Parameters(arguments)...), what);
}

inline unsigned blocks_of(size_t count, size_t each = 1) {
  return static_cast<unsigned>((count + each - 1) / each);
}

}  // namespace moebius::cuda
