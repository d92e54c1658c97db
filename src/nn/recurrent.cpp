// SPDX-License-Identifier: Apache-2.0
#include "nn/recurrent.h"

#include <algorithm>

namespace moebius {
namespace {

// Calls f(step, token) for every token; members share the tokens.
template <class F>
void each_token(std::span<const RecurrentStep> steps, WorkCounter& next, F f) {
  size_t first = 0, i = 0;  // first token and index of the current step
  for (size_t t = next.take();; t = next.take()) {
    while (i < steps.size() && t - first >= steps[i].tokens()) first += steps[i++].tokens();
    if (i == steps.size()) return;
    f(steps[i], t - first);
  }
}

}  // namespace

void scan_run(const RecurrentRun& run, size_t at, RowScan head) noexcept {
  for (TokenRows* rows : {&head.decay, &head.gain, &head.key, &head.value, &head.query})
    rows->first += run.begin * rows->stride;
  head.y += run.begin * head.y_stride;
  head.tokens = run.end - run.begin;
  head.from = run.from == nullptr ? nullptr : run.from + at;
  head.to = run.to + at;
  row_functions().scan(head);
}

void Recurrent::apply_convolution(const RecurrentRows& r, const float* from, size_t t,
                                  float* y) const noexcept {
  const Convolution& c = convolution_;
  c.of.apply((c.of_mixed ? r.mixed : r.in) + c.column, c.of_mixed ? shape_.mixed : shape_.in,
             from == nullptr ? nullptr : from + c.state_at, t, y);
}

void Recurrent::keep(const RecurrentRows& r, const RecurrentRun& run,
                     const float* from) const noexcept {
  const Convolution& c = convolution_;
  c.of.keep((c.of_mixed ? r.mixed : r.in) + c.column, c.of_mixed ? shape_.mixed : shape_.in,
            from == nullptr ? nullptr : from + c.state_at, run.end, run.to + c.state_at);
}

void run_steps(const Recurrent& net, std::span<const RecurrentStep> steps, ThreadPool& pool) {
  const size_t heads = net.shape().heads;
  WorkCounter next_row, next_head, next_out;
  pool.run([&](ThreadPool::Member& me) {
    each_token(steps, next_row,
               [&](const RecurrentStep& s, size_t t) { net.convolve(s.rows, s.before, t); });
    me.barrier();
    for (size_t i = next_head.take(); i < steps.size() * heads; i = next_head.take())
      net.scan(steps[i / heads].rows, steps[i / heads].runs, i % heads);
    me.barrier();
    each_token(steps, next_out,
               [&](const RecurrentStep& s, size_t t) { net.finish(s.rows, s.before, t); });
  });
  for (const RecurrentStep& s : steps)
    for (const RecurrentRun& run : s.runs) net.keep(s.rows, run, s.before);
}

}  // namespace moebius
