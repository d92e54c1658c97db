// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/cuda_device.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/checked.h"
#include "base/error.h"
#include "base/human.h"
#include "device/cuda/device_rows.h"
#include "device/row_arithmetic.h"
#include "runtime/stay_awake.h"

namespace moebius {
namespace {

constexpr size_t kGraphRows = 256;   // a step with more rows is launched without a graph
constexpr size_t kLeastQueued = 4;   // a shorter queue is not worth a graph
constexpr size_t kMostGraphs = 64;   // per queue
constexpr size_t kMostMarks = 4096;  // most marks of steps that a queue remembers

size_t number_bytes(XType type) { return type == XType::kF32 ? 4 : 2; }

// Collects values for one upload, each part at a multiple of 256 bytes.
class Upload {
 public:
  template <class T>
  size_t add(std::span<const T> values) {
    const size_t at = bytes_.size();
    bytes_.resize(round_up(at + values.size_bytes(), 256));
    if (!values.empty()) std::memcpy(bytes_.data() + at, values.data(), values.size_bytes());
    return at;
  }
  const std::vector<uint8_t>& bytes() const { return bytes_; }

 private:
  std::vector<uint8_t> bytes_;
};

}  // namespace

DeviceTrace& device_trace() {
  static DeviceTrace trace;
  return trace;
}

void CudaRoom::grow(const CudaApi& api, size_t bytes) {
  if (bytes <= bytes_) return;
  const size_t room = std::max(bytes, bytes_ + bytes_ / 2);
  clear();  // released first: old and new memory never exist together
  memory_.emplace(api, room);
  bytes_ = room;
}

void CudaHostRoom::grow(const CudaApi& api, size_t bytes) {
  if (bytes <= bytes_) return;
  const size_t room = std::max(bytes, bytes_ + bytes_ / 2);
  memory_.reset();
  bytes_ = 0;
  void* p = nullptr;
  check_cuda(api, api.allocate_host(room, &p), "memory of the host for copies");
  memory_ = {static_cast<uint8_t*>(p), [&api](uint8_t* q) { api.release_host(q); }};
  bytes_ = room;
}

CudaDevice::CudaDevice(std::string name, ThreadPool* pool, const DeviceOptions& options)
    : name_(std::move(name)),
      pool_(pool),
      module_(options.gpu.module),
      type_(options.type),
      limit_(options.gpu.memory),
      item_bytes_(options.gpu.item_bytes),
      streamed_(options.gpu.streamed),
      note_(options.gpu.note),
      queues_(kQueues) {
  policy_.accept = options.policy.accept;
  policy_.kernel = options.gpu.kernel;
  policy_.where_it_can = true;
  if (options.target)
    target_ = *options.target;
  else if (module_ != nullptr)
    target_ = target_of(*module_);
  if (pool == nullptr) return;
  if (module_ == nullptr || !module_->ready())
    fail_at({"argument", "", "", "", "--device"}, "--device {}: {}", name_,
            module_ != nullptr ? module_->words : "no CUDA module was opened");
}

CudaDevice::~CudaDevice() {
  for (Queue& q : queues_) {
    if (q.stream == nullptr) continue;
    api().synchronize(q.stream);
    forget_graphs(q);
    api().free_stream(q.stream);
  }
}

CudaLoad CudaDevice::load_of() const {
  CudaLoad load;
  load.module = module_;
  load.policy = policy_;
  load.x_type = type_;
  load.router_matrix = false;
  return load;
}

CudaLoad CudaDevice::load_of(const LayerLoadOptions& options) const {
  CudaLoad load = load_of();
  load.act = options.act;
  load.x_type = options.x_type;
  load.progress = options.progress;
  if (options.tap != nullptr) fail("device {}: what layers read is seen on the CPU only", name_);
  return load;
}

void CudaDevice::check(CudaStatus status, std::string_view what) const {
  if (status == CudaStatus::kLost) lost_ = true;
  if (status != CudaStatus::kOk) fail("device {}: {}: {}", name_, what, printable(api().message()));
}

CudaDevice::Queue& CudaDevice::queue(const Step& step) const {
  Queue& q = queues_[step.queue];
  if (q.stream != nullptr) return q;
  // Queues do not wait for copies that loading queued.
  check(api().synchronize(nullptr), "weights");
  check(api().make_stream(&q.stream), "stream");
  return q;
}

std::shared_ptr<void> CudaDevice::stay() { return std::make_shared<StayAwake>(); }

// --- graphs ---

void CudaDevice::launch(Step& step, const CudaMark& mark, std::string_view what,
                        std::function<void()> f) const {
  if (step.rows > kGraphRows && !device_trace().on) return run(step, f);
  Queue& q = queue(step);
  q.few_rows = step.rows <= kGraphRows;
  q.mark.add(mark.value());
  q.queued.push_back({step.phase, what, std::move(f), {}});
}

void CudaDevice::launch(Step& step, const CudaMark& mark, const CudaRowProgram& program) const {
  if (step.rows > kGraphRows && !device_trace().on)
    return run(step, [&] { check(api().run_rows(&program, 1, stream(step)), "row operations"); });
  Queue& q = queue(step);
  q.few_rows = step.rows <= kGraphRows;
  q.mark.add(mark.value());
  q.queued.push_back({step.phase, part_count(program) > 0 ? "heads" : "rows", {}, program});
}

// Launches the work in order. Row programs that follow each other go in one launch, because rows do
// not depend on each other.
void CudaDevice::give(Queue& q, std::span<const Work> work, Traced* traced) const {
  const auto mark = [&](const Work* next) {
    if (traced == nullptr) return;
    check(api().mark(traced->clock.get(), traced->pieces.size(), q.stream), "times");
    if (next != nullptr) traced->pieces.emplace_back(next->phase, next->what);
  };
  std::vector<CudaRowProgram> programs;
  for (size_t i = 0; i < work.size();) {
    mark(&work[i]);
    if (!work[i].program) {
      work[i++].run();
      continue;
    }
    programs.assign(1, *work[i++].program);
    size_t ops = programs[0].count;
    const auto joins = [&](const Work& next) {
      return next.program && programs.size() < kCudaPrograms && part_count(programs[0]) == 0 &&
             part_count(*next.program) == 0 && next.program->rows == programs[0].rows &&
             ops + next.program->count <= kCudaRowOps;
    };
    while (i < work.size() && joins(work[i])) {
      programs.push_back(*work[i++].program);
      ops += programs.back().count;
    }
    check(api().run_rows(programs.data(), programs.size(), q.stream), "row operations");
  }
  mark(nullptr);
}

void CudaDevice::flush(Queue& q) const {
  if (q.queued.empty()) return;
  const std::vector<Work> work = std::exchange(q.queued, {});
  std::shared_ptr<Traced> traced;
  if (device_trace().on) {
    void* clock = nullptr;
    check(api().make_clock(work.size() + 1, &clock), "times");
    traced = std::make_shared<Traced>();
    traced->clock = {clock, [&api = api()](void* c) { api.free_clock(c); }};
    q.mark.add(uint64_t{1});  // traced steps have graphs of their own
  }
  const uint64_t mark = std::exchange(q.mark, {}).value();
  const auto give_all = [&] {
    give(q, work, traced.get());
    if (traced != nullptr) q.traced.push_back(traced);
  };
  if (work.size() < kLeastQueued || !q.few_rows) return give_all();
  if (q.known.size() > kMostMarks) forget_graphs(q);
  Recorded& r = q.known[mark];
  // A step is launched plainly the first time, which allocates memory and loads kernels; only a
  // repeated step gets a graph.
  if (!std::exchange(r.seen, true) || r.refused) return give_all();
  if (r.graph == nullptr) {
    r.traced = traced;
    capture(q, r, work);
    if (r.graph == nullptr) return give_all();
  }
  check(api().launch_graph(r.graph, q.stream), "step");
  if (r.traced != nullptr) q.traced.push_back(r.traced);
}

void CudaDevice::capture(Queue& q, Recorded& to, std::span<const Work> work) const {
  if (q.graphs >= kMostGraphs) return;
  if (api().begin_capture(q.stream) != CudaStatus::kOk) {
    to.refused = true;
    return;
  }
  void* graph = nullptr;
  try {
    give(q, work, to.traced.get());
  } catch (...) {
    if (api().end_capture(q.stream, &graph) == CudaStatus::kOk) api().free_graph(graph);
    throw;
  }
  to.refused = api().end_capture(q.stream, &graph) != CudaStatus::kOk;
  if (to.refused) return;
  to.graph = graph;
  ++q.graphs;
}

// Reads the GPU timers of all traced operations that have finished, and adds them to the step's
// phase times and to the trace by name.
void CudaDevice::read_times(Step& step, Queue& q) const {
  for (const std::shared_ptr<Traced>& t : std::exchange(q.traced, {})) {
    std::vector<float> ms(t->pieces.size());
    check(api().read_clock(t->clock.get(), ms.size() + 1, ms.data()), "times");
    const std::lock_guard lock(device_trace().mutex);
    for (size_t i = 0; i < ms.size(); ++i) {
      const double time = static_cast<double>(ms[i]);
      step.times[static_cast<size_t>(t->pieces[i].first)].fetch_add(
          static_cast<uint64_t>(time * 1e6), std::memory_order_relaxed);
      device_trace().milliseconds[t->pieces[i].second] += time;
    }
  }
}

void CudaDevice::forget_graphs(Queue& q) const {
  api().synchronize(q.stream);
  for (auto& [mark, r] : q.known)
    if (r.graph != nullptr) api().free_graph(r.graph);
  q.known.clear();
  q.graphs = 0;
}

// Enlarges a buffer after all queued work has finished, which may use it.
void CudaDevice::grow(Queue& q, CudaRoom& room, size_t bytes) const {
  if (bytes <= room.bytes()) return;
  flush(q);
  check(api().synchronize(q.stream), "step");
  room.grow(api(), bytes);
}

// --- rows ---

RowSet CudaDevice::rows(Step& step, uint32_t slot, size_t rows, size_t cols, XType numbers) {
  Queue& q = queue(step);
  if (slot >= q.slots.size()) q.slots.resize(size_t{slot} + 16);
  grow(q, q.slots[slot], rows * cols * number_bytes(numbers));
  return {this, slot, rows, cols, cols, 0, numbers};
}

CudaRows CudaDevice::at(const Step& step, const RowSet& r) const {
  if (r.device == nullptr || r.rows == 0) return {};
  auto* data = static_cast<uint8_t*>(queue(step).slots[r.slot].data());
  return {data + r.offset * number_bytes(r.numbers), r.numbers, r.rows, r.stride};
}

// Copies the row numbers at once: no queued operation reads their buffer.
void CudaDevice::take_rows(Step& step, const RowSet& x, std::vector<uint32_t> which,
                           const RowSet& y) {
  Queue& q = queue(step);
  run(step, [&] {
    const size_t bytes = which.size() * sizeof(uint32_t);
    grow(q, q.which, bytes);
    check(api().upload(q.which.data(), which.data(), bytes, q.stream), "numbers of rows");
  });
  const CudaRows from = at(step, x), to = at(step, y);
  const auto* rows = static_cast<const int32_t*>(q.which.data());
  launch(step, CudaMark().add(from).add(rows).add(to).add(x.cols), "chosen rows",
         [this, from, rows, to, cols = x.cols, stream = q.stream] {
           check(api().take_rows(&from, rows, &to, cols, stream), "rows");
         });
}

void CudaDevice::on_host(Step& step, const RowSet& x, const RowSet& y,
                         FunctionRef<void(HostRows x, HostRows y)> fn) {
  run(step, [&] {
    Queue& q = queue(step);
    std::vector<float> from, to(y.rows * y.cols);
    std::span<float> numbers;
    const auto extent = [](const RowSet& r) {
      return ((r.rows - 1) * r.stride + r.cols) * number_bytes(r.numbers);
    };
    flush(q);
    // The last upload from this host buffer must have finished before the buffer is used again.
    if (std::exchange(q.moved, false)) check(api().synchronize(q.stream), "step");
    q.moving.grow(api(), std::max(x.rows > 0 ? extent(x) : 0, y.rows > 0 ? extent(y) : 0));
    uint8_t* bytes = q.moving.data();
    if (x.rows > 0) {
      check(api().download(bytes, at(step, x).data, extent(x), q.stream), "step");
      if (x.numbers == XType::kF32 && x.stride == x.cols) {
        numbers = {reinterpret_cast<float*>(bytes), x.rows * x.cols};
      } else {
        from.resize(x.rows * x.cols);
        numbers = from;
        for (size_t t = 0; t < x.rows; ++t)
          row_functions().load(x.numbers, bytes + t * x.stride * number_bytes(x.numbers),
                               from.data() + t * x.cols, x.cols);
      }
    }
    fn({numbers}, {to});
    if (y.rows == 0) return;
    if (y.stride != y.cols) fail("device {}: some columns of rows cannot be replaced", name_);
    row_functions().store(y.numbers, to.data(), bytes, to.size());
    check(api().upload(at(step, y).data, bytes, extent(y), q.stream), "rows");
    q.moved = true;
  });
}

void CudaDevice::wait(Step& step) {
  Queue& q = queue(step);
  const auto pending = std::exchange(q.pending, {});
  run(step, [&] { flush(q); });
  check(api().synchronize(q.stream), "step");
  q.moved = false;
  read_times(step, q);
  if (pending.empty()) return;
  std::vector<uint32_t> counts(q.counted);
  check(api().download(counts.data(), q.counts.data(), counts.size() * sizeof(uint32_t), q.stream),
        "counts of experts");
  for (const auto& [to, at] : pending)
    for (size_t i = 0; i < to.size(); ++i) to[i] += counts[at + i];
}

// --- numbers of a step ---

void CudaDevice::set_ropes(std::span<const RopeSpec> ropes) {
  ropes_.clear();
  rope_columns_ = 0;
  for (const RopeSpec& r : ropes) {
    const auto half = static_cast<uint32_t>(r.dims / 2);
    ropes_.push_back({std::make_unique<Rope>(r), rope_columns_, half, r.interleaved});
    rope_columns_ += 2 * half;
  }
}

uint32_t CudaDevice::column_of(const PositionFactor& factor) {
  const auto found = std::find(factors_.begin(), factors_.end(), factor);
  const auto i = static_cast<uint32_t>(found - factors_.begin());
  if (found == factors_.end()) factors_.push_back(factor);
  return rope_columns_ + i;
}

void CudaDevice::fill_numbers(const Step& step, float* to) const {
  const std::lock_guard lock(mutex_);
  for (const RopeColumns& r : ropes_) r.rope->reserve((step.longest + 255) / 256 * 256);
  for (size_t t = 0; t < step.rows; ++t) {
    for (const RopeColumns& r : ropes_) {
      const Rope::Turn turn = r.rope->turn(step.positions[t], step.lengths[t]);
      to = std::copy_n(turn.cos, r.half, to);
      to = std::copy_n(turn.sin, r.half, to);
    }
    for (const PositionFactor& f : factors_)
      *to++ = position_factor(f.kind, f.temperature, step.positions[t]);
  }
}

void CudaDevice::begin(Step& step) {
  Queue& q = queue(step);
  q.queued.clear(), q.mark = {}, q.traced.clear();  // remains of a step that failed
  q.pending.clear(), q.counted = 0;
  StepTables& tables = q.tables;
  tables = {};
  tables.columns = rope_columns_ + factors_.size();
  std::vector<float> numbers(step.rows * tables.columns);
  if (tables.columns > 0) fill_numbers(step, numbers.data());
  std::vector<CudaSequence> sequences;
  uint32_t first_block = 0;
  for (const StepSequence& s : step.sequences) {
    sequences.push_back({s.position, static_cast<uint32_t>(s.tokens),
                         static_cast<uint32_t>(s.first_row), first_block, 0});
    first_block += static_cast<uint32_t>((s.position + s.tokens - 1) / kBlockTokens + 1);
  }
  Upload upload;
  const size_t tokens_at = upload.add(std::span<const int32_t>(step.tokens)),
               numbers_at = upload.add(std::span<const float>(numbers)),
               sequences_at = upload.add(std::span<const CudaSequence>(sequences));
  std::map<size_t, std::pair<size_t, size_t>> tiles_at;
  for (const size_t each : tile_tokens_) {
    std::vector<CudaTokens> tiles;
    for (uint32_t i = 0; i < sequences.size(); ++i)
      for (uint32_t t = 0; t < sequences[i].tokens; t += static_cast<uint32_t>(each))
        tiles.push_back(
            {i, t, std::min<uint32_t>(static_cast<uint32_t>(each), sequences[i].tokens - t), 0});
    tiles_at[each] = {upload.add(std::span<const CudaTokens>(tiles)), tiles.size()};
  }
  std::map<size_t, size_t> blocks_at;
  for (const size_t kind : kinds_) {
    std::vector<uint8_t*> blocks;
    for (size_t i = 0; i < sequences.size(); ++i) {
      const StepSequence& s = step.sequences[i];
      const auto& memory = static_cast<const CudaBlocks&>(s.pool->on(*this));
      const std::vector<BlockId>& table = (*s.tables)[kind];
      const size_t count = (s.position + s.tokens - 1) / kBlockTokens + 1;
      for (size_t b = 0; b < count; ++b)
        blocks.push_back(table[b] == kNoBlock ? nullptr : memory.block(kind, table[b]));
    }
    // Rounded up, so that addresses stay as tables grow.
    blocks.resize(std::bit_ceil(std::max<size_t>(64, blocks.size())));
    blocks_at[kind] = upload.add(std::span<uint8_t* const>(blocks));
  }
  run(step, [&] {
    grow(q, q.uploaded, upload.bytes().size());
    grow(q, q.counts, counted_ * sizeof(uint32_t));
    // The buffer is free: the step before was waited for, so its tables have been copied.
    q.uploading.grow(api(), upload.bytes().size());
    std::copy(upload.bytes().begin(), upload.bytes().end(), q.uploading.data());
    check(api().upload(q.uploaded.data(), q.uploading.data(), upload.bytes().size(), q.stream),
          "tables of a step");
    if (counted_ > 0)
      check(api().clear(q.counts.data(), counted_ * sizeof(uint32_t), q.stream), "counts");
  });
  const auto at = [&](size_t offset) {
    return static_cast<const uint8_t*>(q.uploaded.data()) + offset;
  };
  tables.tokens = reinterpret_cast<const int32_t*>(at(tokens_at));
  tables.numbers = reinterpret_cast<const float*>(at(numbers_at));
  tables.sequences = reinterpret_cast<const CudaSequence*>(at(sequences_at));
  for (const auto& [each, where] : tiles_at)
    tables.tiles[each] = {reinterpret_cast<const CudaTokens*>(at(where.first)), where.second};
  for (const auto& [kind, where] : blocks_at)
    tables.blocks[kind] = reinterpret_cast<uint8_t* const*>(at(where));
}

// --- experts ---

// Routes every row to expert 0 with weight 1: [rows] ids, then [rows] weights.
CudaRouting CudaDevice::one_expert(const Step& step, size_t rows) const {
  Queue& q = queue(step);
  if (q.ones_rows < rows) {
    const size_t room = std::max<size_t>(64, rows + rows / 2);
    grow(q, q.ones, room * 2 * sizeof(float));
    std::vector<float> numbers(room * 2, 1.0f);
    std::fill_n(numbers.begin(), room, 0.0f);
    check(api().upload(q.ones.data(), numbers.data(), numbers.size() * sizeof(float), q.stream),
          "one expert");
    q.ones_rows = room;
  }
  const auto* first = static_cast<const int32_t*>(q.ones.data());
  return {first, reinterpret_cast<const float*>(first + q.ones_rows), nullptr, 1};
}

uint32_t* CudaDevice::counts(const Step& step, std::span<uint32_t> to) const {
  Queue& q = queue(step);
  const size_t at = q.counted;
  if (at + to.size() > counted_) fail("device {}: more experts than layers have", name_);
  q.counted += to.size();
  q.pending.emplace_back(to, at);
  return static_cast<uint32_t*>(q.counts.data()) + at;
}

// --- what runs on the CPU ---

void CudaDevice::refuse(Need need) const {
  fail("device {}: does not run {}", name_, name_of(need));
}

size_t CudaDevice::index_bytes(const IndexerSpec&, KvType) const { refuse(Need::kIndexer); }
std::unique_ptr<IndexerOp> CudaDevice::indexer(const IndexerSpec&, KvType, KvOffset) {
  refuse(Need::kIndexer);
}
std::unique_ptr<CompressorOp> CudaDevice::compressor(CompressorRequest) {
  refuse(Need::kCompressedKeys);
}
std::unique_ptr<RowStoreOp> CudaDevice::row_store(size_t, KvOffset) {
  fail("device {}: keeps no rows for multi-token prediction", name_);
}
std::unique_ptr<NGramOp> CudaDevice::ngrams(NGramRequest) {
  fail("device {}: has no n-gram embeddings", name_);
}
std::unique_ptr<RecurrentOp> CudaDevice::recurrent(std::unique_ptr<Recurrent>, KvOffset) {
  refuse(Need::kRecurrent);
}

// --- blocks ---

void CudaDevice::take_block_bytes(uint64_t bytes) const {
  const uint64_t used = weights_ + blocks_;
  if (limit_ != 0 && used + bytes > limit_)
    fail("device {}: keys and values need {} beside {} in use, and --gpu-memory allows {}", name_,
         human_bytes(bytes), human_bytes(used), human_bytes(limit_));
  blocks_ += bytes;
}

std::unique_ptr<DeviceBlocks> CudaDevice::blocks(std::span<const size_t> block_bytes,
                                                 size_t slab_bytes) {
  return std::make_unique<CudaBlocks>(*this, block_bytes, slab_bytes);
}

CudaBlocks::CudaBlocks(const CudaDevice& device, std::span<const size_t> block_bytes,
                       size_t slab_bytes)
    : device_(device) {
  for (const size_t bytes : block_bytes)
    kinds_.push_back({bytes, std::max<size_t>(1, slab_bytes / std::max<size_t>(1, bytes)), {}});
}

CudaBlocks::~CudaBlocks() { device_.give_block_bytes(bytes()); }

void CudaBlocks::commit(size_t kind, size_t count) {
  Kind& k = kinds_[kind];
  if (k.block_bytes == 0) return;
  const size_t slab = k.slab_blocks * k.block_bytes;
  while (k.slabs.size() * k.slab_blocks < count) {
    device_.take_block_bytes(slab);
    try {
      k.slabs.emplace_back(device_.api(), slab);
    } catch (...) {
      device_.give_block_bytes(slab);
      throw;
    }
  }
}

void CudaBlocks::trim(size_t kind, size_t count) {
  Kind& k = kinds_[kind];
  const size_t keep = (count + k.slab_blocks - 1) / k.slab_blocks;
  while (k.slabs.size() > keep) {
    k.slabs.pop_back();
    device_.give_block_bytes(k.slab_blocks * k.block_bytes);
  }
}

void CudaBlocks::copy(size_t kind, BlockId from, BlockId to) {
  if (kinds_[kind].block_bytes == 0) return;
  const CudaApi& api = device_.api();
  device_.check(api.copy(block(kind, to), block(kind, from), kinds_[kind].block_bytes, nullptr),
                "copy of a block");
  device_.check(api.synchronize(nullptr), "copy of a block");
}

size_t CudaBlocks::bytes() const {
  size_t bytes = 0;
  for (const Kind& k : kinds_) bytes += k.slabs.size() * k.slab_blocks * k.block_bytes;
  return bytes;
}

}  // namespace moebius
