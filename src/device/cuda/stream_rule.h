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
  double cpu = 0, cpu_row = 0;   // there: reading all of them, and each row
  double sent = 0, gpu_row = 0;  // on the device: all of them cross, and each row
  double each = 1;               // share of the experts that one row meets
  // Few rows do not meet, so do not read, all experts.
  double met(double rows) const { return 1 - std::pow(1 - std::min(1.0, each), rows); }
  double on_cpu(double rows) const { return cpu * met(rows) + cpu_row * rows; }
  double on_gpu(double rows) const { return sent + gpu_row * rows; }
};

inline constexpr size_t kNeverStreamed = SIZE_MAX, kMostStreamedRows = 1'000'000;

// The least number of rows with which the device is faster, and stays so.
inline size_t rows_to_stream(const StreamTimes& t) {
  const auto is_faster = [&](size_t rows) {
    return t.on_gpu(static_cast<double>(rows)) < t.on_cpu(static_cast<double>(rows));
  };
  if (!(t.cpu_row > t.gpu_row) || !is_faster(kMostStreamedRows)) return kNeverStreamed;
  size_t slower = 0, faster = kMostStreamedRows;  // what is gained grows with the rows
  while (faster - slower > 1) {
    const size_t middle = slower + (faster - slower) / 2;
    (is_faster(middle) ? faster : slower) = middle;
  }
  return faster;
}

// From two measurements of the CPU, of `few` and of `many` rows.
struct MeasuredRows {
  size_t rows = 0;
  double seconds = 0;
};
inline StreamTimes stream_times(MeasuredRows few, MeasuredRows many, double each, double sent,
                                MeasuredRows gpu) {
  StreamTimes t;
  t.each = each, t.sent = sent;
  t.gpu_row = gpu.seconds / static_cast<double>(std::max<size_t>(1, gpu.rows));
  const auto n = static_cast<double>(few.rows), m = static_cast<double>(many.rows);
  const double whole = t.met(n) * m - t.met(m) * n;
  if (!(whole > 0)) return t;
  t.cpu = std::max(0.0, (few.seconds * m - many.seconds * n) / whole);
  t.cpu_row = std::max(0.0, (many.seconds * t.met(n) - few.seconds * t.met(m)) / whole);
  return t;
}

}  // namespace moebius
