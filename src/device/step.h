// SPDX-License-Identifier: Apache-2.0
// A step as devices see it: which rows belong to which sequence, at which positions, in which blocks.
// Numbers only.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/kv.h"

namespace moebius {

// Where the time of steps went, in nanoseconds.
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

// Tokens [begin, end) of a sequence's part of the step, and the blocks that hold the state before and
// after them. `from` of the first: kNoBlock where the sequence begins; of the others it is what the
// one before gave. `to` kNoBlock: nobody asks for it later.
struct StateRun {
  size_t begin, end;
  BlockId from, to;
  size_t from_version, to_version;
};

struct StepSequence {
  const BlockTables* tables;
  const KvPool* pool;  // the memory that the numbers are of
  size_t position;     // of the first token
  size_t tokens;
  size_t first_row;
  std::vector<StateRun> states;
};

// Outlives the operations that it is given to (Device::wait).
struct Step {
  size_t queue = 0;  // of steps that are under way at the same time each has its own
  size_t rows = 0;
  size_t longest = 0;  // of its sequences, with the tokens of the step
  std::vector<StepSequence> sequences;
  // [rows]; the length is that of the row's sequence.
  std::vector<int32_t> tokens;
  std::vector<size_t> positions, lengths;
  // What the operations that follow are for.
  Phase phase = Phase::kEmbedding;
  using Clock = std::chrono::steady_clock;
  Clock::time_point ended{};  // the last operation that ran at once
  // Written by operations; whole when the step was waited for.
  std::atomic<uint64_t> kv_bytes{0};  // read by attention
  std::array<std::atomic<uint64_t>, static_cast<size_t>(Phase::kCount)> times{};
};

}  // namespace moebius
