// SPDX-License-Identifier: Apache-2.0
// Error handling and memory inside the plugin. Functions throw Failure; those of the table
// (module.cu) catch it, so no exception leaves the plugin.
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
  cudaGetLastError();  // clears the error, so that the next launch does not report it
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

// Owns memory of the GPU, or views memory that another object owns (at()).
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes) : bytes_(bytes) {
    if (bytes > 0) check(cudaMalloc(&data_, bytes), "memory of the device");
  }
  // Allocates memory and copies host memory to it. Throws on failure.
  Buffer(const void* from, size_t bytes) : Buffer(bytes) {
    if (bytes > 0)
      check(cudaMemcpy(data_, from, bytes, cudaMemcpyHostToDevice), "copy to the device");
  }
  // Returns a view of memory that another object owns.
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

// Allocates memory for weights: consecutively within memory that the caller gave, or separately.
// Not thread-safe.
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
  // Returns where expert e of `experts` lies, in bytes from the beginning of the given memory.
  CudaRange part(const Buffer& b, size_t e, size_t experts) const {
    const size_t begin = static_cast<size_t>(b.as<uint8_t>() - given_), each = b.bytes() / experts;
    return {begin + e * each, begin + (e + 1) * each};
  }

 private:
  uint8_t* given_ = nullptr;
  size_t bytes_ = 0, used_ = 0;
};

// While an object lives, this thread may allocate although some thread captures a CUDA graph; the
// allocations do not become part of the graph.
class RelaxedCapture {
 public:
  RelaxedCapture() { check(cudaThreadExchangeStreamCaptureMode(&mode_), "capture"); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// Memory in which the kernels of a call pass results to each other.
struct ScratchArea {
  Buffer memory;
  std::vector<Buffer> kept;  // earlier, smaller buffers that kernels of a captured graph still use
  bool captured = false;     // true: the area belongs to a captured graph
  std::atomic<bool> dead{false};
};

// Holds the scratch memory of each stream: calls of one stream run one after the other and share an
// area; a captured graph has its own as long as it exists. Thread-safe.
class Scratch {
 public:
  // Returns the area of a stream; areas that a call uses at the same time need different slots.
  ScratchArea& of(cudaStream_t stream, int slot = 0);

 private:
  struct Key {
    cudaStream_t stream;
    unsigned long long capture;  // id of the graph capture; 0: none
    int slot;
    auto operator<=>(const Key&) const = default;
  };
  void free_dead();
  std::mutex mutex_;
  std::map<Key, std::unique_ptr<ScratchArea>> areas_;
};
Scratch& scratch();

// Lays out the arrays of one call in memory that is reused from call to call.
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
