// SPDX-License-Identifier: Apache-2.0
// Material for judging kernels: every combination of numbers that a checkpoint can declare
// (scheme_cases), random matrices and rows for it with all the ugly ones (make_case), and memory
// that faults when it is left (GuardedBytes). Used by the kernel test tier; layers, oracle and
// benchmarks may use it too. Everything follows from the seed.
#pragma once
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/kernel.h"
#include "kernels/packed_matrix.h"
#include "quant/reference.h"

namespace moebius::test {

using Rng = std::mt19937_64;

// MOEBIUS_SEED, or a fixed number: tests print it so that a failure can be repeated.
uint64_t test_seed();

// `size` bytes that end at an unmapped page, starting at a multiple of `alignment` (the few bytes
// this leaves at the end, and all those before the start, hold a pattern that damaged() looks for).
class GuardedBytes {
 public:
  explicit GuardedBytes(size_t size, size_t alignment = 64);
  GuardedBytes(GuardedBytes&& other) noexcept;
  GuardedBytes& operator=(GuardedBytes&& other) noexcept;
  ~GuardedBytes();
  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  bool damaged() const;
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  uint8_t* map_ = nullptr;
  size_t mapped_ = 0, usable_ = 0;
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

enum class Columns : uint8_t {
  kRegular,   // groups are runs of block_k columns
  kShuffled,  // act-order: each group has block_k columns, in any order
  kPartial,   // act-order on a slice of K: groups of unequal length, some empty
  kPhase,     // a slice of K that begins inside a group, of N inside a block
};

// What a checkpoint declares about one matrix and its input.
struct SchemeCase {
  std::string name;
  CodeType code = CodeType::kInt4Offset;
  uint8_t bits = 4;
  ScaleType scale = ScaleType::kBf16;
  size_t block_n = 1, block_k = 0;  // block_k 0: one scale per row (block_n 0: one per matrix)
  bool zero_points = false;
  bool offsets = false;
  Lut lut = Lut::kNone;
  size_t super_groups = 1;
  Columns columns = Columns::kRegular;
  bool global_scale = false;
  bool global_multiplies = false;  // ModelOpt's kind
  ActSpec act;
  XType x_type = XType::kF32;
};
std::vector<SchemeCase> scheme_cases();

// A random matrix of a case, in guarded memory, with the values stored for its input.
struct MatrixCase {
  QuantMatrix w;
  ActParams params;
  GuardedBytes codes, scales, zero_points, offsets, super_scales, super_offsets, g_idx;
};
MatrixCase make_matrix(const SchemeCase& scheme, size_t N, size_t K, Rng& rng);

// Rows with outlier channels and, with `ugly`, among them zero, NaN, infinite, huge, tiny and
// one-signed ones, ties included; rounded to the type of x. [M,K] at a stride of ldx, ending at an
// unmapped page.
GuardedBytes make_rows(const SchemeCase& scheme, size_t M, size_t K, size_t ldx, bool ugly,
                       Rng& rng);

}  // namespace moebius::test
