// SPDX-License-Identifier: Apache-2.0
// How operations of a device that runs by the CPU's code are executed, and where its rows and blocks
// lie. The CPU itself runs them at once in plain memory; a device that stands in for another machine
// (stand_ins.h) queues them and keeps its memory apart.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "runtime/memory.h"

namespace moebius {

// Bytes that operations use; moves as a whole.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(AlignedBuffer plain)
      : plain_(std::move(plain)), data_(plain_.data()), size_(plain_.size()) {}
  DeviceMemory(uint8_t* data, size_t size, std::shared_ptr<void> owner)
      : owner_(std::move(owner)), data_(data), size_(size) {}
  DeviceMemory(DeviceMemory&& o) noexcept { *this = std::move(o); }
  DeviceMemory& operator=(DeviceMemory&& o) noexcept {
    plain_ = std::move(o.plain_), owner_ = std::move(o.owner_);
    data_ = std::exchange(o.data_, nullptr), size_ = std::exchange(o.size_, 0);
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
  // Runs it behind everything that the queue was given, unless something of it has failed.
  virtual void post(size_t queue, std::function<void()> operation) = 0;
  // Until the queue has nothing more to do; throws what failed, once.
  virtual void wait(size_t queue) = 0;
  // Runs it now, in between operations; for memory of blocks.
  virtual void run_now(const std::function<void()>& operation) = 0;
  virtual DeviceMemory allocate(size_t bytes) = 0;  // within an operation
  virtual bool lost() const = 0;
};

}  // namespace moebius
