// SPDX-License-Identifier: Apache-2.0
#include "model/graph/gathered_ops.h"

#include <functional>

#include "device/device.h"
#include "model/graph/graph.h"

namespace moebius {
namespace {

// Runs an exchange between ranks, whose time is counted apart.
template <class F>
void exchange(Step& step, F run) {
  const Phase phase = step.phase;
  step.phase = Phase::kExchange;
  run();
  step.phase = phase;
}

// Gathers all columns into `whole`; `part` has this rank's.
void gather(Step& step, Ranks& ranks, XType type, const std::vector<Range>& columns,
            const RowSet& part, const RowSet& whole, const char* what, size_t layer) {
  exchange(step, [&] {
    part.device->on_host(step, part, whole, [&](HostRows mine, HostRows all) {
      ranks.gather(type, mine.data, columns, all.data, whole.cols, part.rows, what,
                   static_cast<int>(layer));
    });
  });
}

// Wraps a projection in an exchange.
class ExchangedLinear final : public LinearOp {
 public:
  using Forward = std::function<void(const LinearOp*, Step&, const RowSet& x, const RowSet& y)>;
  ExchangedLinear(std::unique_ptr<LinearOp> op, size_t in, size_t out, Forward forward)
      : op_(std::move(op)), in_(in), out_(out), forward_(std::move(forward)) {}
  size_t in_features() const override { return in_; }
  size_t out_features() const override { return out_; }
  uint64_t packed_bytes() const override { return op_ != nullptr ? op_->packed_bytes() : 0; }
  void forward(Step& step, const RowSet& x, const RowSet& y) const override {
    forward_(op_.get(), step, x, y);
  }

 private:
  std::unique_ptr<LinearOp> op_;  // null: the leader has it
  size_t in_, out_;
  Forward forward_;
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
  exchange(step, [&] {
    x.device->on_host(step, x, {}, [&](HostRows rows, HostRows) { ranks.compare(rows.data); });
  });
}

}  // namespace

std::unique_ptr<LinearOp> gather_output(std::unique_ptr<LinearOp> op, Ranks& ranks,
                                        std::vector<Range> values, std::vector<Range> columns,
                                        XType type, size_t layer) {
  const size_t in = values[ranks.member()].size(), out = columns.back().end;
  return std::make_unique<ExchangedLinear>(
      std::move(op), in, out,
      [&ranks, values = std::move(values), columns = std::move(columns), type, layer](
          const LinearOp* own, Step& step, const RowSet& x, const RowSet& y) {
        const RowSet all = x.device->rows(step, kGathered, own->in_features(), type),
                     part = x.device->rows(step, kPart, own->out_features(), type);
        gather(step, ranks, type, values, x, all, "attended values", layer);
        own->forward(step, all, part);
        gather(step, ranks, type, columns, part, y, "output of attention", layer);
      });
}

std::unique_ptr<ExpertsOp> gather_experts(std::unique_ptr<ExpertsOp> op, Ranks& ranks,
                                          std::vector<Range> columns, XType type, size_t layer,
                                          const char* what) {
  return std::make_unique<GatheredExperts>(std::move(op), ranks, std::move(columns), type, layer,
                                           what);
}

std::unique_ptr<LinearOp> gather_logits(std::unique_ptr<LinearOp> op, Ranks& ranks, size_t width) {
  const size_t in = op->in_features();
  return std::make_unique<ExchangedLinear>(
      std::move(op), in, width,
      [&ranks, width, cuts = output_ranges(width, ranks.members(), "logits")](
          const LinearOp* own, Step& step, const RowSet& x, const RowSet& y) {
        const RowSet part = x.device->rows(step, kPart, x.rows, own->out_features(), XType::kF32);
        own->forward(step, x, part);
        compare_rows(step, ranks, x);
        exchange(step, [&] {
          x.device->on_host(step, part, y, [&](HostRows mine, HostRows all) {
            ranks.gather_first(mine.data, cuts, all.data, width, x.rows);
          });
        });
      });
}

std::unique_ptr<LinearOp> compare_logits(std::unique_ptr<LinearOp> op, Ranks& ranks, size_t width) {
  const size_t in = op != nullptr ? op->in_features() : 0;
  return std::make_unique<ExchangedLinear>(
      std::move(op), in, width,
      [&ranks](const LinearOp* own, Step& step, const RowSet& x, const RowSet& y) {
        compare_rows(step, ranks, x);
        if (own != nullptr) own->forward(step, x, y);
      });
}

}  // namespace moebius
