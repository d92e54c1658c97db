// SPDX-License-Identifier: Apache-2.0
#include "nn/kv_layout.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/checked.h"
#include "base/numeric.h"
#include "kernels/packed_matrix.h"
#include "kernels/row_functions.h"

namespace moebius {
namespace {

constexpr size_t kMostAtOnce = 128;  // numbers converted at a time

CodeType code_of(KvType t) {
  switch (t) {
    case KvType::kF32:
      return CodeType::kF32;
    case KvType::kF16:
      return CodeType::kF16;
    case KvType::kBf16:
      return CodeType::kBf16;
    case KvType::kInt8:
      return CodeType::kInt8;
    case KvType::kFp8:
      return CodeType::kFp8;
  }
  return CodeType::kF32;
}

// Describes codes [N, K] as a matrix; 8-bit codes have the scale 1 in every row.
QuantMatrix matrix_of(size_t N, size_t K, KvType type, const uint8_t* codes, const float* ones) {
  QuantMatrix w;
  w.N = N;
  w.K = K;
  w.codes = codes;
  w.code = code_of(type);
  w.bits = static_cast<uint8_t>(8 * kv_bytes(type));
  w.block_n = N;
  w.block_k = K;
  w.row_bytes = K * kv_bytes(type);
  if (has_scales(type)) {
    w.scale_type = ScaleType::kF32;
    w.scale_stride = 1;
    w.block_n = 1;
    w.scales = reinterpret_cast<const uint8_t*>(ones);
  }
  return w;
}

Problem problem_of(size_t N, size_t K, KvType type, XType x_type) {
  const std::vector<float> ones(N, 1.0f);
  return make_problem(matrix_of(N, K, type, nullptr, ones.data()), ActSpec{}, x_type);
}

void pack_all(const Kernel& k, const Problem& p, KvType type, uint8_t code, AlignedBuffer& packed) {
  const std::vector<uint8_t> codes(p.N * p.K * kv_bytes(type), code);
  const std::vector<float> ones(p.N, 1.0f);
  const QuantMatrix w = matrix_of(p.N, p.K, type, codes.data(), ones.data());
  k.pack({&p, &w, 0, p.N, packed.data()});
}

// Learns which byte a kernel stores for each code, by packing a small matrix.
void learn_bytes(const Kernel& k, KvType type, XType x_type, std::array<uint8_t, 256>& byte_of) {
  const Problem p = problem_of(1, 16, type, x_type);
  AlignedBuffer packed(k.packed_bytes(p));
  for (size_t c = 0; c < 256; ++c) {
    std::memset(packed.data(), 0, packed.size());
    pack_all(k, p, type, static_cast<uint8_t>(c), packed);
    byte_of[c] = packed.data()[k.code_at(p, 0, 0)];
  }
}

template <class Element>
void scatter(const uint8_t* codes, size_t n, uint8_t* to, const uint32_t* at) {
  for (size_t i = 0; i < n; ++i)
    std::memcpy(to + at[i], codes + i * sizeof(Element), sizeof(Element));
}

void scatter_bytes(const uint8_t* codes, size_t n, uint8_t* to, const uint32_t* at,
                   const std::array<uint8_t, 256>& byte_of) {
  for (size_t i = 0; i < n; ++i) to[at[i]] = byte_of[codes[i]];
}

constexpr float top_of(KvType type) { return type == KvType::kFp8 ? 448.0f : 127.0f; }

float scale_of(KvType type, float fixed_scale, const float* x, size_t n) {
  if (!has_scales(type)) return 1.0f;
  const float largest = row_functions().abs_max(x, n);
  if (!std::isfinite(largest)) return std::numeric_limits<float>::quiet_NaN();
  const float scale = fixed_scale != 0 ? fixed_scale : largest / top_of(type);
  return scale == 0.0f ? 1.0f : scale;
}

void codes_of(KvType type, float scale, const float* x, size_t n, uint8_t* codes) {
  if (!has_scales(type)) return row_functions().store(plain_type(type), x, codes, n);
  if (std::isnan(scale)) return std::fill_n(codes, n, uint8_t{0}), void();
  const bool fp8 = type == KvType::kFp8;
  RowEncode how{fp8 ? RowCode::kFp8 : RowCode::kInt, XType::kF32, XType::kF32};
  how.low = -top_of(type);
  how.high = top_of(type);
  how.group = n;
  row_functions().encode(how, x, n, &scale, nullptr, codes);
  // The kernels' weights have no negative zero, but keys and values do.
  const uint32_t turned = f32_bits(scale);
  for (size_t i = 0; fp8 && i < n; ++i)
    codes[i] = static_cast<uint8_t>(codes[i] | ((f32_bits(x[i]) ^ turned) >> 24 & 0x80u));
}

// Writes a vector of n numbers to its places; returns the scale of its codes.
float put_vector(const KvStorage& storage, float fixed_scale, const KvMatrix& m, const float* x,
                 size_t n, uint8_t* to, const std::vector<uint32_t>& at) {
  const KvType type = storage.type;
  uint8_t codes[kMostAtOnce * 4];
  const float scale = scale_of(type, fixed_scale, x, n);
  for (size_t i = 0; i < n; i += kMostAtOnce) {
    const size_t count = std::min(kMostAtOnce, n - i);
    codes_of(type, scale, x + i, count, codes);
    if (type == KvType::kF32)
      scatter<uint32_t>(codes, count, to, at.data() + i);
    else if (!has_scales(type))
      scatter<uint16_t>(codes, count, to, at.data() + i);
    else
      scatter_bytes(codes, count, to, at.data() + i, m.byte_of);
  }
  return scale;
}

}  // namespace

float kv_encode(KvType type, float fixed_scale, const float* x, size_t n, uint8_t* codes) {
  const float scale = scale_of(type, fixed_scale, x, n);
  codes_of(type, scale, x, n, codes);
  return scale;
}

KvLayout::KvLayout(size_t kv_heads, size_t key_dim, size_t value_dim, const KvStorage& storage,
                   XType type, Choose choose, size_t keys)
    : kv_heads_(kv_heads), block_keys_(keys), storage_(storage) {
  keys_.problem = problem_of(keys, key_dim, storage.type, type);
  set_kernel(keys_, *choose(keys_.problem));
  if (value_dim != 0) {
    values_.problem = problem_of(value_dim, keys, storage.type, type);
    set_kernel(values_, *choose(values_.problem));
  }
  key_bytes_ = round_up(keys_.empty.size(), 64);
  scales_at_ = key_bytes_ + round_up(values_.empty.size(), 64);
  head_bytes_ =
      scales_at_ + (has_scales(storage.type) ? round_up(2 * keys * sizeof(float), 64) : 0);
}

void KvLayout::set_kernel(KvMatrix& m, const Kernel& k) {
  const Problem& p = m.problem;
  m.kernel = &k;
  const size_t origin = k.code_at(p, 0, 0);
  for (size_t n = 0; n < p.N; ++n) m.row_at.push_back(static_cast<uint32_t>(k.code_at(p, n, 0)));
  for (size_t i = 0; i < p.K; ++i)
    m.input_at.push_back(static_cast<uint32_t>(k.code_at(p, 0, i) - origin));
  AlignedBuffer packed(k.packed_bytes(p));
  std::memset(packed.data(), 0, packed.size());
  if (k.pack != nullptr) {  // null in a table for another architecture, which plans and never runs
    if (has_scales(storage_.type)) {
      // Packed with the smallest codes, because kernels check for subnormal ones, then zeroed.
      learn_bytes(k, storage_.type, p.x_type, m.byte_of);
      pack_all(k, p, storage_.type, 1, packed);
      for (const uint32_t row : m.row_at)
        for (const uint32_t input : m.input_at) packed.data()[row + input] = m.byte_of[0];
    } else {
      pack_all(k, p, storage_.type, 0, packed);
    }
  }
  m.empty.assign(packed.data(), packed.data() + packed.size());
}

void KvLayout::put(uint8_t* block, size_t head, size_t first, size_t count, const float* k,
                   size_t ldk, const float* v, size_t ldv) const {
  uint8_t *keys = block + head * head_bytes_, *values = keys + key_bytes_;
  auto* scales = reinterpret_cast<float*>(keys + scales_at_);
  const bool scaled = has_scales(storage_.type);
  if (first == 0) {
    std::copy(keys_.empty.begin(), keys_.empty.end(), keys);
    std::copy(values_.empty.begin(), values_.empty.end(), values);
    if (scaled) std::fill_n(scales, 2 * block_keys_, 1.0f);
  }
  for (size_t i = 0; i < count; ++i) {
    const size_t t = first + i;
    const float ks = put_vector(storage_, storage_.key_scale, keys_, k + i * ldk, keys_.problem.K,
                                keys + keys_.row_at[t], keys_.input_at);
    if (scaled) scales[t] = ks;
    if (values_.kernel == nullptr) continue;
    const float vs = put_vector(storage_, storage_.value_scale, values_, v + i * ldv,
                                values_.problem.N, values + values_.input_at[t], values_.row_at);
    if (scaled) scales[block_keys_ + t] = vs;
  }
}

void KvLayout::cut(uint8_t* block, size_t tokens) const {
  const std::vector<float> zeros(std::max(keys_.problem.K, values_.problem.N));
  for (size_t h = 0; h < kv_heads_; ++h) {
    put(block, h, tokens, block_keys_ - tokens, zeros.data(), /*ldk=*/0, zeros.data(), /*ldv=*/0);
    if (!has_scales(storage_.type)) continue;
    auto* scales = reinterpret_cast<float*>(block + h * head_bytes_ + scales_at_);
    for (float* s : {scales, scales + block_keys_}) std::fill(s + tokens, s + block_keys_, 1.0f);
  }
}

void KvRowLayout::put(uint8_t* block, size_t row, const float* x) const {
  uint8_t* to = block + row * row_bytes();
  const float scale = kv_encode(type, 0, x, width, to);
  if (has_scales(type)) std::memcpy(to + row_bytes() - sizeof scale, &scale, sizeof scale);
}

void KvRowLayout::get(const uint8_t* block, size_t row, float* x) const {
  const uint8_t* from = block + row * row_bytes();
  if (!has_scales(type)) return row_functions().load(plain_type(type), from, x, width);
  float scale;
  std::memcpy(&scale, from + row_bytes() - sizeof scale, sizeof scale);
  for (size_t i = 0; i < width; ++i)
    x[i] = scale * (type == KvType::kFp8 ? e4m3_to_f32(from[i])
                                         : static_cast<float>(static_cast<int8_t>(from[i])));
}

}  // namespace moebius
