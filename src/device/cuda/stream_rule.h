// SPDX-License-Identifier: Apache-2.0
// Decides how many rows a step needs so that a layer's CPU experts are faster on the GPU, although
// they have to be copied there first. Only experts of class exact are streamed: both devices
// compute the same bytes for them, so the number of rows may decide. Otherwise a row's bytes would
// depend on the rows beside it, on how a prompt is cut, and on the contents of the prefix cache.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace moebius {

// Measured seconds of the experts of a layer that are on the CPU.
struct StreamTimes {
  double cpu = 0, cpu_row = 0;   // on the CPU: reading all these experts; computing each row
  double sent = 0, gpu_row = 0;  // on the GPU: copying all of them; computing each row
  double each = 1;               // share of the experts that one row uses
  // Returns the share of the experts that `rows` rows use: few rows do not read all of them.
  double met(double rows) const { return 1 - std::pow(1 - std::min(1.0, each), rows); }
  double on_cpu(double rows) const { return cpu * met(rows) + cpu_row * rows; }
  double on_gpu(double rows) const { return sent + gpu_row * rows; }
};

inline constexpr size_t kNeverStreamed = SIZE_MAX, kMostStreamedRows = 1'000'000;

// Returns the number of rows from which on streaming is always faster.
inline size_t rows_to_stream(const StreamTimes& t) {
  const auto is_faster = [&](size_t rows) {
    return t.on_gpu(static_cast<double>(rows)) < t.on_cpu(static_cast<double>(rows));
  };
  if (!(t.cpu_row > t.gpu_row) || !is_faster(kMostStreamedRows)) return kNeverStreamed;
  // Bounds of the search: the gain grows with the number of rows.
  size_t slower = 0, faster = kMostStreamedRows;
  while (faster - slower > 1) {
    const size_t middle = slower + (faster - slower) / 2;
    (is_faster(middle) ? faster : slower) = middle;
  }
  return faster;
}

// Seconds measured on the CPU, for `few` and for `many` rows.
struct MeasuredRows {
  size_t rows = 0;
  double seconds = 0;
};
inline StreamTimes stream_times(MeasuredRows few, MeasuredRows many, double each, double sent,
                                MeasuredRows gpu) {
  StreamTimes t;
  t.each = each;
  t.sent = sent;
  t.gpu_row = gpu.seconds / static_cast<double>(std::max<size_t>(1, gpu.rows));
  const auto n = static_cast<double>(few.rows), m = static_cast<double>(many.rows);
  const double whole = t.met(n) * m - t.met(m) * n;
  if (!(whole > 0)) return t;
  t.cpu = std::max(0.0, (few.seconds * m - many.seconds * n) / whole);
  t.cpu_row = std::max(0.0, (many.seconds * t.met(n) - few.seconds * t.met(m)) / whole);
  return t;
}

}  // namespace moebius
