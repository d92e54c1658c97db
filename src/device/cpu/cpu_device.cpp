// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/cpu_device.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "base/error.h"
#include "kernels/packed_matrix.h"
#include "nn/shortlist.h"

namespace moebius {
namespace {

// For less work, waking the other threads costs more than it brings.
constexpr size_t kInlineElements = 16384;

// Returns whether a matrix with a product is an output projection, maybe tied to the token table,
// and has no bias.
bool is_output(const Module& m) {
  return (m.kind == ModuleKind::kLmHead || m.kind == ModuleKind::kEmbedding) &&
         !m.plan.tensors[Role::kBias];
}

}  // namespace

CpuDevice::CpuDevice(ThreadPool* pool, const Cpu& cpu, DeviceOptions options,
                     std::unique_ptr<Executor> executor)
    : pool_(pool),
      cpu_(cpu),
      options_(std::move(options)),
      queues_(kQueues),
      attention_scratch_(pool != nullptr ? pool->size() : 0),
      index_scratch_(pool != nullptr ? pool->size() : 0),
      executor_(std::move(executor)) {}

CpuDevice::~CpuDevice() = default;

ModuleUse CpuDevice::plan(const ModuleQuestion& q) const {
  ModuleUse use;
  if (q.module != nullptr && q.module->kind == ModuleKind::kEmbedding)
    use.table = use.table_of_cut = q.module->plan.code_bytes;
  if (!q.problem) return use;
  use.choice = choose_kernel(*q.problem, cpu_, request_for(*q.problem, options_.policy));
  const Kernel& kernel = *use.choice->chosen;
  use.numerics = use.choice->numerics;
  use.packed = round_up(kernel.packed_bytes(*q.problem), 64);
  if (!PackedRows::possible(kernel, *q.problem)) return use;
  use.table = 0;
  if (q.module != nullptr && is_output(*q.module))
    use.shortlist = Shortlist::bytes(*q.problem, cpu_);
  return use;
}

size_t CpuDevice::kv_bytes(const AttentionSpec& spec, const KvStorage& storage) const {
  return plan_attention(spec, options_.type, storage, cpu_, options_.policy).kv.block_bytes();
}

size_t CpuDevice::index_bytes(const IndexerSpec& spec, KvType storage) const {
  return Indexer(spec, options_.type, storage, cpu_, options_.policy).keys().block_bytes();
}

void CpuDevice::set_ropes(std::span<const RopeSpec> ropes) {
  ropes_.clear();
  for (const RopeSpec& r : ropes) ropes_.push_back(std::make_unique<Rope>(r));
}

void CpuDevice::for_rows(size_t rows, size_t columns, FunctionRef<void(size_t)> fn) const {
  if (rows * columns <= kInlineElements) {
    for (size_t t = 0; t < rows; ++t) fn(t);
  } else {
    pool_->parallel_for(rows, fn, 4);
  }
}

RowSet CpuDevice::rows(Step& step, uint32_t slot, size_t rows, size_t cols, XType numbers) {
  Queue& queue = queues_[step.queue];
  if (slot >= queue.floats.size()) {  // the slot must exist before an operation uses it
    in_between([&] { queue.slots.resize(size_t{slot} + 16); });
    queue.floats.resize(queue.slots.size(), 0);
  }
  if (const size_t n = rows * cols; queue.floats[slot] < n) {
    const size_t room = std::max(n, queue.floats[slot] + queue.floats[slot] / 2);
    queue.floats[slot] = 0;  // the old memory is gone if allocating fails
    run(step, [this, &queue, slot, room] {
      DeviceMemory& m = queue.slots[slot];
      if (m.size() >= room * sizeof(float)) return;
      m = DeviceMemory();  // released first: old and new memory never exist together
      m = allocate(room * sizeof(float));
    });
    queue.floats[slot] = room;
  }
  return {this, slot, rows, cols, cols, 0, numbers};
}

void CpuDevice::begin(Step& step) {
  if (ropes_.empty()) return;
  run(step, [this, &step] {
    for (const auto& rope : ropes_) rope->reserve((step.longest + 255) / 256 * 256);
  });
}

void CpuDevice::take_rows(Step& step, const RowSet& x, std::vector<uint32_t> which,
                          const RowSet& y) {
  run(step, [this, &step, x, y, which = std::move(which)] {
    const float* from = at(step, x);
    float* to = at(step, y);
    for (size_t i = 0; i < which.size(); ++i)
      std::memmove(to + i * y.stride, from + which[i] * x.stride, x.cols * sizeof(float));
  });
}

void CpuDevice::on_host(Step& step, const RowSet& x, const RowSet& y,
                        FunctionRef<void(HostRows x, HostRows y)> fn) {
  const auto whole = [](const RowSet& r) { return r.stride == r.cols; };
  if (executor_ == nullptr && whole(x) && whole(y)) {
    const auto span = [&](const RowSet& r) {
      return HostRows{{r.rows != 0 ? at(step, r) : nullptr, r.rows * r.cols}};
    };
    return run(step, [&] { fn(span(x), span(y)); });
  }
  std::vector<float> from(x.rows * x.cols), to(y.rows * y.cols);
  if (x.rows > 0) {
    run(step, [this, &step, x, &from] {
      for (size_t t = 0; t < x.rows; ++t)
        std::memcpy(from.data() + t * x.cols, at(step, x) + t * x.stride, x.cols * sizeof(float));
    });
    wait(step);
  }
  auto call = [&] { fn({from}, {to}); };
  timed(step, step.phase, call);
  if (y.rows == 0) return;
  run(step, [this, &step, y, to = std::move(to)] {
    for (size_t t = 0; t < y.rows; ++t)
      std::memcpy(at(step, y) + t * y.stride, to.data() + t * y.cols, y.cols * sizeof(float));
  });
}

void CpuDevice::wait(Step& step) {
  if (executor_ == nullptr) return;
  step.ended = {};
  try {
    executor_->wait(step.queue);
  } catch (...) {  // the memory may be missing if allocating failed
    std::fill(queues_[step.queue].floats.begin(), queues_[step.queue].floats.end(), 0);
    throw;
  }
}

std::shared_ptr<void> CpuDevice::stay() {
  if (executor_ != nullptr) return nullptr;
  return std::make_shared<ThreadPool::Stay>(*pool_);
}

void Device::copy(Step& step, const RowSet& from, const RowSet& to) {
  std::vector<float> rows;
  from.device->on_host(step, from, {},
                       [&](HostRows x, HostRows) { rows.assign(x.data.begin(), x.data.end()); });
  to.device->on_host(step, {}, to, [&](HostRows, HostRows y) {
    std::copy(rows.begin(), rows.end(), y.data.begin());
  });
}

// --- blocks ---

std::unique_ptr<DeviceBlocks> CpuDevice::blocks(std::span<const size_t> block_bytes,
                                                size_t slab_bytes) {
  return std::make_unique<CpuBlocks>(*this, block_bytes, slab_bytes);
}

CpuBlocks::CpuBlocks(CpuDevice& device, std::span<const size_t> block_bytes, size_t slab_bytes)
    : device_(device) {
  for (const size_t bytes : block_bytes)
    kinds_.push_back({bytes, std::max<size_t>(1, slab_bytes / std::max<size_t>(1, bytes)), {}});
}

void CpuBlocks::commit(size_t kind, size_t count) {
  Kind& k = kinds_[kind];
  if (k.block_bytes == 0 || k.slabs.size() * k.slab_blocks >= count) return;
  device_.in_between([&] {
    while (k.slabs.size() * k.slab_blocks < count)
      k.slabs.push_back(device_.allocate(k.slab_blocks * k.block_bytes));
  });
}

void CpuBlocks::trim(size_t kind, size_t count) {
  Kind& k = kinds_[kind];
  const size_t keep = (count + k.slab_blocks - 1) / k.slab_blocks;
  if (keep < k.slabs.size()) device_.in_between([&] { k.slabs.resize(keep); });
}

void CpuBlocks::copy(size_t kind, BlockId from, BlockId to) {
  if (kinds_[kind].block_bytes == 0) return;
  device_.in_between(
      [&] { std::memcpy(block(kind, to), block(kind, from), kinds_[kind].block_bytes); });
}

// Reads at once, without waiting for queued operations: nobody else uses the block.
void CpuBlocks::read(size_t kind, BlockId id, size_t offset, std::span<uint8_t> out) {
  const auto copy = [&] { std::memcpy(out.data(), block(kind, id) + offset, out.size()); };
  if (!device_.closed()) return copy();
  device_.in_between(copy);
}

bool CpuBlocks::write(size_t kind, BlockId id, size_t offset, size_t bytes, Fill fill) {
  bool filled = false;
  const auto put = [&] { filled = fill({block(kind, id) + offset, bytes}); };
  if (device_.closed())
    device_.in_between(put);
  else
    put();
  return filled;
}

size_t CpuBlocks::bytes() const {
  size_t bytes = 0;
  for (const Kind& k : kinds_)
    for (const DeviceMemory& s : k.slabs) bytes += s.size();
  return bytes;
}

}  // namespace moebius
