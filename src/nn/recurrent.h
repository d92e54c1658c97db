// SPDX-License-Identifier: Apache-2.0
// A layer that reads a sequence token by token through a state of fixed size, in place of attention:
// linear attention, Mamba-2, short convolutions. The state after token t is a function of tokens 0 to
// t alone: there is one order of operations, in prompts as in decode, however a prompt is cut.
#pragma once
#include <cstddef>
#include <span>

namespace moebius {

// Floats per row, and of a sequence's state.
struct RecurrentShape {
  size_t in = 0;     // what the input projections give
  size_t mixed = 0;  // room for what comes of the convolution
  size_t out = 0;    // what the output projection reads
  size_t heads = 0;  // parts of the state that advance apart; 0: the convolution is all
  size_t state = 0;
};

// Rows of one sequence in one step.
struct RecurrentRows {
  const float* in;  // [T, in]
  float* mixed;     // [T, mixed]
  float* out;       // [T, out]
};

// Tokens [begin, end) of the rows, and where the state before and after them lies. `from` null: a
// sequence begins. A step is some of these in a row, each from the `to` of the one before.
struct RecurrentRun {
  size_t begin, end;
  const float* from;
  float* to;
};

// The part of the state at float `at` as it is before the run, in the memory of `run.to`.
float* begin_run(const RecurrentRun& run, size_t at, size_t floats) noexcept;
// One token of a state S [rows, width]: S = S * decay + b x, y = c S, in ascending rows.
void advance_state(float* S, size_t rows, size_t width, float decay, const float* b, const float* x,
                   const float* c, float* y) noexcept;

class Recurrent {
 public:
  explicit Recurrent(const RecurrentShape& shape) : shape_(shape) {}
  virtual ~Recurrent() = default;
  const RecurrentShape& shape() const { return shape_; }

  // Whether projections give a row in another order than `in` has, and the row in that order.
  virtual bool arranges() const { return false; }
  virtual void arrange(const float* /*projected*/, float* /*in*/) const noexcept {}
  // In this order; calls of one kind may run on any threads. `from`: the state before the step.
  virtual void convolve(const RecurrentRows& r, const float* from, size_t t) const noexcept = 0;
  virtual void scan(const RecurrentRows& r, std::span<const RecurrentRun> runs,
                    size_t head) const noexcept = 0;
  virtual void finish(const RecurrentRows& r, const float* from, size_t t) const noexcept = 0;
  // What the convolution of the next token needs; serial, per run.
  virtual void keep(const RecurrentRows& r, const RecurrentRun& run,
                    const float* from) const noexcept = 0;

 private:
  RecurrentShape shape_;
};

}  // namespace moebius
