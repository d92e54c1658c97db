// SPDX-License-Identifier: Apache-2.0
// Runs the operations of a device that uses the CPU's code, and allocates its memory. The CPU
// itself has no executor; a device that stands in for another machine (stand_ins.h) queues
// operations and keeps its memory apart.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "runtime/memory.h"

namespace moebius {

// Owns memory that operations use; movable.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(AlignedBuffer plain)
      : plain_(std::move(plain)), data_(plain_.data()), size_(plain_.size()) {}
  DeviceMemory(uint8_t* data, size_t size, std::shared_ptr<void> owner)
      : owner_(std::move(owner)), data_(data), size_(size) {}
  DeviceMemory(DeviceMemory&& o) noexcept { *this = std::move(o); }
  DeviceMemory& operator=(DeviceMemory&& o) noexcept {
    plain_ = std::move(o.plain_);
    owner_ = std::move(o.owner_);
    data_ = std::exchange(o.data_, nullptr);
    size_ = std::exchange(o.size_, 0);
    return *this;
  }
  uint8_t* data() const noexcept { return data_; }
  size_t size() const noexcept { return size_; }

 private:
  AlignedBuffer plain_;
  std::shared_ptr<void> owner_;
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

class Executor {
 public:
  virtual ~Executor() = default;
  virtual std::string_view name() const = 0;
  // Queues an operation, which runs after all earlier ones of the queue, unless one of them failed.
  virtual void post(size_t queue, std::function<void()> operation) = 0;
  // Waits until the queue is empty. Throws what an operation threw, once.
  virtual void wait(size_t queue) = 0;
  // Runs a function while no operation runs: for changes to the memory of blocks.
  virtual void run_now(const std::function<void()>& operation) = 0;
  // Allocates memory that only operations may access.
  virtual DeviceMemory allocate(size_t bytes) = 0;
  virtual bool lost() const = 0;
};

}  // namespace moebius
