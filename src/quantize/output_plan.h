// SPDX-License-Identifier: Apache-2.0
// The folder that will be written, before anything is read: every tensor with its place, and the
// work that fills it. Tensors stand in the order of layers; in a file those whose size is no multiple
// of 8 come last, so that all others are aligned. Nothing here depends on threads or memory.
#pragma once
#include <deque>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "quantize/selection.h"

namespace moebius {

struct PlannedTensor {
  TensorInfo info;  // offset: in its file, header included
  size_t shard = 0;
};

struct WorkUnit {
  enum class Kind : uint8_t {
    kCopy,     // bytes of a source tensor, or a stretch of them
    kConvert,  // the same as numbers of another type
    kDecode,   // a native FP8 matrix that stays unquantized, as bf16
    kBias,     // of one expert of a fused tensor
    kEncode,   // modules; several where they share a global scale
  };
  Kind kind = Kind::kCopy;
  const TensorInfo* tensor = nullptr;  // kCopy
  uint64_t begin = 0, count = 0;       // kCopy, kConvert: bytes that are written
  std::vector<const Module*> modules;  // of the others
  Scheme scheme;                       // kEncode
  DType dtype = DType::kU8;            // kBias: as it is written
  std::vector<size_t> outputs;         // tensors of the plan, module after module
  int layer = -1, expert = -1;
  uint64_t source_bytes = 0, memory = 0;  // memory: while it runs
};

struct OutputPlan {
  std::vector<PlannedTensor> tensors;
  struct Shard {
    std::string name, header;
    uint64_t bytes = 0;  // of the file
    std::vector<WorkUnit> units;
  };
  std::vector<Shard> shards;
  bool index = false;  // model.safetensors.index.json is written
  uint64_t source_bytes = 0, output_bytes = 0, parameters = 0;
  uint64_t chosen_bytes = 0, chosen_weights = 0;  // what is quantized: bytes made, numbers
  uint64_t unit_memory = 0;                       // of the largest unit
  std::deque<Module> decoded;                     // FP8 matrices of parts that are not run
};

// How units work: what their memory is.
struct UnitWork {
  std::optional<XType> type;  // of what is written; none: the source's
  bool searched = false;      // codes and scales of a module are kept while the best are looked for
  bool gptq = false;        // modules that are loaded as one matrix are one unit: same rows, same H
  bool calibrated = false;  // inputs of a down projection are made from gate and up
};
OutputPlan plan_output(const Checkpoint& source, const Selection& selection, uint64_t shard_bytes,
                       const UnitWork& work = {});

}  // namespace moebius
