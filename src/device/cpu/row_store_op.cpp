// SPDX-License-Identifier: Apache-2.0
// Implements rows kept in blocks as an operation of the CPU.
#include <algorithm>

#include "device/cpu/block_addresses.h"

namespace moebius {
namespace {

class CpuRowStore final : public RowStoreOp {
 public:
  CpuRowStore(CpuDevice& device, size_t width, KvOffset place)
      : device_(device), layout_{width, kv_type_of(device.options().type)}, place_(place) {}
  void write(Step& step, const RowSet& x) const override {
    device_.run(step, [this, &step, x] {
      const float* rows = device_.at(step, x);
      blocks_.gather(step, device_, place_);
      for (size_t i = 0; i < step.sequences.size(); ++i)
        put_rows(layout_, step.sequences[i], blocks_.of(i), rows, x.stride);
    });
  }
  void read_before(Step& step, const RowSet& y) const override {
    device_.run(step, [this, &step, y] {
      float* rows = device_.at(step, y);
      blocks_.gather(step, device_, place_);
      for (size_t i = 0; i < step.sequences.size(); ++i) {
        const StepSequence& s = step.sequences[i];
        for (size_t t = 0; t < s.tokens; ++t) {
          float* row = rows + (s.first_row + t) * y.stride;
          const size_t at = s.position + t;
          if (at == 0)
            std::fill_n(row, y.cols, 0.0f);
          else
            layout_.get(blocks_.of(i)[(at - 1) / kBlockTokens], (at - 1) % kBlockTokens, row);
        }
      }
    });
  }

 private:
  CpuDevice& device_;
  KvRowLayout layout_;
  KvOffset place_;
  mutable BlockAddresses blocks_;  // blocks of the current call
};

}  // namespace

std::unique_ptr<RowStoreOp> CpuDevice::row_store(size_t width, KvOffset place) {
  return std::make_unique<CpuRowStore>(*this, width, place);
}

}  // namespace moebius
