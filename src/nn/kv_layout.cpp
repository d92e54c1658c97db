// SPDX-License-Identifier: Apache-2.0
#include "nn/kv_layout.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "kernels/packed_matrix.h"
#include "kernels/row_functions.h"

namespace moebius {
namespace {

QuantMatrix dense_matrix(size_t N, size_t K, XType stored, const uint8_t* codes) {
  QuantMatrix w;
  w.N = N, w.K = K, w.codes = codes;
  w.code = stored == XType::kBf16  ? CodeType::kBf16
           : stored == XType::kF16 ? CodeType::kF16
                                   : CodeType::kF32;
  w.bits = stored == XType::kF32 ? 32 : 16;
  w.block_n = N, w.block_k = K;
  w.row_bytes = K * (w.bits / 8u);
  return w;
}

// Puts numbers, converted to the stored type, at `to` + at[i].
template <class Element>
void scatter(XType stored, const float* from, size_t n, uint8_t* to, const uint32_t* at) {
  constexpr size_t kAtOnce = 64;
  Element part[kAtOnce];
  for (size_t i = 0; i < n; i += kAtOnce) {
    const size_t count = std::min(kAtOnce, n - i);
    row_functions().store(stored, from + i, part, count);
    for (size_t j = 0; j < count; ++j) std::memcpy(to + at[i + j], &part[j], sizeof(Element));
  }
}

}  // namespace

KvLayout::KvLayout(size_t kv_heads, size_t key_dim, size_t value_dim, XType stored, XType type,
                   Choose choose)
    : kv_heads_(kv_heads), element_(stored == XType::kF32 ? 4 : 2), stored_(stored) {
  keys_.problem = make_problem(dense_matrix(kKeyBlock, key_dim, stored, nullptr), ActSpec{}, type);
  values_.problem =
      make_problem(dense_matrix(value_dim, kKeyBlock, stored, nullptr), ActSpec{}, type);
  for (KvMatrix* m : {&keys_, &values_}) set_kernel(*m, *choose(m->problem));
  key_bytes_ = round_up(keys_.empty.size(), 64);
  head_bytes_ = key_bytes_ + round_up(values_.empty.size(), 64);
}

void KvLayout::set_kernel(KvMatrix& m, const Kernel& k) {
  const Problem& p = m.problem;
  m.kernel = &k;
  const size_t origin = k.dense_at(p, 0, 0);
  for (size_t n = 0; n < p.N; ++n) m.row_at.push_back(static_cast<uint32_t>(k.dense_at(p, n, 0)));
  for (size_t i = 0; i < p.K; ++i)
    m.input_at.push_back(static_cast<uint32_t>(k.dense_at(p, 0, i) - origin));
  AlignedBuffer packed(k.packed_bytes(p));
  std::memset(packed.data(), 0, packed.size());
  if (k.pack != nullptr) {  // null in a table for another architecture: planned, never run
    const std::vector<uint8_t> zeros(p.N * p.K * element_);
    const QuantMatrix w = dense_matrix(p.N, p.K, stored_, zeros.data());
    k.pack({&p, &w, 0, p.N, packed.data()});
  }
  m.empty.assign(packed.data(), packed.data() + packed.size());
}

void KvLayout::put(uint8_t* block, size_t head, size_t first, size_t count, const float* k,
                   size_t ldk, const float* v, size_t ldv) const {
  uint8_t *keys = block + head * head_bytes_, *values = keys + key_bytes_;
  if (first == 0) {
    std::memcpy(keys, keys_.empty.data(), keys_.empty.size());
    std::memcpy(values, values_.empty.data(), values_.empty.size());
  }
  const auto scatter_row = element_ == 4 ? scatter<float> : scatter<uint16_t>;
  for (size_t i = 0; i < count; ++i) {
    scatter_row(stored_, k + i * ldk, keys_.problem.K, keys + keys_.row_at[first + i],
                keys_.input_at.data());
    scatter_row(stored_, v + i * ldv, values_.problem.N, values + values_.input_at[first + i],
                values_.row_at.data());
  }
}

void KvLayout::cut(uint8_t* block, size_t tokens) const {
  const std::vector<float> zeros(std::max(keys_.problem.K, values_.problem.N));
  for (size_t h = 0; h < kv_heads_; ++h)
    put(block, h, tokens, kKeyBlock - tokens, zeros.data(), 0, zeros.data(), 0);
}

void KvRowLayout::put(uint8_t* block, size_t row, const float* x) const {
  row_functions().store(stored, x, block + row * row_bytes(), width);
}

void KvRowLayout::get(const uint8_t* block, size_t row, float* x) const {
  row_functions().load(stored, block + row * row_bytes(), x, width);
}

}  // namespace moebius
