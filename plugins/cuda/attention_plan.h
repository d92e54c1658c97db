// SPDX-License-Identifier: Apache-2.0
// The choice of a form of attention (attention.cuh) and of its shared memory: a pure function of a step and of what the device lets a
// block have. Cards of compute capability 8.6, 8.9 and 12.0 give 101,376 bytes, 8.0 gives 166,912, 9.0 and 10.0 give 232,448.
#pragma once
#include "device/cuda/device_attention.h"

namespace moebius::cuda {

// Forms with equal bytes: by the rule below, or one for measuring. Staged forms: eight warps and two stages, or four and one.
enum class AttentionForm { kByRule, kSplit, kWhole, kStaged, kStagedFour };

constexpr int kSplitWarps = 16, kWholeWarps = 4, kStagedWarps = 8;
constexpr size_t kFewBlocks = 512;  // of the grid; fewer: segments become blocks of their own

// Sums of the halves [16][queries][D / passes], then largest scores, sums of probabilities.
constexpr size_t split_bytes(size_t queries, size_t D, size_t passes) {
  return (kSplitWarps * queries * (D / passes) + 2 * kSplitWarps * kTensorQueries) * sizeof(float);
}
// Sums of all segments, of each warp; several: a tile may have more than one segment.
constexpr size_t whole_bytes(size_t D, int warps, bool several) {
  return several ? static_cast<size_t>(warps) * kTensorQueries * D * sizeof(float) : 0;
}
// Stages of keys and values, then sums.
constexpr size_t staged_bytes(size_t D, int warps, int stages, bool several) {
  return static_cast<size_t>(stages) * 4 * kKeyBlock * D + whole_bytes(D, warps, several);
}

struct AttentionStep {
  size_t D;        // features of a head
  size_t heads;    // kv heads, times the parts that their queries go in
  size_t queries;  // of a tile of the split form
  size_t tiles, sequences;
  bool several;  // segments
};

struct AttentionPlan {
  AttentionForm form;
  int passes;    // of the split form: each has its share of a head's features
  size_t bytes;  // of shared memory
};

// Few tiles are split; the staged form, whose block of keys in shared memory serves a group of tiles of one sequence, needs two groups
// a sequence. A form for which `limit` is too small gives way to the next; the whole form needs least.
constexpr AttentionPlan plan_attention(const AttentionStep& s, size_t limit,
                                       AttentionForm wanted = AttentionForm::kByRule) {
  const bool one = split_bytes(s.queries, s.D, 1) <= limit || s.D < 128;
  const AttentionPlan split{AttentionForm::kSplit, one ? 1 : 2,
                            split_bytes(s.queries, s.D, one ? 1 : 2)},
      whole{AttentionForm::kWhole, 1, whole_bytes(s.D, kWholeWarps, s.several)},
      staged{AttentionForm::kStaged, 1, staged_bytes(s.D, kStagedWarps, 2, s.several)},
      four{AttentionForm::kStagedFour, 1, staged_bytes(s.D, 4, 1, s.several)};
  switch (wanted) {
    case AttentionForm::kSplit:
      return split;
    case AttentionForm::kWhole:
      return whole;
    case AttentionForm::kStaged:
      return staged;
    case AttentionForm::kStagedFour:
      return four;
    case AttentionForm::kByRule:
      break;
  }
  if (s.tiles * s.heads < kFewBlocks && split.bytes <= limit) return split;
  if (s.tiles >= 2 * kStagedWarps * s.sequences && staged.bytes <= limit) return staged;
  return whole;
}

}  // namespace moebius::cuda
