// SPDX-License-Identifier: Apache-2.0
// WAIST 2 (ARCHITECTURE.md), in addition to products: attention of many rows to one block of keys
// and values in one call, for instruction sets where that is faster than a product, a softmax and a
// product. The bytes are those of the three calls. Like kernel.h this is included by units compiled
// for any instruction set: plain data and declarations. A unit exports one table and has one line
// in list.cpp.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/kernel.h"

namespace moebius {

struct AttendArgs {
  const Problem *keys, *values;  // [block, key_dim] and [value_dim, block]
  const uint8_t *k, *v;          // aligned to 64; packed by the kernel of the products
  // Null, or the packed keys of the next block, to prefetch; its values are as far from them as v
  // from k.
  const uint8_t* next;
  const uint8_t* q;  // aligned to 64; row panel of M rows for the keys
  size_t M;
  // Number of keys that any row sees, from the block's first key on; a multiple of n_step.
  size_t columns;
  const uint8_t* seen;  // [M, 2]: row m sees keys [first, last); null: all
  float scale;          // factor of scores, above 0
  // Aligned to 4; [block] scales of 8-bit codes, by which scores and probabilities are multiplied;
  // null: 1.
  const float *key_scales, *value_scales;
  // Aligned to 4; the running softmax, updated as RowFunctions::softmax_step does: maxima [M], sums
  // [M], weighted values [M, value_dim].
  float *best, *total, *out;
  uint8_t* scratch;  // aligned to 64; scratch_bytes, of this call alone
  // The step of the softmax (RowFunctions::softmax_step) for rows that see no key or have a NaN.
  float (*softmax_step)(float* s, size_t n, float scale, bool coarse, float* m, float* l) noexcept;
};

struct AttendKernel {
  const char *name, *codec;  // name and codec of the kernel that computes both products
  bool (*supports)(const Problem& keys, const Problem& values);
  size_t scratch_bytes;
  size_t least_rows;               // with fewer rows, products are faster and callers use these
  size_t best_rows;                // rows per call with which all data stays in cache
  void (*run)(const AttendArgs&);  // computes attention; null if compiled for another architecture
};

struct AttendTable {
  const AttendKernel* kernels;
  size_t count;
};

// Returns the attention kernel for problems that `kernel` runs; null: there is none.
const AttendKernel* attend_kernel(const Kernel& kernel, const Problem& keys, const Problem& values);

}  // namespace moebius
