// SPDX-License-Identifier: Apache-2.0
// Memory layout of the keys and values of 128 tokens in one layer: for every kv head the key matrix
// [128, key_dim] and the value matrix [value_dim, 128], both packed by the kernels that will
// multiply with them. A block is packed from its first token on: new tokens are written to where
// the kernel keeps such elements (Kernel::code_at), so an unfinished block needs no other memory,
// and a full block has the bytes of a matrix packed at once.
//
// 8-bit keys and values are codes with a scale per token and head, which multiplies scores and
// probabilities: k = code * scale. The matrices themselves hold codes with a scale of 1.
//
// Tokens that are not written yet are zero: values must be, because a probability of 0 times NaN
// would be NaN.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/kernel.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace moebius {

inline constexpr size_t kKeyBlock = 128;  // tokens per block

// Selects the number type in which keys and values are stored.
enum class KvType : uint8_t { kF32, kF16, kBf16, kInt8, kFp8 };
constexpr bool has_scales(KvType t) { return t == KvType::kInt8 || t == KvType::kFp8; }
constexpr size_t kv_bytes(KvType t) { return t == KvType::kF32 ? 4 : has_scales(t) ? 1 : 2; }
constexpr KvType kv_type_of(XType t) {
  return t == XType::kF32 ? KvType::kF32 : t == XType::kF16 ? KvType::kF16 : KvType::kBf16;
}
// Returns the same type as an XType; only for types without scales.
constexpr XType plain_type(KvType t) {
  return t == KvType::kF32 ? XType::kF32 : t == KvType::kF16 ? XType::kF16 : XType::kBf16;
}

struct KvStorage {
  KvType type = KvType::kF32;
  // Fixed scales of 8-bit codes; 0: each token has a scale of its own, which maps its largest
  // number to the largest code.
  float key_scale = 0, value_scale = 0;
};

// Encodes n numbers and returns their scale, which is 1 for types without scales, and NaN if x
// holds NaN or infinity. fixed_scale 0: the scale is chosen by the largest number.
float kv_encode(KvType type, float fixed_scale, const float* x, size_t n, uint8_t* codes);

// One packed matrix of a block: its kernel, and where its elements lie.
struct KvMatrix {
  Problem problem;
  const Kernel* kernel = nullptr;
  // Offsets in bytes: element (n, k) is at row_at[n] + input_at[k].
  std::vector<uint32_t> row_at, input_at;
  std::array<uint8_t, 256> byte_of{};  // packed byte of each 8-bit code
  std::vector<uint8_t> empty;          // packed matrix of zeros
};

class KvLayout {
 public:
  KvLayout() = default;
  using Choose = FunctionRef<const Kernel*(const Problem&)>;
  // `type`: the type of queries and probabilities, with which keys and values are multiplied.
  // value_dim 0: the block has keys only. `keys`: number of keys per block.
  KvLayout(size_t kv_heads, size_t key_dim, size_t value_dim, const KvStorage& storage, XType type,
           Choose choose, size_t keys = kKeyBlock);

  size_t block_bytes() const { return kv_heads_ * head_bytes_; }  // a multiple of 64
  const KvMatrix& keys() const { return keys_; }
  const KvMatrix& values() const { return values_; }
  const uint8_t* keys_of(const uint8_t* block, size_t head) const {
    return block + head * head_bytes_;
  }
  const uint8_t* values_of(const uint8_t* block, size_t head) const {
    return block + head * head_bytes_ + key_bytes_;
  }
  // Returns the scale of each token, [keys]; null for types without scales.
  const float* key_scales(const uint8_t* block, size_t head) const {
    return has_scales(storage_.type) ? scales_of(block, head) : nullptr;
  }
  const float* value_scales(const uint8_t* block, size_t head) const {
    return has_scales(storage_.type) ? scales_of(block, head) + block_keys_ : nullptr;
  }

  // Writes tokens [first, first + count) of one head. Writing token 0 empties the block first.
  // Different threads may write different heads.
  void put(uint8_t* block, size_t head, size_t first, size_t count, const float* k, size_t ldk,
           const float* v, size_t ldv) const;
  void cut(uint8_t* block, size_t tokens) const;  // zeroes the tokens from number `tokens` on

 private:
  void set_kernel(KvMatrix& m, const Kernel& kernel);
  const float* scales_of(const uint8_t* block, size_t head) const {
    return reinterpret_cast<const float*>(block + head * head_bytes_ + scales_at_);
  }
  size_t kv_heads_ = 0, block_keys_ = kKeyBlock, key_bytes_ = 0, scales_at_ = 0, head_bytes_ = 0;
  KvStorage storage_;
  KvMatrix keys_, values_;
};

// Lays out rows that are stored unpacked, because keys and values are computed from them at each
// use (latents) or they are entries.
struct KvRowLayout {
  size_t width = 0;
  KvType type = KvType::kF32;
  size_t rows = kKeyBlock;
  size_t row_bytes() const {  // bytes of a row, with its scale after the codes
    return (width * kv_bytes(type) + 3) / 4 * 4 + (has_scales(type) ? sizeof(float) : 0);
  }
  size_t block_bytes() const { return (rows * row_bytes() + 63) / 64 * 64; }
  void put(uint8_t* block, size_t row, const float* x) const;
  void get(const uint8_t* block, size_t row, float* x) const;
};

}  // namespace moebius
