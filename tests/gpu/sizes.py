#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Layers of real sizes (tests/gpu/random_model.py) on a CUDA device at bf16, where attention and few rows have kernels of their own.

    sizes.py TOOL FOLDER      what is wrong, then a summary; exit status 1 if something is

Logits of a prompt of 1,100 tokens are near the CPU's, and the device's have the same bytes for a shorter prompt: 1 and 7 rows (integer
products of few rows), 100 (attention split by keys), 700. Tokens that are decoded step by step, by graphs, are those of the logits. With memory
for half of the experts (a divided layer; with a file of loads all layers) bytes and tokens are those of the device alone, also while experts move.
"""
import json
import random
import struct
import sys
import tempfile
from pathlib import Path

from golden_blocks import last_words, read_tensors, run
from models import likeliest, vocabulary

TOKENS, SHORTER, DECODED, MOVING = 1100, (1, 7, 16, 17, 100, 700), 48, 320


def main():
    tool, folder, wrong = sys.argv[1], Path(sys.argv[2]), []
    source, vocab = random.Random(1), vocabulary(folder)
    tokens = [source.randrange(vocab) for _ in range(TOKENS)]

    def logits(some, *device):
        with tempfile.TemporaryDirectory() as work:
            out = Path(work) / "out.safetensors"
            result = run(tool, "logits", folder, "--tokens", ",".join(map(str, some)), "--out", out, "--dtype", "bf16", *device)
            if result.returncode != 0:
                sys.exit(f"sizes: {' '.join(device)}: {last_words(result)[0]}")
            _, (rows, width), data = read_tensors(out)["logits"]
            return rows, width, data

    cuda = ("--device", "cuda")
    want, got = logits(tokens), logits(tokens, *cuda)
    width = want[1]
    far = []
    for t in (0, 1, 63, 64, 127, 128, 129, 511, 1023, 1024, TOKENS - 1):
        a, b = (struct.unpack_from(f"<{width}f", x[2], 4 * t * width) for x in (want, got))
        far.append((sum((p - q) ** 2 for p, q in zip(a, b)) / max(sum(p * p for p in a), 1e-30)) ** 0.5)
    if not max(far) < 6e-2:
        wrong.append(f"logits are up to {max(far):.1e} from the CPU's: {' '.join(f'{f:.1e}' for f in far)}")
    for count in SHORTER:
        part = logits(tokens[:count], *cuda)[2]
        rows = [t for t in range(count) if part[4 * t * width:4 * (t + 1) * width] != got[2][4 * t * width:4 * (t + 1) * width]]
        if rows:
            wrong.append(f"{len(rows)} rows of {count} have other bytes than among {TOKENS}, first {rows[0]}")
    result = run(tool, "run", folder, "--tokens", ",".join(map(str, tokens[:1000])), "-n", DECODED, "--temp", 0, "--ignore-eos", "--speculate",
                 "off", "--dtype", "bf16", "--json", "-q", *cuda)
    if result.returncode != 0:
        wrong.append(f"run: {last_words(result)[0]}")
    else:
        made = json.loads(result.stdout)["tokens"]
        again = logits(tokens[:1000] + made, *cuda)
        best = [token for token, _ in likeliest(again[2], *again[:2])][999:-1]
        if best != made:
            wrong.append(f"{sum(a != b for a, b in zip(best, made))} of {DECODED} tokens that are decoded are not those of the logits")
    forecast = {f["options"]: f["bytes"] for f in json.loads(run(tool, "explain", folder, "--device", "cuda", "--json").stdout)["forecast"]}
    half = (forecast["--device cuda"] + forecast["--device cuda --experts cpu"]) / 2 / 2**30
    with tempfile.TemporaryDirectory() as work:
        some = (*cuda, "--experts", "auto", "--gpu-memory", half)
        for loads in ((), ("--expert-loads", Path(work) / "loads.json")):
            if logits(tokens, *map(str, some + loads))[2] != got[2]:
                wrong.append(f"half of the experts on the CPU{' by load' if loads else ''}: other bytes than the device's")
        ways = (cuda, some + loads, some + loads)  # the second by what the first has counted
        made = [run(tool, "run", folder, "--tokens", ",".join(map(str, tokens[:100])), "-n", MOVING, "--temp", 0, "--ignore-eos", "--speculate", "off",
                    "--dtype", "bf16", "--json", *way) for way in ways]
        for result in made[1:]:
            if result.returncode != 0:
                wrong.append(f"run with half of the experts: {last_words(result)[0]}")
            elif json.loads(result.stdout)["tokens"] != json.loads(made[0].stdout)["tokens"]:
                wrong.append("run with half of the experts: other tokens")
            print("\n".join(line for line in result.stderr.splitlines() if "experts" in line))
    for words in wrong:
        print(f"WRONG {words}")
    print(f"sizes: logits at most {max(far):.1e} from the CPU's, {len(SHORTER)} shorter prompts, {DECODED} tokens decoded; {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
