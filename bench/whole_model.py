#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A whole model of real size on this machine, as one row of a Markdown table.

    bench/whole_model.py FOLDER [--threads N] [--header] [any option of make_qwen3_30b.py]

Makes the folder with bench/make_qwen3_30b.py unless it is there, then loads it twice: `moebius run` with a prompt of 512 tokens
(loading from disk, peak memory, time to first token) and `moebius bench model` (prefill and decode, medians). Before the first
load the files are dropped from the page cache. MOEBIUS_TOOL: the program, default build/release/moebius.
MOEBIUS_CPU=neon,dotprod,fp16 measures a smaller class of CPUs on the same machine.
The whole model needs 20 GB of free memory and a machine on which nothing else runs. `--layers 2` tries it out in seconds.
"""
import argparse
import json
import os
import random
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROMPT = 512
COLUMNS = ["CPU", "threads", "loaded", "peak memory", f"prefill {PROMPT}", f"first token after {PROMPT}",
           "decode", "decode, share of read speed"]


def tool():
    return Path(os.environ.get("MOEBIUS_TOOL", ROOT / "build/release/moebius"))


def answer(*arguments):
    run = subprocess.run([str(tool()), *map(str, arguments)], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(run.stdout)


def drop_from_page_cache(folder):
    for path in folder.glob("*.safetensors"):
        with open(path, "rb") as file:
            os.fsync(file.fileno())  # pages that are not yet written would stay
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(folder, threads, seconds):
    """What `run` says of one prompt, and what `bench model` says."""
    vocab = json.loads((folder / "config.json").read_text())["vocab_size"]
    prompt = random.Random(1).choices(range(min(vocab, 100000)), k=PROMPT)
    drop_from_page_cache(folder)
    first = answer("run", folder, "--tokens", ",".join(map(str, prompt)), "-n", 1, "-c", PROMPT + 1, "--json", "--quiet", *threads)
    steady = answer("bench", "model", folder, "--prompts", PROMPT, "--batches", 1, "--seconds", seconds, "--json", *threads)
    return first, steady


def machine(steady):
    """The core, what it was narrowed to, and how much of the model there was, where not all."""
    narrowed = os.environ.get("MOEBIUS_CPU")
    return steady["cpu"] + (f" with {narrowed.replace(',', ', ')}" if narrowed else "") + (f", {steady['layers']} layers" if steady["layers"] != 48 else "")


def row(first, steady):
    return [machine(steady), steady["threads"], f"{first['load_seconds']:.1f} s", f"{first['peak_memory_bytes'] / 1e9:.1f} GB",
            f"{steady[f'pp{PROMPT}_tokens_per_s']:.1f} tokens/s", f"{first['prompt_seconds']:.2f} s",
            f"{steady['tg_b1_tokens_per_s']:.1f} tokens/s",
            f"{steady['tg_b1_percent_of_roof']:.0f} % of {steady['roof_gbs']:.0f} GB/s"]


def line(cells):
    return "| " + " | ".join(map(str, cells)) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, help="default: what the tool chooses")
    parser.add_argument("--seconds", default="10", help="time spent on each of prefill and decode")
    parser.add_argument("--header", action="store_true", help="print the head of the table too")
    a, shape = parser.parse_known_args()
    subprocess.run([sys.executable, str(ROOT / "bench/make_qwen3_30b.py"), str(a.folder), *shape], check=True, stdout=sys.stderr)
    first, steady = measure(a.folder, ["--threads", a.threads] if a.threads else [], a.seconds)
    if a.header:
        print(line(COLUMNS) + "\n" + "|---" * len(COLUMNS) + "|")
    print(line(row(first, steady)))


if __name__ == "__main__":
    main()
