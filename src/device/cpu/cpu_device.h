// SPDX-License-Identifier: Apache-2.0
// The CPU as a device: layers are those of nn/, rows are stored as f32 rounded to their type, and
// an operation is done when its call returns. Tests give it an executor, so that it stands in for
// another machine.
#pragma once
#include <chrono>
#include <functional>
#include <mutex>
#include <vector>

#include "base/grow.h"
#include "device/cpu/executor.h"
#include "device/device.h"
#include "device/device_options.h"
#include "nn/ops.h"
#include "runtime/thread_pool.h"

namespace moebius {

class LinearLayer;
class MoeLayer;

class CpuDevice final : public Device {
 public:
  // pool: null for a device that only plans. executor: null: operations run on the calling thread.
  CpuDevice(ThreadPool* pool, const Cpu& cpu, DeviceOptions options,
            std::unique_ptr<Executor> executor = nullptr);
  ~CpuDevice() override;
  std::string_view name() const override {
    return executor_ != nullptr ? executor_->name() : "cpu";
  }

  ModuleUse plan(const ModuleQuestion& question) const override;
  size_t kv_bytes(const AttentionSpec& spec, const KvStorage& storage) const override;
  size_t index_bytes(const IndexerSpec& spec, KvType storage) const override;
  std::unique_ptr<LinearOp> linear(const Checkpoint& checkpoint,
                                   const std::vector<ModuleOutputs>& modules,
                                   const LayerLoadOptions& options) override;
  std::unique_ptr<LinearOp> head_linear(const HeadMatrices& matrices) override;
  MoeOps moe(const Checkpoint& checkpoint, const MoeRequest& request,
             const LayerLoadOptions& options) override;
  std::unique_ptr<AttentionOp> attention(AttentionRequest request) override;
  std::unique_ptr<IndexerOp> indexer(const IndexerSpec& spec, KvType storage,
                                     KvOffset place) override;
  std::unique_ptr<CompressorOp> compressor(CompressorRequest request) override;
  std::unique_ptr<RowStoreOp> row_store(size_t width, KvOffset place) override;
  std::unique_ptr<NGramOp> ngrams(NGramRequest request) override;
  std::unique_ptr<RecurrentOp> recurrent(std::unique_ptr<Recurrent> net, KvOffset place) override;
  std::unique_ptr<EmbeddingOp> embedding(const Checkpoint& checkpoint, const Module& table,
                                         float multiplier, const LinearOp* output) override;
  std::unique_ptr<RowProgram> rows(std::vector<RowOp> ops) override;
  void set_ropes(std::span<const RopeSpec> ropes) override;
  std::unique_ptr<DeviceBlocks> blocks(std::span<const size_t> block_bytes,
                                       size_t slab_bytes) override;
  using Device::rows;
  RowSet rows(Step& step, uint32_t slot, size_t rows, size_t cols, XType numbers) override;
  void begin(Step& step) override;
  void take_rows(Step& step, const RowSet& x, std::vector<uint32_t> which,
                 const RowSet& y) override;
  void on_host(Step& step, const RowSet& x, const RowSet& y,
               FunctionRef<void(HostRows x, HostRows y)> fn) override;
  void wait(Step& step) override;
  bool lost() const override { return executor_ != nullptr && executor_->lost(); }
  std::shared_ptr<void> stay() override;

  // --- called by operations of this device ---

  // Runs f: at once, or when its turn in the queue comes. A queued f is copied, so it must hold
  // what it needs by value; the step outlives it.
  template <class F>
  void run(Step& step, F&& f) {
    if (executor_ == nullptr) return run_now(step, f);
    executor_->post(step.queue, [&step, phase = step.phase, f = std::forward<F>(f)]() mutable {
      timed(step, phase, f);
    });
  }
  bool immediate() const { return executor_ == nullptr; }
  // Runs f at once. The time since the end of the previous operation counts as f's, so that the
  // clock is read once per operation.
  template <class F>
  void run_now(Step& step, F&& f) {
    std::unique_lock lock(mutex_, std::defer_lock);
    if (!options_.alone) lock.lock();
    if (step.ended == Step::Clock::time_point()) step.ended = Step::Clock::now();
    f();
    const auto now = Step::Clock::now();
    std::atomic<uint64_t>& sum = step.times[static_cast<size_t>(step.phase)];
    sum.store(sum.load(std::memory_order_relaxed) +
                  static_cast<uint64_t>(std::chrono::nanoseconds(now - step.ended).count()),
              std::memory_order_relaxed);
    step.ended = now;
  }
  float* at(const Step& step, const RowSet& rows) const noexcept {
    return reinterpret_cast<float*>(slot(step, rows.slot).data()) + rows.offset;
  }
  ConstRows view(const Step& step, const RowSet& r) const noexcept {
    return {at(step, r), DType::kF32, r.rows, r.cols, r.stride};
  }
  Rows out_view(const Step& step, const RowSet& r) const noexcept {
    return {at(step, r), DType::kF32, r.rows, r.cols, r.stride, r.numbers};
  }
  // Calls fn for each row, on the pool's threads; few rows do not wake other threads.
  void for_rows(size_t rows, size_t columns, FunctionRef<void(size_t)> fn) const;
  ThreadPool& pool() const { return *pool_; }
  const Cpu& cpu() const { return cpu_; }
  const DeviceOptions& options() const { return options_; }
  const Rope& rope(size_t i) const { return *ropes_[i]; }
  // Runs f on the calling thread while no operation runs: for changes to the memory of blocks.
  void in_between(const std::function<void()>& f) const {
    if (executor_ != nullptr) return executor_->run_now(f);
    const std::lock_guard lock(mutex_);
    f();
  }
  // Returns true if only operations may access the device's memory.
  bool closed() const { return executor_ != nullptr; }
  DeviceMemory allocate(size_t bytes) const {
    return executor_ != nullptr ? executor_->allocate(bytes) : DeviceMemory(AlignedBuffer(bytes));
  }

  // Keys that the last indexer of the step selected: the bits of all sequences, where each
  // sequence's words begin, and its words per row.
  struct Selection {
    std::vector<uint64_t> bits;
    std::vector<size_t> at, words;
    size_t selections = 1;  // number of selections per row
  };
  Selection& selection(const Step& step) const { return queues_[step.queue].selection; }
  // Router and experts of the block behind a block whose experts are in a store.
  struct NextBlock {
    const LinearLayer* router = nullptr;
    const MoeLayer* experts = nullptr;
  };
  // Field in which the block that was loaded last keeps the next one; null: there is none.
  NextBlock* waits_for_next = nullptr;
  std::vector<AttentionScratch>& attention_scratch() const { return attention_scratch_; }
  std::vector<IndexScratch>& index_scratch() const { return index_scratch_; }

 private:
  template <class F>
  static void timed(Step& step, Phase phase, F& f) {
    const auto start = std::chrono::steady_clock::now();
    f();
    step.times[static_cast<size_t>(phase)].fetch_add(
        static_cast<uint64_t>(
            std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count()),
        std::memory_order_relaxed);
  }
  static constexpr size_t kQueues = 8;
  struct Queue {
    std::vector<DeviceMemory> slots;
    std::vector<size_t> floats;  // [slots] size of each buffer: the most floats requested so far
    Selection selection;
  };
  const DeviceMemory& slot(const Step& step, uint32_t slot) const noexcept {
    return queues_[step.queue].slots[slot];
  }
  ThreadPool* pool_;
  Cpu cpu_;
  DeviceOptions options_;
  std::vector<std::unique_ptr<Rope>> ropes_;
  mutable std::vector<Queue> queues_;
  // [threads] scratch memory of attention.
  mutable std::vector<AttentionScratch> attention_scratch_;
  mutable std::vector<IndexScratch> index_scratch_;
  mutable std::mutex mutex_;            // lets operations of several queues take turns
  std::unique_ptr<Executor> executor_;  // destroyed before what its operations use
};

// Memory of the KV blocks: slabs of equal blocks for each kind. It grows when asked and never
// shrinks or moves, so that a block's address stays valid.
class CpuBlocks final : public DeviceBlocks {
 public:
  CpuBlocks(CpuDevice& device, std::span<const size_t> block_bytes, size_t slab_bytes);
  uint8_t* block(size_t kind, BlockId id) const noexcept {
    const Kind& k = kinds_[kind];
    return k.slabs[id / k.slab_blocks].data() + id % k.slab_blocks * k.block_bytes;
  }
  size_t block_bytes(size_t kind) const { return kinds_[kind].block_bytes; }
  void commit(size_t kind, size_t count) override;
  void trim(size_t kind, size_t count) override;
  void copy(size_t kind, BlockId from, BlockId to) override;
  void read(size_t kind, BlockId id, size_t offset, std::span<uint8_t> out) override;
  bool write(size_t kind, BlockId id, size_t offset, size_t bytes, Fill fill) override;
  bool readable() const override { return true; }
  size_t bytes() const override;

 private:
  struct Kind {
    size_t block_bytes, slab_blocks;
    std::vector<DeviceMemory> slabs;
  };
  CpuDevice& device_;
  std::vector<Kind> kinds_;
};

}  // namespace moebius
