// SPDX-License-Identifier: Apache-2.0
// Makes sequences whose context was never computed: their blocks hold random keys and values, to
// time decoding after many tokens.
#pragma once
#include <vector>

#include "model/backend.h"

namespace moebius {

class InventedContext {
 public:
  // Makes `batch` sequences of `depth` tokens, with blocks for `steps` more. Throws Error if the
  // backend does not support writing blocks.
  InventedContext(Backend& backend, size_t batch, size_t depth, size_t steps);
  ~InventedContext();
  InventedContext(const InventedContext&) = delete;
  InventedContext& operator=(const InventedContext&) = delete;
  // Runs one token of every sequence.
  void step(std::span<const std::vector<int32_t>> tokens, StepOutput& out);

 private:
  Backend& backend_;
  std::vector<BlockTables> tables_;
  size_t length_;
};

}  // namespace moebius
