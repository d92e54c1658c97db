// SPDX-License-Identifier: Apache-2.0
// The CPU's experts of a divided layer, whose others lie on another device. They give rows, one for every
// token that meets one of them; the other device adds these to its own, in the order of a single device. Where
// all experts are here, rows are added up here, in the same order.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "device/cpu/layer_loader.h"

namespace moebius {

LayerOptions on_cpu(const CpuDevice& device, const LoadOptions& options);

class CpuExpertPart {
 public:
  // expert_of: what every place holds, the first `elsewhere` on the other device.
  CpuExpertPart(CpuDevice& device, const Checkpoint& checkpoint, const MoeBlock& block,
                const LoadOptions& options, std::vector<uint32_t> expert_of, size_t elsewhere);
  size_t hidden() const { return layer_.experts->spec().hidden; }
  uint64_t packed_bytes() const { return layer_.experts->packed_bytes(); }
  bool exact() const { return exact_; }  // its experts have the bytes of the reference
  std::span<const uint32_t> expert_of() const { return expert_of_; }
  bool adds() const { return elsewhere_ == 0; }  // one row for every token

  // Where the rows of items lie among those that run() gives; -1: the item's expert is not here. ids and
  // at: [tokens, slots]. Returns the number of rows.
  size_t place_items(std::span<const int32_t> ids, std::span<int32_t> at) const;
  // x: [tokens, hidden], at most kPieceRows; ids and weights: [tokens, slots]. place(numbers): memory for
  // [rows, hidden] of that size; it is asked for once. Takes its turn with the other operations of the device.
  using RowPlace = FunctionRef<float*(size_t numbers)>;
  void run(std::span<const float> x, std::span<const int32_t> ids, std::span<const float> weights,
           RowPlace place) const;

  // Experts that come and go (DividedExperts), where some are elsewhere: packed by any thread, placed between
  // calls.
  using Packed = std::vector<std::unique_ptr<MoeLayer::StagedExpert>>;  // [local], null: it stays
  Packed pack(std::span<const uint32_t> expert_of) const;
  void place(std::vector<uint32_t> expert_of, Packed packed);

 private:
  void index_places();
  CpuDevice& device_;
  size_t elsewhere_;
  std::vector<uint32_t> expert_of_;
  bool exact_;
  MoeBlockLayer layer_;
  std::vector<int32_t> local_of_;  // [experts] -1: elsewhere
};

}  // namespace moebius
