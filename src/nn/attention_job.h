// SPDX-License-Identifier: Apache-2.0
// Helpers shared by attention.cpp and attention_entries.cpp.
#pragma once
#include <algorithm>
#include <limits>

#include "kernels/row_functions.h"
#include "nn/attention.h"

namespace moebius {

// Up to this number of rows, reading keys takes longer than multiplying them.
inline constexpr size_t kFewRows = 16;
inline constexpr float kMasked = -std::numeric_limits<float>::infinity();

// The keys [first, last) of a block that a query sees.
struct Seen {
  size_t first, last;
};

// Replaces scores by p = exp(scale * s - m') for seen keys and 0 for others; updates the running
// maximum `best` to m' and the sum `total`; returns exp(m - m') for rescaling earlier sums.
inline float softmax_seen(const RowFunctions& f, float* s, float scale, Seen seen,
                          const uint64_t* selected, XType type, float& best, float& total) {
  // Needed for such scales only: a positive one does not change which score is largest.
  if (!(scale > 0.0f)) {
    f.scale(s, scale, kKeyBlock);
    scale = 1.0f;
  }
  std::fill_n(s, seen.first, kMasked);
  std::fill(s + seen.last, s + kKeyBlock, kMasked);
  for (size_t i = 0; selected != nullptr && i < kKeyBlock; ++i)
    if ((selected[i / 64] >> (i % 64) & 1) == 0) s[i] = kMasked;
  return f.softmax_step(s, kKeyBlock, scale, type == XType::kBf16, &best, &total);
}

// Returns the oldest position that a query at `position` sees.
size_t oldest_seen(const AttentionSpec& spec, size_t position);
// Returns the first segment that the query of a token sees.
size_t first_segment(const AttentionSpec& spec, const AttentionRows& rows, size_t token);
// Return the number of segments of keys, and of entries, that tokens [begin, end) see.
size_t key_segments(const AttentionSpec& spec, const AttentionRows& rows, size_t begin, size_t end);
size_t entry_segments(const AttentionSpec& spec, const AttentionRows& rows, size_t begin,
                      size_t end);

// The state of a running task.
struct Attention::Job {
  Task task;
  const AttentionRows& rows;
  // rep: query heads per kv head; M: rows per kv head (rep x tokens); position: position of the
  // task's first token.
  size_t rep, tokens, M, position;
};

}  // namespace moebius
