// SPDX-License-Identifier: Apache-2.0
// Errors and memory inside the plugin. Exceptions end at the functions of the table (module.cu).
#pragma once
#include <cuda_runtime.h>

#include <atomic>
#include <compare>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "device/cuda/cuda_table.h"

namespace moebius::cuda {

struct Failure {
  CudaStatus status;
  std::string words;
};

inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // a failure that passes (memory) is not that of the next launch
  const CudaStatus status = error == cudaErrorInsufficientDriver ||
                                    error == cudaErrorInitializationError ||
                                    error == cudaErrorSystemDriverMismatch
                                ? CudaStatus::kNoDriver
                            : error == cudaErrorNoDevice         ? CudaStatus::kNoDevice
                            : error == cudaErrorMemoryAllocation ? CudaStatus::kOutOfMemory
                                                                 : CudaStatus::kLost;
  throw Failure{status, std::string(what) + ": " + cudaGetErrorString(error)};
}

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
  // Memory of somebody else.
  static Buffer at(void* data, size_t bytes) {
    Buffer b;
    b.data_ = data, b.bytes_ = bytes, b.owned_ = false;
    return b;
  }
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Buffer() {
    if (owned_) cudaFree(data_);
  }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }

 private:
  void swap(Buffer& other) {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(owned_, other.owned_);
  }
  void* data_ = nullptr;
  size_t bytes_ = 0;
  bool owned_ = true;
};

// Where weights go: one behind the other into memory that was given, or into memory of their own.
class WeightMemory {
 public:
  WeightMemory() = default;
  WeightMemory(void* given, size_t bytes) : given_(static_cast<uint8_t*>(given)), bytes_(bytes) {}
  Buffer take(size_t bytes) {
    if (given_ == nullptr) return Buffer(bytes);
    const size_t at = (used_ + 255) / 256 * 256;
    if (at > bytes_ || bytes > bytes_ - at) refuse("experts do not fit the memory that they share");
    used_ = at + bytes;
    return Buffer::at(given_ + at, bytes);
  }
  // The part of expert e among so many; of memory that was given.
  CudaRange part(const Buffer& b, size_t e, size_t experts) const {
    const size_t begin = static_cast<size_t>(b.as<uint8_t>() - given_), each = b.bytes() / experts;
    return {begin + e * each, begin + (e + 1) * each};
  }

 private:
  uint8_t* given_ = nullptr;
  size_t bytes_ = 0, used_ = 0;
};

// Allocating is allowed while any thread captures a graph: memory is no part of it.
class RelaxedCapture {
 public:
  RelaxedCapture() { check(cudaThreadExchangeStreamCaptureMode(&mode_), "capture"); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// What calls keep between their kernels.
struct ScratchArea {
  Buffer memory;
  std::vector<Buffer> kept;  // that kernels of a graph know, from before it grew
  bool captured = false;     // belongs to a graph
  std::atomic<bool> dead{false};
};

// Calls of one stream run one after the other and share an area; a graph has its own, as long as it lives.
class Scratch {
 public:
  // slot: areas that are used at the same time have different ones.
  ScratchArea& of(cudaStream_t stream, int slot = 0);

 private:
  struct Key {
    cudaStream_t stream;
    unsigned long long capture;  // 0: none
    int slot;
    auto operator<=>(const Key&) const = default;
  };
  void free_dead();
  std::mutex mutex_;
  std::map<Key, std::unique_ptr<ScratchArea>> areas_;
};
Scratch& scratch();

// Arrays of one call, one behind the other in memory that is kept from call to call.
class Arena {
 public:
  explicit Arena(ScratchArea& area) : area_(area) {}
  template <class T>
  size_t add(size_t count) {
    const size_t at = bytes_;
    bytes_ += (count * sizeof(T) + 255) / 256 * 256;
    return at;
  }
  void reserve(cudaStream_t stream) const {
    if (area_.memory.bytes() >= bytes_) return;
    const RelaxedCapture relaxed;
    if (area_.captured) {
      area_.kept.push_back(std::move(area_.memory));
      area_.memory = Buffer(bytes_);
      return;
    }
    check(cudaStreamSynchronize(stream), "stream");
    area_.memory = Buffer();
    area_.memory = Buffer(bytes_);
  }
  template <class T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(area_.memory.as<uint8_t>() + offset);
  }

 private:
  ScratchArea& area_;
  size_t bytes_ = 0;
};

}  // namespace moebius::cuda
