// SPDX-License-Identifier: Apache-2.0
// Holds figures about an engine: of the last step and since the start. Plain values: another thread
// may read a snapshot while the next step runs.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/backend.h"

namespace moebius {

struct StepFigures {
  size_t prompt_rows = 0, decode_rows = 0;
  size_t batch = 0;  // number of sequences in the step
  // Times of the step: of the forward pass, of sampling after it, and of the engine's own work
  // around both.
  uint64_t nanoseconds = 0, sampling_nanoseconds = 0, other_nanoseconds = 0;
  double predicted_nanoseconds = 0;  // time predicted for the forward pass; 0: not known yet
  StepStats backend;                 // measured by the backend: phases, bytes, rows of experts

  double seconds() const {
    return static_cast<double>(nanoseconds + sampling_nanoseconds + other_nanoseconds) * 1e-9;
  }
};

struct KvFigures {
  // Bytes of the KV budget; of blocks that running sequences own; of those that the cache alone
  // owns.
  uint64_t budget = 0, used = 0, cached = 0;
  // blocks_free: blocks of every kind that the rest of the budget holds.
  size_t blocks_used = 0, blocks_cached = 0, blocks_free = 0;
  size_t tails = 0;
};

// Counters of a prompt cache on disk (KvDisk), since the start unless noted.
struct KvDiskFigures {
  // Number and bytes of files in the folder now, as far as this process knows.
  uint64_t files = 0, bytes = 0;
  uint64_t read_files = 0, read_bytes = 0, written_files = 0, written_bytes = 0;
  uint64_t dropped = 0;  // files not written because the disk was behind, full, or failed
  uint64_t evicted = 0;  // files removed to make room for others
  uint64_t damaged = 0;  // files found damaged, and removed
};

struct EngineSnapshot {
  uint64_t steps = 0, failed_steps = 0;
  uint64_t prompt_tokens = 0, cached_tokens = 0, new_tokens = 0;
  uint64_t recomputed_tokens = 0;  // tokens computed a second time, after a preemption
  uint64_t drafts = 0;             // number of times that a sequence had drafts in a step
  uint64_t drafted_tokens = 0;
  // [i] drafts that were right at place i after the last token.
  std::array<uint64_t, 16> drafts_right{};
  uint64_t prefix_queries = 0, prefix_hits = 0;
  uint64_t preemptions = 0, evictions = 0;
  std::array<uint64_t, 6> finished{};  // by Finish: engine.h checks their number
  size_t running = 0, waiting = 0;
  Profile phases{};
  uint64_t step_nanoseconds = 0, sampling_nanoseconds = 0, other_nanoseconds = 0;
  uint64_t weight_bytes = 0, kv_bytes_read = 0;
  std::vector<uint64_t> expert_rows;  // as in StepStats, summed over steps
  KvFigures kv;
  KvDiskFigures disk;
  uint64_t disk_tokens = 0;  // prompt tokens that were read from disk
  StepFigures last;
};

}  // namespace moebius
