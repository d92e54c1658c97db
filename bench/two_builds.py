#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the speed of two builds of the tool: did a change make anything slower?

    bench/two_builds.py BEFORE AFTER [--threads 2] [--rounds 7] [--bar 0.98]
    bench/two_builds.py BEFORE AFTER --schemes w4a8,fp8,bf16 --experts 64 [--moe-tokens 1,512]    layers of these schemes alone

BEFORE and AFTER are two `moebius` programs. They run in turn, case by case: MoE layers of Qwen3-30B-A3B's geometry, prefill and
decode of the bundled model, a trace of requests through the engine. A ratio is the speed of AFTER divided by that of BEFORE in
the same round; the table has the median and the spread of the rounds. The status is 1 if a median lies below the bar.
"""
import argparse
import statistics
import sys

from compare import ours

MODEL = ["model", "--prompts", "512", "--batches", "1,8,32", "--steps", "300", "--seconds", "1"]
ENGINE = ["engine", "--requests", "32", "--rate", "1000", "--rounds", "3"]


def layers(tool, threads, arguments):
    """Case -> speed (larger is better) of layers, one round of one program."""
    lines = ours(tool, ["moe", *arguments, "--threads", threads])
    return {f"moe {line['scheme']}, {line['tokens']} tokens": 1 / line["ms"] for line in lines}


def whole(tool, threads):
    """The same of the bundled model and the engine."""
    result = {}
    (line,) = ours(tool, [*MODEL, "--threads", threads])
    for key, name in (("pp512", "model, prompt of 512"), ("tg_b1", "model, decode, 1 row"), ("tg_b8", "model, decode, 8 rows"),
                      ("tg_b32", "model, decode, 32 rows")):
        result[name] = line[f"{key}_tokens_per_s"]
    (line,) = ours(tool, [*ENGINE, "--threads", threads])
    result["engine, tokens/s while busy"] = (line["prompt_tokens"] + line["new_tokens"]) / line["busy_seconds"]
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--moe-tokens", default="1,8,32,512")
    parser.add_argument("--schemes", help="layers of these schemes, and nothing else")
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--bar", type=float, default=0.98)
    options = parser.parse_args()
    moe = ["--tokens", options.moe_tokens, "--experts", options.experts]
    if options.schemes:
        moe += ["--scheme", options.schemes]

    def speeds(tool):
        found = layers(tool, options.threads, moe)
        return found if options.schemes else {**found, **whole(tool, options.threads)}

    rounds = []
    for i in range(options.rounds):
        order = (options.before, options.after) if i % 2 == 0 else (options.after, options.before)
        measured = {tool: speeds(tool) for tool in order}
        rounds.append({case: measured[options.after][case] / speed for case, speed in measured[options.before].items()})
        print(f"round {i + 1} of {options.rounds}", file=sys.stderr)
    print(f"{'case':<32}{'after / before':>15}  spread")
    slower = False
    for case in rounds[0]:
        ratios = [r[case] for r in rounds]
        slower |= statistics.median(ratios) < options.bar
        print(f"{case:<32}{statistics.median(ratios):>15.3f}  {min(ratios):.3f}-{max(ratios):.3f}")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
