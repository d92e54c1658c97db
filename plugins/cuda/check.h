// SPDX-License-Identifier: Apache-2.0
// Errors and memory inside the plugin. Exceptions end at the functions of the table (module.cu).
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <string>
#include <utility>

#include "device/cuda/cuda_table.h"

namespace moebius::cuda {

struct Failure {
  CudaStatus status;
  std::string words;
};

inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  const CudaStatus status = error == cudaErrorInsufficientDriver ||
                                    error == cudaErrorInitializationError ||
                                    error == cudaErrorSystemDriverMismatch
                                ? CudaStatus::kNoDriver
                            : error == cudaErrorNoDevice         ? CudaStatus::kNoDevice
                            : error == cudaErrorMemoryAllocation ? CudaStatus::kOutOfMemory
                                                                 : CudaStatus::kLost;
  throw Failure{status, std::string(what) + ": " + cudaGetErrorString(error)};
}
inline void check_launch(const char* what) { check(cudaGetLastError(), what); }

[[noreturn]] inline void refuse(std::string words) {
  throw Failure{CudaStatus::kRefused, std::move(words)};
}

// Memory of the device.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes) : bytes_(bytes) {
    if (bytes > 0) check(cudaMalloc(&data_, bytes), "memory of the device");
  }
  // A copy of host memory.
  Buffer(const void* from, size_t bytes) : Buffer(bytes) {
    if (bytes > 0)
      check(cudaMemcpy(data_, from, bytes, cudaMemcpyHostToDevice), "copy to the device");
  }
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Buffer() { cudaFree(data_); }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }

 private:
  void swap(Buffer& other) {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Arrays of one call, one behind the other in memory that is kept from call to call.
class Arena {
 public:
  explicit Arena(Buffer& memory) : memory_(memory) {}
  template <class T>
  size_t add(size_t count) {
    const size_t at = bytes_;
    bytes_ += (count * sizeof(T) + 255) / 256 * 256;
    return at;
  }
  // Makes room; not inside a capture of a graph, where memory must be there already.
  void reserve(cudaStream_t stream) const {
    if (memory_.bytes() >= bytes_) return;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    check(cudaStreamIsCapturing(stream, &status), "stream");
    if (status != cudaStreamCaptureStatusNone)
      refuse("a layer met more rows in a graph than before: run it once outside first");
    check(cudaStreamSynchronize(stream), "stream");
    memory_ = Buffer();
    memory_ = Buffer(bytes_);
  }
  template <class T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(memory_.as<uint8_t>() + offset);
  }

 private:
  Buffer& memory_;
  size_t bytes_ = 0;
};

}  // namespace moebius::cuda
