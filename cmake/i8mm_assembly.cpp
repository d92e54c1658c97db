// SPDX-License-Identifier: Apache-2.0
// A program of the build: writes the header arm_i8mm_asm.h, the inner loops of arm_i8mm as assembly, one instruction a line.
//
//     i8mm_assembly FILE
//
// The loops are assembly because compilers order the loads so that SMMLA runs at three quarters of its speed
// (docs/kernels.md). A program writes them because a loop is a register map plus a schedule, and a schedule is one line
// here.
//
// The products: "smmla acc, x, b" adds to acc (2 rows x 2 outputs, int32) the products of 8 inputs of a pair of rows
// x and a pair of outputs b. A STEP is 16 inputs, two HALVES of 8: first the even inputs, then the odd ones, as
// arm_int8.h lays them out. A tile has P pairs of rows and C pairs of outputs; its sum of pair i and pair of outputs j is
// register C i + j (+ the first one). Behind a 16-byte operand of a pair lies that of the next pair, behind the last pair
// the next half.
//
// A SCHEDULE is a list of words: each "m" is the next product, in the order of products(); any other word names
// instructions given for that half, and a word without instructions is skipped. So "mm u0 mm" puts u0 behind two products.
//
// Register maps ([x], [w] ... are the operands of the asm statements in arm_i8mm_{tiles,registers}.h):
//
//                       v0       v8       v12      v16  v20      v24      v28       v31
//   8x8 out of scratch  [sums 16 ........................] [x 4][b 4]  [x 4][b 4]          two halves in turn
//   6x8, 4x8 grouped    [sums 12 ........] [f 12 .................]    [x 3] [b 4: v27-v30] [magic]
//   12 outputs          [sums 24 .....................................] [x 4]   [b 4 ]
//   8x8 from codes      [sums 16 ........................] [even][A 4] [B 4]    [x 3] [mask]
//   10x8 from codes     [sums 20 .............................]  [A 4] [B 4]    [x 3] [mask]
//   2 pairs, grouped    [sums 8] [f 8 ...................] [even][A 4] [B 4]    [x 2] [mask]
//   3-5 pairs, grouped  [sums 10 ] [f 10: v10-v19 ............] [even 2, A 2, B 2][x 5: v26-v30] [mask]
//
// A and B hold the 4-bit codes of a step and of the one behind it: "shl" makes the operands of the even inputs in `even`,
// half a step later "and" with the mask makes those of the odd inputs in place. Operands are 16 times too large.
#include <fstream>
#include <functional>
#include <initializer_list>
#include <iostream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using Lines = std::vector<std::string>;
using Registers = std::vector<int>;
using Inserts = std::map<std::string, Lines>;

const Registers kEven{16, 17, 18, 19};
const Registers kA{20, 21, 22, 23};
const Registers kB{24, 25, 26, 27};
constexpr int kMask = 31;
constexpr int kMagic = 31;

// Joins lists of lines in their order.
Lines join(std::initializer_list<Lines> lists) {
  Lines result;
  for (const Lines& list : lists) result.insert(result.end(), list.begin(), list.end());
  return result;
}

void append(Lines& lines, const Lines& more) {
  lines.insert(lines.end(), more.begin(), more.end());
}

// Makes one line of words and numbers.
template <typename... Parts>
std::string line(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

Registers range(int first, int end) {
  Registers result;
  for (int r = first; r < end; ++r) result.push_back(r);
  return result;
}

Registers first_of(const Registers& registers, int count) {
  return {registers.begin(), registers.begin() + count};
}

// --- instructions ---

std::string mmla(int acc, int x, int b) {
  return line("smmla v", acc, ".4s, v", x, ".16b, v", b, ".16b");
}

std::string at(const std::string& pointer, int offset) {
  return offset ? line("[%[", pointer, "], #", offset, "]") : line("[%[", pointer, "]]");
}

// Loads or stores neighbouring registers: ldp or stp for each pair, ldr or str for a register that is left.
Lines move(const std::string& op, const Registers& registers, const std::string& pointer,
           int offset) {
  Lines lines;
  for (size_t i = 0; i < registers.size(); i += 2) {
    const bool pair = i + 1 < registers.size();
    const std::string second = pair ? line(", q", registers[i + 1]) : "";
    lines.push_back(line(op, pair ? "p" : "r", " q", registers[i], second, ", ",
                         at(pointer, offset + 16 * static_cast<int>(i))));
  }
  return lines;
}

Lines load(const Registers& registers, const std::string& pointer, int offset = 0) {
  return move("ld", registers, pointer, offset);
}

Lines store(const Registers& registers, const std::string& pointer, int offset = 0) {
  return move("st", registers, pointer, offset);
}

Lines zero(const Registers& registers) {
  Lines lines;
  for (int r : registers) lines.push_back(line("movi v", r, ".4s, #0"));
  return lines;
}

std::string to_float(int acc, int fraction = 0) {
  const std::string bits = fraction ? line(", #", fraction) : "";
  return line("scvtf v", acc, ".4s, v", acc, ".4s", bits);
}

std::string scale(int acc, int f, int s) {
  return line("fmla v", f, ".4s, v", acc, ".4s, v", s, ".4s");
}

// Copies two of four scales, each for two rows; half 1 copies the first two.
std::string twice(int half, int to, int scales) {
  return line("zip", half, " v", to, ".2d, v", scales, ".2d, v", scales, ".2d");
}

std::string even(int to, int codes) { return line("shl v", to, ".16b, v", codes, ".16b, #4"); }

std::string odd(int codes) {
  return line("and v", codes, ".16b, v", codes, ".16b, v", kMask, ".16b");
}

Lines evens(const Registers& to, const Registers& codes) {
  Lines lines;
  for (size_t i = 0; i < to.size(); ++i) lines.push_back(even(to[i], codes[i]));
  return lines;
}

Lines odds(const Registers& codes) {
  Lines lines;
  for (int r : codes) lines.push_back(odd(r));
  return lines;
}

std::string add(const std::string& pointer, int offset) {
  return line("add %[", pointer, "], %[", pointer, "], #", offset);
}

Lines next_round(const std::string& counter, int label) {
  return {line("subs %[", counter, "], %[", counter, "], #1"), line("b.ne ", label, "b")};
}

// --- schedules ---

Lines weave(const std::string& schedule, const Lines& products, const Inserts& inserts) {
  Lines lines;
  size_t next = 0;
  std::istringstream words(schedule);
  for (std::string word; words >> word;) {
    if (word.find_first_not_of('m') != std::string::npos) {
      if (const auto found = inserts.find(word); found != inserts.end())
        append(lines, found->second);
      continue;
    }
    for (size_t i = 0; i < word.size(); ++i) lines.push_back(products.at(next++));
  }
  if (next != products.size()) throw std::logic_error("products are left: " + schedule);
  return lines;
}

// Adds instructions as l0, l1 ... for the letter l.
Inserts numbered(Inserts inserts, const std::string& letter, const Lines& instructions) {
  for (size_t i = 0; i < instructions.size(); ++i) inserts[line(letter, i)] = {instructions[i]};
  return inserts;
}

// Lists the products pair of rows by pair of rows.
Lines products(const Registers& x, const Registers& b, int first = 0) {
  Lines lines;
  const int outputs = static_cast<int>(b.size());
  for (size_t i = 0; i < x.size(); ++i) {
    for (int j = 0; j < outputs; ++j) {
      lines.push_back(
          mmla(first + outputs * static_cast<int>(i) + j, x[i], b[static_cast<size_t>(j)]));
    }
  }
  return lines;
}

// --- operands out of scratch ---

// Multiplies operands out of scratch; each half is loaded while the half before it is multiplied.
Lines channel_8x8() {
  const auto loads = [](int set, int offset) {
    const int r = 16 + 8 * set;
    return join({load(range(r, r + 2), "x", offset), load(range(r + 4, r + 6), "w", offset),
                 load(range(r + 2, r + 4), "x", offset + 32),
                 load(range(r + 6, r + 8), "w", offset + 32)});
  };
  const auto half = [](int set, const Lines& then) {
    const int r = 16 + 8 * set;
    return weave("mm l0 mmmm l1 mmmm l2 mmmm l3 mm", products(range(r, r + 4), range(r + 4, r + 8)),
                 numbered({}, "l", then));
  };
  return join({loads(0, 0),
               zero(range(0, 16)),
               {"cbz %[n], 2f", ".p2align 5", "1:"},
               half(0, loads(1, 64)),
               half(1, loads(0, 128)),
               {add("x", 128), add("w", 128)},
               next_round("n", 1),
               {"2:"},
               half(0, loads(1, 64)),
               half(1, {})});
}

// y = (float(sum) * scale of the output + 0) * scale of the row: v16-v19 scales, v28 and v29 those of rows.
Lines channel_finish(int fraction) {
  const auto pair = [](int i) {
    Lines lines = zero(range(20, 24));
    for (int j = 0; j < 4; ++j) lines.push_back(scale(4 * i + j, 20 + j, 16 + j));
    for (const auto& [zip, to] : {std::pair(1, 24), std::pair(2, 26)}) {
      for (int j = 0; j < 2; ++j) {
        lines.push_back(
            line("zip", zip, " v", to + j, ".2d, v", 20 + 2 * j, ".2d, v", 21 + 2 * j, ".2d"));
      }
    }
    for (int row = 0; row < 2; ++row) {
      for (int to = 24 + 2 * row; to < 26 + 2 * row; ++to) {
        lines.push_back(
            line("fmul v", to, ".4s, v", to, ".4s, v", 28 + i / 2, ".s[", 2 * i % 4 + row, "]"));
      }
    }
    for (int to : {24, 26}) {
      append(lines, store({to, to + 1}, "y"));
      lines.push_back("add %[y], %[y], %[ldy]");
    }
    return lines;
  };
  const auto floats = [fraction](int i) {
    Lines lines;
    for (int j = 0; j < 4; ++j) lines.push_back(to_float(4 * i + j, fraction));
    return lines;
  };
  return join({load(range(16, 20), "s"), load({28, 29}, "r"), floats(0), floats(1), pair(0),
               floats(2), pair(1), floats(3), pair(2), pair(3)});
}

Lines grouped_begin(int count) {
  return join({load(range(12, 12 + count), "f"), {line("dup v", kMagic, ".4s, %w[magic]")}});
}

// mixed: every other sum starts at a number whose bits are a float, so that FSUB makes it one again.
Lines grouped_start(int count, bool mixed) {
  Lines lines{"2:", "mov %[n], %[steps]"};
  for (int r = 0; r < count; ++r) {
    lines.push_back(mixed && r % 2 ? line("mov v", r, ".16b, v", kMagic, ".16b")
                                   : line("movi v", r, ".4s, #0"));
  }
  lines.push_back("1:");
  return lines;
}

Lines grouped_loop(int pairs, int halves) {
  Lines lines;
  const Registers x = range(24, 24 + pairs);
  const Registers b = range(27, 31);
  for (int h = 0; h < halves; ++h) {
    const Lines rows = load(x, "x", 16 * pairs * h);
    const Lines outputs = load(b, "w", 64 * h);
    append(lines, {rows[0], outputs[0]});
    lines.insert(lines.end(), rows.begin() + 1, rows.end());
    lines.insert(lines.end(), outputs.begin() + 1, outputs.end());
    append(lines, products(x, b));
  }
  return join({lines, {add("x", 16 * pairs * halves), add("w", 64 * halves)}, next_round("n", 1)});
}

// Converts the sum of a group to a float; every other sum of a mixed tile has the bits of a float already.
std::string sum_to_float(int r, bool mixed, int fraction) {
  if (!mixed || r % 2 == 0) return to_float(r, fraction);
  return line("fsub v", r, ".4s, v", r, ".4s, v", kMagic, ".4s");
}

// Ends a group: f += float(sum) * scale.
Lines grouped_end(int count, bool mixed, int fraction) {
  Lines lines = join({load(range(27, 31), "s"), {add("s", 64), "add %[w], %[w], %[gap]"}});
  for (int r = 0; r < count; ++r) lines.push_back(sum_to_float(r, mixed, fraction));
  for (int r = 0; r < count; ++r) lines.push_back(scale(r, 12 + r, 27 + r % 4));
  return join({lines, next_round("g", 2)});
}

// Does what grouped_end does for fp4, with a factor per pair of rows and group in v24; the operands together are 4
// times too large.
Lines rows_end() {
  Lines lines = join({load({27, 28}, "s"),
                      load({24}, "r"),
                      load({29, 30}, "s", 32),
                      {add("s", 64), "add %[w], %[w], %[gap]"}});
  for (int r = 0; r < 12; ++r) {
    if (r == 4 || r == 8) append(lines, load({24}, "r", 4 * r));
    const int factor = 25 + r % 2;
    append(lines, {line("fmul v", factor, ".4s, v", 27 + r % 4, ".4s, v24.4s"),
                   sum_to_float(r, true, 2), scale(r, 12 + r, factor)});
  }
  return join({lines, {"add %[r], %[r], %[r_next]"}, next_round("g", 2)});
}

// Lists the products output by output, so that four registers hold the operands of six pairs of outputs.
Lines twelve_loop(int pairs) {
  Lines lines{".p2align 5", "1:"};
  const Registers x = range(24, 24 + pairs);
  for (int h = 0; h < 2; ++h) {
    append(lines, load(x, "x", 16 * pairs * h));
    for (int j = 0; j < 6; ++j) {
      const int b = 28 + j % 4;
      if (j % 2 == 0) append(lines, load({b, b + 1}, "w", 96 * h + 16 * j));
      for (int i = 0; i < pairs; ++i)
        lines.push_back(mmla(6 * i + j, x[static_cast<size_t>(i)], b));
    }
  }
  return join({lines, {add("x", 32 * pairs), add("w", 192)}, next_round("n", 1)});
}

// Does what channel_finish does for 12 outputs: scales of outputs in v24-v29, of two or four rows in v30. Each sum frees its
// register for the next.
Lines twelve_finish(int pairs) {
  const auto floats = [](int i) {
    Lines lines;
    for (int j = 0; j < 6; ++j) lines.push_back(to_float(6 * i + j, 4));
    return lines;
  };
  const auto pair = [](int i, int free, int lane) {
    Lines lines;
    Registers rows[2];
    for (int j = 0; j < 6; j += 2) {
      const int a = 6 * i + j;
      const int b = a + 1;
      append(lines, {zero({free})[0], scale(a, free, 24 + j), zero({a})[0], scale(b, a, 25 + j),
                     line("zip1 v", b, ".2d, v", free, ".2d, v", a, ".2d"),
                     line("zip2 v", free, ".2d, v", free, ".2d, v", a, ".2d")});
      rows[0].push_back(b);
      rows[1].push_back(free);
      free = a;
    }
    for (int k = 0; k < 2; ++k) {
      for (int r : rows[k]) {
        lines.push_back(line("fmul v", r, ".4s, v", r, ".4s, v30.s[", lane + k, "]"));
      }
    }
    for (const Registers& row : rows) {
      append(lines, store(row, "y"));
      lines.push_back("add %[y], %[y], %[ldy]");
    }
    return lines;
  };
  Lines lines = pairs == 4 ? floats(3) : Lines{};
  append(lines, join({load(range(24, 30), "s"),
                      load({30}, "r"),
                      floats(0),
                      floats(1),
                      pair(0, 31, 0),
                      floats(2),
                      pair(1, 4, 2),
                      {line("ldr d30, ", at("r", 16))},
                      pair(2, 10, 0)}));
  if (pairs == 4) append(lines, join({{line("ldr d30, ", at("r", 24))}, pair(3, 16, 0)}));
  return lines;
}

// --- operands made out of 4-bit codes in registers ---

// The schedules by the number of pairs of rows, from 1. Operands are made half a step before their use (u0-u3) and codes loaded (l0, l1), spread
// between products; three registers hold the rows of up to five pairs (r2, r3).
const std::string kHalves[] = {
    "rows m u0 m u1 l0 m u2 l1 m u3",
    "rows mm u0 mm u1 l0 mm u2 l1 mm u3",
    "rows r2 mm u0 mmm u1 m l0 mm u2 m l1 mm u3 m",
    "rows r2 mm u0 mm r3 mm u1 mm l0 mm u2 mm l1 mm u3 mm",
    "rows r2 l0 l1 mmmmmm u0 mm r3 mm u1 mm u2 mm u3 mmmmmm",
};
// The schedules of 3 to 5 pairs of rows for 4 outputs at a time (two pairs of outputs).
const std::string kNarrowHalves[] = {
    "rows mm l0 m u0 m u1 mm",
    "rows mm l0 mm u0 u1 mmmm",
    "rows mm l0 mmm u0 u1 mmmmm",
};

Inserts made_and_loaded(Inserts inserts, const Lines& made, const Lines& loaded) {
  return numbered(numbered(std::move(inserts), "u", made), "l", loaded);
}

Lines code_half(int pairs, int offset, const Registers& b, const Lines& made, const Lines& loaded,
                int first = 0) {
  const Registers x = first_of({28, 29, 30, 28, 29}, pairs);
  Inserts rows{{"rows", load(first_of(x, pairs < 2 ? pairs : 2), "x", offset)}};
  if (pairs > 2) rows["r2"] = load({x[2]}, "x", offset + 32);
  if (pairs > 3) rows["r3"] = load({x.begin() + 3, x.end()}, "x", offset + 48);
  return weave(kHalves[pairs - 1], products(x, b, first), made_and_loaded(rows, made, loaded));
}

const Lines kMakeMask{line("movi v", kMask, ".16b, #0xf0")};

// The registers of codes and of the operands made of them.
struct CodeRegisters {
  Registers even = kEven;
  Registers a = kA;
  Registers b = kB;
};

// half(h, operands, made, loaded) four times; this_step, then: loads of the codes of the second step and of the one behind.
using Half = std::function<Lines(int, const Registers&, const Lines&, const Lines&)>;
Lines two_steps(const Half& half, const Lines& this_step, const Lines& then,
                const CodeRegisters& r = {}) {
  return join({half(0, r.even, odds(r.a), this_step), half(1, r.a, evens(r.even, r.b), {}),
               half(2, r.even, odds(r.b), then), half(3, r.b, evens(r.even, r.a), {})});
}
Lines two_steps(const Half& half) { return two_steps(half, load(kB, "w", 64), load(kA, "w", 128)); }

// Codes of one step past the last are loaded: scales and padding of the panel lie there.
Lines channel_codes(int pairs) {
  const auto half = [pairs](int h, const Registers& b, const Lines& made, const Lines& loaded) {
    return code_half(pairs, 16 * pairs * h, b, made, loaded);
  };
  return join({load(kA, "w"),
               kMakeMask,
               zero(range(0, 16)),
               evens(kEven, kA),
               {"cbz %[n], 2f", ".p2align 5", "1:"},
               two_steps(half),
               {add("x", 64 * pairs), add("w", 128)},
               next_round("n", 1),
               {"2:", "cbz %[odd], 3f"},
               half(0, kEven, odds(kA), {}),
               half(1, kA, {}, {}),
               {"3:"}});
}

// 20 sums leave no room for two steps of codes: they are loaded twice, for the even inputs and for the odd ones.
Lines channel_codes_5() {
  return join({load(kA, "w"),
               kMakeMask,
               zero(range(0, 20)),
               evens(kA, kA),
               {".p2align 5", "1:"},
               code_half(5, 0, kA, odds(kB), load(kB, "w")),
               code_half(5, 80, kB, evens(kA, kA), load(kA, "w", 64)),
               {add("x", 160), add("w", 64)},
               next_round("n", 1),
               store(range(0, 20), "o")});
}

// Two pairs of rows and two panels with a stream of codes each (w, v), step by step in turn.
Lines channel_two_panels() {
  const auto half = [](int h, const Registers& b, const Lines& made, const Lines& loaded) {
    return code_half(2, 32 * (h % 2), b, made, loaded, 8 * (h / 2));
  };
  return join({load(kA, "w"),
               kMakeMask,
               zero(range(0, 16)),
               evens(kEven, kA),
               {".p2align 5", "1:"},
               two_steps(half, load(kB, "v"), load(kA, "w", 64)),
               {add("x", 64), add("w", 64), add("v", 64)},
               next_round("n", 1),
               store(range(0, 16), "o")});
}

// The last group loads its own codes once more, since no group follows it.
const Lines kBeginGroup{"2:", "mov %[n], %[twice]", "add %[next], %[w], %[group]", "cmp %[g], #1",
                        "csel %[next], %[w], %[next], eq"};

// Two pairs of rows, f in v8-v15; scales bf16 behind the codes of a group become v24-v27 between conversions.
Lines grouped_codes() {
  const auto half = [](int h, const Registers& b, const Lines& made, const Lines& loaded) {
    return code_half(2, 32 * h, b, made, loaded);
  };
  const auto c = [](int r) { return to_float(r, 4); };
  const auto s = [](int r) { return scale(r, 8 + r, 24 + r % 4); };
  const Lines end{"shll v29.4s, v28.4h, #16",
                  c(0),
                  c(1),
                  twice(1, 24, 29),
                  c(2),
                  twice(2, 25, 29),
                  c(3),
                  "shll2 v28.4s, v28.8h, #16",
                  c(4),
                  s(0),
                  twice(1, 26, 28),
                  c(5),
                  s(1),
                  twice(2, 27, 28),
                  c(6),
                  s(2),
                  c(7),
                  s(3),
                  s(4),
                  s(5),
                  s(6),
                  s(7)};
  return join({load(kA, "w"),
               zero(range(8, 16)),
               kMakeMask,
               evens(kEven, kA),
               kBeginGroup,
               zero(range(0, 8)),
               {"cbz %[n], 4f", "1:"},
               two_steps(half),
               {add("x", 128), add("w", 128)},
               next_round("n", 1),
               {"4:"},
               two_steps(half, load(kB, "w", 64), load(kA, "next")),
               load({28}, "w", 128),
               {add("x", 128), "mov %[w], %[next]"},
               end,
               next_round("g", 2),
               store(range(8, 16), "o")});
}

// Two steps of one row (the second one of SMMLA is zero: "ldr d") or of a pair, at t, and the panel.
Lines stream_steps(bool pair, const std::string& panel, const Lines& then, int first = 0) {
  const auto half = [=](int h, const Registers& b, const Lines& made, const Lines& loaded) {
    const std::string row = line("ldr ", pair ? "q" : "d", "28, ", at("t", (pair ? 16 : 8) * h));
    return weave(kHalves[0], products({28}, b, first),
                 made_and_loaded({{"rows", {row}}}, made, loaded));
  };
  return two_steps(half, load(kB, panel, 64), then);
}

// One row or a pair and two panels, two steps of each in turn.
Lines channel_streams(bool pair) {
  return join({load(kA, "w"),
               zero(range(0, 8)),
               kMakeMask,
               evens(kEven, kA),
               {".p2align 5", "1:"},
               stream_steps(pair, "w", load(kA, "v")),
               stream_steps(pair, "v", load(kA, "w", 128), 4),
               {add("t", pair ? 64 : 32), add("w", 128), add("v", 128)},
               next_round("n", 1),
               store(range(0, 8), "o")});
}

// channel_streams with groups: group after group in turn. f in v8-v15 (one row: v8-v11).
Lines grouped_streams(bool pair) {
  const auto finish_one = [](int f) -> Lines {
    return {"zip1 v28.2d, v0.2d, v1.2d",
            "zip1 v29.2d, v2.2d, v3.2d",
            "shll v0.4s, v30.4h, #16",
            to_float(28, 4),
            "shll2 v1.4s, v30.8h, #16",
            to_float(29, 4),
            scale(28, f, 0),
            scale(29, f + 1, 1)};
  };
  const auto finish_pair = [](int f) -> Lines {
    return {to_float(0, 4),     "shll v29.4s, v30.4h, #16",
            to_float(1, 4),     "shll2 v30.4s, v30.8h, #16",
            to_float(2, 4),     twice(1, 4, 29),
            twice(2, 5, 29),    to_float(3, 4),
            twice(1, 6, 30),    twice(2, 7, 30),
            scale(0, f, 4),     scale(1, f + 1, 5),
            scale(2, f + 2, 6), scale(3, f + 3, 7)};
  };
  const auto finish = [&](int f) { return pair ? finish_pair(f) : finish_one(f); };
  const int width = pair ? 4 : 2;
  const int row_bytes = pair ? 64 : 32;
  const auto group = [&](const std::string& panel, const std::string& following, int loop, int last,
                         const Lines& end) {
    return join({{"mov %[t], %[x]", "mov %[n], %[twice]"},
                 zero(range(0, 4)),
                 {line("cbz %[n], ", last, "f"), line(loop, ":")},
                 stream_steps(pair, panel, load(kA, panel, 128)),
                 {add("t", row_bytes), add(panel, 128)},
                 next_round("n", loop),
                 {line(last, ":")},
                 stream_steps(pair, panel, load(kA, following)),
                 load({30}, panel, 128),
                 {add(panel, 144)},
                 end});
  };
  return join({load(kA, "w"),
               zero(range(8, 16)),
               kMakeMask,
               evens(kEven, kA),
               {"2:"},
               group("w", "v", 1, 3, finish(8)),
               {"cmp %[g], #1", "csel %[next], %[v], %[w], eq"},
               group("v", "next", 4, 5, finish(8 + width)),
               {line("add %[x], %[t], #", row_bytes)},
               next_round("g", 2),
               store(range(8, 8 + 2 * width), "o")});
}

// 3 to 5 pairs of rows with groups, 4 outputs at a time: a panel is read twice, the second time from the cache.
Lines narrow(int pairs) {
  const CodeRegisters codes{{20, 21}, {22, 23}, {24, 25}};
  const int f = 10;
  const Registers x = range(26, 26 + pairs);
  const int step = 64 * pairs;
  const auto half = [&](int h, const Registers& operands, const Lines& made, const Lines& loaded) {
    return weave(kNarrowHalves[pairs - 3], products(x, operands),
                 numbered({{"rows", load(x, "x", step / 4 * h)}, {"l0", loaded}}, "u", made));
  };
  const auto steps = [&](const Lines& then) {
    return two_steps(half, load(codes.b, "w", 64), then, codes);
  };
  Lines end{to_float(0, 4),  to_float(1, 4),   "shll v26.4s, v26.4h, #16",
            to_float(2, 4),  twice(1, 24, 26), to_float(3, 4),
            twice(2, 25, 26)};
  for (int r = 0; r < 2 * pairs; ++r) {  // conversions run four sums ahead
    if (r + 4 < 2 * pairs) end.push_back(to_float(r + 4, 4));
    end.push_back(scale(r, f + r, 24 + r % 2));
  }
  return join({load(codes.a, "w"),
               load(range(f, f + 10), "o"),
               kMakeMask,
               evens(codes.even, codes.a),
               kBeginGroup,
               zero(range(0, 10)),
               {"cbz %[n], 4f", "1:"},
               steps(load(codes.a, "w", 128)),
               {add("x", step), add("w", 128)},
               next_round("n", 1),
               {"4:"},
               steps(load(codes.a, "next")),
               {"ldr d26, [%[w], %[s]]", add("x", step), "mov %[w], %[next]"},
               end,
               next_round("g", 2),
               store(range(f, f + 10), "o")});
}

// --- the file ---

std::vector<std::pair<std::string, Lines>> listings() {
  std::vector<std::pair<std::string, Lines>> all{
      {"CHANNEL_8X8", channel_8x8()},           {"CHANNEL_FINISH", channel_finish(0)},
      {"CHANNEL_FINISH_16", channel_finish(4)}, {"STORE_16", store(range(0, 16), "o")},
      {"CODES_5", channel_codes_5()},           {"CODES_TWO_PANELS", channel_two_panels()},
  };
  for (int pairs = 1; pairs < 5; ++pairs)
    all.emplace_back(line("CODES_", pairs), channel_codes(pairs));
  for (int count : {8, 12}) all.emplace_back(line("GROUPED_BEGIN_", count), grouped_begin(count));
  for (int count : {8, 12}) {
    for (bool mixed : {false, true}) {
      const std::string kind = mixed ? "MIXED" : "ZERO";
      all.emplace_back(line("GROUPED_", kind, "_", count), grouped_start(count, mixed));
      all.emplace_back(line("GROUPED_", kind, "_END_", count), grouped_end(count, mixed, 0));
      all.emplace_back(line("GROUPED_", kind, "_END_", count, "_16"), grouped_end(count, mixed, 4));
    }
  }
  const std::vector<std::pair<std::string, Lines>> rest{
      {"GROUPED_4X8", grouped_loop(2, 4)},
      {"GROUPED_6X8", grouped_loop(3, 4)},
      {"GROUPED_ROWS_6X8", grouped_loop(3, 2)},
      {"GROUPED_ROWS_END", rows_end()},
      {"STORE_F_8", store(range(12, 20), "o")},
      {"CODES_GROUPED", grouped_codes()},
      {"CODES_STREAMS_ONE", channel_streams(false)},
      {"CODES_STREAMS_PAIR", channel_streams(true)},
      {"CODES_GROUPED_STREAMS_ONE", grouped_streams(false)},
      {"CODES_GROUPED_STREAMS_PAIR", grouped_streams(true)},
      {"CODES_NARROW_3", narrow(3)},
      {"CODES_NARROW_4", narrow(4)},
      {"CODES_NARROW_5", narrow(5)},
      {"TWELVE_ZERO", zero(range(0, 24))},
      {"TWELVE_LOAD", load(range(0, 24), "b")},
      {"TWELVE_STORE", store(range(0, 24), "b")},
      {"TWELVE_3", twelve_loop(3)},
      {"TWELVE_4", twelve_loop(4)},
      {"TWELVE_FINISH_3", twelve_finish(3)},
      {"TWELVE_FINISH_4", twelve_finish(4)},
  };
  all.insert(all.end(), rest.begin(), rest.end());
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: i8mm_assembly FILE\n";
    return 2;
  }
  std::ofstream out(argv[1]);
  out << "// Written by cmake/i8mm_assembly.cpp.\n#pragma once\n";
  for (const auto& [name, lines] : listings()) {
    out << "\n#define MOEBIUS_I8MM_" << name;
    for (const std::string& text : lines) out << " \\\n  \"" << text << "\\n\"";
    out << '\n';
  }
  out.close();
  if (!out) {
    std::cerr << argv[1] << ": cannot be written\n";
    return 1;
  }
  return 0;
}
