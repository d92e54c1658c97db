#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""D10: what ranks cost those who run one process.

    bench/rank_seam.py [--build build/release] [--turns 8]

Builds the tool of this commit a second time, in build/seam, with every question about ranks in a step answered at compile time (there are none), and runs
`bench model` of both in turns: the ratio of the medians is what the questions cost (at most 1.01). An older commit would differ in much else.
Means something on a quiet machine only.
"""
import argparse
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ANSWERS = {  # file -> what is asked there, and what one process answers
    "src/model/decoder.cpp": [(r"options_\.ranks", "static_cast<Ranks*>(nullptr)"), (r"columns_\.empty\(\)", "true"), (r"\bleads\(\)", "false")],
    "src/model/decoder_attend.cpp": [(r"options_\.ranks", "static_cast<Ranks*>(nullptr)"), (r"\bcuts_heads_\b", "false")],
    "src/nn/moe_forward.cpp": [(r"layer_\.plan_\.split\.any\(\)", "false"), (r"layer_\.plan_\.split\.(spread|cut) > 1", "false")],
    "src/nn/moe_copies.cpp": [(r"layer_\.copies_\.empty\(\)", "true")],
}
TESTS = ("tg_b1_ms", "tg_b8_ms", "pp64_ms")


def build():
    tree = ROOT / "build/seam"
    tree.mkdir(parents=True, exist_ok=True)
    files = subprocess.run(["git", "-C", str(ROOT), "archive", "HEAD"], check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(tree)], input=files, check=True)
    for name, answers in ANSWERS.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        for question, answer in answers:
            text, found = re.subn(question, answer, text)
            if found == 0:
                raise SystemExit(f"{name} asks {question} no more")
        (tree / name).write_text(text, encoding="utf-8")
    subprocess.run(["cmake", "--preset", "release", "-DMOEBIUS_WERROR=OFF"], cwd=tree, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", "build/release", "--target", "moebius"], cwd=tree, check=True, stdout=subprocess.DEVNULL)
    return tree / "build/release/moebius"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", type=Path, default=ROOT / "build/release")
    p.add_argument("--turns", type=int, default=8)
    p.add_argument("--only-build", action="store_true")
    a = p.parse_args()
    tools = [a.build / "moebius", build()]
    if a.only_build:
        return 0
    times = {}
    for _ in range(a.turns):
        for i, tool in enumerate(tools):
            job = subprocess.run([str(tool), "bench", "model", "--threads", "1", "--seconds", "0.3", "--prompts", "64", "--batches", "1,8", "--json", "--quiet"],
                                 capture_output=True, text=True, check=True)
            found = json.loads(job.stdout)
            for test in TESTS:
                times.setdefault((test, i), []).append(found[test])
    good = True
    for test in TESTS:
        seam, bare = (statistics.median(times[test, i]) for i in (0, 1))
        print(f"{test}: {seam:.4f} ms, without questions about ranks {bare:.4f} ms: {seam / bare:.4f} times", flush=True)
        good = good and seam <= 1.01 * bare
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
