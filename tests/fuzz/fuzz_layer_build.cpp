// SPDX-License-Identifier: Apache-2.0
// Fuzz target: a scheme as JSON, a zero byte, then sizes and the tensors that somebody says belong
// to a matrix (role, type, dimensions, a byte each). Building a linear or an expert throws Error or
// gives a layer that runs.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "device/cpu/layer_build.h"
#include "fuzz/target.h"

namespace moebius::fuzz_layer_build {
namespace {

// Payload for every tensor: 1.0 as bf16, about that as f32.
const std::vector<uint8_t>& payload() {
  static const std::vector<uint8_t> kBytes = [] {
    std::vector<uint8_t> b(size_t{1} << 20);
    for (size_t i = 0; i < b.size(); ++i) b[i] = i % 2 == 0 ? 0x80 : 0x3f;
    return b;
  }();
  return kBytes;
}

struct Reader {
  const uint8_t* at;
  const uint8_t* end;
  uint8_t take() { return at == end ? 0 : *at++; }
  bool more() const { return at != end; }
};

TensorData next_tensor(Reader& in, const std::string& prefix) {
  constexpr DType kTypes[] = {DType::kF32, DType::kBf16, DType::kF16, DType::kI8,
                              DType::kU8,  DType::kI32,  DType::kI64, DType::kF8E4M3};
  const auto role = static_cast<Role>(in.take() % static_cast<unsigned>(Role::kCount));
  TensorData t{prefix + std::string(suffix_of(role)), kTypes[in.take() % 8], {}, {}};
  uint64_t bytes = bits_of(t.dtype) / 8;
  for (unsigned left = in.take() % 4; left > 0; --left) {
    t.shape.push_back(in.take());
    bytes *= t.shape.back();
  }
  t.data = std::span(payload()).first(std::min<uint64_t>(bytes, payload().size()));
  return t;
}

void run_linear(const std::vector<TensorData>& tensors, const StoredScheme& scheme, uint64_t N,
                uint64_t K, Cut cut, LayerOptions& o) {
  const auto layer = build_linear({{"matrix", scheme, N, K, cut, 0, 0, tensors}}, o);
  const std::vector<float> x(layer->in_features(), 1.0f);
  std::vector<float> y(layer->out_features());
  layer->forward(f32_rows(x.data(), 1, x.size()), f32_rows(y.data(), 1, y.size()), *o.pool);
}

void run_expert(const std::vector<TensorData>& tensors, const StoredScheme& scheme, uint64_t N,
                uint64_t K, uint64_t step, LayerOptions& o) {
  ExpertsBuilder::Description d;
  d.spec.hidden = K;
  d.spec.intermediate = N;
  d.spec.experts = d.spec.router.experts = d.spec.router.top_k = 1;
  d.schemes.fill(scheme);
  d.gate_up_step = step;
  ExpertsBuilder builder(d, o);
  builder.set_expert(0, tensors);
  const auto layer = builder.finish();
  const std::vector<float> x(K, 1.0f), weight(1, 1.0f);
  const std::vector<int32_t> id(1, 0);
  std::vector<float> y(K);
  layer->forward_ids(f32_rows(x.data(), 1, K), id, weight, f32_rows(y.data(), 1, K), *o.pool);
}

}  // namespace

FUZZ_TARGET(layer_build) {
  static ThreadPool pool(1);
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t cut = std::min(all.find('\0'), all.size());
  Reader in{data + std::min(cut + 1, size), data + size};
  try {
    const StoredScheme scheme = parse_stored_scheme(std::string(all.substr(0, cut)));
    const uint64_t N = in.take(), K = in.take();
    const unsigned mode = in.take();
    LayerOptions o;
    o.pool = &pool;
    o.x_type = XType::kF32;
    o.rank.own_maxima = true;
    o.rank.tp = 1 + (mode >> 1) % 3;
    o.rank.tp_rank = (mode >> 3) % o.rank.tp;
    constexpr std::string_view kParts[] = {"gate.", "up.", "down.", "gate_up."};
    std::vector<TensorData> tensors;
    const bool expert = mode % 2 == 1;
    while (in.more() && tensors.size() < 24) {
      const std::string prefix = expert ? std::string(kParts[in.take() % 4]) : "";
      tensors.push_back(next_tensor(in, prefix));
    }
    if (expert)
      run_expert(tensors, scheme, N, K, 1 + (mode >> 5) % 2, o);
    else
      run_linear(tensors, scheme, N, K, static_cast<Cut>((mode >> 5) % 3), o);
  } catch (const Error& e) {
    if (*e.what() == '\0') std::abort();
  }
  return 0;
}

}  // namespace moebius::fuzz_layer_build
