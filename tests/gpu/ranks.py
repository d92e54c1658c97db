#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks that share one GPU and spread experts (--ep), against one process on it.

    ranks.py TOOL GOLDEN FOLDER      what is wrong, then a summary; exit status 1 if something is

GOLDEN: golden folders of most schemes and kinds of layers, on 2, 3 and 4 ranks, some with stages (--pp 2 --ep 2) and with experts on the CPUs: logits of
70 tokens have the bytes of one process. FOLDER: layers of real sizes (tests/gpu/random_model.py), where tensor cores run, with --ep 2 and
--gpu-memory for each: logits of prompts from 1 to 1,100 rows (which cross in pieces), and tokens that are decoded, also with copies of experts that move. Too little memory is refused with both numbers.
Ranks are threads of the process; where mpirun and the program's plugin for it are here, processes too.
"""
import json
import random
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from golden_blocks import last_words, read_tensors, run
from models import vocabulary

CUDA = ("--device", "cuda")
SPLITS = (("--pp", "2"), ("--ep", "2"), ("--ep", "3"), ("--ep", "4"), ("--pp", "2", "--ep", "2"), ("--ep", "2", "--experts", "cpu"))
SMALL = ("qwen3moe-w4a8-g32-pack qwen3moe-w4a8-g128-pack qwen3moe-fp8-block qwen3moe-fp8-dynamic qwen3moe-nvfp4 qwen3moe-nvfp4a16 qwen3moe-mxfp4 "
         "qwen3moe-mxfp4a16 qwen3moe-mxfp8 qwen3moe-w4a16-g32 qwen3moe-w4a16-g128 qwen3moe-w8a8-dynamic qwen3moe-dense mixtral-w4a16-actorder-group "
         "mixtral-dense deepseekv3-w4a8-g32 deepseekv3-dense qwen2moe-w4a16-g32 gemma4-fp8-dynamic gptoss-w8a8 gptoss-mxfp4-native longcatflash-dense "
         "llama4-fp8-dynamic granitemoeshared-w8a8 kimilinear-w4a16-g32").split()


def reason(result):
    """The program's own words, not its launcher's."""
    return ([line for line in result.stderr.splitlines() if line.startswith("moebius:")] or last_words(result))[-1]


class Judge:
    def __init__(self, tool):
        self.tool, self.wrong, self.checks = tool, [], 0

    def logits(self, folder, tokens, dtype, *device, launch=()):
        with tempfile.TemporaryDirectory() as work:
            out = Path(work) / "out.safetensors"
            words = (self.tool, "logits", folder, "--tokens", ",".join(map(str, tokens)), "--out", out, "--dtype", dtype, "--threads", 2, *device)
            result = run(*launch, *words)
            if result.returncode != 0:
                return None, reason(result)
            return read_tensors(out)["logits"][2], ""

    def equal(self, name, want, got, why=""):
        self.checks += 1
        if want is None or got is None or want != got:
            self.wrong.append(f"{name}: {why or 'other bytes than one process'}")

    def golden(self, folder):
        if not folder.is_dir():
            self.wrong.append(f"{folder}: is not there")
            return
        source = random.Random(folder.name)
        tokens = [source.randrange(vocabulary(folder)) for _ in range(70)]
        for dtype in ("f32", "bf16"):
            want, why = self.logits(folder, tokens, dtype, *CUDA)
            beside, _ = self.logits(folder, tokens, dtype, *CUDA, "--experts", "cpu")
            for split in SPLITS:
                got, words = self.logits(folder, tokens, dtype, *CUDA, *split)
                if "expected at least one each" in words:  # fewer experts than ranks
                    continue
                if "stages" in words and "--pp" in split:  # one layer is all it has
                    continue
                self.equal(f"{folder.name} {dtype} {' '.join(split)}", beside if "cpu" in split else want, got, why or words)

    def sizes(self, folder):
        source = random.Random(1)
        tokens = [source.randrange(vocabulary(folder)) for _ in range(1100)]
        ways = json.loads(run(self.tool, "explain", folder, *CUDA, "--ranks", 2, "--json").stdout)["forecast"]
        memory = {way["options"]: way["bytes"] / 2**30 for way in ways}["--device cuda --ep 2"]  # of the fullest rank
        split = (*CUDA, "--ep", "2", "--gpu-memory", f"{memory + 0.001:.4f}")
        ways = [("threads", ())]
        plugins = list(Path(self.tool).parent.glob("libmoebius_comm_*.so"))
        if shutil.which("mpirun") and plugins:
            own = ("--allow-run-as-root", "--oversubscribe") if "Open MPI" in run("mpirun", "--version").stdout else ()
            ways.append(("processes", ("mpirun", *own, "-n", "2")))
        else:
            print("ranks: processes skipped, no mpirun or no plugin for it on this machine")
        for count in (1, 7, 63, 64, 300, 1100):
            want, why = self.logits(folder, tokens[:count], "bf16", *CUDA)
            for name, launch in ways:
                got, words = self.logits(folder, tokens[:count], "bf16", *split, launch=launch)
                self.equal(f"--ep 2 by {name}, {count} tokens", want, got, why or words)

        def decoded(*device, launch=(), count=64):
            result = run(*launch, self.tool, "run", folder, "--tokens", ",".join(map(str, tokens[:100])), "-n", count, "--temp", 0, "--ignore-eos", "--speculate",
                         "off", "--dtype", "bf16", "--json", "-q", *device)
            return (json.loads(result.stdout)["tokens"], "") if result.returncode == 0 else (None, reason(result))

        want, why = decoded(*CUDA)
        for name, launch in ways:
            got, words = decoded(*split, launch=launch)
            self.equal(f"--ep 2 by {name}, 64 tokens decoded", want, got, why or words)
        # Copies of busy experts, which change places.
        want, why = decoded(*CUDA, count=400)
        got, words = decoded(*CUDA, "--ep", "2", "--spare", "16", count=400)
        self.equal("--ep 2 --spare 16, 400 tokens decoded", want, got, why or words)
        result = run(self.tool, "run", folder, "--tokens", "1", "-n", 1, *CUDA, "--ep", "2", "--gpu-memory", f"{memory - 0.02:.4f}")
        self.checks += 1
        if "rank 0 of 2 needs" not in result.stderr or "may be used (--gpu-memory)" not in result.stderr:
            self.wrong.append(f"too little memory: {last_words(result)[0]}")


def main():
    tool, golden, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    judge = Judge(tool)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(judge.golden, [golden / name for name in SMALL]))
    judge.sizes(folder)
    for words in judge.wrong:
        print(f"WRONG {words}")
    print(f"ranks: {judge.checks} checks of ranks that spread experts on one GPU, {len(judge.wrong)} wrong")
    return 1 if judge.wrong or judge.checks == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
