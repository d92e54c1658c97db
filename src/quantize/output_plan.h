// SPDX-License-Identifier: Apache-2.0
// Plans the folder that will be written, before anything is read: every tensor with its place, and
// the work that produces it. Tensors are in the order of layers; in a file, those whose size is not
// a multiple of 8 come last, so that the others are aligned. The plan does not depend on threads or
// memory.
#pragma once
#include <deque>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "quantize/selection.h"

namespace moebius {

struct PlannedTensor {
  TensorInfo info;  // its offset counts from the beginning of its file, header included
  size_t shard = 0;
};

struct WorkUnit {
  enum class Kind : uint8_t {
    kCopy,     // copies bytes of a source tensor, or a range of them
    kConvert,  // copies numbers, converted to another type
    kDecode,   // decodes a native FP8 matrix that stays unquantized to bf16
    kBias,     // copies the bias of one expert of a fused tensor
    kEncode,   // quantizes modules; several if they share a global scale
  };
  Kind kind = Kind::kCopy;
  const TensorInfo* tensor = nullptr;  // source tensor, for kCopy and kConvert
  uint64_t begin = 0, count = 0;       // for kCopy and kConvert: bytes that are written
  std::vector<const Module*> modules;  // modules to write, for the other kinds
  Scheme scheme;                       // scheme to encode to, for kEncode
  DType dtype = DType::kU8;            // for kBias: type in the output
  std::vector<size_t> outputs;         // indices of the plan's tensors, module after module
  int layer = -1, expert = -1;
  uint64_t source_bytes = 0, memory = 0;  // memory: bytes needed while the unit runs
};

struct OutputPlan {
  std::vector<PlannedTensor> tensors;
  struct Shard {
    std::string name, header;
    uint64_t bytes = 0;  // bytes of the whole file
    std::vector<WorkUnit> units;
  };
  std::vector<Shard> shards;
  bool index = false;  // true: model.safetensors.index.json is written
  uint64_t source_bytes = 0, output_bytes = 0, parameters = 0;
  // Sums over quantized modules: bytes written, number of weights.
  uint64_t chosen_bytes = 0, chosen_weights = 0;
  uint64_t unit_memory = 0;    // largest memory of a unit
  std::deque<Module> decoded;  // FP8 matrices of parts that are not run
};

// Properties of units of work on which their memory depends.
struct UnitWork {
  std::optional<XType> type;  // type of the output; none: the source's
  // true: scales are searched, so codes and scales of a module are kept meanwhile
  bool searched = false;
  // true: modules that are loaded as one matrix are one unit, because they read the same rows and
  // share H
  bool gptq = false;
  bool calibrated = false;  // true: inputs of a down projection are computed from gate and up
};
OutputPlan plan_output(const Checkpoint& source, const Selection& selection, uint64_t shard_bytes,
                       const UnitWork& work = {});

}  // namespace moebius
