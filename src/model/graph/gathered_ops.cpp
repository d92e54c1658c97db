// SPDX-License-Identifier: Apache-2.0
#include "model/graph/gathered_ops.h"

#include "device/device.h"
#include "model/graph/graph.h"

namespace moebius {
namespace {

// Gathers all columns into `whole`; `part` has this rank's.
void gather(Step& step, Ranks& ranks, XType type, const std::vector<Range>& columns,
            const RowSet& part, const RowSet& whole, const char* what, size_t layer) {
  const Phase phase = step.phase;
  step.phase = Phase::kExchange;
  part.device->on_host(step, part, whole, [&](HostRows mine, HostRows all) {
    ranks.gather(type, mine.data, columns, all.data, whole.cols, part.rows, what,
                 static_cast<int>(layer));
  });
  step.phase = phase;
}

class GatheredOutput final : public LinearOp {
 public:
  GatheredOutput(std::unique_ptr<LinearOp> op, Ranks& ranks, std::vector<Range> values,
                 std::vector<Range> columns, XType type, size_t layer)
      : op_(std::move(op)),
        ranks_(ranks),
        values_(std::move(values)),
        columns_(std::move(columns)),
        type_(type),
        layer_(layer) {}
  size_t in_features() const override { return values_[ranks_.member()].size(); }
  size_t out_features() const override { return columns_.back().end; }
  uint64_t packed_bytes() const override { return op_->packed_bytes(); }
  void forward(Step& step, const RowSet& x, const RowSet& y) const override {
    const RowSet all = x.device->rows(step, kGathered, op_->in_features(), type_),
                 part = x.device->rows(step, kPart, op_->out_features(), type_);
    gather(step, ranks_, type_, values_, x, all, "attended values", layer_);
    op_->forward(step, all, part);
    gather(step, ranks_, type_, columns_, part, y, "output of attention", layer_);
  }

 private:
  std::unique_ptr<LinearOp> op_;
  Ranks& ranks_;
  std::vector<Range> values_, columns_;
  XType type_;
  size_t layer_;
};

class GatheredExperts final : public ExpertsOp {
 public:
  GatheredExperts(std::unique_ptr<ExpertsOp> op, Ranks& ranks, std::vector<Range> columns,
                  XType type, size_t layer, const char* what)
      : op_(std::move(op)),
        ranks_(ranks),
        columns_(std::move(columns)),
        type_(type),
        layer_(layer),
        what_(what) {}
  const ExpertsFacts& facts() const override { return op_->facts(); }
  MoeBlockLayer* movable() override { return op_->movable(); }
  void forward(Step& step, const RowSet& x, const RowSet& logits, const RowSet& y,
               std::span<uint32_t> counts) const override {
    const RowSet part = x.device->rows(step, kPart, op_->facts().outputs, type_);
    op_->forward(step, x, logits, part, counts);
    gather(step, ranks_, type_, columns_, part, y, what_, layer_);
  }

 private:
  std::unique_ptr<ExpertsOp> op_;
  Ranks& ranks_;
  std::vector<Range> columns_;
  XType type_;
  size_t layer_;
  const char* what_;
};

// Throws Error if the ranks do not hold the same rows.
void compare_rows(Step& step, Ranks& ranks, const RowSet& x) {
  const Phase phase = step.phase;
  step.phase = Phase::kExchange;
  x.device->on_host(step, x, {}, [&](HostRows rows, HostRows) { ranks.compare(rows.data); });
  step.phase = phase;
}

class GatheredLogits final : public LinearOp {
 public:
  GatheredLogits(std::unique_ptr<LinearOp> op, Ranks& ranks, size_t width)
      : op_(std::move(op)),
        ranks_(ranks),
        width_(width),
        cuts_(output_ranges(width, ranks.members(), "logits")) {}
  size_t in_features() const override { return op_->in_features(); }
  size_t out_features() const override { return width_; }
  uint64_t packed_bytes() const override { return op_->packed_bytes(); }
  void forward(Step& step, const RowSet& x, const RowSet& y) const override {
    const RowSet part = x.device->rows(step, kPart, x.rows, op_->out_features(), XType::kF32);
    op_->forward(step, x, part);
    compare_rows(step, ranks_, x);
    const Phase phase = step.phase;
    step.phase = Phase::kExchange;
    x.device->on_host(step, part, y, [&](HostRows mine, HostRows all) {
      ranks_.gather_first(mine.data, cuts_, all.data, width_, x.rows);
    });
    step.phase = phase;
  }

 private:
  std::unique_ptr<LinearOp> op_;
  Ranks& ranks_;
  size_t width_;
  std::vector<Range> cuts_;
};

class ComparedLogits final : public LinearOp {
 public:
  ComparedLogits(std::unique_ptr<LinearOp> op, Ranks& ranks, size_t width)
      : op_(std::move(op)), ranks_(ranks), width_(width) {}
  size_t in_features() const override { return op_ != nullptr ? op_->in_features() : 0; }
  size_t out_features() const override { return width_; }
  uint64_t packed_bytes() const override { return op_ != nullptr ? op_->packed_bytes() : 0; }
  void forward(Step& step, const RowSet& x, const RowSet& y) const override {
    compare_rows(step, ranks_, x);
    if (op_ != nullptr) op_->forward(step, x, y);
  }

 private:
  std::unique_ptr<LinearOp> op_;  // null: the leader has it
  Ranks& ranks_;
  size_t width_;
};

}  // namespace

std::unique_ptr<LinearOp> gather_output(std::unique_ptr<LinearOp> op, Ranks& ranks,
                                        std::vector<Range> values, std::vector<Range> columns,
                                        XType type, size_t layer) {
  return std::make_unique<GatheredOutput>(std::move(op), ranks, std::move(values),
                                          std::move(columns), type, layer);
}

std::unique_ptr<ExpertsOp> gather_experts(std::unique_ptr<ExpertsOp> op, Ranks& ranks,
                                          std::vector<Range> columns, XType type, size_t layer,
                                          const char* what) {
  return std::make_unique<GatheredExperts>(std::move(op), ranks, std::move(columns), type, layer,
                                           what);
}

std::unique_ptr<LinearOp> gather_logits(std::unique_ptr<LinearOp> op, Ranks& ranks, size_t width) {
  return std::make_unique<GatheredLogits>(std::move(op), ranks, width);
}

std::unique_ptr<LinearOp> compare_logits(std::unique_ptr<LinearOp> op, Ranks& ranks, size_t width) {
  return std::make_unique<ComparedLogits>(std::move(op), ranks, width);
}

}  // namespace moebius
