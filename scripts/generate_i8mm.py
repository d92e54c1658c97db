#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes src/kernels/arm/arm_i8mm_asm_*.h: the inner loops of arm_i8mm as assembly, one instruction a line.

    generate_i8mm.py [--check]     --check: exit status 1 when a file is not what would be written

Why assembly: compilers order the loads so that SMMLA runs at three quarters of its speed (docs/kernels.md). Why a
script: a loop is a register map plus a schedule, and a schedule is one line here.

What is multiplied. "smmla acc, x, b" adds to acc (2 rows x 2 outputs, int32) the products of 8 inputs of a pair of rows
x and a pair of outputs b. A STEP is 16 inputs, two HALVES of 8: first the even inputs, then the odd ones, as
arm_int8.h lays them out. A tile has P pairs of rows and C pairs of outputs; its sum of pair i and pair of outputs j is
register C i + j (+ the first one). Behind a 16-byte operand of a pair lies that of the next pair, behind the last pair
the next half.

A SCHEDULE is words: each "m" is the next product, in the order of products(); any other word names
instructions given for that half, and words without any are passed over. So "mm u0 mm" puts u0 behind two products.

Register maps ([x], [w] ... are the operands of the asm statements in arm_i8mm_{tiles,registers,twelve}.h):

                      v0       v8       v12      v16  v20      v24      v28       v31
  8x8 out of scratch  [sums 16 ........................] [x 4][b 4]  [x 4][b 4]          two halves in turn
  6x8, 4x8 grouped    [sums 12 ........] [f 12 .................]    [x 3] [b 4: v27-v30] [magic]
  12 outputs          [sums 24 .....................................] [x 4]   [b 4 ]
  8x8 from codes      [sums 16 ........................] [even][A 4] [B 4]    [x 3] [mask]
  10x8 from codes     [sums 20 .............................]  [A 4] [B 4]    [x 3] [mask]
  2 pairs, grouped    [sums 8] [f 8 ...................] [even][A 4] [B 4]    [x 2] [mask]
  3-5 pairs, grouped  [sums 10 ] [f 10: v10-v19 ............] [even 2, A 2, B 2][x 5: v26-v30] [mask]

A and B hold the 4-bit codes of a step and of the one behind it: "shl" makes the operands of the even inputs in `even`,
half a step later "and" with the mask makes those of the odd inputs in place. Operands are 16 times too large.
"""
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "src/kernels/arm"

EVEN, A, B, MASK, MAGIC = [16, 17, 18, 19], [20, 21, 22, 23], [24, 25, 26, 27], 31, 31


# --- instructions ---

def mmla(acc, x, b):
    return f"smmla v{acc}.4s, v{x}.16b, v{b}.16b"


def at(pointer, offset):
    return f"[%[{pointer}], #{offset}]" if offset else f"[%[{pointer}]]"


def move(op, registers, pointer, offset=0):
    """ldp or stp for pairs of registers that follow each other in memory, ldr or str for one that is left."""
    lines = []
    for i in range(0, len(registers), 2):
        pair = ", ".join(f"q{r}" for r in registers[i:i + 2])
        lines.append(f"{op}{'p' if i + 1 < len(registers) else 'r'} {pair}, {at(pointer, offset + 16 * i)}")
    return lines


def load(registers, pointer, offset=0):
    return move("ld", registers, pointer, offset)


def store(registers, pointer, offset=0):
    return move("st", registers, pointer, offset)


def zero(registers):
    return [f"movi v{r}.4s, #0" for r in registers]


def to_float(acc, fraction=0):
    return f"scvtf v{acc}.4s, v{acc}.4s" + (f", #{fraction}" if fraction else "")


def scale(acc, f, s):
    return f"fmla v{f}.4s, v{acc}.4s, v{s}.4s"


def twice(half, to, scales):
    """Two of four scales, each for two rows: half 1 = the first two."""
    return f"zip{half} v{to}.2d, v{scales}.2d, v{scales}.2d"


def even(to, codes):
    return f"shl v{to}.16b, v{codes}.16b, #4"


def odd(codes):
    return f"and v{codes}.16b, v{codes}.16b, v{MASK}.16b"


def add(pointer, offset):
    return f"add %[{pointer}], %[{pointer}], #{offset}"


def next_round(counter, label):
    return [f"subs %[{counter}], %[{counter}], #1", f"b.ne {label}b"]


# --- schedules ---

def weave(schedule, products, inserts):
    left, lines = list(products), []
    for word in schedule.split():
        if set(word) == {"m"}:
            lines += left[:len(word)]
            del left[:len(word)]
        else:
            lines += inserts.get(word, [])
    assert not left, schedule
    return lines


def numbered(letter, instructions):
    return {f"{letter}{i}": [line] for i, line in enumerate(instructions)}


def products(x, b, first=0):
    """Pair of rows by pair of rows."""
    return [mmla(first + len(b) * i + j, row, to) for i, row in enumerate(x) for j, to in enumerate(b)]


# --- operands out of scratch ---

def channel_8x8():
    """Each half is loaded while the one before is multiplied."""
    schedule, sets = "mm l0 mmmm l1 mmmm l2 mmmm l3 mm", [list(range(16, 24)), list(range(24, 32))]

    def loads(s, offset):
        r = sets[s]
        return (load(r[0:2], "x", offset) + load(r[4:6], "w", offset) + load(r[2:4], "x", offset + 32) +
                load(r[6:8], "w", offset + 32))

    def half(s, then):
        return weave(schedule, products(sets[s][:4], sets[s][4:]), numbered("l", then))
    return (loads(0, 0) + zero(range(16)) +
            ["cbz %[n], 2f", ".p2align 5", "1:"] + half(0, loads(1, 64)) + half(1, loads(0, 128)) +
            [add("x", 128), add("w", 128)] + next_round("n", 1) +
            ["2:"] + half(0, loads(1, 64)) + half(1, []))


def channel_finish(fraction):
    """y = (float(sum) * scale of the output + 0) * scale of the row: v16-v19 scales, v28 and v29 those of rows."""
    def pair(i):
        lines = zero(range(20, 24)) + [scale(4 * i + j, 20 + j, 16 + j) for j in range(4)]
        for zip_, to in ((1, 24), (2, 26)):
            lines += [f"zip{zip_} v{to + j}.2d, v{20 + 2 * j}.2d, v{21 + 2 * j}.2d" for j in range(2)]
        for row, to in enumerate((24, 26)):
            lines += [f"fmul v{to + j}.4s, v{to + j}.4s, v{28 + i // 2}.s[{2 * i % 4 + row}]" for j in range(2)]
        for to in (24, 26):
            lines += store([to, to + 1], "y") + ["add %[y], %[y], %[ldy]"]
        return lines

    def floats(i):
        return [to_float(4 * i + j, fraction) for j in range(4)]
    return (load([16, 17, 18, 19], "s") + load([28, 29], "r") + floats(0) + floats(1) + pair(0) + floats(2) + pair(1) +
            floats(3) + pair(2) + pair(3))


def grouped_begin(count):
    return load(range(12, 12 + count), "f") + [f"dup v{MAGIC}.4s, %w[magic]"]


def grouped_start(count, mixed):
    """mixed: every other sum starts at a number whose bits are a float, so that FSUB makes it one again."""
    starts = [f"mov v{r}.16b, v{MAGIC}.16b" if mixed and r % 2 else f"movi v{r}.4s, #0" for r in range(count)]
    return ["2:", "mov %[n], %[steps]"] + starts + ["1:"]


def grouped_loop(pairs, halves):
    lines, x, b = [], [24, 25, 26][:pairs], [27, 28, 29, 30]
    for h in range(halves):
        rows, outputs = load(x, "x", 16 * pairs * h), load(b, "w", 64 * h)
        lines += rows[:1] + outputs[:1] + rows[1:] + outputs[1:] + products(x, b)
    return lines + [add("x", 16 * pairs * halves), add("w", 64 * halves)] + next_round("n", 1)


def grouped_end(count, mixed, fraction):
    """f += float(sum) * scale, then the next group."""
    lines = load([27, 28, 29, 30], "s") + [add("s", 64), "add %[w], %[w], %[gap]"]
    for r in range(count):
        subtract = f"fsub v{r}.4s, v{r}.4s, v{MAGIC}.4s"
        lines.append(subtract if mixed and r % 2 else to_float(r, fraction))
    return lines + [scale(r, 12 + r, 27 + r % 4) for r in range(count)] + next_round("g", 2)


def rows_end():
    """The same with a factor per pair of rows and group in v24: fp4, operands 4 times too large together."""
    lines = (load([27, 28], "s") + load([24], "r") + load([29, 30], "s", 32) + [add("s", 64), "add %[w], %[w], %[gap]"])
    for r in range(12):
        if r in (4, 8):
            lines += load([24], "r", 4 * r)
        factor = 25 + r % 2
        lines += [f"fmul v{factor}.4s, v{27 + r % 4}.4s, v24.4s",
                  f"fsub v{r}.4s, v{r}.4s, v{MAGIC}.4s" if r % 2 else to_float(r, 2), scale(r, 12 + r, factor)]
    return lines + ["add %[r], %[r], %[r_next]"] + next_round("g", 2)


def twelve_loop(pairs):
    """Output by output, so that four registers hold the operands of six pairs of outputs."""
    lines, x = [".p2align 5", "1:"], [24, 25, 26, 27][:pairs]
    for h in range(2):
        lines += load(x, "x", 16 * pairs * h)
        for j, b in enumerate((28, 29, 30, 31, 28, 29)):
            if j % 2 == 0:
                lines += load([b, b + 1], "w", 96 * h + 16 * j)
            lines += [mmla(6 * i + j, row, b) for i, row in enumerate(x)]
    return lines + [add("x", 32 * pairs), add("w", 192)] + next_round("n", 1)


def twelve_finish(pairs):
    """As channel_finish: scales v24-v29, those of two or four rows v30. Sums become free one after the other."""
    def floats(i):
        return [to_float(6 * i + j, 4) for j in range(6)]

    def pair(i, free, lane):
        a, lines, rows = range(6 * i, 6 * i + 6), [], ([], [])
        for j in range(0, 6, 2):
            lines += zero([free]) + [scale(a[j], free, 24 + j)] + zero([a[j]]) + [
                scale(a[j + 1], a[j], 25 + j), f"zip1 v{a[j + 1]}.2d, v{free}.2d, v{a[j]}.2d",
                f"zip2 v{free}.2d, v{free}.2d, v{a[j]}.2d"]
            rows[0].append(a[j + 1])
            rows[1].append(free)
            free = a[j]
        for k, row in enumerate(rows):
            lines += [f"fmul v{r}.4s, v{r}.4s, v30.s[{lane + k}]" for r in row]
        for row in rows:
            lines += [f"stp q{row[0]}, q{row[1]}, {at('y', 0)}", f"str q{row[2]}, {at('y', 32)}",
                      "add %[y], %[y], %[ldy]"]
        return lines
    lines = floats(3) if pairs == 4 else []
    lines += load(range(24, 30), "s") + load([30], "r") + floats(0) + floats(1) + pair(0, 31, 0) + floats(2)
    lines += pair(1, 4, 2) + [f"ldr d30, {at('r', 16)}"] + pair(2, 10, 0)
    return lines + ([f"ldr d30, {at('r', 24)}"] + pair(3, 16, 0) if pairs == 4 else [])


# --- operands made out of 4-bit codes in registers ---

# By pairs of rows. Operands are made half a step before their use (u0-u3) and codes loaded (l0, l1), spread between
# products; three registers hold the rows of up to five pairs (r2, r3).
HALVES = {
    1: "rows m u0 m u1 l0 m u2 l1 m u3",
    2: "rows mm u0 mm u1 l0 mm u2 l1 mm u3",
    3: "rows r2 mm u0 mmm u1 m l0 mm u2 m l1 mm u3 m",
    4: "rows r2 mm u0 mm r3 mm u1 mm l0 mm u2 mm l1 mm u3 mm",
    5: "rows r2 l0 l1 mmmmmm u0 mm r3 mm u1 mm u2 mm u3 mmmmmm",
}
# The same for 4 outputs at a time (two pairs of outputs).
NARROW_HALVES = {
    3: "rows mm l0 m u0 m u1 mm",
    4: "rows mm l0 mm u0 u1 mmmm",
    5: "rows mm l0 mmm u0 u1 mmmmm",
}


def code_half(pairs, offset, b, make, codes, first=0):
    x = [28, 29, 30, 28, 29][:pairs]
    rows = {"rows": load(x[:2], "x", offset), "r2": load(x[2:3], "x", offset + 32), "r3": load(x[3:], "x", offset + 48)}
    return weave(HALVES[pairs], products(x, b, first), rows | numbered("u", make) | numbered("l", codes))


def begin_codes():
    return load(A, "w"), [f"movi v{MASK}.16b, #0xf0"], [even(e, a) for e, a in zip(EVEN, A)]


def two_steps(half, this=load(B, "w", 64), then=load(A, "w", 128), e=EVEN, a=A, b=B):
    """half(h, operands, make, codes) four times; this, then: load the codes of the second step and of the one behind."""
    return (half(0, e, [odd(r) for r in a], this) + half(1, a, [even(*r) for r in zip(e, b)], []) +
            half(2, e, [odd(r) for r in b], then) + half(3, b, [even(*r) for r in zip(e, a)], []))


def channel_codes(pairs):
    """Codes of one step past the last are loaded: scales and padding of the panel lie there."""
    codes, mask, make = begin_codes()

    def half(h, b, made, loaded):
        return code_half(pairs, 16 * pairs * h, b, made, loaded)
    return (codes + mask + zero(range(16)) + make + ["cbz %[n], 2f", ".p2align 5", "1:"] + two_steps(half) +
            [add("x", 64 * pairs), add("w", 128)] + next_round("n", 1) +
            ["2:", "cbz %[odd], 3f"] + half(0, EVEN, [odd(r) for r in A], []) + half(1, A, [], []) + ["3:"])


def channel_codes_5():
    """20 sums leave no room for two steps of codes: they are loaded twice, for the even inputs and for the odd ones."""
    codes, mask, _ = begin_codes()
    return (codes + mask + zero(range(20)) + [even(r, r) for r in A] + [".p2align 5", "1:"] +
            code_half(5, 0, A, [odd(r) for r in B], load(B, "w")) +
            code_half(5, 80, B, [even(r, r) for r in A], load(A, "w", 64)) +
            [add("x", 160), add("w", 64)] + next_round("n", 1) + store(range(20), "o"))


def channel_two_panels():
    """Two pairs of rows and two panels with a stream of codes each (w, v), step by step in turn."""
    codes, mask, make = begin_codes()

    def half(h, b, made, loaded):
        return code_half(2, 32 * (h % 2), b, made, loaded, first=8 * (h // 2))
    return (codes + mask + zero(range(16)) + make + [".p2align 5", "1:"] +
            two_steps(half, load(B, "v"), load(A, "w", 64)) +
            [add("x", 64), add("w", 64), add("v", 64)] + next_round("n", 1) + store(range(16), "o"))


def begin_group():
    """Behind the last group the same codes are loaded once more."""
    return ["2:", "mov %[n], %[twice]", "add %[next], %[w], %[group]", "cmp %[g], #1",
            "csel %[next], %[w], %[next], eq"]


def grouped_codes():
    """Two pairs of rows, f in v8-v15; scales bf16 behind the codes of a group become v24-v27 between conversions."""
    codes, mask, make = begin_codes()

    def half(h, b, made, loaded):
        return code_half(2, 32 * h, b, made, loaded)
    c, s = [to_float(r, 4) for r in range(8)], [scale(r, 8 + r, 24 + r % 4) for r in range(8)]
    end = ["shll v29.4s, v28.4h, #16", c[0], c[1], twice(1, 24, 29), c[2], twice(2, 25, 29), c[3],
           "shll2 v28.4s, v28.8h, #16", c[4], s[0], twice(1, 26, 28), c[5], s[1], twice(2, 27, 28), c[6], s[2], c[7],
           *s[3:]]
    return (codes + zero(range(8, 16)) + mask + make + begin_group() + zero(range(8)) +
            ["cbz %[n], 4f", "1:"] + two_steps(half) + [add("x", 128), add("w", 128)] + next_round("n", 1) +
            ["4:"] + two_steps(half, then=load(A, "next")) + load([28], "w", 128) +
            [add("x", 128), "mov %[w], %[next]"] + end + next_round("g", 2) + store(range(8, 16), "o"))


def stream_steps(pair, panel, then, first=0):
    """Two steps of one row (the second one of SMMLA is zero: "ldr d") or of a pair, at t, and the panel."""
    def half(h, b, made, loaded):
        row = f"ldr q28, {at('t', 16 * h)}" if pair else f"ldr d28, {at('t', 8 * h)}"
        return weave(HALVES[1], products([28], b, first), {"rows": [row]} | numbered("u", made) | numbered("l", loaded))
    return two_steps(half, load(B, panel, 64), then)


def channel_streams(pair):
    """One row or a pair and two panels, two steps of each in turn."""
    codes, mask, make = begin_codes()
    return (codes + zero(range(8)) + mask + make + [".p2align 5", "1:"] +
            stream_steps(pair, "w", load(A, "v")) + stream_steps(pair, "v", load(A, "w", 128), first=4) +
            [add("t", 64 if pair else 32), add("w", 128), add("v", 128)] + next_round("n", 1) + store(range(8), "o"))


def grouped_streams(pair):
    """The same with groups: group after group in turn. f in v8-v15 (one row: v8-v11)."""
    codes, mask, make = begin_codes()
    row_bytes = 64 if pair else 32

    def finish_one(f):
        return ["zip1 v28.2d, v0.2d, v1.2d", "zip1 v29.2d, v2.2d, v3.2d", "shll v0.4s, v30.4h, #16", to_float(28, 4),
                "shll2 v1.4s, v30.8h, #16", to_float(29, 4), scale(28, f, 0), scale(29, f + 1, 1)]

    def finish_pair(f):
        return [to_float(0, 4), "shll v29.4s, v30.4h, #16", to_float(1, 4), "shll2 v30.4s, v30.8h, #16", to_float(2, 4),
                twice(1, 4, 29), twice(2, 5, 29), to_float(3, 4), twice(1, 6, 30), twice(2, 7, 30),
                *[scale(r, f + r, 4 + r) for r in range(4)]]

    def group(panel, following, loop, last, end):
        return (["mov %[t], %[x]", "mov %[n], %[twice]"] + zero(range(4)) + [f"cbz %[n], {last}f", f"{loop}:"] +
                stream_steps(pair, panel, load(A, panel, 128)) + [add("t", row_bytes), add(panel, 128)] +
                next_round("n", loop) + [f"{last}:"] + stream_steps(pair, panel, load(A, following)) +
                load([30], panel, 128) + [add(panel, 144)] + end)
    finish, width = (finish_pair, 4) if pair else (finish_one, 2)
    return (codes + zero(range(8, 16)) + mask + make + ["2:"] + group("w", "v", 1, 3, finish(8)) +
            ["cmp %[g], #1", "csel %[next], %[v], %[w], eq"] + group("v", "next", 4, 5, finish(8 + width)) +
            [f"add %[x], %[t], #{row_bytes}"] + next_round("g", 2) + store(range(8, 8 + 2 * width), "o"))


def narrow(pairs):
    """3 to 5 pairs of rows with groups, 4 outputs at a time: a panel is read twice, the second time from the cache."""
    e, a, b, f = [20, 21], [22, 23], [24, 25], 10
    x, step = [26, 27, 28, 29, 30][:pairs], 64 * pairs

    def half(h, operands, made, loaded):
        rows = load(x, "x", step // 4 * h)
        return weave(NARROW_HALVES[pairs], products(x, operands), {"rows": rows, "l0": loaded} | numbered("u", made))

    def steps(then):
        return two_steps(half, load(b, "w", 64), then, e, a, b)
    end = [to_float(0, 4), to_float(1, 4), "shll v26.4s, v26.4h, #16", to_float(2, 4), twice(1, 24, 26), to_float(3, 4),
           twice(2, 25, 26)]
    for r in range(2 * pairs):  # conversions run four sums ahead
        end += ([to_float(r + 4, 4)] if r + 4 < 2 * pairs else []) + [scale(r, f + r, 24 + r % 2)]
    return (load(a, "w") + load(range(f, f + 10), "o") + [f"movi v{MASK}.16b, #0xf0"] + [even(*r) for r in zip(e, a)] +
            begin_group() + zero(range(10)) + ["cbz %[n], 4f", "1:"] + steps(load(a, "w", 128)) +
            [add("x", step), add("w", 128)] + next_round("n", 1) + ["4:"] + steps(load(a, "next")) +
            ["ldr d26, [%[w], %[s]]", add("x", step), "mov %[w], %[next]"] + end + next_round("g", 2) +
            store(range(f, f + 10), "o"))


# --- files ---

FILES = {
    "channel": {
        "CHANNEL_8X8": channel_8x8(),
        "CHANNEL_FINISH": channel_finish(0),
        "CHANNEL_FINISH_16": channel_finish(4),
        "STORE_16": store(range(16), "o"),
        "CODES_5": channel_codes_5(),
        "CODES_TWO_PANELS": channel_two_panels(),
    },
    "codes": {f"CODES_{pairs}": channel_codes(pairs) for pairs in range(1, 5)},
    "grouped": {
        "GROUPED_BEGIN_8": grouped_begin(8),
        "GROUPED_BEGIN_12": grouped_begin(12),
        "GROUPED_ZERO_8": grouped_start(8, False),
        "GROUPED_MIXED_8": grouped_start(8, True),
        "GROUPED_ZERO_12": grouped_start(12, False),
        "GROUPED_MIXED_12": grouped_start(12, True),
        "GROUPED_4X8": grouped_loop(2, 4),
        "GROUPED_6X8": grouped_loop(3, 4),
        "GROUPED_ROWS_6X8": grouped_loop(3, 2),
        "GROUPED_ROWS_END": rows_end(),
        **{f"GROUPED_{'MIXED' if mixed else 'ZERO'}_END_{count}{'_16' if fraction else ''}":
           grouped_end(count, mixed, fraction) for count in (8, 12) for mixed in (False, True) for fraction in (0, 4)},
        "STORE_F_8": store(range(12, 20), "o"),
    },
    "streams": {"CODES_GROUPED": grouped_codes(), "CODES_STREAMS_ONE": channel_streams(False),
                "CODES_STREAMS_PAIR": channel_streams(True)},
    "grouped_streams": {"CODES_GROUPED_STREAMS_ONE": grouped_streams(False),
                        "CODES_GROUPED_STREAMS_PAIR": grouped_streams(True)},
    "narrow": {f"CODES_NARROW_{pairs}": narrow(pairs) for pairs in (3, 4, 5)},
    "twelve": {
        "TWELVE_ZERO": zero(range(24)),
        "TWELVE_LOAD": load(range(24), "b"),
        "TWELVE_STORE": store(range(24), "b"),
        "TWELVE_3": twelve_loop(3),
        "TWELVE_4": twelve_loop(4),
        "TWELVE_FINISH_3": twelve_finish(3),
        "TWELVE_FINISH_4": twelve_finish(4),
    },
}

HEAD = """// SPDX-License-Identifier: Apache-2.0
// Assembly of arm_i8mm, written by scripts/generate_i8mm.py (register maps and schedules are there),
// not by hand.
#pragma once
// clang-format off
"""


def text_of(listings):
    parts = [HEAD]
    for name, lines in listings.items():
        body = " \\\n".join(f'  "{line}\\n"' for line in lines)
        parts.append(f"\n#define MOEBIUS_I8MM_{name} \\\n{body}\n")
    return "".join(parts) + "// clang-format on\n"


def main():
    stale = []
    for name, listings in FILES.items():
        path, text = FOLDER / f"arm_i8mm_asm_{name}.h", text_of(listings)
        if "--check" in sys.argv[1:]:
            if not path.exists() or path.read_text() != text:
                stale.append(path.name)
        else:
            path.write_text(text)
    known = {f"arm_i8mm_asm_{name}.h" for name in FILES}
    stale += sorted(p.name for p in FOLDER.glob("arm_i8mm_asm_*.h") if p.name not in known)
    if stale:
        print(f"stale: {', '.join(stale)}; run scripts/generate_i8mm.py")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
