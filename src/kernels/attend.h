// SPDX-License-Identifier: Apache-2.0
// WAIST 2, beside the products: a block of keys and values for many rows in one call, where an
// instruction set does better than a product, a softmax and a product one after the other. The bytes
// are those of the three. Like kernel.h this is included by units compiled for any instruction set:
// plain data and declarations. A unit exports one table and has one line in list.cpp.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/kernel.h"

namespace moebius {

struct AttendArgs {
  const Problem *keys, *values;  // [block, key_dim] and [value_dim, block]
  const uint8_t *k, *v;          // 64; both packed
  const uint8_t* next;  // a hint: the keys of the block that comes next, its values as far behind
  const uint8_t* q;     // 64; panel of M rows for the keys
  size_t M;
  size_t columns;       // keys that some row sees, from the first on; a multiple of n_step
  const uint8_t* seen;  // [M, 2]: a row sees keys [first, last); null: all
  float scale;          // > 0
  // 4; of 8-bit codes, for each key: scores and probabilities are multiplied by them; null: 1
  const float *key_scales, *value_scales;
  // 4; the softmax so far, as RowFunctions::softmax_step keeps it: [M], [M]; [M, value_dim]
  float *best, *total, *out;
  uint8_t* scratch;  // 64; scratch_bytes, private to the caller
  // For rows that see nothing or have a NaN.
  float (*softmax_step)(float* s, size_t n, float scale, bool coarse, float* m, float* l) noexcept;
};

struct AttendKernel {
  const char *name, *codec;  // of the kernel that both products would have
  bool (*supports)(const Problem& keys, const Problem& values);
  size_t scratch_bytes;
  size_t least_rows;               // fewer go the other way
  size_t best_rows;                // as many as keep what is read near
  void (*run)(const AttendArgs&);  // null where the architecture does not match
};

struct AttendTable {
  const AttendKernel* kernels;
  size_t count;
};

// Null: there is none.
const AttendKernel* attend_kernel(const Kernel& kernel, const Problem& keys, const Problem& values);

}  // namespace moebius
