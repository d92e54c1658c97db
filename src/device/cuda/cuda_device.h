// SPDX-License-Identifier: Apache-2.0
// A CUDA device (device/device.h): rows and blocks in its memory, a stream for each queue, layers
// made by the plugin (cuda_table.h). Rows are stored in their own number type. Operations that it
// lacks (model/plan/placement_plan.h lists them) are placed on the CPU.
#pragma once
#include <functional>
#include <map>
#include <mutex>
#include <set>

#include "device/cpu/cpu_device.h"
#include "device/cuda/cuda_layers.h"
#include "device/cuda/cuda_streams.h"
#include "device/cuda/device_attention.h"
#include "device/trace.h"

namespace moebius {

// A buffer in GPU memory that only grows; growing discards its contents.
class CudaRoom {
 public:
  void* data() const { return memory_ ? memory_->data() : nullptr; }
  size_t bytes() const { return bytes_; }
  // Makes room for `bytes`. Call it when no queued work uses the buffer any more.
  void grow(const CudaApi& api, size_t bytes);
  void clear() {
    memory_.reset();
    bytes_ = 0;
  }

 private:
  std::optional<CudaMemory> memory_;
  size_t bytes_ = 0;
};

// A buffer in host memory for copies, which only grows; growing discards its contents.
class CudaHostRoom {
 public:
  uint8_t* data() const { return memory_.get(); }
  void grow(const CudaApi& api, size_t bytes);

 private:
  std::shared_ptr<uint8_t> memory_;
  size_t bytes_ = 0;
};

// Hashes the arguments of a call: equal arguments give equal marks.
class CudaMark {
 public:
  CudaMark& add(uint64_t v) {
    hash_ = (hash_ ^ v) * 0x9E3779B97F4A7C15u;
    hash_ ^= hash_ >> 29;
    return *this;
  }
  CudaMark& add(const void* p) {
    return add(static_cast<uint64_t>(reinterpret_cast<uintptr_t>(p)));
  }
  CudaMark& add(const CudaRows& r) {
    return add(r.data).add(static_cast<uint64_t>(r.type)).add(r.rows).add(r.stride);
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0x243F6A8885A308D3u;
};

class CudaDevice final : public Device {
 public:
  // pool: null for a device that only plans; it then needs no module, but options.target.
  CudaDevice(std::string name, ThreadPool* pool, const DeviceOptions& options);
  ~CudaDevice() override;
  std::string_view name() const override { return name_; }
  bool lacks(Need) const override { return true; }
  [[noreturn]] void refuse(Need need) const;  // throws Error: the model was not loaded by its plan

  ModuleUse plan(const ModuleQuestion& question) const override;
  size_t kv_bytes(const AttentionSpec& spec, const KvStorage& storage) const override;
  size_t index_bytes(const IndexerSpec& spec, KvType storage) const override;
  std::unique_ptr<LinearOp> linear(const Checkpoint& checkpoint,
                                   const std::vector<ModuleOutputs>& modules,
                                   const LayerLoadOptions& options) override;
  std::unique_ptr<LinearOp> head_linear(const HeadMatrices& matrices) override;
  MoeOps moe(const Checkpoint& checkpoint, const MoeRequest& request,
             const LayerLoadOptions& options) override;
  std::unique_ptr<ExpertsOp> divided_experts(const Checkpoint& checkpoint,
                                             const MoeRequest& request,
                                             const LayerLoadOptions& options);
  std::unique_ptr<ExpertsOp> spread_experts(const Checkpoint& checkpoint, const MoeRequest& request,
                                            const LayerLoadOptions& options);
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
  bool candidates(Step& step, const RowSet& x, std::span<const CandidateNeed> needs,
                  std::span<std::optional<Candidates>> out) override;
  void wait(Step& step) override;
  bool lost() const override { return lost_; }
  std::shared_ptr<void> stay() override;

  // --- called by operations of this device ---

  const CudaApi& api() const { return *module_->api; }
  ThreadPool& pool() const { return *pool_; }
  XType type() const { return type_; }
  CudaLoad load_of(const LayerLoadOptions& options) const;
  CudaLoad load_of() const;
  // Throws Error with the plugin's message if status is a failure.
  void check(CudaStatus status, std::string_view what) const;
  // Runs f and adds its time on the host to the step's times.
  template <class F>
  void run(Step& step, F&& f) const {
    if (device_trace().on) return f();  // GPU timers measure instead
    const auto start = Step::Clock::now();
    f();
    step.times[static_cast<size_t>(step.phase)].fetch_add(
        static_cast<uint64_t>(std::chrono::nanoseconds(Step::Clock::now() - start).count()),
        std::memory_order_relaxed);
  }
  // Runs f, which queues work on the stream: at once, or for steps with few rows together with the
  // following work when somebody waits. Work that was queued before with equal marks is replayed as
  // a CUDA graph. `mark` must cover everything that f passes to the plugin; `what` names the work
  // in traces and must be a literal.
  void launch(Step& step, const CudaMark& mark, std::string_view what,
              std::function<void()> f) const;
  // Queues row operations; consecutive programs are sent to the device in one call.
  void launch(Step& step, const CudaMark& mark, const CudaRowProgram& program) const;
  CudaRows at(const Step& step, const RowSet& rows) const;
  void* stream(const Step& step) const { return queue(step).stream; }

  // Describes a column of numbers that depend on a row's position, computed once per step.
  struct PositionFactor {
    RowOpKind kind;
    RowOp::Temperature temperature;
    bool operator==(const PositionFactor& o) const {
      return kind == o.kind && temperature.scale == o.temperature.scale &&
             temperature.floor == o.temperature.floor && temperature.first == o.temperature.first;
    }
  };
  uint32_t column_of(const PositionFactor& factor);
  struct RopeColumns {
    std::unique_ptr<Rope> rope;
    uint32_t at, half;
    bool interleaved;
  };
  const RopeColumns& rope(size_t i) const { return ropes_[i]; }

  // Data that a step needs in GPU memory.
  struct StepTables {
    const int32_t* tokens = nullptr;
    const float* numbers = nullptr;  // [rows, columns], see PositionFactor
    size_t columns = 0;
    const CudaSequence* sequences = nullptr;
    struct Tiles {
      const CudaTokens* tiles;
      size_t count;
    };
    std::map<size_t, Tiles> tiles;  // tiles of tokens for attention, by number of tokens per tile
    std::map<size_t, uint8_t* const*> blocks;  // addresses of blocks, by KvKind
  };
  const StepTables& tables(const Step& step) const { return queue(step).tables; }
  // Returns a routing in which every row has expert 0, for dense MLPs.
  CudaRouting one_expert(const Step& step, size_t rows) const;
  // Returns GPU memory in which rows per expert are counted; `to` receives the counts when the step
  // is waited for.
  uint32_t* counts(const Step& step, std::span<uint32_t> to) const;
  // Buffers that a divided layer uses between its parts (cuda_items.h); layers use them in turn.
  struct DividedRoom {
    CudaRoom chosen, own, others, at, shared, which, sent, served;
    CudaHostRoom chosen_here, rows_here, at_here, sent_here;
  };
  DividedRoom& divided_room(const Step& step) const { return queue(step).divided; }
  void reserve(const Step& step, CudaRoom& room, size_t bytes) const {
    grow(queue(step), room, bytes);
  }
  void flush(const Step& step) const { flush(queue(step)); }
  size_t item_bytes() const { return item_bytes_; }
  // Returns the object that copies the experts of a CPU layer to this device; null if they are not
  // streamed.
  CudaStreams* streams_of(int layer);
  // Returns the least number of rows for which the layer's experts are streamed.
  size_t stream_rows(const StreamedExperts& layer, const CpuExpertPart& part, size_t slots) const;
  void add_counted(size_t experts) { counted_ += experts; }
  void add_attention(size_t kind, size_t tile_tokens) {
    kinds_.insert(kind), tile_tokens_.insert(tile_tokens);
  }
  // Counts bytes of weights; KV blocks get what is left beside them.
  void add_weights(uint64_t bytes) { weights_ += bytes; }
  // Throws Error if the device has no room for so many bytes of KV blocks.
  void take_block_bytes(uint64_t bytes) const;
  void give_block_bytes(uint64_t bytes) const { blocks_ -= bytes; }

 private:
  static constexpr size_t kQueues = 8;
  // A piece of work that is queued for a stream.
  struct Work {
    Phase phase;
    std::string_view what;
    std::function<void()> run;
    std::optional<CudaRowProgram> program;  // row operations to launch in place of `run`
  };
  // Timer events of one batch of work: one before each piece of work and one after the last.
  struct Traced {
    std::shared_ptr<void> clock;
    std::vector<std::pair<Phase, std::string>> pieces;
  };
  struct Recorded {
    bool seen = false, refused = false;
    void* graph = nullptr;
    std::shared_ptr<Traced> traced;
  };
  struct Queue {
    void* stream = nullptr;
    std::vector<Work> queued;
    bool few_rows = true;                         // true: the queued work may become a graph
    std::vector<std::shared_ptr<Traced>> traced;  // timers of this step
    CudaMark mark;                                // mark of the queued work
    std::map<uint64_t, Recorded> known;           // recorded graphs by mark
    size_t graphs = 0;
    std::vector<CudaRoom> slots;
    CudaRoom uploaded, which, ones, counts, found;
    CudaHostRoom uploading, moving;
    DividedRoom divided;
    bool moved = false;  // true: a copy from `moving` may still be running
    size_t ones_rows = 0, counted = 0;
    StepTables tables;
    // Receivers of the counts of experts, written when the step is waited for, and their offset in
    // GPU memory.
    std::vector<std::pair<std::span<uint32_t>, size_t>> pending;
  };
  Queue& queue(const Step& step) const;
  void grow(Queue& queue, CudaRoom& room, size_t bytes) const;
  void flush(Queue& queue) const;  // sends the queued work to the stream
  void give(Queue& queue, std::span<const Work> work, Traced* traced) const;
  void capture(Queue& queue, Recorded& to, std::span<const Work> work) const;
  void read_times(Step& step, Queue& queue) const;
  void forget_graphs(Queue& queue) const;
  void fill_numbers(const Step& step, float* to) const;

  std::string name_;
  ThreadPool* pool_;
  const CudaModule* module_ = nullptr;
  XType type_;
  Policy policy_;
  GpuTarget target_;
  uint64_t limit_ = 0;  // most bytes of memory used; 0: no limit
  size_t item_bytes_;
  StreamedLayers streamed_;
  std::function<void(const std::string& line)> note_;
  mutable std::unique_ptr<CudaStreams> streams_;
  mutable bool said_ = false;  // true: measurements were reported to GpuSettings::note
  std::vector<RopeColumns> ropes_;
  std::vector<PositionFactor> factors_;
  uint32_t rope_columns_ = 0;
  size_t counted_ = 0;
  std::set<size_t> kinds_, tile_tokens_;
  uint64_t weights_ = 0;
  mutable std::atomic<uint64_t> blocks_{0};
  mutable std::atomic<bool> lost_{false};
  mutable std::mutex mutex_;  // guards members that queues share
  mutable std::vector<Queue> queues_;
};

// GPU memory of the KV blocks, in slabs as on the CPU.
class CudaBlocks final : public DeviceBlocks {
 public:
  CudaBlocks(const CudaDevice& device, std::span<const size_t> block_bytes, size_t slab_bytes);
  ~CudaBlocks() override;
  uint8_t* block(size_t kind, BlockId id) const {
    const Kind& k = kinds_[kind];
    return static_cast<uint8_t*>(k.slabs[id / k.slab_blocks].data()) +
           id % k.slab_blocks * k.block_bytes;
  }
  void commit(size_t kind, size_t count) override;
  void trim(size_t kind, size_t count) override;
  void copy(size_t kind, BlockId from, BlockId to) override;
  size_t bytes() const override;

 private:
  struct Kind {
    size_t block_bytes, slab_blocks;
    std::vector<CudaMemory> slabs;
  };
  const CudaDevice& device_;
  std::vector<Kind> kinds_;
};

}  // namespace moebius
