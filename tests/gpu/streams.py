#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Experts of the CPU that are streamed through a CUDA device, in layers of real sizes (tests/gpu/random_model.py): no byte depends on it.

    streams.py TOOL FOLDER      what is wrong, then a summary; exit status 1 if something is

Logits of a prompt of 1,100 tokens, and of shorter ones, have the bytes of the device alone: with experts on the CPU that are not streamed yet,
streamed in steps of 16 rows and more, streamed when that is faster, with one and with two buffers, and with some of the experts on the GPU.
"""
import json
import random
import sys
import tempfile
from pathlib import Path

from golden_blocks import last_words, read_tensors, run
from models import vocabulary

TOKENS, SHORTER = 1100, (1, 15, 16, 17, 300)


def main():
    tool, folder, wrong = sys.argv[1], Path(sys.argv[2]), []
    source, vocab = random.Random(2), vocabulary(folder)
    tokens = [source.randrange(vocab) for _ in range(TOKENS)]
    checked = 0

    def logits(some, *device):
        with tempfile.TemporaryDirectory() as work:
            out = Path(work) / "out.safetensors"
            result = run(tool, "logits", folder, "--tokens", ",".join(map(str, some)), "--out", out, "--dtype", "bf16", *map(str, device))
            if result.returncode != 0:
                sys.exit(f"streams: {' '.join(map(str, device))}: {last_words(result)[0]}")
            return read_tensors(out)["logits"][2], [line for line in result.stderr.splitlines() if "stream" in line]

    cuda = ("--device", "cuda")
    explained = json.loads(run(tool, "explain", folder, *cuda, "--json").stdout)
    need = {f["options"]: f["bytes"] for f in explained["forecast"]}
    buffer = explained["prompt"]["buffer_bytes"]
    few = need["--device cuda --experts cpu"]

    def gib(count):
        return count / 2**30

    ways = [("not yet", ("--experts", "cpu", "--stream-experts", 1000000)),
            ("from 16 rows on", ("--experts", "cpu", "--stream-experts", 16)),
            ("when it is faster", ("--experts", "cpu", "--stream-experts", "auto")),
            ("one buffer", ("--experts", "cpu", "--stream-experts", 16, "--gpu-memory", gib(few + 0.4e9 + 1.5 * buffer))),
            ("some on the GPU", ("--experts", "auto", "--stream-experts", 16, "--gpu-memory", gib(few + 0.4e9 + 4.5 * buffer)))]
    for count in (TOKENS, *SHORTER):
        want = logits(tokens[:count], *cuda)[0]
        for name, way in ways:
            got, words = logits(tokens[:count], *cuda, *way)
            checked += 1
            if got != want:
                wrong.append(f"{count} tokens, {name}: other bytes than the device's")
            if count == TOKENS:
                print(f"{name}: " + "; ".join(words))
                if not any("can be streamed" in w for w in words):
                    wrong.append(f"{name}: nothing is streamed")
    for words in wrong:
        print(f"WRONG {words}")
    print(f"streams: {checked} prompts compared, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
