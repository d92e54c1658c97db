// SPDX-License-Identifier: Apache-2.0
// Row operations against what device/rows.h says of them, in double precision.
#include <gtest/gtest.h>

#include <cmath>

#include "device/cpu/cpu_device.h"
#include "runtime/cpu.h"

namespace moebius::row_operations_test {
namespace {

// The rows of x behind one operation, at positions 0, 1000 and 100000.
std::vector<float> applied(RowOp op, std::vector<float> x) {
  ThreadPool pool(2);
  DeviceOptions options;
  options.type = XType::kF32;
  CpuDevice device(&pool, host_cpu(), options);
  Step step;
  step.rows = 3, step.positions = {0, 1000, 100000}, step.lengths = {1, 1001, 100001};
  device.begin(step);
  const RowSet rows = device.rows(step, 0, x.size() / 3, XType::kF32);
  device.on_host(step, {}, rows,
                 [&](HostRows, HostRows y) { std::copy(x.begin(), x.end(), y.data.begin()); });
  std::vector<RowOp> ops;
  ops.push_back(std::move(op));
  device.rows(std::move(ops))->run(step, {rows});
  device.on_host(step, rows, {},
                 [&](HostRows from, HostRows) { x.assign(from.data.begin(), from.data.end()); });
  return x;
}

std::vector<float> numbers(size_t n) {
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) x[i] = std::sin(static_cast<float>(i) * 0.7f) * 3;
  return x;
}

TEST(RowOperations, APowerOfThePosition) {
  RowOp op{RowOpKind::kPower, {0, 0, 8}};
  op.temperature = {0.1f, 2048, 1};
  const std::vector<float> x = numbers(3 * 8), y = applied(op, x);
  for (size_t i = 0; i < x.size(); ++i) {
    const double position = i < 8 ? 0 : i < 16 ? 1000 : 100000;
    const double expected = x[i] * std::pow(1 + (position + 1) / 2048, 0.1);
    EXPECT_NEAR(y[i], expected, 1e-6 * std::fabs(expected)) << i;
  }
}

TEST(RowOperations, ABiasForEachHead) {
  RowOp op{RowOpKind::kHeadBias, {0, 1, 2, 3, 3}};  // columns 1-2, 4-5, 7-8
  op.values = {0.5f, -1.0f, 4.0f};
  const std::vector<float> x = numbers(3 * 10), y = applied(op, x);
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t column = i % 10;
    const bool inside = column >= 1 && column <= 8 && (column - 1) % 3 < 2;
    EXPECT_EQ(y[i], inside ? x[i] + op.values[(column - 1) / 3] : x[i]) << i;
  }
}

TEST(RowOperations, AScaleForEachHeadByPosition) {
  RowOp op{RowOpKind::kHeadScale, {0, 2, 3, 2, 4}};  // columns 2-4 and 6-8
  op.values = {0.5f, -0.25f, 1.5f, 2.0f};
  const std::vector<float> x = numbers(3 * 9), y = applied(op, x);
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t column = i % 9, head = column < 6 ? 0 : 1;
    const double position = i < 9    ? 0
                            : i < 18 ? 1000
                                     : 100000,
                 by = column < 2 || column == 5
                          ? 1.0
                          : op.values[head] * std::log(position + 1) + op.values[2 + head];
    EXPECT_NEAR(y[i], x[i] * by, 1e-6 * std::fabs(x[i] * by)) << i;
  }
}

TEST(RowOperations, AGrowthWithTheLogarithmOfThePosition) {
  RowOp op{RowOpKind::kLogGrowth, {0, 0, 8}};
  op.temperature = {0.1f, 500, 1};
  const std::vector<float> x = numbers(3 * 8), y = applied(op, x);
  for (size_t i = 0; i < x.size(); ++i) {
    const double position = i < 8 ? 0 : i < 16 ? 1000 : 100000;
    const double expected = x[i] * (1 + 0.1 * std::log(std::max(1.0, (position + 1) / 500)));
    EXPECT_NEAR(y[i], expected, 1e-6 * std::fabs(expected)) << i;
  }
}

TEST(RowOperations, Silu) {
  const std::vector<float> x = numbers(3 * 20), y = applied({RowOpKind::kSilu, {0}}, x);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(y[i], x[i] / (1 + std::exp(-x[i])), 1e-6) << i;
}

}  // namespace
}  // namespace moebius::row_operations_test
