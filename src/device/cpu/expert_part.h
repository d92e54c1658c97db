// SPDX-License-Identifier: Apache-2.0
// Runs the CPU's experts of a layer whose experts are divided between CPU and GPU. They return one
// row for each token that uses one of them; the other device adds these rows to its own, in the
// order of a single device. If all experts are on the CPU, rows are added up here in the same
// order.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "device/cpu/layer_loader.h"

namespace moebius {

LayerOptions on_cpu(const CpuDevice& device, const LayerLoadOptions& options);

class CpuExpertPart {
 public:
  // expert_of: [places] the expert in each place; the first `elsewhere` places are on the other
  // device. Throws Error if a layer cannot be loaded.
  CpuExpertPart(CpuDevice& device, const Checkpoint& checkpoint, const MoeBlock& block,
                const LayerLoadOptions& options, std::vector<uint32_t> expert_of, size_t elsewhere);
  size_t hidden() const { return layer_.experts->spec().hidden; }
  uint64_t packed_bytes() const { return layer_.experts->packed_bytes(); }
  bool exact() const { return exact_; }  // true: results have the bytes of the reference
  std::span<const uint32_t> expert_of() const { return expert_of_; }
  bool adds() const { return elsewhere_ == 0; }  // true: run() returns one finished row per token

  // Computes at[tokens, slots] from ids[tokens, slots]: the index of each slot's row in the result
  // of run(), or -1 if its expert is on the other device. Returns the number of rows.
  size_t place_items(std::span<const int32_t> ids, std::span<int32_t> at) const;
  // Computes rows of experts. x: [tokens, hidden], at most kPieceRows tokens; ids and weights:
  // [tokens, slots]. place(numbers) is called once and returns memory for the result, [rows,
  // hidden] floats. Takes turns with other operations of the device.
  using RowColumns = FunctionRef<float*(size_t numbers)>;
  void run(std::span<const float> x, std::span<const int32_t> ids, std::span<const float> weights,
           RowColumns place) const;

  // Move experts between places (DividedExperts). pack() packs experts for new places, from any
  // thread, while steps run; place() makes them current, between steps. Packed: [local] null: the
  // place keeps its expert.
  using Packed = std::vector<std::unique_ptr<MoeLayer::StagedExpert>>;
  Packed pack(std::span<const uint32_t> expert_of) const;
  void place(std::vector<uint32_t> expert_of, Packed packed);

 private:
  void index_places();
  CpuDevice& device_;
  size_t elsewhere_;
  std::vector<uint32_t> expert_of_;
  bool exact_;
  MoeBlockLayer layer_;
  std::vector<int32_t> local_of_;  // [experts] local index, -1: on the other device
};

}  // namespace moebius
