// SPDX-License-Identifier: Apache-2.0
// Receives the rows that a model's modules read while steps run: for calibration, and for comparing
// two models. Rows come in the order of the step, on the thread that runs it. Only the CPU's
// devices support it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace moebius {

struct Module;
struct MoeBlock;

struct TappedRows {
  const float* x = nullptr;  // row r begins at x + r * stride
  size_t rows = 0, cols = 0, stride = 0;
};

class ModuleTap {
 public:
  virtual ~ModuleTap() = default;
  // Called with the input rows of one or more modules that are multiplied together.
  virtual void linear(std::span<const Module* const> modules, const TappedRows& x) = 0;
  // Called with the input of a mixture of experts and the experts of each row, [rows, slots] (-1:
  // none); ids is empty for a dense MLP.
  virtual void block(const MoeBlock& block, const TappedRows& x, std::span<const int32_t> ids,
                     size_t slots) = 0;
};

}  // namespace moebius
