// SPDX-License-Identifier: Apache-2.0
// Implements rows of a table by hashed n-grams as an operation of the CPU. The table stays in its
// files.
#include "device/cpu/recurrent_steps.h"
#include "kernels/prepared_rows.h"

namespace moebius {
namespace {

class CpuNGrams final : public NGramOp {
 public:
  CpuNGrams(CpuDevice& device, NGramRequest r)
      : device_(device),
        hash_(std::move(r.hash)),
        context_(hash_.size, r.eos),
        table_(std::move(r.table)),
        place_(r.place) {}

  void prefetch(Step& step) const override {
    device_.run(step, [this, &step] {
      find_rows(step, false);
      for (const int64_t id : ids_) table_->will_need(static_cast<uint64_t>(id));
    });
  }
  void forward(Step& step, const RowSet& y) const override {
    device_.run(step, [this, &step, y] {
      find_rows(step, true);
      float* rows = device_.at(step, y);
      const size_t heads = hash_.sizes.size(), width = table_->width();
      device_.for_rows(y.rows, heads * width, [&](size_t t) {
        float* row = rows + t * y.stride;
        for (size_t h = 0; h < heads; ++h)
          table_->read(static_cast<uint64_t>(ids_[t * heads + h]), row + h * width);
        round_to(device_.options().type, row, heads * width);
      });
      table_->check(ids_);
    });
  }

 private:
  // Fills ids_ with the table rows of the step's tokens. A second call in a step gives equal ids,
  // because what the first one kept is read by later steps only.
  void find_rows(Step& step, bool keeps) const {
    const RecurrentShape& shape = context_.shape();
    const size_t heads = hash_.sizes.size(), n = hash_.size;
    tokens_.assign(step.tokens.begin(), step.tokens.end());
    contexts_.resize(step.rows * n), ids_.resize(step.rows * heads);
    unkept_.resize(step.sequences.size() * shape.state);
    for (const RecurrentStep& s :
         recurrent_steps(step, device_, place_, shape, {tokens_.data(), nullptr, contexts_.data()},
                         unkept_.data())) {
      for (size_t t = 0; t < s.tokens(); ++t) context_.finish(s.rows, s.before, t);
      for (const RecurrentRun& run : s.runs)
        if (keeps) context_.keep(s.rows, run, s.before);
    }
    std::vector<int64_t> tokens(n);
    for (size_t t = 0; t < step.rows; ++t) {
      for (size_t s = 0; s < n; ++s) tokens[s] = static_cast<int64_t>(contexts_[t * n + s]);
      hash_.ids(tokens.data(), ids_.data() + t * heads);
    }
  }

  CpuDevice& device_;
  NGramHash hash_;
  TokenContext context_;
  std::unique_ptr<const RowTable> table_;
  KvOffset place_;
  mutable std::vector<float> tokens_, contexts_, unkept_;  // buffers of the current call
  mutable std::vector<int64_t> ids_;
};

}  // namespace

std::unique_ptr<NGramOp> CpuDevice::ngrams(NGramRequest request) {
  return std::make_unique<CpuNGrams>(*this, std::move(request));
}

}  // namespace moebius
