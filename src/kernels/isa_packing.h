// SPDX-License-Identifier: Apache-2.0
// Helpers shared by packers whose panels have 16 or 32 outputs: the loop over panels, act-order, and
// prefetching. Internal linkage.
#pragma once
#include "kernels/isa_permuted_rows.h"
#include "kernels/unpack.h"

namespace moebius {
namespace {
namespace isa_packing {

// Prefetches the rows of the file that are packed next, in the order of memory although rows are
// read side by side.
class Ahead {
 public:
  // Prepares to prefetch `rows` rows from n on, while a panel of K inputs is packed in steps of
  // `step` inputs.
  Ahead(const PackArgs& a, size_t n, size_t rows, size_t step) {
    const QuantMatrix& w = *a.w;
    const size_t steps = w.K / step;
    long_rows_ = rows * w.row_bytes > kMost;
    if (steps == 0 || n + rows > a.n1) return;
    if (!long_rows_) codes_ = {w.codes + n * w.row_bytes, rows * w.row_bytes, steps};
    if (w.block_n == 1) {
      const size_t bytes = w.scale_stride * scale_size(w.scale_type);
      scales_ = {w.scales + (n + w.n_phase) * bytes, rows * bytes, steps};
    }
  }
  // Prefetches the share of one step; call it once per step.
  [[gnu::always_inline]] void ask() {
    codes_.ask();
    scales_.ask();
  }
  // Prefetches within `row`, if it is long; call it when a row is read.
  [[gnu::always_inline]] void ask_in(const uint8_t* row) const {
    if (long_rows_) __builtin_prefetch(row + 512);
  }

 private:
  static constexpr size_t kLine = 64;
  // Rows of more bytes are prefetched within themselves.
  static constexpr size_t kMost = 128 << 10;
  struct Lines {
    const uint8_t* next = nullptr;
    size_t left = 0, each = 0;
    Lines() = default;
    Lines(const uint8_t* from, size_t bytes, size_t steps)
        : next(from), left(bytes / kLine), each((left + steps - 1) / steps) {}
    [[gnu::always_inline]] void ask() {
      const size_t count = each < left ? each : left;
      for (size_t i = 0; i < count; ++i) __builtin_prefetch(next + kLine * i, 0, 2);
      next += kLine * count;
      left -= count;
    }
  };
  Lines codes_, scales_;
  bool long_rows_ = false;
};

// Packs all panels of `a`, `outputs` rows each. A Packer is made for each panel; it reads `step`
// inputs at a time and fills `stride` bytes. Bytes: that of PermutedRows.
template <class Packer, class Bytes, class Shape>
inline void pack_panels(const PackArgs& a, const Shape& s, size_t outputs, size_t step,
                        size_t stride) {
  using Permuted = PermutedRows<Bytes, 32>;
  const auto out = [&](size_t n) { return a.packed + (a.row0 + n) / outputs * stride; };
  if (!Permuted::takes(a)) {
    for (size_t n = a.n0; n < a.n1; n += outputs)
      Packer(a, s, n, out(n), {a, n + outputs, outputs, step}).pack();
    return;
  }
  Permuted rows(a);
  for (size_t n = a.n0, end; n < a.n1; n = end) {
    rows.read(n);
    end = n + rows.args().w->N < a.n1 ? n + rows.args().w->N : a.n1;
    for (size_t i = n; i < end; i += outputs)
      Packer(rows.args(), s, i - n, out(i), {a, i + end - n, outputs, step}).pack();
  }
}

}  // namespace isa_packing
}  // namespace
}  // namespace moebius
