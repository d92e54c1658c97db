// SPDX-License-Identifier: Apache-2.0
// Sequences whose context was never computed: blocks of random keys and values, for the time of decode
// behind many tokens.
#pragma once
#include <vector>

#include "model/backend.h"

namespace moebius {

class InventedContext {
 public:
  // `batch` sequences behind `depth` tokens, with blocks for `steps` more. Throws Error where a backend
  // keeps its blocks to itself.
  InventedContext(Backend& backend, size_t batch, size_t depth, size_t steps);
  ~InventedContext();
  InventedContext(const InventedContext&) = delete;
  InventedContext& operator=(const InventedContext&) = delete;
  // A token of every sequence.
  void step(std::span<const std::vector<int32_t>> tokens, StepOutput& out);

 private:
  Backend& backend_;
  std::vector<BlockTables> tables_;
  size_t length_;
};

}  // namespace moebius
