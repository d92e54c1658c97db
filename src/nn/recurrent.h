// SPDX-License-Identifier: Apache-2.0
// A layer that reads a sequence token by token through a state of fixed size, in place of attention:
// linear attention, Mamba-2, short convolutions. The state after token t is a function of tokens 0 to
// t alone: there is one order of operations, in prompts as in decode, however a prompt is cut.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "kernels/row_functions.h"
#include "runtime/thread_pool.h"

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

// The tokens of `run` through the state of a head at float `at`: `head` says where row 0 of the step
// has the head's decay, gain, key, value, query and result.
void scan_run(const RecurrentRun& run, size_t at, RowScan head) noexcept;

class Recurrent;

// One sequence in a step: its rows, the state before them, and its runs.
struct RecurrentStep {
  RecurrentRows rows;
  const float* before;
  std::vector<RecurrentRun> runs;

  size_t tokens() const { return runs.empty() ? 0 : runs.back().end; }
};
// All of them, on the threads of a pool: tokens, then heads, then tokens.
void run_steps(const Recurrent& net, std::span<const RecurrentStep> steps, ThreadPool& pool);

class Recurrent {
 public:
  explicit Recurrent(const RecurrentShape& shape) : shape_(shape) {}
  virtual ~Recurrent() = default;
  const RecurrentShape& shape() const { return shape_; }

  // Whether projections give a row in another order than `in` has, and the row in that order.
  virtual bool arranges() const { return false; }
  virtual void arrange(const float* /*projected*/, float* /*in*/) const noexcept {}
  // In this order; calls of one kind may run on any threads. `from`: the state before the step. Not
  // every layer convolves or scans.
  virtual void convolve(const RecurrentRows& /*r*/, const float* /*from*/,
                        size_t /*t*/) const noexcept {}
  virtual void scan(const RecurrentRows& /*r*/, std::span<const RecurrentRun> /*runs*/,
                    size_t /*head*/) const noexcept {}
  virtual void finish(const RecurrentRows& r, const float* from, size_t t) const noexcept = 0;
  // What the convolution of the next token needs; serial, per run.
  virtual void keep(const RecurrentRows& r, const RecurrentRun& run,
                    const float* from) const noexcept = 0;

 private:
  RecurrentShape shape_;
};

}  // namespace moebius
