// SPDX-License-Identifier: Apache-2.0
// What the parts of attention (attention.cpp, attention_entries.cpp) share.
#pragma once
#include <algorithm>
#include <limits>

#include "kernels/row_functions.h"
#include "nn/attention.h"

namespace moebius {

inline constexpr size_t kFewRows = 16;  // up to which reading counts more than multiplying
inline constexpr float kMasked = -std::numeric_limits<float>::infinity();

// Which keys of a block a query at `position` sees: [first, last).
struct Seen {
  size_t first, last;
};

// p = exp(scale * s - m') over the seen keys, 0 elsewhere; updates m and l; returns exp(m - m').
inline float softmax_seen(const RowFunctions& f, float* s, float scale, Seen seen,
                          const uint64_t* selected, XType type, float& best, float& total) {
  if (!(scale > 0.0f)) {  // a positive one does not change which score is the largest
    f.scale(s, scale, kKeyBlock);
    scale = 1.0f;
  }
  std::fill_n(s, seen.first, kMasked);
  std::fill(s + seen.last, s + kKeyBlock, kMasked);
  for (size_t i = 0; selected != nullptr && i < kKeyBlock; ++i)
    if ((selected[i / 64] >> (i % 64) & 1) == 0) s[i] = kMasked;
  return f.softmax_step(s, kKeyBlock, scale, type == XType::kBf16, &best, &total);
}

// The oldest position that a query at `position` sees.
size_t oldest_seen(const AttentionSpec& spec, size_t position);
// The first segment that the query of a token sees.
size_t first_segment(const AttentionSpec& spec, const AttentionRows& rows, size_t token);
// These count the segments of keys, and of entries behind the keys, that tokens [begin, end) see.
size_t key_segments(const AttentionSpec& spec, const AttentionRows& rows, size_t begin, size_t end);
size_t entry_segments(const AttentionSpec& spec, const AttentionRows& rows, size_t begin,
                      size_t end);

// What a task knows while it runs.
struct Attention::Job {
  Task task;
  const AttentionRows& rows;
  size_t rep, tokens, M, position;  // rows of a head; position of its first token
};

}  // namespace moebius
