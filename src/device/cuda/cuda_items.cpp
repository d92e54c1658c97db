// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/cuda_items.h"

#include <bit>
#include <numeric>

#include "base/error.h"
#include "nn/schedule.h"

namespace moebius {
namespace {

constexpr size_t kMostItems = 32768;  // most items that plain kernels take in one call
constexpr size_t kSumNumbers = 4;     // integers per row of sums: id, weight, two places

// Kinds of CUDA graph marks.
enum Call : uint64_t { kChoose = 101, kItems, kSum, kOthers, kSums };

}  // namespace

ExpertsFacts facts_of(const CudaDevice& device, const MoeBlock& block, const CudaExperts& layer,
                      uint64_t packed_bytes, size_t experts) {
  if (!layer.routes())
    fail("device {}: the experts of {} are chosen on the CPU", device.name(), block.name);
  const size_t shared = block.shared[2] != nullptr ? 1 : 0;
  ExpertsFacts facts;
  facts.experts = layer.spec().experts;
  facts.top_k = block.spec.router.top_k;
  facts.outputs = block.spec.hidden;
  facts.packed_bytes = packed_bytes;
  facts.expert_bytes = packed_bytes / (experts + shared);
  facts.every_token_bytes = shared * facts.expert_bytes;
  return facts;
}

size_t CudaItemsCall::most_rows(size_t slots, size_t hidden, size_t item_bytes) {
  const size_t row = std::max<size_t>(1, slots * hidden * sizeof(float));
  return std::max<size_t>(
      1, std::min({kPieceRows, item_bytes / row, kMostItems / std::max<size_t>(1, slots)}));
}

uint64_t CudaItemsCall::most_bytes(size_t slots, size_t hidden, size_t item_bytes) {
  const uint64_t rows = most_rows(slots, hidden, item_bytes), items = rows * slots;
  return ((2 * items + rows) * hidden + 4 * items + (2 + kSumNumbers) * rows) * sizeof(float);
}

CudaItemsCall::CudaItemsCall(const CudaDevice& device, Step& step, const CudaExperts& layer,
                             const RowSet& x, const RowSet& logits, const RowSet& y,
                             uint32_t* counts)
    : device_(device),
      step_(step),
      room_(device.divided_room(step)),
      layer_(layer.layer().get()),
      stream_(device.stream(step)),
      rows_(x.rows),
      slots_(layer.slots()),
      items_(rows_ * slots_),
      hidden_(layer.spec().hidden),
      x_(device.at(step, x)),
      scores_(device.at(step, logits)),
      y_(device.at(step, y)) {
  const size_t n = items_, row = hidden_ * sizeof(float);
  device.reserve(step, room_.chosen, (2 * n + rows_) * sizeof(float));
  device.reserve(step, room_.own, n * row);
  device.reserve(step, room_.others, n * row);
  device.reserve(step, room_.at, (2 * n + kSumNumbers * rows_) * sizeof(int32_t));
  device.reserve(step, room_.shared, rows_ * (row + sizeof(float)));
  auto* ids = static_cast<int32_t*>(room_.chosen.data());
  auto* weights = reinterpret_cast<float*>(ids + n);
  auto* at = static_cast<int32_t*>(room_.at.data());
  auto* shared = static_cast<float*>(room_.shared.data());
  zero_weights_ = layer.spec().router.zero_experts > 0 ? weights + n : nullptr;
  chosen_ = {ids, weights, counts};
  routing_ = {ids, weights, zero_weights_, slots_};
  divided_ = {{static_cast<float*>(room_.own.data()), at},
              {static_cast<float*>(room_.others.data()), at + n},
              shared,
              shared + rows_ * hidden_};
}

CudaMark CudaItemsCall::mark(uint64_t what) const {
  CudaMark m;
  m.add(what).add(layer_).add(x_).add(y_).add(scores_).add(chosen_.ids).add(chosen_.counts);
  return m.add(divided_.own.rows)
      .add(divided_.others.rows)
      .add(divided_.own.at)
      .add(divided_.shared);
}

void CudaItemsCall::choose() const {
  device_.launch(step_, mark(kChoose), "choice of experts",
                 [&d = device_, layer = layer_, scores = scores_, chosen = chosen_,
                  zero = zero_weights_, stream = stream_] {
                   d.check(d.api().choose_experts(layer, &scores, &chosen, zero, stream),
                           "experts");
                 });
}

void CudaItemsCall::fetch_choice() const {
  const size_t bytes = 2 * items_ * sizeof(float);
  device_.flush(step_);
  room_.chosen_here.grow(device_.api(), bytes);
  device_.check(device_.api().fetch(room_.chosen_here.data(), chosen_.ids, bytes, stream_),
                "chosen experts");
}

CudaItemsCall::Chosen CudaItemsCall::chosen() const {
  fetch_choice();
  device_.check(device_.api().synchronize(stream_), "chosen experts");
  return fetched();
}

CudaItemsCall::Chosen CudaItemsCall::fetched() const {
  const auto* ids = reinterpret_cast<const int32_t*>(room_.chosen_here.data());
  return {{ids, items_}, {reinterpret_cast<const float*>(ids + items_), items_}};
}

void CudaItemsCall::run_own(const int32_t* ids) const {
  CudaRouting routing = routing_;
  if (ids != nullptr) routing.ids = ids;
  device_.launch(
      step_, mark(kItems).add(routing.ids), "experts",
      [&d = device_, layer = layer_, x = x_, routing, divided = divided_, stream = stream_] {
        d.check(d.api().run_items(layer, &x, &routing, &divided, stream), "experts");
      });
  device_.flush(step_);
}

void CudaItemsCall::run_others(void* layer) const {
  device_.launch(step_, mark(kOthers).add(layer), "streamed experts",
                 [&d = device_, layer, x = x_, routing = routing_,
                  divided = CudaDivided{divided_.others, {}, nullptr, nullptr}, stream = stream_] {
                   d.check(d.api().run_items(layer, &x, &routing, &divided, stream), "experts");
                 });
}

void CudaItemsCall::add(Range rows) const {
  const auto some = [&](CudaRows r) {
    const size_t number = r.type == XType::kF32 ? 4 : 2;
    r.data = static_cast<uint8_t*>(r.data) + rows.begin * r.stride * number;
    r.rows = rows.size();
    return r;
  };
  CudaRouting routing = routing_;
  CudaDivided divided = divided_;
  const size_t first = rows.begin * slots_;
  routing.ids += first;
  routing.weights += first;
  if (routing.zero_weights != nullptr) routing.zero_weights += rows.begin;
  divided.own.at += first;
  divided.others.at += first;
  divided.shared += rows.begin * hidden_;
  divided.shared_gate += rows.begin;
  device_.launch(step_, mark(kSum).add(rows.begin).add(rows.end), "sum of experts",
                 [&d = device_, layer = layer_, x = some(x_), routing, divided, y = some(y_),
                  stream = stream_] {
                   d.check(d.api().add_items(layer, &x, &routing, &divided, &y, stream), "experts");
                 });
}

// Adds rows of sums: each row has one item, its row of the others' sums, with weight 1.
void CudaItemsCall::add_sums() const {
  const size_t n = rows_;
  room_.at_here.grow(device_.api(), kSumNumbers * n * sizeof(int32_t));
  auto* numbers = reinterpret_cast<int32_t*>(room_.at_here.data());
  std::fill_n(numbers, n, 0);
  std::fill_n(numbers + n, n, std::bit_cast<int32_t>(1.0f));
  std::fill_n(numbers + 2 * n, n, -1);
  std::iota(numbers + 3 * n, numbers + 4 * n, 0);
  int32_t* to = divided_.others.at + items_;
  device_.check(device_.api().upload(to, numbers, kSumNumbers * n * sizeof(int32_t), stream_),
                "rows of experts");
  const CudaRouting routing{to, reinterpret_cast<const float*>(to + n), routing_.zero_weights, 1};
  CudaDivided divided = divided_;
  divided.own.at = to + 2 * n;
  divided.others.at = to + 3 * n;
  device_.launch(
      step_, mark(kSums), "sum of experts",
      [&d = device_, layer = layer_, x = x_, routing, divided, y = y_, stream = stream_] {
        d.check(d.api().add_items(layer, &x, &routing, &divided, &y, stream), "experts");
      });
}

}  // namespace moebius
