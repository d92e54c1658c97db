// SPDX-License-Identifier: Apache-2.0
// Layers that replace attention and read a sequence token by token through a state of fixed size:
// linear attention, Mamba-2, short convolutions. The state after token t is a function of tokens 0
// to t alone: there is one order of operations, in prompts as in decode, however a prompt is cut.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "kernels/row_functions.h"
#include "nn/short_convolution.h"
#include "runtime/thread_pool.h"

namespace moebius {

// Counts the floats of a recurrent layer: in a row, and in a sequence's state.
struct RecurrentShape {
  size_t in = 0;     // columns of the input projections
  size_t mixed = 0;  // columns of intermediate results after the convolution
  size_t out = 0;    // columns that the output projection reads
  // Number of parts of the state that can be advanced by different threads; 0: the layer is only a
  // convolution.
  size_t heads = 0;
  size_t state = 0;
};

// Views the rows of one sequence in one step.
struct RecurrentRows {
  const float* in;  // [T, in] results of the input projections
  float* mixed;     // [T, mixed] intermediate results
  float* out;       // [T, out] receives results
};

// A run: tokens [begin, end) of the rows, and the memory of the state before and after them. `from`
// null: the sequence begins. A step is a list of consecutive runs, each starting from the state
// `to` of the one before.
struct RecurrentRun {
  size_t begin, end;
  const float* from;
  float* to;
};

// Advances the state of one head, which begins at float `at`, over the tokens of `run`. `head`
// points to the decay, gain, key, value, query and result of the head in row 0 of the step.
void scan_run(const RecurrentRun& run, size_t at, RowScan head) noexcept;

class Recurrent;

// One sequence in a step: its rows, the state before them, and its runs of tokens.
struct RecurrentStep {
  RecurrentRows rows;
  const float* before;
  std::vector<RecurrentRun> runs;

  size_t tokens() const { return runs.empty() ? 0 : runs.back().end; }
};
// Runs all sequences on the threads of a pool: first convolve() per token, then scan() per head,
// then finish() per token.
void run_steps(const Recurrent& net, std::span<const RecurrentStep> steps, ThreadPool& pool);

class Recurrent {
 public:
  explicit Recurrent(const RecurrentShape& shape) : shape_(shape) {}
  virtual ~Recurrent() = default;
  const RecurrentShape& shape() const { return shape_; }

  // arranges() is true if projections give rows in another order than `in`; arrange() reorders one
  // row.
  virtual bool arranges() const { return false; }
  virtual void arrange(const float* /*projected*/, float* /*in*/) const noexcept {}
  // Compute a step. They are called in this order, each many times; calls of one function may run
  // on any threads at once. `from`: the state before the step. Layers override what they need.
  virtual void convolve(const RecurrentRows& /*r*/, const float* /*from*/,
                        size_t /*t*/) const noexcept {}
  virtual void scan(const RecurrentRows& /*r*/, std::span<const RecurrentRun> /*runs*/,
                    size_t /*head*/) const noexcept {}
  virtual void finish(const RecurrentRows& r, const float* from, size_t t) const noexcept = 0;
  // Writes the state of the convolution after `run`. Called serially, once per run.
  virtual void keep(const RecurrentRows& r, const RecurrentRun& run,
                    const float* from) const noexcept;

 protected:
  // Convolution of a layer; without channels where it has none.
  struct Convolution {
    ShortConvolution of;
    size_t column = 0;      // first convolved column
    size_t state_at = 0;    // first float of its state within the layer's
    bool of_mixed = false;  // true: reads rows of `mixed`; false: of `in`
  };
  // Computes row t of the convolution.
  void apply_convolution(const RecurrentRows& r, const float* from, size_t t,
                         float* y) const noexcept;
  Convolution convolution_;

 private:
  RecurrentShape shape_;
};

}  // namespace moebius
