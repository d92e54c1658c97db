// SPDX-License-Identifier: Apache-2.0
// From how many rows on a layer's experts are faster on the device, where they have to be sent to it first. Only experts of class
// exact are streamed: both devices have the same bytes for them, so the number of rows may decide. With other schemes a row's bytes
// would depend on the rows beside it, on how a prompt is cut, and on what a prefix tree holds already.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace moebius {

// Seconds of a layer's experts that lie on the CPU.
struct StreamTimes {
  double cpu = 0, cpu_row = 0;   // there: what any number of rows takes, and each of them
  double sent = 0, gpu_row = 0;  // on the device: weights that cross, and each row
  double on_cpu(double rows) const { return cpu + cpu_row * rows; }
  double on_gpu(double rows) const { return sent + gpu_row * rows; }
};

inline constexpr size_t kNeverStreamed = SIZE_MAX;

// The least number of rows with which the device is faster.
inline size_t rows_to_stream(const StreamTimes& t) {
  const double gain = t.cpu_row - t.gpu_row, lead = t.sent - t.cpu;
  if (!(gain > 0) || !std::isfinite(lead / gain)) return kNeverStreamed;
  const double rows = std::floor(std::max(0.0, lead) / gain) + 1;
  return rows < 1e9 ? static_cast<size_t>(rows) : kNeverStreamed;
}

// Both sides from two measurements each, of `few` and of `many` rows.
struct MeasuredRows {
  size_t rows = 0;
  double seconds = 0;
};
inline StreamTimes stream_times(MeasuredRows few, MeasuredRows many, double sent,
                                MeasuredRows gpu) {
  StreamTimes t;
  const auto more = static_cast<double>(many.rows - few.rows);
  t.cpu_row = more > 0 ? std::max(0.0, (many.seconds - few.seconds) / more) : 0.0;
  t.cpu = std::max(0.0, few.seconds - t.cpu_row * static_cast<double>(few.rows));
  t.sent = sent, t.gpu_row = gpu.seconds / static_cast<double>(std::max<size_t>(1, gpu.rows));
  return t;
}

}  // namespace moebius
