// SPDX-License-Identifier: Apache-2.0
// One step as devices see it: which rows belong to which sequence, at which positions, in which
// blocks. Numbers only.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/kv.h"

namespace moebius {

// Categories of a step's time (Profile: nanoseconds of each).
enum class Phase : uint8_t {
  kEmbedding,
  kNorm,
  kLinear,
  kAttention,
  kMoe,
  kOutput,
  kExchange,
  kCount
};
using Profile = std::array<uint64_t, static_cast<size_t>(Phase::kCount)>;

// A run of tokens [begin, end) of a sequence in the step, and the blocks that hold the recurrent
// state before and after them. `from`: kNoBlock if the sequence begins; of later runs: the `to` of
// the run before. `to`: kNoBlock if the state is not stored.
struct StateRun {
  size_t begin, end;
  BlockId from, to;
  size_t from_version, to_version;
};

struct StepSequence {
  const BlockTables* tables;
  const KvPool* pool;  // pool that the block numbers refer to
  size_t position;     // position of the sequence's first token in the step
  size_t tokens;
  size_t first_row;
  std::vector<StateRun> states;
};

// One step. Must outlive the operations that it is passed to (Device::wait).
struct Step {
  size_t queue = 0;  // steps that run at the same time have different queues
  size_t rows = 0;
  size_t longest = 0;  // longest of its sequences in tokens, including this step's
  std::vector<StepSequence> sequences;
  // [rows] token and position of each row, and the length of its sequence.
  std::vector<int32_t> tokens;
  std::vector<size_t> positions, lengths;
  // Category of the next operations, set by the graph.
  Phase phase = Phase::kEmbedding;
  using Clock = std::chrono::steady_clock;
  Clock::time_point ended{};  // end of the last operation that ran immediately
  // Counters that operations increase; complete after Device::wait.
  std::atomic<uint64_t> kv_bytes{0};  // bytes that attention read
  std::array<std::atomic<uint64_t>, static_cast<size_t>(Phase::kCount)> times{};
};

}  // namespace moebius
