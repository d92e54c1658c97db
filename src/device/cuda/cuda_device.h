// SPDX-License-Identifier: Apache-2.0
// A CUDA device behind the device waist: rows by name and blocks by number in its memory, a stream for every
// queue, layers by the plugin (cuda_table.h). Rows hold numbers of their type itself. What it does not offer
// (model/load/placement_plan.h says it in words) is asked of the CPU instead.
#pragma once
#include <functional>
#include <map>
#include <mutex>
#include <set>

#include "device/cpu/cpu_device.h"
#include "device/cuda/cuda_layers.h"
#include "device/cuda/cuda_streams.h"
#include "device/cuda/cuda_trace.h"
#include "device/cuda/device_attention.h"

namespace moebius {

bool is_cuda_name(std::string_view name);  // "cuda", "cuda:1"
int cuda_number(std::string_view name);

// Memory of the device that grows; what it held is lost then.
class CudaRoom {
 public:
  void* data() const { return memory_ ? memory_->data() : nullptr; }
  size_t bytes() const { return bytes_; }
  // Behind everything that uses it.
  void grow(const CudaApi& api, size_t bytes);
  void clear() { memory_.reset(), bytes_ = 0; }

 private:
  std::optional<CudaMemory> memory_;
  size_t bytes_ = 0;
};

// The same of the host, for copies.
class CudaHostRoom {
 public:
  uint8_t* data() const { return memory_.get(); }
  void grow(const CudaApi& api, size_t bytes);

 private:
  std::shared_ptr<uint8_t> memory_;
  size_t bytes_ = 0;
};

// A number that stands for the arguments of a call: equal arguments have equal marks.
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
  // pool: null where it only plans, and then no module is needed.
  CudaDevice(std::string name, ThreadPool* pool, const DeviceOptions& options);
  ~CudaDevice() override;
  std::string_view name() const override { return name_; }

  size_t kv_bytes(const AttentionSpec& spec, const KvStorage& storage) const override;
  size_t index_bytes(const IndexerSpec& spec, KvType storage) const override;
  std::unique_ptr<LinearOp> linear(const Checkpoint& checkpoint,
                                   const std::vector<ModuleOutputs>& modules,
                                   const LoadOptions& options) override;
  std::unique_ptr<LinearOp> head_linear(const HeadMatrices& matrices) override;
  MoeOps moe(const Checkpoint& checkpoint, const MoeRequest& request,
             const LoadOptions& options) override;
  std::unique_ptr<ExpertsOp> divided_experts(const Checkpoint& checkpoint,
                                             const MoeRequest& request, const LoadOptions& options);
  std::unique_ptr<ExpertsOp> spread_experts(const Checkpoint& checkpoint, const MoeRequest& request,
                                            const LoadOptions& options);
  std::unique_ptr<AttentionOp> attention(AttentionRequest request) override;
  std::unique_ptr<IndexerOp> indexer(const IndexerSpec& spec, KvType storage,
                                     KvPlace place) override;
  std::unique_ptr<CompressorOp> compressor(CompressorRequest request) override;
  std::unique_ptr<RowStoreOp> row_store(size_t width, KvPlace place) override;
  std::unique_ptr<NGramOp> ngrams(NGramRequest request) override;
  std::unique_ptr<RecurrentOp> recurrent(std::unique_ptr<Recurrent> net, KvPlace place) override;
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

  // --- for its own operations ---

  const CudaApi& api() const { return *module_->api; }
  ThreadPool& pool() const { return *pool_; }
  XType type() const { return type_; }
  CudaLoad load_of(const LoadOptions& options) const;
  CudaLoad load_of() const;
  // Throws Error with the plugin's words.
  void check(CudaStatus status, std::string_view what) const;
  // Runs f, whose time on the host is the step's.
  template <class F>
  void run(Step& step, F&& f) const {
    if (cuda_trace().on) return f();  // then times are those of the device
    const auto start = Step::Clock::now();
    f();
    step.times[static_cast<size_t>(step.phase)].fetch_add(
        static_cast<uint64_t>(std::chrono::nanoseconds(Step::Clock::now() - start).count()),
        std::memory_order_relaxed);
  }
  // Gives f to the stream: at once, or of a step with few rows with all that comes before somebody waits.
  // What was given like that before, with the same marks, runs again as a graph. `mark` stands for all that f
  // hands to the plugin; `what` names it, and stays.
  void launch(Step& step, const CudaMark& mark, std::string_view what,
              std::function<void()> f) const;
  // The same of row operations: programs one behind the other go to the device at once.
  void launch(Step& step, const CudaMark& mark, const CudaRowProgram& program) const;
  CudaRows at(const Step& step, const RowSet& rows) const;
  void* stream(const Step& step) const { return queue(step).stream; }

  // Numbers of a step that its rows have by their positions: columns of a table.
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

  // What a step brought to the device.
  struct StepTables {
    const int32_t* tokens = nullptr;
    const float* numbers = nullptr;  // [rows, columns]
    size_t columns = 0;
    const CudaSequence* sequences = nullptr;
    struct Tiles {
      const CudaTokens* tiles;
      size_t count;
    };
    std::map<size_t, Tiles> tiles;             // by tokens of a tile
    std::map<size_t, uint8_t* const*> blocks;  // by kind
  };
  const StepTables& tables(const Step& step) const { return queue(step).tables; }
  // The numbers of a row that has one expert.
  CudaRouting one_expert(const Step& step, size_t rows) const;
  // Where the rows of experts are counted on the device until `to` gets them.
  uint32_t* counts(const Step& step, std::span<uint32_t> to) const;
  // What a layer needs between its parts whose other experts are elsewhere (cuda_items.h); layers take turns.
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
  // Where the experts of a layer on the CPU are streamed; else null.
  CudaStreams* streams_of(int layer);
  // From how many rows on that is done.
  size_t stream_rows(const StreamedExperts& layer, const CpuExpertPart& part, size_t slots) const;
  void add_counted(size_t experts) { counted_ += experts; }
  void add_attention(size_t kind, size_t tile_tokens) {
    kinds_.insert(kind), tile_tokens_.insert(tile_tokens);
  }
  // Memory of weights, beside which blocks have to fit.
  void add_weights(uint64_t bytes) { weights_ += bytes; }
  void take_block_bytes(uint64_t bytes) const;  // throws Error where there are not that many
  void give_block_bytes(uint64_t bytes) const { blocks_ -= bytes; }

 private:
  static constexpr size_t kQueues = 8;
  // Something that was given to a stream.
  struct Work {
    Phase phase;
    std::string_view what;
    std::function<void()> run;
    std::optional<CudaRowProgram> program;  // in place of run
  };
  // Times of work: marks before each piece and behind the last.
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
    bool few_rows = true;                         // what is queued may become a graph
    std::vector<std::shared_ptr<Traced>> traced;  // of this step
    CudaMark mark;                                // of what is queued
    std::map<uint64_t, Recorded> known;           // by such marks
    size_t graphs = 0;
    std::vector<CudaRoom> slots;
    CudaRoom uploaded, which, ones, counts, found;
    CudaHostRoom uploading, moving;
    DividedRoom divided;
    bool moved = false;  // something crosses from `moving`
    size_t ones_rows = 0, counted = 0;
    StepTables tables;
    std::vector<std::pair<std::span<uint32_t>, size_t>> pending;  // counts, and where they lie
  };
  Queue& queue(const Step& step) const;
  void grow(Queue& queue, CudaRoom& room, size_t bytes) const;
  void flush(Queue& queue) const;  // gives what is queued to the stream
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
  uint64_t limit_ = 0;  // of memory; 0: what there is
  size_t item_bytes_;
  CudaStreamed streamed_;
  std::function<void(const std::string& line)> note_;
  mutable std::unique_ptr<CudaStreams> streams_;
  mutable bool said_ = false;  // what was measured
  std::vector<RopeColumns> ropes_;
  std::vector<PositionFactor> factors_;
  uint32_t rope_columns_ = 0;
  size_t counted_ = 0;
  std::set<size_t> kinds_, tile_tokens_;
  uint64_t weights_ = 0;
  mutable std::atomic<uint64_t> blocks_{0};
  mutable std::atomic<bool> lost_{false};
  mutable std::mutex mutex_;  // of what queues share while they begin
  mutable std::vector<Queue> queues_;
};

// The memory behind block numbers, in slabs as on the CPU.
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
