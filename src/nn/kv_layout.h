// SPDX-License-Identifier: Apache-2.0
// How one layer keeps the keys and values of 128 tokens: for every kv head the key matrix
// [128, key_dim] and the value matrix [value_dim, 128], both packed by the kernels that will
// multiply with them. A block is packed from its first token on: new tokens are written to where
// the kernel keeps such elements (Kernel::dense_at), so an unfinished block costs nothing beside
// itself, and its bytes are those of packing it whole.
//
// Tokens that are not there yet are zero: keys because it costs nothing, values because a
// probability of 0 must not meet a NaN.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/kernel.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace moebius {

inline constexpr size_t kKeyBlock = 128;  // tokens per block

// A matrix of a block: how it is multiplied and where its elements lie.
struct KvMatrix {
  Problem problem;
  const Kernel* kernel = nullptr;
  std::vector<uint32_t> row_at, input_at;  // bytes; element (n, k): row_at[n] + input_at[k]
  std::vector<uint8_t> empty;              // of zeros, packed
};

class KvLayout {
 public:
  KvLayout() = default;
  using Choose = FunctionRef<const Kernel*(const Problem&)>;
  // `stored`: type of keys and values in the block; `type`: of what they are multiplied with.
  KvLayout(size_t kv_heads, size_t key_dim, size_t value_dim, XType stored, XType type,
           Choose choose);

  size_t block_bytes() const { return kv_heads_ * head_bytes_; }  // a multiple of 64
  const KvMatrix& keys() const { return keys_; }
  const KvMatrix& values() const { return values_; }
  const uint8_t* keys_of(const uint8_t* block, size_t head) const {
    return block + head * head_bytes_;
  }
  const uint8_t* values_of(const uint8_t* block, size_t head) const {
    return block + head * head_bytes_ + key_bytes_;
  }

  // Tokens [first, first + count) of one head; a block begins empty with its token 0. Heads may be
  // written by different threads.
  void put(uint8_t* block, size_t head, size_t first, size_t count, const float* k, size_t ldk,
           const float* v, size_t ldv) const;
  void cut(uint8_t* block, size_t tokens) const;  // forgets what is behind

 private:
  void set_kernel(KvMatrix& m, const Kernel& kernel);
  size_t kv_heads_ = 0, key_bytes_ = 0, head_bytes_ = 0, element_ = 0;
  XType stored_ = XType::kF32;
  KvMatrix keys_, values_;
};

// Rows as they are, for what is made into keys and values at each use: 128 rows of `width`.
struct KvRowLayout {
  size_t width = 0;
  XType stored = XType::kF32;
  size_t row_bytes() const { return width * (stored == XType::kF32 ? 4 : 2); }
  size_t block_bytes() const { return (kKeyBlock * row_bytes() + 63) / 64 * 64; }
  void put(uint8_t* block, size_t row, const float* x) const;
  void get(const uint8_t* block, size_t row, float* x) const;
};

}  // namespace moebius
