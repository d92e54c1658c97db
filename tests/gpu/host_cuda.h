// SPDX-License-Identifier: Apache-2.0
// Kernels of plugins/cuda on the host: threads of a block are contexts that take turns, and what threads of a warp do together (shuffles,
// tensor-core products) waits until all of them are there. Slow, and exact but for the order in which a tensor core adds. Included before
// the kernels' headers, which must not need CUDA's own. Launches of whole grids, with the few functions of CUDA's runtime that
// plugins/cuda/launch.h and check.h call, are refused as a driver refuses them where a block has more shared memory than the device
// (HostDevice) lets it have.
#pragma once
#define MOEBIUS_HOST_CUDA
#define __device__
#define __global__
#define __forceinline__ inline
#define __align__(n) alignas(n)
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static
#define MOEBIUS_BLOCK_MEMORY(Type, name) \
  Type* const name = reinterpret_cast<Type*>(moebius::cuda::HostDevice::block_memory())

#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "base/math_functions.h"
#include "base/numeric.h"

struct uint2 {
  uint32_t x, y;
};
struct uint4 {
  uint32_t x, y, z, w;
};

namespace moebius::cuda {

struct HostPlace {
  unsigned x = 0, y = 0, z = 0;
};
inline HostPlace threadIdx, blockIdx, blockDim, gridDim;

template <class T>
T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
T max(T a, T b) {
  return a < b ? b : a;
}
inline float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

class HostBlock {
 public:
  // Runs f as every thread of a block.
  static void run(unsigned threads, const std::function<void()>& f) {
    HostBlock block(threads, f);
    current() = &block;
    blockDim = {threads, 1, 1};
    for (bool some = true; some;) {
      some = false;
      for (unsigned t = 0; t < threads; ++t) {
        if (block.threads_[t]->done) continue;
        some = true;
        block.running_ = t, threadIdx = {t, 0, 0};
        swapcontext(&block.scheduler_, &block.threads_[t]->context);
      }
    }
  }
  static HostBlock& here() { return *current(); }

  // Waits for all threads that have not ended.
  void sync() {
    meet(all_, [&] { return alive_; });
  }
  // What every lane of `mask` brings, for all of them: by lane.
  template <class T>
  std::vector<T> exchange(unsigned mask, const T& mine) {
    static_assert(sizeof(T) <= sizeof(Slot));
    Meeting& m = meetings_[{running_ / 32, mask}];
    std::vector<Slot>& slots = m.slots[m.number % 2];
    slots.resize(32);
    *reinterpret_cast<T*>(&slots[running_ % 32]) = mine;
    const size_t number = m.number;
    meet(m, [&] { return static_cast<unsigned>(std::popcount(mask)); });
    std::vector<T> out(32);
    for (unsigned l = 0; l < 32; ++l)
      if (mask >> l & 1u) out[l] = *reinterpret_cast<T*>(&m.slots[number % 2][l]);
    return out;
  }
  // Copies of the running thread: done no earlier than it waits for them.
  void copy(void* to, const void* from) { threads_[running_]->copies.back().push_back({to, from}); }
  void end_copies() { threads_[running_]->copies.emplace_back(); }
  void finish_copies(size_t left) {
    auto& groups = threads_[running_]->copies;
    for (; groups.size() > left + 1; groups.erase(groups.begin()))
      for (const auto& [to, from] : groups.front()) std::memcpy(to, from, 16);
  }

 private:
  struct alignas(16) Slot {
    uint32_t words[16];
  };
  struct Meeting {
    unsigned arrived = 0;
    size_t number = 0;
    std::vector<Slot> slots[2];
  };
  struct Thread {
    ucontext_t context;
    static constexpr size_t kStack = 256 * 1024;
    std::unique_ptr<uint8_t[]> stack{new uint8_t[kStack]};  // not touched before it is used
    bool done = false;
    std::vector<std::vector<std::pair<void*, const void*>>> copies{1};  // the last group is open
  };
  static HostBlock*& current() {
    static HostBlock* block = nullptr;
    return block;
  }
  HostBlock(unsigned threads, const std::function<void()>& f) : f_(f), alive_(threads) {
    for (unsigned t = 0; t < threads; ++t) {
      Thread& thread = *threads_.emplace_back(std::make_unique<Thread>());
      getcontext(&thread.context);
      thread.context.uc_stack.ss_sp = thread.stack.get(),
      thread.context.uc_stack.ss_size = Thread::kStack;
      thread.context.uc_link = &scheduler_;
      makecontext(&thread.context, &HostBlock::begin, 0);
    }
  }
  static void begin() {
    HostBlock& block = here();
    block.f_();
    block.threads_[block.running_]->done = true, --block.alive_;
  }
  void yield() {
    const unsigned t = running_;
    swapcontext(&threads_[t]->context, &scheduler_);
    running_ = t, threadIdx = {t, 0, 0};
  }
  template <class Count>
  void meet(Meeting& m, Count count) {
    const size_t number = m.number;
    ++m.arrived;
    while (m.number == number) {
      if (m.arrived >= count()) {
        m.arrived = 0, ++m.number;
        return;
      }
      yield();
    }
  }
  const std::function<void()>& f_;
  ucontext_t scheduler_{};
  std::vector<std::unique_ptr<Thread>> threads_;
  unsigned running_ = 0, alive_;
  Meeting all_;
  std::map<std::pair<unsigned, unsigned>, Meeting> meetings_;
};

inline void __syncthreads() { HostBlock::here().sync(); }
inline float __shfl_xor_sync(unsigned mask, float v, int lanes) {
  return HostBlock::here().exchange(mask, v)[threadIdx.x % 32 ^ static_cast<unsigned>(lanes)];
}
inline uint32_t __reduce_max_sync(unsigned mask, uint32_t v) {
  uint32_t most = 0;
  for (const uint32_t other : HostBlock::here().exchange(mask, v))
    most = other > most ? other : most;
  return most;
}
inline int32_t __reduce_max_sync(unsigned mask, int32_t v) {
  int32_t most = v;
  const std::vector<int32_t> all = HostBlock::here().exchange(mask, v);
  for (unsigned l = 0; l < 32; ++l)
    if (mask >> l & 1u) most = max(most, all[l]);
  return most;
}
inline int32_t __reduce_min_sync(unsigned mask, int32_t v) {
  return -1 - __reduce_max_sync(mask, -1 - v);
}
inline uint32_t __reduce_add_sync(unsigned mask, uint32_t v) {
  uint32_t sum = 0;
  for (const uint32_t other : HostBlock::here().exchange(mask, v)) sum += other;
  return sum;
}
inline uint32_t __shfl_up_sync(unsigned mask, uint32_t v, int lanes) {
  const std::vector<uint32_t> all = HostBlock::here().exchange(mask, v);
  const unsigned lane = threadIdx.x % 32, up = static_cast<unsigned>(lanes);
  return lane >= up ? all[lane - up] : v;
}
inline void __syncwarp() { HostBlock::here().exchange(~0u, 0); }
inline void atomicAdd(uint32_t* to, uint32_t v) { *to += v; }
inline void atomicAdd(double* to, double v) { *to += v; }
inline void atomicMin(uint32_t* to, uint32_t v) { *to = min(*to, v); }
inline void fetch_ahead(const void*) {}
inline void copy_sixteen(void* shared, const void* from) { HostBlock::here().copy(shared, from); }
inline void end_copies() { HostBlock::here().end_copies(); }
template <int kLeft>
void wait_for_copies() {
  HostBlock::here().finish_copies(kLeft);
}
inline float max_or_nan(float a, float b) { return b > a || b != b ? b : a; }
template <bool kF16>
uint32_t two_numbers(float low, float high) {
  const auto bits = [](float v) -> uint32_t { return kF16 ? f32_to_f16(v) : f32_to_bf16(v); };
  return bits(low) | bits(high) << 16;
}

// --- tensor cores: where lanes have what is said in mma.cuh ---

struct HostOperands {
  uint32_t a[4], b[2];
};
template <class Sum, class Term>
void host_mma(Sum (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, unsigned inputs,
              Term term) {
  const std::vector<HostOperands> lanes =
      HostBlock::here().exchange(~0u, HostOperands{{a[0], a[1], a[2], a[3]}, {b0, b1}});
  const unsigned lane = threadIdx.x % 32, each = inputs / 8;  // neighbours in a word
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    for (unsigned k = 0; k < inputs; ++k) {
      const unsigned half = k / (inputs / 2), at = k % (inputs / 2) / each, in = k % each;
      d[i] = term(d[i], lanes[row % 8 * 4 + at].a[row / 8 + 2 * half],
                  lanes[column * 4 + at].b[half], in);
    }
  }
}
template <bool kF16>
void mma_halves(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  host_mma(d, a, b0, b1, 16, [](float sum, uint32_t x, uint32_t y, unsigned in) {
    const auto u = static_cast<uint16_t>(x >> (16 * in)), v = static_cast<uint16_t>(y >> (16 * in));
    return kF16 ? __builtin_fmaf(f16_to_f32(u), f16_to_f32(v), sum)
                : __builtin_fmaf(bf16_to_f32(u), bf16_to_f32(v), sum);
  });
}
template <bool kF16>
void mma_first(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  d[0] = d[1] = d[2] = d[3] = 0.0f;
  mma_halves<kF16>(d, a, b0, b1);
}
inline void mma_bytes(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  host_mma(d, a, b0, b1, 32, [](int32_t sum, uint32_t x, uint32_t y, unsigned in) {
    return sum + static_cast<int8_t>(x >> (8 * in)) * static_cast<int8_t>(y >> (8 * in));
  });
}

}  // namespace moebius::cuda

// --- CUDA's runtime ---

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
enum cudaError_t {
  cudaSuccess,
  cudaErrorInvalidValue,
  cudaErrorMemoryAllocation,
  cudaErrorInitializationError,
  cudaErrorInsufficientDriver,
  cudaErrorNoDevice,
  cudaErrorSystemDriverMismatch
};
enum cudaDeviceAttr {
  cudaDevAttrMaxSharedMemoryPerBlockOptin,
  cudaDevAttrMultiProcessorCount,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
enum cudaMemcpyKind { cudaMemcpyHostToDevice };
enum cudaStreamCaptureMode { cudaStreamCaptureModeRelaxed };
enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization };
using cudaStream_t = void*;
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int programmaticStreamSerializationAllowed;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

namespace moebius::cuda {

struct HostDevice {
  inline static size_t shared_limit = 232448;  // of a block
  inline static std::map<const void*, int>
      allowed;  // to kernels that asked for more than the usual
  inline static std::vector<uint4> memory;
  inline static size_t launches = 0, most_shared = 0;
  static void* block_memory() { return memory.data(); }
};

}  // namespace moebius::cuda

inline const char* cudaGetErrorString(cudaError_t) { return "invalid argument (host)"; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
// A device for each limit, so that what is known of one is not taken for another.
inline cudaError_t cudaGetDevice(int* device) {
  *device = static_cast<int>(moebius::cuda::HostDevice::shared_limit);
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr what, int device) {
  *value = what == cudaDevAttrMultiProcessorCount ? 30 : device;
  return cudaSuccess;
}
inline cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int bytes) {
  using moebius::cuda::HostDevice;
  if (bytes < 0 || static_cast<size_t>(bytes) > HostDevice::shared_limit)
    return cudaErrorInvalidValue;
  HostDevice::allowed[kernel] = bytes;
  return cudaSuccess;
}
template <class T>
cudaError_t cudaMalloc(T** p, size_t bytes) {
  *p = static_cast<T*>(::operator new (bytes, std::align_val_t{256}));
  return cudaSuccess;
}
inline cudaError_t cudaFree(void* p) {
  ::operator delete (p, std::align_val_t{256});
  return cudaSuccess;
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
  return cudaSuccess;
}
// Blocks one after the other; their memory is NaN, and what lies behind it must stay so.
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* c, void (*kernel)(Parameters...),
                               const Arguments&... arguments) {
  using namespace moebius::cuda;
  const auto asked = HostDevice::allowed.find(reinterpret_cast<const void*>(kernel));
  const size_t most =
      asked == HostDevice::allowed.end() ? size_t{48} * 1024 : static_cast<size_t>(asked->second);
  const size_t bytes = c->dynamicSmemBytes;
  if (bytes > most || bytes > HostDevice::shared_limit) return cudaErrorInvalidValue;
  ++HostDevice::launches;
  HostDevice::most_shared = std::max(HostDevice::most_shared, bytes);
  constexpr uint4 kNan{~0u, ~0u, ~0u, ~0u};
  const size_t count = (bytes + 15) / 16, behind = 64;
  gridDim = {c->gridDim.x, c->gridDim.y, c->gridDim.z};
  cudaError_t result = cudaSuccess;
  for (unsigned z = 0; z < c->gridDim.z; ++z)
    for (unsigned y = 0; y < c->gridDim.y; ++y)
      for (unsigned x = 0; x < c->gridDim.x; ++x) {
        HostDevice::memory.assign(count + behind, kNan);
        blockIdx = {x, y, z};
        HostBlock::run(c->blockDim.x, [&] { kernel(Parameters(arguments)...); });
        for (size_t i = count; i < count + behind; ++i)
          if (std::memcmp(&HostDevice::memory[i], &kNan, sizeof kNan) != 0)
            result = cudaErrorInvalidValue;
      }
  blockIdx = {}, gridDim = {};
  return result;
}
