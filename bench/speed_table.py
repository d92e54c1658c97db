#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast every scheme reads its weights at one row, per class of Arm CPUs, as a Markdown table.

    speed_table.py [--write]      MOEBIUS_TOOL: the program, default build/release/moebius; --write: also into docs/speed.md, and into
                                  src/kernels/measured.cpp, where `explain` finds it

One run of `moebius bench linear` per class, one thread, 4096 x 4096, weights from memory; the smaller classes are this CPU narrowed by
MOEBIUS_CPU. Percent of the speed of reading memory in the same process, codes and scales as a file stores them.
"""
import argparse
import json
import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLASSES = [("i8mm and bf16", "neon,dotprod,i8mm,bf16,fp16,fhm"), ("dotprod and fhm", "neon,dotprod,fp16,fhm"), ("dotprod", "neon,dotprod,fp16"), ("plain NEON", "neon")]
# Scheme, groups to measure (none: the scheme's own), code of the table in measured.cpp.
CASES = [("w4a8", [-1, 128, 32], "kInt4Offset"), ("w8a8", [-1], "kInt8"), ("w4a16", [-1, 128, 32], "kInt4Offset"), ("w8a16", [-1, 128, 32], "kInt8"),
         ("fp8", [], "kFp8"), ("fp8_block", [], "kFp8"), ("nvfp4", [], "kFp4"), ("mxfp4", [], "kFp4"), ("nvfp4a16", [], "kFp4"),
         ("mxfp4a16", [], "kFp4"), ("mxfp8", [], "kFp8"), ("bf16", [], "kBf16"), ("f16", [], "kF16"), ("f32", [], "kF32")]


def tool():
    return Path(os.environ.get("MOEBIUS_TOOL", ROOT / "build/release/moebius"))


def command(scheme, groups, seconds):
    return ["bench", "linear", "--n", "4096", "--k", "4096", "--scheme", scheme, *(["--group", ",".join(map(str, groups))] if groups else []),
            "--tokens", "1", "--threads", "1", "--seconds", seconds, "--json", "--dtype", scheme if scheme in ("f16", "f32") else "bf16"]


def measure(features, seconds, runs):
    """(scheme, group) -> line of the bench; the best of some runs, since whatever else runs only slows."""
    cells = {}
    for scheme, groups, _ in CASES:
        for _ in range(runs):
            run = subprocess.run([str(tool()), *command(scheme, groups, seconds)], capture_output=True, text=True,
                                 check=True, env={**os.environ, "MOEBIUS_CPU": features})
            for line in map(json.loads, run.stdout.splitlines()):
                key = scheme, line["group"]
                if key not in cells or cells[key]["percent_gbs_read"] < line["percent_gbs_read"]:
                    cells[key] = line
    return cells


def write_source(all_cells):
    lines = {}
    for cells in all_cells:
        for (scheme, group), line in cells.items():
            code = next(c for s, _, c in CASES if s == scheme)
            key = line["kernel"], code, max(0, group) if scheme not in ("bf16", "f16", "f32") else 0
            lines.setdefault(key, (line["percent_gbs_read"], "kV1"))
    path = ROOT / "src/kernels/measured.cpp"
    text = "".join(f'    {{"{kernel}", {code}, {group}, {percent:.0f}, {where}}},\n' for (kernel, code, group), (percent, where) in lines.items())
    source = re.sub(r"(--write\.\n).*?(    // end)", lambda m: m[1] + text + m[2], path.read_text(), flags=re.S)
    path.write_text(source)


def write_page(path, table):
    text, count = re.subn(r"(<!-- speed_table -->\n).*?(<!-- end of speed_table -->)", lambda m: m[1] + table + m[2], path.read_text(), flags=re.S)
    if count != 1:
        raise SystemExit(f"{path}: no block speed_table")
    path.write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--seconds", default="0.2")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--class", dest="classes", type=int, action="append", help="number of a class; default: all")
    parser.add_argument("--cells", type=Path, help="file that keeps what was measured between runs")
    a = parser.parse_args()
    kept = json.loads(a.cells.read_text()) if a.cells and a.cells.exists() else {}
    for i, (name, features) in enumerate(CLASSES):
        if a.classes is None or i in a.classes:
            kept[name] = [[*key, line] for key, line in measure(features, a.seconds, a.runs).items()]
    if a.cells:
        a.cells.write_text(json.dumps(kept))
    tables = [{(s, g): line for s, g, line in kept.get(name, [])} for name, _ in CLASSES]
    lines = ["| scheme | " + " | ".join(name for name, _ in CLASSES) + " |", "|---|" + "---|" * len(CLASSES)]
    for scheme, group in dict.fromkeys(key for cells in tables for key in cells):
        title = scheme + (f", groups of {group}" if group > 0 else "")
        row = [f"{c[scheme, group]['percent_gbs_read']:.0f} ({c[scheme, group]['kernel']})" if (scheme, group) in c else "" for c in tables]
        lines.append(f"| {title} | " + " | ".join(row) + " |")
    table = "\n".join(lines) + "\n"
    print(table, end="")
    if a.write:
        write_source(tables)
        write_page(ROOT / "docs/speed.md", table)


if __name__ == "__main__":
    main()
