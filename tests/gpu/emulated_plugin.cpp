// SPDX-License-Identifier: Apache-2.0
// A CUDA plugin without CUDA: memory of the host, layers by quant/reference, and the plugin's own definitions of routing, row operations and
// attention by one lane. With it layers and whole models on a device are tested where there is none (tests/python_api/test_cuda.py,
// tests/unit/device/cuda_device_test.cpp).
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/math_functions.h"
#include "device/cuda/cuda_table.h"
#include "device/cuda/device_activation.h"
#include "device/cuda/device_attention.h"
#include "device/cuda/device_candidates.h"
#include "device/cuda/device_router.h"
#include "device/cuda/device_rows.h"
#include "quant/quant_access.h"
#include "quant/reference.h"

namespace moebius {
namespace {

thread_local std::string g_words;

// A graph is the calls that were given while it was captured.
using Graph = std::vector<std::function<CudaStatus()>>;
thread_local std::unique_ptr<Graph> g_capture;
std::atomic<size_t> g_launches{0}, g_downloaded{0}, g_mapped{0}, g_streamed{0};
// Calls until one fails; 0: none does.
std::atomic<size_t> g_bad_upload{0}, g_bad_expert{0};
bool is_bad(std::atomic<size_t>& calls) { return calls > 0 && --calls == 0; }

// MOEBIUS_EMULATED_LOST: the device is lost after so many operations, or, where it is the name of a file, as soon as that is there.
std::atomic<size_t> g_operations{0};
bool is_lost() {
  static const char* const when = std::getenv("MOEBIUS_EMULATED_LOST");
  if (when == nullptr) return false;
  static const size_t after = *when == '/' ? SIZE_MAX : std::strtoull(when, nullptr, 10);
  return g_operations >= after || (after == SIZE_MAX && access(when, F_OK) == 0);
}
CudaStatus lost() {
  g_words = "device: unspecified launch failure (emulated)";
  return CudaStatus::kLost;
}

// Runs f, or makes it part of a graph: f holds what it needs.
template <class F>
CudaStatus given(F f) {
  const auto run = [f = std::move(f)] {
    if (is_lost()) return lost();
    ++g_operations;
    return f();
  };
  if (g_capture == nullptr) return run();
  g_capture->push_back(run);
  return CudaStatus::kOk;
}

CudaStatus refused(std::string words) {
  g_words = std::move(words);
  return CudaStatus::kRefused;
}

float number_at(const CudaRows& x, size_t r, size_t c) {
  const size_t i = r * x.stride + c;
  if (x.type == XType::kF32) return static_cast<const float*>(x.data)[i];
  const uint16_t h = static_cast<const uint16_t*>(x.data)[i];
  return x.type == XType::kBf16 ? bf16_to_f32(h) : f16_to_f32(h);
}
void put_number(const CudaRows& y, size_t r, size_t c, float v) {
  const size_t i = r * y.stride + c;
  if (y.type == XType::kF32)
    static_cast<float*>(y.data)[i] = v;
  else
    static_cast<uint16_t*>(y.data)[i] = y.type == XType::kBf16 ? f32_to_bf16(v) : f32_to_f16(v);
}
std::vector<float> row_of(const CudaRows& x, size_t r, size_t columns) {
  std::vector<float> out(columns);
  for (size_t c = 0; c < columns; ++c) out[c] = number_at(x, r, c);
  return out;
}

// A copy of a matrix: callers free theirs.
struct Matrix {
  CudaMatrix m;
  std::vector<std::vector<uint8_t>> kept;
  explicit Matrix(const CudaMatrix& from) : m(from) {
    QuantMatrix& w = m.w;
    const size_t scales = w.scale_type == ScaleType::kNone
                              ? 0
                              : (w.N - 1 + w.n_phase) / w.block_n * w.scale_stride + w.groups;
    w.codes = keep(w.codes, (w.N - 1) * w.row_bytes + (w.K * code_bits(w.code) + 7) / 8);
    w.scales = keep(w.scales, scales * scale_bytes(w.scale_type));
    w.zero_points = keep(w.zero_points, scales);
    w.offsets = keep(w.offsets, scales * scale_bytes(w.scale_type));
    const size_t supers = ((scales + w.super_phase - 1) / w.super_groups + 1) * sizeof(float);
    w.super_scales = keep(w.super_scales, supers);
    w.super_offsets = keep(w.super_offsets, supers);
    w.g_idx = keep(w.g_idx, w.K * sizeof(int32_t));
    m.bias = keep(m.bias, w.N * sizeof(float));
  }
  template <class T>
  const T* keep(const T* from, size_t bytes) {
    if (from == nullptr) return nullptr;
    const auto* p = reinterpret_cast<const uint8_t*>(from);
    kept.emplace_back(p, p + bytes);
    return reinterpret_cast<const T*>(kept.back().data());
  }
  // From here on weights are in memory of the caller; the bytes of it that they take.
  size_t move_to(uint8_t* memory, size_t room) {
    size_t used = 0;
    const auto move = [&](auto*& at) {
      if (at == nullptr) return;
      const auto* from = reinterpret_cast<const uint8_t*>(at);
      const auto own =
          std::find_if(kept.begin(), kept.end(), [&](const auto& k) { return k.data() == from; });
      if (used + own->size() <= room) {
        std::copy(own->begin(), own->end(), memory + used);
        at = reinterpret_cast<std::remove_reference_t<decltype(at)>>(memory + used);
        used += (own->size() + 63) / 64 * 64;
        std::fill(own->begin(), own->end(), uint8_t{0xA5});
      } else {
        used = room + 1;
      }
    };
    move(m.w.codes), move(m.w.scales), move(m.w.zero_points), move(m.w.offsets);
    move(m.w.super_scales), move(m.w.super_offsets);
    return used;
  }
  std::vector<float> run(std::vector<float> x) const {
    if (m.act.code == ActCode::kAsIs)
      for (float& v : x)
        v = m.x_type == XType::kBf16  ? bf16_to_f32(f32_to_bf16(v))
            : m.x_type == XType::kF16 ? f16_to_f32(f32_to_f16(v))
                                      : v;
    const XType type =
        m.w.groups == 1 && m.x_type == XType::kBf16 ? XType::kBf16 : XType::kF32;  // of mode vllm
    const QuantRowsBuffer q = quantize_rows(x.data(), m.w.K, 1, m.w.K, m.act, m.input, type);
    std::vector<float> y(m.w.N);
    reference_gemm(m.w, q.rows, 0, m.w.N, y.data(), m.w.N);
    for (size_t n = 0; n < y.size(); ++n) {
      if (m.bias != nullptr) y[n] = y[n] + m.bias[n];
      if (m.output_scale != 0.0f) y[n] = fake_quantize(y[n], m.output_scale);
    }
    return y;
  }
};

struct Expert {
  std::unique_ptr<Matrix> gate, up, down;
  std::vector<float> run(const CudaActivation& a, const std::vector<float>& x) const {
    std::vector<float> h = up->run(x);
    const std::vector<float> g = gate != nullptr ? gate->run(x) : h;
    for (size_t i = 0; i < h.size(); ++i) h[i] = activated(a, g[i], h[i]);
    return down->run(h);
  }
};

struct Layer {
  std::unique_ptr<Matrix> linear;
  CudaMoe moe{};
  std::vector<int32_t> map;  // global number to local; empty: the same
  int32_t local(int32_t id) const {
    if (id < 0 || static_cast<size_t>(id) >= (map.empty() ? moe.experts : map.size())) return -1;
    return map.empty() ? id : map[static_cast<size_t>(id)];
  }
  std::vector<Expert> experts;
  std::vector<CudaRange> ranges;  // of experts in memory of the caller
  std::unique_ptr<Matrix> shared_gate, router_matrix;
  bool has_router = false;
  DeviceRouter router{};
  std::vector<float> bias, expert_scale;
};
Layer& layer_of(void* p) { return *static_cast<Layer*>(p); }

CudaStatus run_linear(void* p, const CudaRows* x, const CudaRows* y, void*) {
  const Matrix& m = *layer_of(p).linear;
  for (size_t r = 0; r < x->rows; ++r) {
    const std::vector<float> out = m.run(row_of(*x, r, m.m.w.K));
    for (size_t n = 0; n < out.size(); ++n) put_number(*y, r, n, out[n]);
  }
  return CudaStatus::kOk;
}

CudaStatus run_moe(void* p, const CudaRows* x, const CudaRouting* routing, const CudaRows* y,
                   const CudaLaunch*, void*) {
  const Layer& l = layer_of(p);
  const size_t H = l.moe.hidden, slots = routing->slots;
  for (size_t t = 0; t < x->rows; ++t) {
    const std::vector<float> row = row_of(*x, t, H);
    std::vector<std::pair<int32_t, size_t>> order;
    for (size_t s = 0; s < slots; ++s)
      if (const int32_t id = routing->ids[t * slots + s]; l.local(id) >= 0)
        order.emplace_back(id, s);
    std::sort(order.begin(), order.end());
    std::vector<float> sum(H, 0.0f);
    for (const auto& [id, s] : order) {
      const float w = routing->weights[t * slots + s];
      std::vector<float> in = row;
      if (l.moe.weight_on_input)
        for (float& v : in) v = v * w;
      const std::vector<float> out =
          l.experts[static_cast<size_t>(l.local(id))].run(l.moe.activation, in);
      for (size_t h = 0; h < H; ++h)
        sum[h] = fma_f32(l.moe.weight_on_input ? 1.0f : w, out[h], sum[h]);
    }
    if (l.moe.shared_intermediate != 0) {
      const std::vector<float> out = l.experts.back().run(l.moe.shared_activation, row);
      const float w = l.shared_gate != nullptr ? sigmoid_f32(l.shared_gate->run(row)[0]) : 1.0f;
      for (size_t h = 0; h < H; ++h) sum[h] = sum[h] + w * out[h];
    }
    const float zero = routing->zero_weights != nullptr ? routing->zero_weights[t] : 0.0f;
    for (size_t h = 0; h < H; ++h)
      put_number(*y, t, h, zero != 0.0f ? sum[h] + zero * row[h] : sum[h]);
  }
  return CudaStatus::kOk;
}

// --- divided layers ---

CudaStatus choose_experts(const Layer& l, const CudaRows& logits, const CudaChosen& want,
                          float* zero_weights) {
  const RouterSpec& s = l.router.spec;
  const size_t n = s.experts + s.zero_experts, slots = s.top_k + s.shared_slots;
  if (!l.has_router || (s.zero_experts > 0) != (zero_weights != nullptr))
    return refused("the layer has no router");
  std::vector<float> own(n + device_router_floats(s)), zero(logits.rows);
  for (size_t t = 0; t < logits.rows; ++t) {
    const std::vector<float> row = row_of(logits, t, n);
    std::copy(row.begin(), row.end(), own.begin());
    const OneLane lane;
    RowRouter<OneLane> router(l.router, lane, own.data(), own.data() + n);
    router.run(t, want.ids + t * slots, want.weights + t * slots, &zero[t]);
  }
  if (zero_weights != nullptr) std::copy(zero.begin(), zero.end(), zero_weights);
  for (size_t i = 0; want.counts != nullptr && i < logits.rows * slots; ++i)
    if (want.ids[i] >= 0 && static_cast<size_t>(want.ids[i]) < s.experts)
      ++want.counts[want.ids[i]];
  return CudaStatus::kOk;
}

// Rows of experts in no order that a caller could rely on.
CudaStatus run_items(const Layer& l, const CudaRows& x, const CudaRouting& routing,
                     const CudaDivided& to) {
  const size_t H = l.moe.hidden, n = x.rows * routing.slots;
  size_t made = 0;
  if (l.moe.memory != nullptr) ++g_streamed;
  for (size_t i = n; i-- > 0;) {
    const int32_t local = l.local(routing.ids[i]);
    to.own.at[i] = local < 0 ? -1 : static_cast<int32_t>(made);
    if (local < 0) continue;
    std::vector<float> in = row_of(x, i / routing.slots, H);
    if (l.moe.weight_on_input)
      for (float& v : in) v = v * routing.weights[i];
    const std::vector<float> out = l.experts[static_cast<size_t>(local)].run(l.moe.activation, in);
    std::copy(out.begin(), out.end(), to.own.rows + made++ * H);
  }
  for (size_t t = 0; t < x.rows && l.moe.shared_intermediate != 0; ++t) {
    const std::vector<float> row = row_of(x, t, H),
                             out = l.experts.back().run(l.moe.shared_activation, row);
    std::copy(out.begin(), out.end(), to.shared + t * H);
    if (l.shared_gate != nullptr) to.shared_gate[t] = l.shared_gate->run(row)[0];
  }
  return CudaStatus::kOk;
}

CudaStatus add_items(const Layer& l, const CudaRows& x, const CudaRouting& routing,
                     const CudaDivided& from, const CudaRows& y) {
  const size_t H = l.moe.hidden, slots = routing.slots;
  for (size_t t = 0; t < x.rows; ++t) {
    std::vector<std::pair<int32_t, size_t>> order;
    for (size_t s = 0; s < slots; ++s) {
      const size_t i = t * slots + s;
      if (routing.ids[i] < 0) continue;
      if ((from.own.at[i] >= 0) == (from.others.at[i] >= 0))
        return refused("an expert of a divided layer is nowhere, or in two places");
      order.emplace_back(routing.ids[i], s);
    }
    std::sort(order.begin(), order.end());
    std::vector<float> sum(H, 0.0f);
    for (const auto& [id, s] : order) {
      const size_t i = t * slots + s;
      const CudaItems& where = from.own.at[i] >= 0 ? from.own : from.others;
      const float* row = where.rows + static_cast<size_t>(where.at[i]) * H;
      const float w = l.moe.weight_on_input ? 1.0f : routing.weights[i];
      for (size_t h = 0; h < H; ++h) sum[h] = fma_f32(w, row[h], sum[h]);
    }
    if (l.moe.shared_intermediate != 0) {
      const float w = l.shared_gate != nullptr ? sigmoid_f32(from.shared_gate[t]) : 1.0f;
      for (size_t h = 0; h < H; ++h) sum[h] = sum[h] + w * from.shared[t * H + h];
    }
    const float zero = routing.zero_weights != nullptr ? routing.zero_weights[t] : 0.0f;
    for (size_t h = 0; h < H; ++h)
      put_number(y, t, h, zero != 0.0f ? sum[h] + zero * number_at(x, t, h) : sum[h]);
  }
  return CudaStatus::kOk;
}

CudaStatus run_routed(void* p, const CudaRows* x, const CudaRows* logits, const CudaRows* y,
                      const CudaChosen* want, void* stream) {
  const Layer& l = layer_of(p);
  if (!l.has_router) return refused("the layer has no router");
  if (logits == nullptr && l.router_matrix == nullptr) return refused("the layer makes no logits");
  const RouterSpec& s = l.router.spec;
  const size_t n = s.experts + s.zero_experts, slots = s.top_k + s.shared_slots;
  std::vector<int32_t> chosen(x->rows * slots);
  std::vector<float> weighed(x->rows * slots), zero(x->rows), own(n + device_router_floats(s));
  for (size_t t = 0; t < x->rows; ++t) {
    const std::vector<float> row = logits != nullptr
                                       ? row_of(*logits, t, n)
                                       : l.router_matrix->run(row_of(*x, t, l.moe.hidden));
    std::copy(row.begin(), row.end(), own.begin());
    const OneLane lane;
    RowRouter<OneLane> router(l.router, lane, own.data(), own.data() + n);
    router.run(t, chosen.data() + t * slots, weighed.data() + t * slots, &zero[t]);
  }
  if (want != nullptr && want->ids != nullptr) std::copy(chosen.begin(), chosen.end(), want->ids);
  if (want != nullptr && want->weights != nullptr)
    std::copy(weighed.begin(), weighed.end(), want->weights);
  if (want != nullptr && want->counts != nullptr)
    for (const int32_t id : chosen)
      if (id >= 0 && static_cast<size_t>(id) < s.experts) ++want->counts[id];
  const CudaRouting routing{chosen.data(), weighed.data(),
                            s.zero_experts > 0 ? zero.data() : nullptr, slots};
  return run_moe(p, x, &routing, y, nullptr, stream);
}

CudaStatus set_router(void* p, const CudaRouter* r) {
  Layer& l = layer_of(p);
  const RouterSpec& s = r->spec;
  const size_t n = s.experts + s.zero_experts;
  if (s.has_bias) l.bias.assign(r->bias, r->bias + n);
  if (s.per_expert_scale) l.expert_scale.assign(r->expert_scale, r->expert_scale + s.experts);
  l.router = {s, l.bias.data(), l.expert_scale.data(),
              s.method == RouterMethod::kTopK && s.groups > 1 && n > s.groups && n % s.groups == 0};
  if (r->matrix != nullptr) l.router_matrix = std::make_unique<Matrix>(*r->matrix);
  l.has_router = true;
  return CudaStatus::kOk;
}

CudaStatus set_expert(void* p, size_t local, const CudaExpert* e) {
  Layer& l = layer_of(p);
  Expert& to = l.experts.at(local);
  if (is_bad(g_bad_expert)) return refused("no memory for an expert (emulated)");
  if (e->gate != nullptr) to.gate = std::make_unique<Matrix>(*e->gate);
  to.up = std::make_unique<Matrix>(*e->up), to.down = std::make_unique<Matrix>(*e->down);
  if (l.moe.memory == nullptr || local >= l.moe.experts) return CudaStatus::kOk;
  const size_t room = l.moe.memory_bytes / l.moe.experts / 64 * 64;
  CudaRange& range = l.ranges.at(local);
  range = {local * room, local * room};
  for (const std::unique_ptr<Matrix>* m : {&to.gate, &to.up, &to.down}) {
    const size_t end = (local + 1) * room;
    if (*m != nullptr && range.end <= end)
      range.end += (*m)->move_to(static_cast<uint8_t*>(l.moe.memory) + range.end, end - range.end);
    if (range.end > end) return refused("experts do not fit the memory that they share");
  }
  return CudaStatus::kOk;
}

// --- rows of a model ---

// Row by row through all programs; those that go head by head part by part, the last one first.
CudaStatus run_rows(std::span<const CudaRowProgram> programs) {
  const SingleLane lane;
  for (size_t t = 0; t < programs[0].rows; ++t)
    for (const CudaRowProgram& p : programs) {
      const uint32_t parts = part_count(p);
      if (parts == 0) DeviceRow<SingleLane>(p, lane, t).run();
      for (uint32_t i = parts; i-- > 0;) DeviceRow<SingleLane>(p, lane, t, part_of(p, i)).run();
    }
  return CudaStatus::kOk;
}

CudaStatus take_rows(const CudaRows* from, const int32_t* which, const CudaRows* to, size_t cols,
                     void*) {
  if (from->type != to->type) return refused("rows of two types");
  for (size_t i = 0; i < to->rows; ++i)
    for (size_t c = 0; c < cols; ++c)
      put_number(*to, i, c, number_at(*from, static_cast<size_t>(which[i]), c));
  return CudaStatus::kOk;
}

// Half of the calls in segments of their own, as the plugin does with few rows: bytes are the same.
template <KvType kStored>
void run_attention(const CudaAttend& args) {
  using Attention = DeviceAttention<SingleLane, kStored>;
  const SingleLane lane;
  const CudaAttention& a = args.layer;
  for (size_t i = 0; i < args.tile_count && args.k.data != nullptr; ++i)
    for (uint32_t t = 0; t < args.tiles[i].count; ++t)
      Attention(args, lane).append(args.sequences[args.tiles[i].sequence], args.tiles[i].first + t);
  const bool split = args.segments > 1 && args.tile_count < 8;
  std::vector<float> partials(
      split ? args.q.rows * a.heads * args.segments * Attention::partial_floats(a) : 0);
  std::vector<float> shared(Attention::shared_floats(a) + 4);
  auto* floats =
      reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(shared.data()) + 15) / 16 * 16);
  // Tiles of tensor cores are longer than this definition's.
  const size_t each = a.heads / a.kv_heads;
  const auto at_once = static_cast<uint32_t>(each >= kTileQueries ? 1 : kTileQueries / each);
  for (size_t i = 0; i < args.tile_count; ++i)
    for (uint32_t t = 0; t < args.tiles[i].count; t += at_once) {
      CudaTokens tile = args.tiles[i];
      tile.first += t, tile.count = std::min(at_once, tile.count - t);
      for (size_t h = 0; h < a.kv_heads; ++h)
        for (size_t first = 0; first < each; first += kTileQueries)
          for (size_t segment = 0; segment < (split ? args.segments : 1); ++segment)
            Attention(args, lane)
                .run(tile, h, first, segment, split ? partials.data() : nullptr, floats);
    }
  for (size_t i = 0; i < args.tile_count && split; ++i)
    for (uint32_t t = 0; t < args.tiles[i].count; ++t)
      for (size_t h = 0; h < a.heads; ++h)
        Attention(args, lane)
            .merge_segments(args.sequences[args.tiles[i].sequence], args.tiles[i].first + t, h,
                            partials.data(), floats);
}

CudaStatus attend(const CudaAttend* args, void*) {
  // A graph has the counts it was captured with, and reads tables of the step.
  const size_t sequences = size_t{args->tiles[args->tile_count - 1].sequence} + 1;
  if (sequences != args->sequence_count) return refused("attention of another number of sequences");
  switch (static_cast<KvType>(args->layer.storage)) {
    case KvType::kF32:
      run_attention<KvType::kF32>(*args);
      break;
    case KvType::kF16:
      run_attention<KvType::kF16>(*args);
      break;
    case KvType::kBf16:
      run_attention<KvType::kBf16>(*args);
      break;
    case KvType::kInt8:
      run_attention<KvType::kInt8>(*args);
      break;
    case KvType::kFp8:
      run_attention<KvType::kFp8>(*args);
      break;
  }
  return CudaStatus::kOk;
}

CudaStatus find_all_candidates(const CudaCandidates& c) {
  if (c.x.type != XType::kF32) return refused("candidates of rows that are not f32");
  for (size_t r = 0; r < c.x.rows; ++r) {
    const CandidateNeed& need = c.needs[r];
    if (need.vocab > c.cols || (need.weighs() && !c.weighs)) return refused("candidates");
    if (need.vocab > 0)
      c.found[r] = find_candidates(static_cast<const float*>(c.x.data) + r * c.x.stride, need,
                                   c.most, c.ids + r * c.most, c.logits + r * c.most);
  }
  return CudaStatus::kOk;
}

constexpr uint64_t kEmulatedBytes = uint64_t{4} << 30;

CudaStatus open(int32_t device, CudaFacts* facts) {
  *facts = {};
  if (device > 1) return refused("there is no such device");
  std::strcpy(facts->name, "emulated");
  facts->major = 8, facts->multiprocessors = 1;
  facts->memory_bytes = facts->free_bytes = kEmulatedBytes;
  return CudaStatus::kOk;
}

CudaStatus download(void* to, const void* from, size_t bytes, void*) {
  std::memcpy(to, from, bytes);
  g_downloaded += bytes;
  return CudaStatus::kOk;
}

constexpr CudaApi kApi = {
    kCudaAbi,
    sizeof(CudaApi),
    sizeof(CudaMatrix),
    sizeof(CudaMoe),
    sizeof(CudaRouter),
    sizeof(CudaRowProgram),
    sizeof(CudaRowOp),
    sizeof(CudaAttend),
    [] { return g_words.c_str(); },
    open,
    [](size_t bytes, void** p) {
      *p = std::malloc(std::max<size_t>(bytes, 1));
      return CudaStatus::kOk;
    },
    [](void* p) { std::free(p); },
    [](size_t bytes, void** p) {
      *p = std::malloc(std::max<size_t>(bytes, 1));
      return CudaStatus::kOk;
    },
    [](void* p) { std::free(p); },
    [](void* to, const void* from, size_t bytes, void*) {
      if (is_bad(g_bad_upload)) return refused("copy to the device: failed (emulated)");
      std::memcpy(to, from, bytes);
      return CudaStatus::kOk;
    },
    download,
    download,
    [](void*) { return is_lost() ? lost() : CudaStatus::kOk; },
    [](uint64_t* bytes) {
      *bytes = kEmulatedBytes;
      return CudaStatus::kOk;
    },
    [](void** stream) {
      *stream = std::malloc(1);
      return CudaStatus::kOk;
    },
    [](void* stream) { std::free(stream); },
    [](void*, void*) { return CudaStatus::kOk; },
    [](void* to, const void* from, size_t bytes, void*) {
      std::memcpy(to, from, bytes);
      return CudaStatus::kOk;
    },
    [](void* p, size_t bytes, void*) {
      std::memset(p, 0, bytes);
      return CudaStatus::kOk;
    },
    [](void*) {
      g_capture = std::make_unique<Graph>();
      return CudaStatus::kOk;
    },
    [](void*, void** graph) {
      *graph = g_capture.release();
      return CudaStatus::kOk;
    },
    [](void* graph, void*) {
      ++g_launches;
      for (const auto& call : *static_cast<Graph*>(graph))
        if (const CudaStatus status = call(); status != CudaStatus::kOk) return status;
      return CudaStatus::kOk;
    },
    [](void* graph) { delete static_cast<Graph*>(graph); },
    [](const CudaMatrix* parts, size_t count, CudaPath, void** layer) {
      if (count != 1) return refused("one part");
      auto made = std::make_unique<Layer>();
      made->linear = std::make_unique<Matrix>(*parts);
      *layer = made.release();
      return CudaStatus::kOk;
    },
    [](void* p, const CudaRows* x, const CudaRows* y, void* stream) {
      return given([=, a = *x, b = *y] { return run_linear(p, &a, &b, stream); });
    },
    [](const CudaMoe* moe, void** layer) {
      auto made = std::make_unique<Layer>();
      made->moe = *moe;
      if (moe->expert_map != nullptr)
        made->map.assign(moe->expert_map, moe->expert_map + moe->mapped);
      made->experts.resize(moe->experts + (moe->shared_intermediate != 0 ? 1 : 0));
      made->ranges.resize(moe->memory != nullptr ? moe->experts : 0);
      *layer = made.release();
      return CudaStatus::kOk;
    },
    set_expert,
    [](void* p, const CudaMatrix* gate) {
      layer_of(p).shared_gate = std::make_unique<Matrix>(*gate);
      return CudaStatus::kOk;
    },
    set_router,
    [](void* p, const CudaRows* x, const CudaRouting* routing, const CudaRows* y,
       const CudaLaunch* launch, void* stream) {
      return given(
          [=, a = *x, r = *routing, b = *y] { return run_moe(p, &a, &r, &b, launch, stream); });
    },
    [](void* p, const CudaRows* x, const CudaRows* logits, const CudaRows* y,
       const CudaChosen* chosen, void* stream) {
      const std::optional<CudaRows> scores =
          logits != nullptr ? std::optional(*logits) : std::nullopt;
      const CudaChosen want = chosen != nullptr ? *chosen : CudaChosen{};
      return given([=, a = *x, b = *y] {
        return run_routed(p, &a, scores ? &*scores : nullptr, &b, &want, stream);
      });
    },
    [](void* p, const CudaRows* logits, const CudaChosen* chosen, float* zero_weights, void*) {
      return given([=, a = *logits, c = *chosen] {
        return choose_experts(layer_of(p), a, c, zero_weights);
      });
    },
    [](void* p, const CudaRows* x, const CudaRouting* routing, const CudaDivided* to, void*) {
      return given([=, a = *x, r = *routing, d = *to] { return run_items(layer_of(p), a, r, d); });
    },
    [](void* p, const CudaRows* x, const CudaRouting* routing, const CudaDivided* from,
       const CudaRows* y, void*) {
      return given([=, a = *x, r = *routing, d = *from, b = *y] {
        return add_items(layer_of(p), a, r, d, b);
      });
    },
    [](void* p, const int32_t* map) {
      Layer& l = layer_of(p);
      if (l.map.empty()) return refused("a layer that has all experts");
      std::copy_n(map, l.map.size(), l.map.begin());
      ++g_mapped;
      return CudaStatus::kOk;
    },
    [](const void* p, size_t local, CudaRange* ranges, size_t* count) {
      const Layer& l = *static_cast<const Layer*>(p);
      if (local >= l.ranges.size()) return refused("an expert that is not in memory of the caller");
      ranges[0] = l.ranges[local], *count = 1;
      return CudaStatus::kOk;
    },
    [](const void*) -> uint64_t { return 1; },
    [](void* p) { delete static_cast<Layer*>(p); },
    [](const CudaRowProgram* programs, size_t count, void*) {
      return given([all = std::vector(programs, programs + count)] { return run_rows(all); });
    },
    [](const CudaRows* from, const int32_t* which, const CudaRows* to, size_t cols, void* stream) {
      return given([=, a = *from, b = *to] { return take_rows(&a, which, &b, cols, stream); });
    },
    [](const CudaAttend* args, void* stream) {
      return given([stream, a = *args] { return attend(&a, stream); });
    },
    [](const CudaCandidates* candidates, void*) {
      return given([c = *candidates] { return find_all_candidates(c); });
    },
    [](size_t, size_t) -> size_t { return 1; },
    [](size_t, void** clock) {
      *clock = std::malloc(1);
      return CudaStatus::kOk;
    },
    [](void*, size_t, void*) { return CudaStatus::kOk; },
    [](void*, size_t count, float* milliseconds) {  // a millisecond each
      std::fill_n(milliseconds, count - 1, 1.0f);
      return CudaStatus::kOk;
    },
    [](void* clock) { std::free(clock); },
    [](CudaStatus (*)(void*, size_t, void*), void*, size_t, size_t, double*) {
      return refused("nothing is timed here");
    },
    [](CudaRoofs*) { return refused("nothing is timed here"); }};

}  // namespace
}  // namespace moebius

extern "C" __attribute__((visibility("default"))) const moebius::CudaApi* moebius_device(
    uint32_t abi) {
  return abi == moebius::kCudaAbi ? &moebius::kApi : nullptr;
}

// Graphs that were launched so far.
extern "C" __attribute__((visibility("default"))) size_t moebius_emulated_launches() {
  return moebius::g_launches;
}
// Bytes that came from the device so far.
extern "C" __attribute__((visibility("default"))) size_t moebius_emulated_downloaded() {
  return moebius::g_downloaded;
}
// How often experts of divided layers changed places.
extern "C" __attribute__((visibility("default"))) size_t moebius_emulated_moves() {
  return moebius::g_mapped;
}
// Runs of layers whose weights were brought.
extern "C" __attribute__((visibility("default"))) size_t moebius_emulated_streamed() {
  return moebius::g_streamed;
}
// From now on: which upload, and which expert that is set, fails; 0: none.
extern "C" __attribute__((visibility("default"))) void moebius_emulated_fail(size_t upload,
                                                                             size_t expert) {
  moebius::g_bad_upload = upload, moebius::g_bad_expert = expert;
}
