// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/cuda_streams.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "base/error.h"

namespace moebius {

StreamedExperts::StreamedExperts(CudaStreams& streams, const Checkpoint& checkpoint,
                                 const MoeBlock& block, const CudaLoad& load,
                                 std::span<const uint32_t> expert_of)
    : streams_(streams), ordinal_(streams.layers_.size()) {
  CudaStreams::Buffer& buffer = streams.buffer_of(ordinal_);
  buffer.holds = nullptr;  // discards what times() left there
  CudaLoad own = load;
  own.progress = nullptr;  // only the CPU's copy has progress
  own.memory = buffer.memory.data();
  own.memory_bytes = streams.buffer_bytes_;
  experts_ = load_cuda_experts(checkpoint, block, own, MoePart::kExperts, expert_of);
  const CudaApi& api = streams.api_;
  for (size_t p = 0; p < expert_of.size(); ++p) {
    CudaRange ranges[kCudaRanges];
    size_t count = 0;
    check_cuda(api, api.expert_ranges(layer().get(), p, ranges, &count), block.name);
    for (size_t i = 0; i < count; ++i) bytes_ = std::max(bytes_, ranges[i].end);
  }
  void* memory = nullptr;
  check_cuda(api, api.allocate_host(bytes_, &memory), "memory of the host for streamed experts");
  packed_ = {static_cast<uint8_t*>(memory), [&api](uint8_t* p) { api.release_host(p); }};
  check_cuda(api, api.download(packed_.get(), own.memory, bytes_, nullptr), "streamed experts");
  streams.layers_.push_back(this);
}

StreamedExperts::~StreamedExperts() {
  const std::lock_guard lock(streams_.mutex_);
  static_cast<void>(streams_.api_.synchronize(streams_.copies_));
  for (CudaStreams::Buffer& b : streams_.buffers_)
    if (b.holds == this) b.holds = nullptr;
  std::replace(streams_.layers_.begin(), streams_.layers_.end(),
               static_cast<const StreamedExperts*>(this),
               static_cast<const StreamedExperts*>(nullptr));
}

void StreamedExperts::keep(size_t place) {
  const CudaApi& api = streams_.api_;
  const auto* from = static_cast<const uint8_t*>(streams_.buffer_of(ordinal_).memory.data());
  CudaRange ranges[kCudaRanges];
  size_t count = 0;
  check_cuda(api, api.expert_ranges(layer().get(), place, ranges, &count), "streamed experts");
  for (const CudaRange& r : std::span(ranges).first(count))
    check_cuda(api, api.download(packed_.get() + r.begin, from + r.begin, r.end - r.begin, nullptr),
               "streamed experts");
}

void StreamedExperts::replace(std::span<const Coming> coming, std::span<const uint32_t> expert_of) {
  const std::lock_guard lock(streams_.mutex_);
  const CudaApi& api = streams_.api_;
  // A copy of the next layer may be under way.
  check_cuda(api, api.synchronize(streams_.copies_), "streamed experts");
  streams_.buffer_of(ordinal_).holds = nullptr;
  for (const auto& [place, expert] : coming) {
    experts_.replace(place, *expert);
    keep(place);
  }
  experts_.set_places(expert_of);
}

CudaStreams::CudaStreams(const CudaApi& api, size_t buffers, size_t buffer_bytes)
    : api_(api), buffer_bytes_(buffer_bytes) {
  if (buffers == 0) fail("experts are streamed, and there is no buffer for them");
  for (size_t i = 0; i < buffers; ++i) buffers_.push_back({CudaMemory(api, buffer_bytes)});
  check_cuda(api, api.make_stream(&copies_), "stream");
}

CudaStreams::~CudaStreams() {
  static_cast<void>(api_.synchronize(copies_));
  api_.free_stream(copies_);
}

// Starts the copy of a layer's weights. It waits for all calls that used the buffer, because each
// of them makes the copy stream wait for its end.
void CudaStreams::send(const StreamedExperts& layer) {
  Buffer& to = buffer_of(layer.ordinal_);
  if (to.holds == &layer) return;
  to.holds = nullptr;
  to.awaited = nullptr;
  check_cuda(api_, api_.upload(to.memory.data(), layer.packed_.get(), layer.bytes_, copies_),
             "streamed experts");
  to.holds = &layer;
}

// Starts the copy of the next layer, unless another stream's layer is on its way into that buffer.
void CudaStreams::send_next(const StreamedExperts& layer, void* stream) {
  const size_t next = layer.ordinal_ + 1;
  if (next >= layers_.size() || layers_[next] == nullptr) return;
  Buffer& to = buffer_of(next);
  if (to.awaited != nullptr && to.awaited != stream) return;
  send(*layers_[next]);
  to.awaited = stream;
}

CudaStreams::Turn::Turn(CudaStreams& streams, const StreamedExperts& layer, void* stream)
    : streams_(streams), layer_(layer), stream_(stream), lock_(streams.mutex_) {
  for (Buffer& b : streams.buffers_)
    if (b.awaited == stream) b.awaited = nullptr;
  streams.send(layer);
  check_cuda(streams.api_, streams.api_.run_behind(stream, streams.copies_), "streamed experts");
  if (streams.buffers_.size() > 1) streams.send_next(layer, stream);
}

void CudaStreams::Turn::end() {
  ended_ = true;
  const CudaApi& api = streams_.api_;
  check_cuda(api, api.run_behind(streams_.copies_, stream_), "streamed experts");
  if (streams_.buffers_.size() == 1) streams_.send_next(layer_, stream_);
}

CudaStreams::Turn::~Turn() {
  if (!ended_) static_cast<void>(streams_.api_.run_behind(streams_.copies_, stream_));
}

// --- what is faster ---

namespace {

template <class F>
double fastest(F&& f) {
  constexpr int kTimes = 3;
  double best = 0;
  for (int i = 0; i < kTimes; ++i) {
    const auto start = std::chrono::steady_clock::now();
    f();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    best = i == 0 ? took.count() : std::min(best, took.count());
  }
  return best;
}

// Holds rows that choose experts at random.
struct ChanceRows {
  std::vector<float> x, weights;
  std::vector<int32_t> ids;
  ChanceRows(size_t rows, const MoeSpec& spec, size_t slots)
      : x(rows * spec.hidden), weights(rows * slots, 1.0f / static_cast<float>(slots)) {
    std::mt19937 random(7);
    for (float& v : x) v = static_cast<float>(random() % 2001) / 1000.0f - 1.0f;
    for (size_t t = 0; t < rows; ++t)
      for (size_t s = 0, first = random(); s < slots; ++s)  // the experts of a row are distinct
        ids.push_back(static_cast<int32_t>((first + s * 37 % spec.experts) % spec.experts));
  }
};

}  // namespace

const StreamTimes& CudaStreams::times(const StreamedExperts& layer, const CpuExpertPart& part,
                                      size_t slots) {
  const std::pair key(layer.bytes_, part.packed_bytes());
  const auto known = times_.find(key);
  return known != times_.end() ? known->second
                               : times_.emplace(key, measure(layer, part, slots)).first->second;
}

StreamTimes CudaStreams::measure(const StreamedExperts& layer, const CpuExpertPart& part,
                                 size_t slots) {
  constexpr size_t kFew = 32, kMany = 256;
  const MoeSpec& spec = layer.spec();
  const ChanceRows rows(kMany, spec, slots);
  std::vector<float> kept;
  const auto place = [&](size_t numbers) {
    kept.resize(std::max(kept.size(), numbers));
    return kept.data();
  };
  const auto on_cpu = [&](size_t n) {
    return MeasuredRows{n, fastest([&] {
                          part.run(std::span(rows.x).first(n * spec.hidden),
                                   std::span(rows.ids).first(n * slots),
                                   std::span(rows.weights).first(n * slots), place);
                        })};
  };
  const double sent = fastest([&] {
    buffer_of(layer.ordinal_).holds = nullptr;
    send(layer);
    check_cuda(api_, api_.synchronize(copies_), "streamed experts");
  });
  const size_t items = kMany * slots;
  const CudaMemory x(api_, rows.x.size() * sizeof(float)), ids(api_, items * sizeof(int32_t)),
      weights(api_, items * sizeof(float)), made(api_, items * spec.hidden * sizeof(float)),
      at(api_, items * sizeof(int32_t));
  x.upload(rows.x.data(), rows.x.size() * sizeof(float));
  ids.upload(rows.ids.data(), items * sizeof(int32_t));
  weights.upload(rows.weights.data(), items * sizeof(float));
  check_cuda(api_, api_.synchronize(nullptr), "streamed experts");
  const CudaRows from{x.data(), XType::kF32, kMany, spec.hidden};
  const CudaRouting routing{static_cast<const int32_t*>(ids.data()),
                            static_cast<const float*>(weights.data()), nullptr, slots};
  CudaDivided to{};
  to.own = {static_cast<float*>(made.data()), static_cast<int32_t*>(at.data())};
  const MeasuredRows on_gpu{
      kMany, fastest([&] {
        check_cuda(api_, api_.run_items(layer.layer().get(), &from, &routing, &to, copies_),
                   "streamed experts");
        check_cuda(api_, api_.synchronize(copies_), "streamed experts");
      })};
  const double each = static_cast<double>(slots) / static_cast<double>(spec.experts);
  return stream_times(on_cpu(kFew), on_cpu(kMany), each, sent, on_gpu);
}

}  // namespace moebius
