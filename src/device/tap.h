// SPDX-License-Identifier: Apache-2.0
// Sees the rows that modules of a model read, while its steps run: for calibration, and to compare two
// models. Rows come in the order of the step, on the thread that runs it. The CPU's devices have it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace moebius {

struct Module;
struct MoeBlock;

struct TappedRows {
  const float* x = nullptr;  // row r at x + r * stride
  size_t rows = 0, cols = 0, stride = 0;
};

class ModuleTap {
 public:
  virtual ~ModuleTap() = default;
  // What a product of one or more modules reads.
  virtual void linear(std::span<const Module* const> modules, const TappedRows& x) = 0;
  // What a mixture of experts reads, and the experts of every row [rows, slots] (-1: none); no ids: a
  // dense MLP.
  virtual void block(const MoeBlock& block, const TappedRows& x, std::span<const int32_t> ids,
                     size_t slots) = 0;
};

}  // namespace moebius
