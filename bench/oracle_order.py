#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Is the kernel that the oracle chooses the fastest one of this CPU? For every scheme and number of rows.

    bench/oracle_order.py [--tool build/release/moebius] [--threads 16] [--rounds 7] [--schemes nvfp4,mxfp4] [--rows 1,8,32,512,2048]

All kernels that run a scheme here multiply the same matrix in turn, round by round. A line has the kernel that was chosen and the fastest
of the others, with the medians of their milliseconds and the spread over the rounds. The status is 1 if, in six of seven rounds, a
kernel of the same class of numerics takes less than the chosen one by more than 5 %. A kernel of another class is shown and not judged:
the order between classes is a decision about numerics. Portable kernels (generic, reference) are left out where they were not chosen.
"""
import argparse
import os
import statistics
import sys
from pathlib import Path

from compare import ROOT, numbers, ours

SCHEMES = ["w4a8", "w8a8", "w4a16", "w8a16", "w2a16", "w3a16", "fp8", "fp8_block", "fp8_static", "nvfp4", "nvfp4a16", "mxfp4", "mxfp4a16",
           "mxfp8", "w4afp8", "bf16", "f16", "f32"]
PORTABLE = ("generic/", "reference/")
AHEAD = 1.05


def dtype_of(scheme):
    return scheme if scheme in ("f16", "f32") else "bf16"


def kernels_of(tool, scheme):
    """Titles of the kernels of this CPU that run a scheme."""
    lines = ours(tool, ["kernel", "--scheme", scheme, "--n", 64, "--k", 256, "--tokens", 1, "--seconds", 0, "--dtype", dtype_of(scheme)])
    return list(dict.fromkeys(line["kernel"] for line in lines))


def measure(a, scheme, kernel):
    """Rows -> line of the bench."""
    arguments = ["linear", "--scheme", scheme, "--n", a.n, "--k", a.k, "--tokens", ",".join(map(str, a.rows)), "--threads", a.threads,
                 "--seconds", a.seconds, "--dtype", dtype_of(scheme)]
    return {line["tokens"]: line for line in ours(a.tool, arguments + (["--kernel", kernel] if kernel else []))}


def spread(values):
    return f"{statistics.median(values):.4g} ({min(values):.4g}-{max(values):.4g})"


def behind(chosen, other, needed):
    """Whether the other one takes less by more than 5 % in so many rounds."""
    return sum(c > AHEAD * o for c, o in zip(chosen, other)) >= needed


def judge(a, scheme):
    """Prints the lines of a scheme; True if a chosen kernel is behind."""
    first = measure(a, scheme, None)
    chosen = next(iter(first.values()))["kernel"]
    others = [k for k in kernels_of(a.tool, scheme) if k != chosen and not k.startswith(PORTABLE)]
    classes, times = {}, {}  # times[kernel][rows]: one for each round
    for i in range(a.rounds):
        kernels = [chosen, *others]
        for kernel in kernels if i % 2 == 0 else reversed(kernels):
            for rows, line in measure(a, scheme, kernel).items():
                classes[kernel] = line["numerics"]
                times.setdefault(kernel, {}).setdefault(rows, []).append(line["ms"])
    needed = -(-6 * a.rounds // 7)
    bad = False
    for rows in a.rows:
        mine = times[chosen][rows]
        ranked = sorted(others, key=lambda k: statistics.median(times[k][rows]))
        late = [k for k in ranked if classes[k] == classes[chosen] and behind(mine, times[k][rows], needed)]
        best = late[0] if late else ranked[0] if ranked else None
        text = f"{scheme:<11}{rows:>5} rows  chosen {chosen:<22} {spread(mine):<28}"
        if best:
            text += f" next {best:<22} {spread(times[best][rows]):<28}"
            if late:
                text += " BEHIND"
            elif classes[best] != classes[chosen]:
                text += f" {classes[best]}, not {classes[chosen]}"
        print(text.rstrip(), flush=True)
        bad |= bool(late)
    return bad


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", type=Path, default=ROOT / "build/release/moebius")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=numbers, default=[1, 8, 32, 512, 2048])
    parser.add_argument("--schemes", default=",".join(SCHEMES))
    parser.add_argument("--n", type=int, default=4096)
    parser.add_argument("--k", type=int, default=2048)
    parser.add_argument("--seconds", type=float, default=0.1, help="per case and round")
    a = parser.parse_args()
    late = [scheme for scheme in a.schemes.split(",") if judge(a, scheme)]
    print(f"the chosen kernel is behind: {', '.join(late)}" if late else "the chosen kernel is nowhere behind another of its class")
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
