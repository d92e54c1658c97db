#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden models on a CUDA device, judged by the CPU engine of the same build.

    models.py TOOL FOLDER [JOBS]      one line per folder that is wrong or left to the CPU whole, then a summary; exit status 1 if one is wrong

Of every golden folder that the CPU runs, `logits` at f32 activations on the CPU, on the device, and with attention there and experts on
the CPU: numbers close to the CPU's, and the likeliest token of every position the same (of dense folders these are 64 greedy tokens of
transformers, greedy.json). Rows of a shorter sequence must have the bytes that they have in the longer one, unless the CPU's differ too
(rotations that depend on the length). `run` decodes 64 tokens of dense folders and of some others, step by step. Some folders also at bf16.
"""
import json
import random
import struct
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from golden_blocks import distance, last_words, read_tensors, run

MOST = {"f32": 2e-3, "bf16": 6e-2}  # distance of logits; codes of activations may be one step apart


def vocabulary(folder):
    config = json.loads((folder / "config.json").read_text())
    for part in ("text_config", "llm_config", "thinker_config"):
        config = config.get(part) or config
    config = config.get("text_config") or config
    return config.get("vocab_size", 32)


def likeliest(logits, rows, width):
    out = []
    for t in range(rows):
        row = struct.unpack(f"<{width}f", logits[4 * t * width:4 * (t + 1) * width])
        best = max(row)
        second = max((v for v in row if v != best), default=best)
        out.append((row.index(best), best - second))
    return out


class Judge:
    def __init__(self, tool, folder, greedy, work):
        self.tool, self.folder, self.work, self.wrong, self.words = tool, folder, Path(work), [], []
        known = greedy.get(folder.name)
        source = random.Random(folder.name)
        self.tokens = known["prompt"] + known["tokens"] if known else [source.randrange(vocabulary(folder)) for _ in range(48)]
        self.known = known

    def logits(self, tokens, dtype, *device):
        """(rows, width, bytes), or None and why"""
        out = self.work / "out.safetensors"
        result = run(self.tool, "logits", self.folder, "--tokens", ",".join(map(str, tokens)), "--out", out, "--dtype", dtype, "--threads", 2, *device)
        if result.returncode != 0:
            return None, last_words(result)[0]
        self.words += [line for line in result.stderr.splitlines() if "on the CPU:" in line]
        _, (rows, width), data = read_tensors(out)["logits"]
        return (rows, width, data), ""

    def compare(self, dtype, want, *device):
        name = " ".join(device + (dtype,))
        got, why = self.logits(self.tokens, dtype, *device)
        if got is None:
            self.wrong.append(f"{name}: {why}")
            return None
        far = distance(got[2], want[2])
        if not far < MOST[dtype]:
            self.wrong.append(f"{name}: logits are {far:.1e} from the CPU's")
        if dtype == "f32":
            pairs = zip(likeliest(want[2], *want[:2]), likeliest(got[2], *got[:2]))
            flips = [(t, margin) for t, ((a, margin), (b, _)) in enumerate(pairs) if a != b]
            if flips:
                self.wrong.append(f"{name}: {len(flips)} of {want[0]} likeliest tokens differ, first at {flips[0][0]} (margin {flips[0][1]:.1e})")
        return got

    def decode(self, *device):
        """64 greedy tokens, one step each; None and why"""
        prompt = self.known["prompt"] if self.known else self.tokens[:17]
        result = run(self.tool, "run", self.folder, "--tokens", ",".join(map(str, prompt)), "-n", 64, "--temp", 0, "--ignore-eos", "--speculate",
                     "off", "--dtype", "f32", "--json", "-q", "--threads", 2, *device)
        return (json.loads(result.stdout)["tokens"], "") if result.returncode == 0 else (None, last_words(result)[0])

    def compare_decoding(self):
        want = self.known["tokens"] if self.known else self.decode()[0]
        for device in (("--device", "cuda"), ("--device", "cuda", "--experts", "cpu")):
            got, why = self.decode(*device)
            if want is not None and got != want:
                self.wrong.append(f"{' '.join(device)}: 64 tokens that are decoded differ {why}")

    def run(self, with_bf16):
        want, why = self.logits(self.tokens, "f32")
        if want is None:
            return self.folder.name, False, []
        whole = self.compare("f32", want, "--device", "cuda")
        self.compare("f32", want, "--device", "cuda", "--experts", "cpu")
        if self.known:
            got = [token for token, _ in likeliest(whole[2], *whole[:2])] if whole else []
            begin = len(self.known["prompt"]) - 1
            if got[begin:-1] != self.known["tokens"]:
                self.wrong.append("--device cuda: the 64 tokens are not those of transformers")
        for count in (1, 17) if whole else ():
            part, why = self.logits(self.tokens[:count], "f32", "--device", "cuda")
            if part is not None and part[2] != whole[2][:len(part[2])]:
                cpu, _ = self.logits(self.tokens[:count], "f32")
                if cpu and cpu[2] != want[2][:len(cpu[2])]:
                    continue
            if part is None or part[2] != whole[2][:len(part[2])]:
                self.wrong.append(f"--device cuda: rows of {count} tokens have other bytes than among {whole[0]} {why}")
        if self.known or with_bf16:
            self.compare_decoding()
        if with_bf16:
            want, _ = self.logits(self.tokens, "bf16")
            for kv in ("auto", "int8"):
                if want and kv == "auto":
                    self.compare("bf16", want, "--device", "cuda")
                elif want:
                    cpu, _ = self.logits(self.tokens, "bf16", "--kv-dtype", kv)
                    if cpu:
                        self.compare("bf16", cpu, "--device", "cuda", "--kv-dtype", kv)
        return self.folder.name, True, self.wrong


def main():
    tool, golden = sys.argv[1], Path(sys.argv[2])
    folders = sorted(p.parent for p in golden.glob("*/config.json"))
    greedy = json.loads((golden / "greedy.json").read_text())
    if not folders:
        print(f"{golden}: no golden folders")
        return 1

    def judge(numbered):
        number, folder = numbered
        with tempfile.TemporaryDirectory() as work:
            one = Judge(tool, folder, greedy, work)
            return *one.run(number % 5 == 0), sorted(set(one.words))

    with ThreadPoolExecutor(int(sys.argv[3]) if len(sys.argv) > 3 else 8) as pool:
        results = list(pool.map(judge, enumerate(folders)))
    for name, _, wrong, _ in results:
        for words in wrong[:4]:
            print(f"WRONG {name}: {words}")
    ran = [r for r in results if r[1]]
    bad, partly = sum(bool(r[2]) for r in ran), sum(bool(r[3]) for r in ran)
    print(f"models: {len(ran)} of {len(results)} folders run on the CPU and on the device, {partly} of these partly on the CPU, "
          f"{sum(r[0] in greedy for r in ran)} with 64 greedy tokens of transformers, {bad} wrong")
    return 1 if bad or not ran else 0


if __name__ == "__main__":
    sys.exit(main())
