// SPDX-License-Identifier: Apache-2.0
// Chooses the form of attention (attention.cuh) and its shared memory: a pure function of a step
// and of the shared memory that a block of threads may have. Cards of compute capability 8.6, 8.9
// and 12.0 allow 101,376 bytes, 8.0 allows 166,912, 9.0 and 10.0 allow 232,448.
#pragma once
#include "device/cuda/device_attention.h"

namespace moebius::cuda {

// Forms of attention, which give equal bytes. kByRule: plan_attention() chooses; the others are for
// measurements and tests. kStaged: eight warps and two stages; kStagedFour: four warps and one
// stage.
enum class AttentionForm { kByRule, kSplit, kWhole, kStaged, kStagedFour };

constexpr int kSplitWarps = 16, kWholeWarps = 4, kStagedWarps = 8;
constexpr size_t kFewBlocks = 512;  // grids with fewer blocks than this are split into segments

// Returns the bytes of shared memory of the split form: sums of the halves [16][queries][D /
// passes], then largest scores, then sums of probabilities.
constexpr size_t split_bytes(size_t queries, size_t D, size_t passes) {
  return (kSplitWarps * queries * (D / passes) + 2 * kSplitWarps * kTensorQueries) * sizeof(float);
}
// Returns the bytes of shared memory of the whole form: sums over segments for each warp.
// `several`: a tile may have more than one segment.
constexpr size_t whole_bytes(size_t D, int warps, bool several) {
  return several ? static_cast<size_t>(warps) * kTensorQueries * D * sizeof(float) : 0;
}
// Returns the bytes of shared memory of the staged form: stages of keys and values, then sums.
constexpr size_t staged_bytes(size_t D, int warps, int stages, bool several) {
  return static_cast<size_t>(stages) * 4 * kKeyBlock * D + whole_bytes(D, warps, several);
}

struct AttentionStep {
  size_t D;        // features per head
  size_t heads;    // kv heads, times the parts into which their queries are divided
  size_t queries;  // queries per tile of the split form
  size_t tiles, sequences;
  bool several;  // true: the keys are divided into more than one segment
};

struct AttentionPlan {
  AttentionForm form;
  // Number of passes of the split form, each of which computes a share of a head's features.
  int passes;
  size_t bytes;  // shared memory of a block of threads, in bytes
};

// Chooses the form. Few tiles are split; the staged form, whose block of keys in shared memory
// serves a group of tiles of one sequence, needs two groups per sequence. If `limit` is too small
// for a form, the next one is taken; the whole form needs least.
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
