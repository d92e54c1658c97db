// SPDX-License-Identifier: Apache-2.0
// The int8 family on Arm: chooses the loop for (rows, K, group, scale type). One table per engine
// and one pure function over it, available on every architecture, so that a test can print the
// choices. Internal linkage.
//
// Rows are processed in pairs, pairs in tiles of at most `pairs`; a tile is multiplied with 8
// outputs (a panel) at a time unless its form says otherwise.
#pragma once
#include "kernels/arm/arm_int8.h"

namespace moebius {
namespace {
namespace int8_family {

enum class Form : uint8_t {
  kRegisters,  // only in tables: operands are made in registers; becomes one of the next four forms
  kOneRow,     // one row, several panels at a time (streams)
  kFewRows,    // one or two pairs of rows, several panels at a time
  kTiles,      // tiles of rows with one panel after another
  kChunks,     // as kTiles, a chunk of K at a time: for long K and several tiles
  kTwelveOutputs,  // operands of 12 outputs are made in scratch, then read by every tile of rows
  kScratch,  // operands of several panels are made in scratch, then read by every tile of rows
};

enum CodeKinds : uint8_t { kNibbleCodes = 1, kByteCodes = 2, kFp4Codes = 4, kAllCodes = 7 };
enum class Groups : uint8_t { kAny, kOne, kSeveral };

// A row of an engine's table; the first row that fits decides.
struct TileRule {
  uint8_t codes;  // bits of the CodeKinds to which the rule applies
  Groups groups;
  bool plain;   // true: only without zero points of weights and rows
  bool bf16;    // true: only with scales stored as bf16
  size_t rows;  // the rule applies up to this number of rows
  Form form;
  uint8_t pairs;  // most pairs of rows in a tile
};

struct Engine {
  const char* name;
  // Pairs of rows in the largest tile: for one group; for operands made in registers; for several
  // groups.
  uint8_t pairs, pairs_few, pairs_grouped;
  // Number of panels that are read at a time, for one row, one pair and two pairs.
  uint8_t streams_one, streams_pair, streams_two_pairs;
  // true: plain 4-bit codes are decoded in hand-written loops; with groups, 4 outputs at a time for
  // 3 and more pairs
  bool registers;
  const TileRule* rules;
  size_t count;
};

constexpr size_t kManyRows = SIZE_MAX;
// clang-format off
constexpr TileRule kI8mmRules[] = {
    //  codes        groups            plain  bf16   rows       form              pairs
    {kNibbleCodes, Groups::kOne,     true,  false, 42,        Form::kRegisters, 5},
    {kNibbleCodes, Groups::kOne,     true,  false, kManyRows, Form::kTwelveOutputs,    4},
    {kNibbleCodes, Groups::kSeveral, true,  true,  20,        Form::kRegisters, 5},
    {kNibbleCodes, Groups::kOne,     false, false, 23,        Form::kRegisters, 4},
    {kByteCodes,   Groups::kOne,     false, false, 7,         Form::kRegisters, 4},
    {kByteCodes,   Groups::kSeveral, false, false, 7,         Form::kRegisters, 3},
    {kAllCodes & ~kByteCodes, Groups::kSeveral, false, false, 10, Form::kRegisters, 3},
    {kAllCodes,    Groups::kOne,     false, false, kManyRows, Form::kScratch,   4},
    {kAllCodes,    Groups::kAny,     false, false, kManyRows, Form::kScratch,   3},
};
constexpr TileRule kDotprodRules[] = {
    {kByteCodes,   Groups::kAny,     false, false, 7,         Form::kRegisters, 2},
    {kAllCodes & ~kByteCodes, Groups::kAny, false, false, 23, Form::kRegisters, 2},
    {kAllCodes,    Groups::kAny,     false, false, kManyRows, Form::kScratch,   2},
};
constexpr TileRule kNeonRules[] = {
    {kByteCodes,   Groups::kAny,     false, false, 7,         Form::kRegisters, 1},
    {kAllCodes & ~kByteCodes, Groups::kAny, false, false, 15, Form::kRegisters, 1},
    {kAllCodes,    Groups::kAny,     false, false, kManyRows, Form::kScratch,   1},
};
constexpr Engine kI8mmEngine    = {"arm_i8mm",    4, 5, 3, 2, 2, 2, true,  kI8mmRules,    sizeof kI8mmRules / sizeof(TileRule)};
constexpr Engine kDotprodEngine = {"arm_dotprod", 2, 2, 2, 2, 2, 1, false, kDotprodRules, sizeof kDotprodRules / sizeof(TileRule)};
constexpr Engine kNeonEngine    = {"arm_neon",    1, 1, 1, 2, 1, 1, false, kNeonRules,    sizeof kNeonRules / sizeof(TileRule)};
// clang-format on

struct TileChoice {
  Form form;
  uint8_t pairs;
  // true: plain 4-bit codes with groups, decoded in registers; tiles of 3 and more pairs may then
  // compute 4 outputs at a time
  bool four_outputs;
  // Inputs per chunk of K; 0: K is not divided (for kTwelveOutputs: when its last outputs are
  // computed).
  size_t chunk;
};

// Returns the inputs per chunk of K that stay in the first-level cache together with the rows of a
// tile, for operands made in registers.
constexpr size_t register_chunk(const Shape& s) {
  constexpr size_t kChunk = 2048;
  if (s.K_padded <= kChunk * 5 / 4) return s.K_padded;
  const size_t step = s.grouped() ? s.group_k : kKr;
  const size_t chunks = (s.K_padded + kChunk - 1) / kChunk;
  return up((s.K_padded + chunks - 1) / chunks, step);
}

constexpr bool fits(const TileRule& r, const Shape& s, size_t M) {
  const uint8_t codes = s.fp4 ? kFp4Codes : s.bytes ? kByteCodes : kNibbleCodes;
  return (r.codes & codes) != 0 &&
         (r.groups == Groups::kAny || (r.groups == Groups::kSeveral) == s.grouped()) &&
         (!r.plain || s.plain()) && (!r.bf16 || s.bf16) && M <= r.rows;
}

constexpr TileChoice choose_tile(const Engine& e, const Shape& s, size_t M) {
  size_t i = 0;
  while (!fits(e.rules[i], s, M)) ++i;  // the last rule fits everything
  const TileRule& r = e.rules[i];
  const size_t pairs = (M + 1) / 2, most = s.grouped() ? e.pairs_grouped : e.pairs,
               chunk = register_chunk(s);
  const TileMap map(pairs, r.pairs);
  // A chunk with groups is computed 4 outputs at a time, which pays off for three pairs of rows
  // unless groups are short.
  const bool chunks = e.registers && r.plain && chunk < s.K_padded && map.tiles > 1 &&
                      map.base >= 3 && (!s.grouped() || s.group_k < 128 || map.base >= 4);
  TileChoice c{r.form, r.pairs, e.registers && s.grouped() && r.plain, chunks ? chunk : 0};
  if (r.form != Form::kRegisters) return c;
  if (M == 1) {
    c.form = Form::kOneRow;
  } else if (map.tiles == 1 && pairs <= (most >= 2 ? 2 : 1)) {
    c.form = Form::kFewRows;
  } else {
    c.form = chunks ? Form::kChunks : Form::kTiles;
  }
  return c;
}

}  // namespace int8_family
}  // namespace
}  // namespace moebius
