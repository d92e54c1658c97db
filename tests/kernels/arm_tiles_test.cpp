// SPDX-License-Identifier: Apache-2.0
// Which loop of the int8 family on Arm runs for which rows: the whole table, held in build/data/golden/arm_tiles.txt, on every machine.
// MOEBIUS_UPDATE_GOLDEN=1 writes the file anew: a change of choice is a change somebody reads.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "kernels/arm/arm_int8_choice.h"
#include "unit/test_util.h"

namespace moebius::test::arm_tiles_test {
namespace {

using namespace int8_family;

struct TileCase {
  const char* name;
  uint8_t bits;
  size_t block_k;  // 0: one scale per row
  ScaleType scale;
  bool zero_points, fp4;
};
constexpr TileCase kTileCases[] = {
    {"int4, one group", 4, 0, ScaleType::kBf16, false, false},
    {"int4, groups of 32", 4, 32, ScaleType::kBf16, false, false},
    {"int4, groups of 128", 4, 128, ScaleType::kBf16, false, false},
    {"int4, groups of 128, scales f32", 4, 128, ScaleType::kF32, false, false},
    {"int4, one group, zero points", 4, 0, ScaleType::kBf16, true, false},
    {"int4, groups of 128, zero points", 4, 128, ScaleType::kBf16, true, false},
    {"int8, one group", 8, 0, ScaleType::kBf16, false, false},
    {"int8, groups of 128", 8, 128, ScaleType::kBf16, false, false},
    {"fp4, groups of 16", 4, 16, ScaleType::kFp8, false, true},
};

Shape shape_for(const TileCase& c, size_t K) {
  Problem p;
  p.N = 64, p.K = K, p.bits = c.bits, p.scale_type = c.scale, p.zero_points = c.zero_points;
  p.code = c.fp4 ? CodeType::kFp4 : c.bits == 4 ? CodeType::kInt4Offset : CodeType::kInt8;
  p.block_k = c.block_k == 0 ? K : c.block_k;
  p.groups = (K + p.block_k - 1) / p.block_k;
  p.act.code = c.fp4 ? ActCode::kFp4 : ActCode::kInt;
  return shape_of(p);
}

std::string describe(const TileChoice& c) {
  constexpr const char* kForms[] = {
      "registers",          "one row, panels as streams", "few rows, panels as streams", "tiles",
      "tiles, K in chunks", "12 outputs out of scratch",  "panels out of scratch"};
  std::string text = kForms[static_cast<size_t>(c.form)];
  text += ", " + std::to_string(2 * c.pairs) + " rows a tile";
  if (c.form == Form::kChunks) text += ", chunks of " + std::to_string(c.chunk);
  return text;
}

std::string whole_table() {
  std::string out;
  for (const Engine* e : {&kI8mmEngine, &kDotprodEngine, &kNeonEngine})
    for (const TileCase& c : kTileCases)
      for (const size_t K : {2048u, 7168u}) {
        const Shape s = shape_for(c, K);
        out += std::string(e->name) + ": " + c.name + ", K=" + std::to_string(K) + "\n";
        constexpr size_t kRows = 300;
        for (size_t first = 1, M = 1; M <= kRows; ++M) {
          const std::string now = describe(choose_tile(*e, s, M));
          if (M < kRows && describe(choose_tile(*e, s, M + 1)) == now) continue;
          out += "  rows " + std::to_string(first) +
                 (M == kRows  ? "-"
                  : M > first ? "-" + std::to_string(M)
                              : "") +
                 ": " + now + "\n";
          first = M + 1;
        }
      }
  return out;
}

TEST(ArmTiles, ChoiceIsTheOneWrittenDown) {
  const auto path = test_data_dir() / "golden" / "arm_tiles.txt";
  const std::string table = whole_table();
  if (std::getenv("MOEBIUS_UPDATE_GOLDEN") != nullptr) write_file(path, table);
  EXPECT_EQ(table, read_file(path));
}

// Every rule is reached by some problem: no row of a table is without effect.
TEST(ArmTiles, EveryRuleDecidesSomething) {
  for (const Engine* e : {&kI8mmEngine, &kDotprodEngine, &kNeonEngine})
    for (size_t i = 0; i < e->count; ++i) {
      bool decides = false;
      for (const TileCase& c : kTileCases)
        for (size_t M = 1; M <= 300; ++M) {
          const Shape s = shape_for(c, 2048);
          size_t first = 0;
          while (!fits(e->rules[first], s, M)) ++first;
          decides |= first == i;
        }
      EXPECT_TRUE(decides) << e->name << ", rule " << i;
    }
}

}  // namespace
}  // namespace moebius::test::arm_tiles_test
