// SPDX-License-Identifier: Apache-2.0
// The described layouts of packed weights on Arm against the drawings in the families' headers, on every machine. That packers follow
// them is judged by kernel_test.cpp, whose products need every code at its place.
#include <gtest/gtest.h>

#include <set>

#include "kernels/arm/arm_bf16.h"
#include "kernels/arm/arm_float.h"
#include "kernels/arm/arm_int8.h"
#include "kernels/arm/arm_lanes.h"
#include "kernels/arm/arm_limbs.h"

namespace moebius::test::arm_layout_test {
namespace {

using arm_layout::Order;

constexpr size_t kDrawnOutputs = 8, kDrawnInputs = 16;

// Every code has a place of `size` of its own, and together they leave no gap.
void expect_every_place_taken(const Order& order, size_t outputs, size_t inputs, size_t size) {
  std::set<size_t> places;
  for (size_t n = 0; n < outputs; ++n)
    for (size_t k = 0; k < inputs; ++k) places.insert(order.address(n, k));
  EXPECT_EQ(places.size(), outputs * inputs);
  EXPECT_EQ(*places.rbegin(), (outputs * inputs - 1) * size);
}

template <class F>
void expect_drawn(const Order& order, const F& place) {
  for (size_t n = 0; n < kDrawnOutputs; ++n)
    for (size_t k = 0; k < kDrawnInputs; ++k)
      EXPECT_EQ(order.address(n, k), place(n, k)) << n << " " << k;
}

TEST(ArmLayout, StepsAreFull) {
  for (const auto& layout : {int8_family::kLayout, lanes_family::kLayout, limbs::kLayoutOfPairs,
                             limbs::kLayoutOfFours, bf16_family::kLayout}) {
    expect_every_place_taken(layout.nibbles, kDrawnOutputs, kDrawnInputs, 1);
    expect_every_place_taken(layout.bytes, kDrawnOutputs, kDrawnInputs, 1);
  }
  expect_every_place_taken(bf16_family::kLayout.halves, kDrawnOutputs, kDrawnInputs, 2);
  expect_every_place_taken(float_family::kFp8Order, 32, 8, 1);
  expect_every_place_taken(float_family::kInt8Order, 32, 8, 1);
  expect_every_place_taken(float_family::kBf16Order, 32, 4, 2);
  expect_every_place_taken(float_family::kF16Order, 32, 4, 2);
  expect_every_place_taken(float_family::kF32Order, 32, 2, 4);
}

TEST(ArmLayout, IsAsDrawn) {
  // Half bytes: twice the byte, plus one for its upper half.
  expect_drawn(int8_family::kLayout.nibbles,
               [](size_t n, size_t k) { return 2 * (n / 2 * 16 + n % 2 * 8 + k / 2) + k % 2; });
  expect_drawn(int8_family::kLayout.bytes,
               [](size_t n, size_t k) { return k % 2 * 64 + n / 2 * 16 + n % 2 * 8 + k / 2; });
  expect_drawn(lanes_family::kLayout.nibbles,
               [](size_t n, size_t k) { return 2 * (k / 4 * 16 + n % 4 * 4 + k % 4) + n / 4; });
  expect_drawn(lanes_family::kLayout.bytes,
               [](size_t n, size_t k) { return k / 4 * 32 + n * 4 + k % 4; });
  expect_drawn(bf16_family::kLayout.nibbles, [](size_t n, size_t k) {
    return 2 * (n / 2 * 16 + k / 8 * 8 + n % 2 * 4 + k / 2 % 4) + k % 2;
  });
  expect_drawn(bf16_family::kLayout.bytes, [](size_t n, size_t k) {
    return n / 2 * 32 + k % 2 * 16 + k / 8 * 8 + n % 2 * 4 + k % 8 / 2;
  });
  expect_drawn(bf16_family::kLayout.halves,
               [](size_t n, size_t k) { return k % 2 * 128 + k / 8 * 64 + n * 8 + k % 8 / 2 * 2; });
  for (size_t place = 0; place < 32; ++place) {
    EXPECT_EQ(float_family::kFp8Order.output(place), place);
    EXPECT_EQ(float_family::kInt8Order.output(place),
              place / 16 * 16 + place % 4 * 4 + place / 4 % 4);
    EXPECT_EQ(float_family::kBf16Order.output(place),
              place / 8 * 8 + place % 2 * 4 + place / 2 % 4);
    EXPECT_EQ(float_family::kBf16Order.address(float_family::kBf16Order.output(place), 0),
              2 * place);
  }
}

}  // namespace
}  // namespace moebius::test::arm_layout_test
