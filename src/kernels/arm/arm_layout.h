// SPDX-License-Identifier: Apache-2.0
// Describes how packed weights of the Arm families are arranged: a Layout is a value, which a
// family defines beside the drawing of its panels, and arm_packing.h packs by it. Plain data:
// included by units compiled for any instruction set.
#pragma once
#include <cstddef>
#include <cstdint>

namespace moebius {
namespace {
namespace arm_layout {

// Says in what order the codes of a step (8 outputs x 16 inputs) stand in memory. Every bit of an
// address within the step is a bit of the input's number, a bit of the output's number, or selects
// a byte of a code. Written from the lowest bit of the address on: "k1 k2 o0" puts inputs 0 2 4 6
// of output 0 before those of output 1. Orders of 4-bit codes count in half bytes: their first bit
// selects the lower or the upper half.
struct Order {
  // A bit is stored as its kind plus its number.
  static constexpr uint8_t kInput = 0, kOutput = 16, kByte = 32;
  static constexpr size_t kMost = 12;
  uint8_t bits[kMost] = {};
  size_t count = 0;

  constexpr Order() = default;
  constexpr explicit Order(const char* text) {
    for (; *text != '\0'; text += text[2] == ' ' ? 3 : 2) {
      const uint8_t kind = text[0] == 'k' ? kInput : text[0] == 'o' ? kOutput : kByte;
      bits[count++] = static_cast<uint8_t>(kind + (text[1] - '0'));
    }
  }
  // Returns this order with one more bit at its end.
  constexpr Order with(uint8_t bit) const {
    Order more = *this;
    more.bits[more.count++] = bit;
    return more;
  }
  // Returns where bit `bit` of `kind` stands in the address, or `count` if nowhere.
  constexpr size_t find(uint8_t bit) const {
    size_t i = 0;
    while (i < count && bits[i] != bit) ++i;
    return i;
  }
  // Returns the address of the first byte (or of the half byte) of a code.
  constexpr size_t address(size_t output, size_t input) const {
    size_t at = 0;
    for (size_t i = 0; i < count; ++i) {
      const size_t from = bits[i] < kOutput ? input : bits[i] < kByte ? output : 0;
      at |= (from >> (bits[i] % kOutput) & 1) << i;
    }
    return at;
  }
  // Returns the output whose code stands at `place` among the codes of one input.
  constexpr size_t output(size_t place) const {
    size_t n = 0, i = 0;
    for (uint8_t bit : bits)
      if (bit >= kOutput && bit < kByte && i < count) n |= (place >> i++ & 1) << (bit - kOutput);
    return n;
  }
};

// Says for which outputs of a panel 4-bit integers are two's complement; those of the other
// outputs, and of files, are value + 8.
enum class Signed : uint8_t { kNone, kUpper, kAll };  // kUpper: outputs 4 to 7

// Describes a packed panel of 8 outputs: the order of a step's codes for 4, 8 and 16 bits each, and
// how the values that every group has beside its codes are arranged.
struct Layout {
  Order nibbles, bytes, halves;
  Signed integers;       // which integers of 4 bits are two's complement
  bool scales_first;     // scales and zero points stand before the codes of their group
  bool scales_in_pairs;  // bf16 scales are those of outputs 0 4 1 5 2 6 3 7
  // Scales and zero points of outputs past N repeat those of the last output if true, and are 0 if
  // not; repeats_f32_end is for scales stored as f32.
  bool repeats_end, repeats_f32_end;
};

// Says where a panel has the second level of scales in two levels: per super-block 8 x f32 for
// scales, then as many for offsets if there are.
struct Supers {
  size_t at = 0;                 // offset in the panel; 0: scales are not in two levels
  size_t bytes = 0, count = 0;   // bytes of a super-block; number of super-blocks
  size_t groups = 1, phase = 0;  // as Problem::super_groups and super_phase
  size_t index(size_t group) const { return (group + phase) / groups; }
  size_t end() const { return at + count * bytes; }
  // Return a super-block of a panel, by its number or by a group; null: scales are not in two levels.
  const uint8_t* of(const uint8_t* panel, size_t number) const {
    return at == 0 ? nullptr : panel + at + number * bytes;
  }
  const uint8_t* of_group(const uint8_t* panel, size_t group) const {
    return at == 0 ? nullptr : of(panel, index(group));
  }
};

// Holds the sizes of a panel and of its groups; in bytes, where nothing else is said.
struct PanelSizes {
  size_t groups, inputs;  // number of groups; inputs of a group
  size_t scale_inputs;    // inputs per stored scale
  size_t scales, zeros;   // bytes of a group's scales; of its zero points, padded
  size_t head;            // bytes before the codes of a group
  size_t group, stride;   // bytes of a group with all its parts; of a panel
  bool bf16;              // scales are bf16, else f32
  bool nibbles;           // codes have 4 bits
  size_t offsets = 0;     // bytes of a group's offsets, which stand behind its zero points
  Supers supers{};
};

}  // namespace arm_layout
}  // namespace
}  // namespace moebius
