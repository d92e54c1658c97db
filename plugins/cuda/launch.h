// SPDX-License-Identifier: Apache-2.0
// Launches kernels; all kernels of the plugin go through here. A kernel gets no more shared memory
// than the device allows for a block, and starts either after the preceding kernel or, if it waits
// by itself (wait_for_predecessor, numbers.cuh), early.
#pragma once
#include <algorithm>
#include <cstdlib>

#include "check.h"
#include "device/cuda/gpu_models.h"
#include "device/cuda/mma_form.h"

// Declares, inside a kernel, the dynamic shared memory of a block of threads.
#if !defined(MOEBIUS_HOST_CUDA)
#define MOEBIUS_BLOCK_MEMORY(Type, name) extern __shared__ __align__(16) Type name[]
#endif

namespace moebius::cuda {

struct DeviceLimits {
  size_t shared_bytes;  // most shared memory of a block of threads
  size_t multiprocessors;
  size_t shared_of_each;  // shared memory of a multiprocessor
  bool early = true;      // false: kernels start after the preceding one
  // The card that a test imitates, and what the real one lets a block have.
  const GpuModel* like = nullptr;
  size_t real_bytes = 0;
  MmaCard card() const { return {multiprocessors, shared_of_each}; }
};

// Returns the card that tests imitate with the variable MOEBIUS_CUDA_LIKE; null: none.
inline const GpuModel* imitated_gpu() {
#if defined(MOEBIUS_CUDA_TEST)
  if (const char* name = std::getenv("MOEBIUS_CUDA_LIKE")) return gpu_model(name);
#endif
  return nullptr;
}

// Returns the limits of the current device of this thread.
inline DeviceLimits device_limits() {
  thread_local int known = -1;
  thread_local DeviceLimits limits{};
  int device = 0;
  check(cudaGetDevice(&device), "device");
  if (device == known) return limits;
  const auto ask = [&](cudaDeviceAttr what) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, what, device), "device");
    return static_cast<size_t>(value);
  };
  limits = {ask(cudaDevAttrMaxSharedMemoryPerBlockOptin), ask(cudaDevAttrMultiProcessorCount),
            ask(cudaDevAttrMaxSharedMemoryPerMultiprocessor)};
#if defined(MOEBIUS_CUDA_TEST)
  // The variable lets tests imitate a device with less shared memory (tests/gpu/run.sh).
  if (const char* least = std::getenv("MOEBIUS_CUDA_SHARED_LIMIT"))
    limits.shared_bytes = std::min<size_t>(limits.shared_bytes, std::strtoull(least, nullptr, 10));
#endif
  if (const GpuModel* m = imitated_gpu())
    limits = {std::min(limits.shared_bytes, m->block_shared()),
              static_cast<size_t>(m->multiprocessors),
              std::min<size_t>(limits.shared_of_each, m->shared_kib * 1024),
              m->major >= 9,
              m,
              limits.shared_bytes};
  known = device;
  return limits;
}

// Lets a kernel have `bytes` of dynamic shared memory; throws if the device has less.
inline void allow_shared_bytes(const void* kernel, size_t bytes, const char* what) {
  constexpr size_t kUsual = 40 * 1024;  // 48 KiB less the kernels' static shared memory
  if (bytes <= kUsual) return;
  const DeviceLimits limits = device_limits();
  if (const size_t most = std::max(limits.shared_bytes, limits.real_bytes); bytes > most)
    refuse(std::string(what) + ": a block needs " + std::to_string(bytes) +
           " bytes of shared memory, the device has " + std::to_string(most));
  int device = 0;
  check(cudaGetDevice(&device), "device");
  static std::mutex mutex;
  static std::map<std::pair<int, const void*>, size_t> allowed;
  const std::lock_guard lock(mutex);
  size_t& had = allowed[{device, kernel}];
  if (bytes <= had) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        what);
  had = bytes;
}

// True after a timer event was recorded: the next kernel must not start early, because its
// predecessor in the stream is the event, not a kernel.
inline thread_local bool launch_after_mark = false;

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 blocks, size_t threads, size_t bytes, bool early,
            cudaStream_t stream, const char* what, const Arguments&... arguments) {
  allow_shared_bytes(reinterpret_cast<const void*>(kernel), bytes, what);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks, config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = bytes, config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = early && !launch_after_mark && device_limits().early ? 1 : 0;
  launch_after_mark = false;
  check(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...), what);
}

template <class... Parameters, class... Arguments>
void launch_early(void (*kernel)(Parameters...), dim3 blocks, size_t threads, size_t bytes,
                  cudaStream_t stream, const char* what, const Arguments&... arguments) {
  launch(kernel, blocks, threads, bytes, /*early=*/true, stream, what, arguments...);
}

inline unsigned blocks_of(size_t count, size_t each = 1) {
  return static_cast<unsigned>((count + each - 1) / each);
}

}  // namespace moebius::cuda
