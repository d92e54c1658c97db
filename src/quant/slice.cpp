// SPDX-License-Identifier: Apache-2.0
// Slices matrix views. Granularity that a slice no longer sees (one block of rows, one group of
// columns) becomes phase 0 and one block over everything, so that kernels recognise per-channel and
// per-tensor scales.
#include "quant/slice.h"

#include "base/error.h"
#include "quant/quant_access.h"

namespace moebius {
namespace {

// Moves nibbles [c0, c1) of every row to the start of a new row; a last odd nibble is followed by
// zero bits.
void copy_nibbles(const QuantMatrix& from, size_t c0, QuantMatrix& to, SliceMemory& memory) {
  const size_t row_bytes = (to.K + 1) / 2;
  uint8_t* out = memory.allocate(to.N * row_bytes);
  for (size_t r = 0; r < to.N; ++r) {
    const uint8_t* src = from.codes + r * from.row_bytes + c0 / 2;
    uint8_t* dst = out + r * row_bytes;
    for (size_t j = 0; j < row_bytes; ++j) {
      const bool pair = 2 * j + 1 < to.K;
      dst[j] = static_cast<uint8_t>((src[j] >> 4) | (pair ? src[j + 1] << 4 : 0));
    }
  }
  to.codes = out;
  to.row_bytes = row_bytes;
}

// Lets the tables of scales begin `count` entries later. A view of facts has no tables, or one of
// offsets that only says that there are some.
void skip_scales(QuantMatrix& w, size_t count) {
  const size_t bytes = count * scale_bytes(w.scale_type);
  if (w.scales != nullptr) w.scales += bytes;
  if (w.zero_points != nullptr) w.zero_points += count;
  if (w.offsets != nullptr) w.offsets += bytes;
  const size_t supers = (count + w.super_phase) / w.super_groups * sizeof(float);
  if (w.super_scales != nullptr) w.super_scales += supers;
  if (w.super_offsets != nullptr) w.super_offsets += supers;
  w.super_phase = (count + w.super_phase) % w.super_groups;
}

void slice_groups(QuantMatrix& w, size_t c0, size_t c1) {
  if (w.scale_type == ScaleType::kNone) {
    w.block_k = c1 - c0;
    w.k_phase = 0;
    return;
  }
  if (w.g_idx != nullptr) {
    w.g_idx += c0;  // groups, scales and block_k stay the whole matrix's
    return;
  }
  const size_t first = (c0 + w.k_phase) / w.block_k;
  const size_t last = (c1 - 1 + w.k_phase) / w.block_k;
  skip_scales(w, first);
  w.k_phase = (c0 + w.k_phase) % w.block_k;
  w.groups = last - first + 1;
  if (w.groups == 1) {
    w.block_k = c1 - c0;
    w.k_phase = 0;
  }
}

}  // namespace

uint8_t* SliceMemory::allocate(size_t bytes) {
  blocks_.emplace_back(new uint8_t[bytes]);
  bytes_ += bytes;
  return blocks_.back().get();
}

QuantMatrix slice_rows(const QuantMatrix& w, size_t r0, size_t r1) {
  if (r0 >= r1 || r1 > w.N) fail("rows [{}, {}) of a matrix with {} rows", r0, r1, w.N);
  QuantMatrix s = w;
  s.N = r1 - r0;
  if (s.codes != nullptr) s.codes += r0 * w.row_bytes;
  const size_t first = (r0 + w.n_phase) / w.block_n;
  const size_t last = (r1 - 1 + w.n_phase) / w.block_n;
  skip_scales(s, first * w.scale_stride);
  s.n_phase = (r0 + w.n_phase) % w.block_n;
  if (first == last) {
    s.block_n = s.N;
    s.n_phase = 0;
  }
  return s;
}

QuantMatrix slice_columns(const QuantMatrix& w, size_t c0, size_t c1, SliceMemory& memory) {
  if (c0 >= c1 || c1 > w.K) fail("columns [{}, {}) of a matrix with {} columns", c0, c1, w.K);
  QuantMatrix s = w;
  s.K = c1 - c0;
  slice_groups(s, c0, c1);
  const size_t bits = code_bits(w.code);
  if (s.codes == nullptr) return s;
  if (c0 * bits % 8 == 0)
    s.codes += c0 * bits / 8;
  else
    copy_nibbles(w, c0, s, memory);
  return s;
}

QuantMatrix slice(const QuantMatrix& w, size_t r0, size_t r1, size_t c0, size_t c1,
                  SliceMemory& memory) {
  return slice_columns(slice_rows(w, r0, r1), c0, c1, memory);
}

Range output_range(size_t N, size_t ranks, size_t rank, std::string_view what) {
  if (rank >= ranks) fail("{}: rank {} of {}", what, rank, ranks);
  if (N < ranks) fail("{}: {} outputs cannot be cut for {} ranks", what, N, ranks);
  size_t unit = 16;
  while (N / unit < ranks) unit /= 2;
  const size_t units = N / unit;  // the last part gets the remainder
  const auto begin = [&](size_t r) { return r == ranks ? N : units * r / ranks * unit; };
  return {begin(rank), begin(rank + 1)};
}

std::vector<Range> output_ranges(size_t N, size_t ranks, std::string_view what) {
  std::vector<Range> out;
  for (size_t r = 0; r < ranks; ++r) out.push_back(output_range(N, ranks, r, what));
  return out;
}

std::pair<size_t, size_t> parallel_range(size_t size, size_t rank, size_t ranks, const char* what) {
  if (ranks == 0 || rank >= ranks) fail("rank {} of {} ranks", rank, ranks);
  if (size % ranks != 0)
    fail("{} {} cannot be split into {} equal parts for tensor parallelism", what, size, ranks);
  const size_t part = size / ranks;
  return {rank * part, (rank + 1) * part};
}

}  // namespace moebius
