// SPDX-License-Identifier: Apache-2.0
// Converts the sequences of a step to the form that recurrent layers take: rows, and addresses of
// states.
#pragma once
#include <vector>

#include "device/cpu/cpu_device.h"
#include "nn/recurrent.h"

namespace moebius {

inline float* state_of(const CpuBlocks& blocks, const KvOffset& place, BlockId id, size_t version) {
  return reinterpret_cast<float*>(blocks.block(place.kind, id) +
                                  version * (blocks.block_bytes(place.kind) / 2) + place.offset);
}

// Returns one entry per sequence. rows: the rows of the whole step. unkept: [sequences, state]
// memory for states that are not stored.
inline std::vector<RecurrentStep> recurrent_steps(Step& step, const Device& device,
                                                  const KvOffset& place,
                                                  const RecurrentShape& shape,
                                                  const RecurrentRows& rows, float* unkept) {
  std::vector<RecurrentStep> steps(step.sequences.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    const StepSequence& s = step.sequences[i];
    const auto& blocks = static_cast<const CpuBlocks&>(s.pool->on(device));
    RecurrentStep& to = steps[i];
    to.rows = {rows.in + s.first_row * shape.in, rows.mixed + s.first_row * shape.mixed,
               rows.out + s.first_row * shape.out};
    to.before = s.states[0].from == kNoBlock
                    ? nullptr
                    : state_of(blocks, place, s.states[0].from, s.states[0].from_version);
    const float* from = to.before;
    for (const StateRun& run : s.states) {
      float* kept = run.to == kNoBlock ? unkept + i * shape.state
                                       : state_of(blocks, place, run.to, run.to_version);
      to.runs.push_back({run.begin, run.end, from, kept});
      from = kept;
      step.kv_bytes += shape.state * sizeof(float);
    }
  }
  return steps;
}

}  // namespace moebius
