// SPDX-License-Identifier: Apache-2.0
// A linear layer as an operation of the CPU device; included by the device's own files only.
#pragma once
#include "device/cpu/cpu_device.h"
#include "device/tap.h"
#include "nn/shortlist.h"

namespace moebius {

class CpuLinear final : public LinearOp {
 public:
  CpuLinear(CpuDevice& device, std::unique_ptr<LinearLayer> layer, ModuleTap* tap = nullptr,
            std::vector<const Module*> modules = {})
      : device_(device), layer_(std::move(layer)), tap_(tap), modules_(std::move(modules)) {}
  size_t in_features() const override { return layer_->in_features(); }
  size_t out_features() const override { return layer_->out_features(); }
  uint64_t packed_bytes() const override { return layer_->packed_bytes(); }
  void forward(Step& step, const RowSet& x, const RowSet& y) const override;
  bool forward_few(Step& step, const RowSet& x, const RowSet& y,
                   std::span<const ListTokens* const> wanted) const override;
  // Makes forward_few() possible, by a copy of the weights.
  void add_shortlist();
  const LinearLayer& layer() const { return *layer_; }

 private:
  CpuDevice& device_;
  std::unique_ptr<LinearLayer> layer_;
  std::unique_ptr<Shortlist> shortlist_;  // null: there is none
  ModuleTap* tap_;
  std::vector<const Module*> modules_;  // modules whose input the tap receives
};

}  // namespace moebius
