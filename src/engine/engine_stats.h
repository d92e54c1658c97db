// SPDX-License-Identifier: Apache-2.0
// What an engine did: of one step, and in all. Values; another thread may read a snapshot while the
// next step runs.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/kv_disk_figures.h"
#include "model/backend.h"

namespace moebius {

struct StepFigures {
  size_t prompt_rows = 0, decode_rows = 0;
  size_t batch = 0;  // sequences that took part
  uint64_t nanoseconds = 0, sampling_nanoseconds = 0, other_nanoseconds = 0;  // pass; after; around
  double predicted_nanoseconds = 0;  // of the pass; 0: not known yet
  StepStats backend;                 // phases, bytes, rows of experts
};

struct KvFigures {
  uint64_t budget = 0, used = 0, cached = 0;                   // bytes; used: owned by sequences
  size_t blocks_used = 0, blocks_cached = 0, blocks_free = 0;  // free: of every kind, what fits
  size_t tails = 0;
};

struct EngineSnapshot {
  static constexpr size_t kFinishes = 7;
  uint64_t steps = 0, failed_steps = 0;
  uint64_t prompt_tokens = 0, cached_tokens = 0, new_tokens = 0;
  uint64_t recomputed_tokens = 0;  // run again after a preemption
  uint64_t drafts = 0;             // sequences and steps that had one
  uint64_t drafted_tokens = 0;
  std::array<uint64_t, 16> drafts_right{};  // by place
  uint64_t prefix_queries = 0, prefix_hits = 0;
  uint64_t preemptions = 0, evictions = 0;
  std::array<uint64_t, kFinishes> finished{};  // by Finish
  size_t running = 0, waiting = 0;
  Profile phases{};
  uint64_t step_nanoseconds = 0, sampling_nanoseconds = 0, other_nanoseconds = 0;
  uint64_t weight_bytes = 0, kv_bytes_read = 0;
  std::vector<uint64_t> expert_rows;  // as in StepStats, added up
  uint64_t heartbeat = 0;             // the clock at the end of the last step
  double correction = 1;              // measured over predicted, running mean
  KvFigures kv;
  KvDiskFigures disk;
  uint64_t disk_tokens = 0;  // of prompts, found on disk
  StepFigures last;
};

}  // namespace moebius
