#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The table of docs/quantize.md: every scheme by every method on one model; size, KL, perplexity.

    quantize_table.py --tool build/release/moebius --model BF16 --eval val.bin --text BOOK.txt ... [--windows 8] [--rows ROW ...]

A row is a scheme with its method and options ("W4A16 gptq", "W4A16 --group 32 gptq", "NVFP4 search"). Methods with --calib in
their name, GPTQ, and schemes with static input scales read 8,192 tokens of the texts (--calib-tokens) in windows of 512. Prints rows
as they come.
"""
import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

INTEGERS = ["W8A16", "W7A16", "W6A16", "W5A16", "W4A16", "W4A16_ASYM", "W4A16 --group 32", "W3A16", "W2A16", "W4A8", "W8A8", "W4AFP8"]
FLOATS = ["FP8_DYNAMIC", "FP8_BLOCK", "FP8", "NVFP4A16", "NVFP4", "MXFP4A16", "MXFP8A16", "MXFP4", "MXFP8"]
ROWS = [f"{s} {m}" for s in INTEGERS for m in ("rtn", "search", "search --calib", "gptq")] + \
       [f"{s} {m}" for s in FLOATS for m in ("rtn", "search", "search --calib")]


def said(words):
    run = subprocess.run([str(w) for w in words], capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(run.stderr)
    return json.loads(run.stdout)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--tool", required=True)
    ap.add_argument("--model", required=True)
    ap.add_argument("--eval", required=True)
    ap.add_argument("--text", nargs="+", required=True)
    ap.add_argument("--windows", type=int, default=8)
    ap.add_argument("--calib-tokens", type=int, default=8192)
    ap.add_argument("--rows", nargs="+", default=ROWS)
    args = ap.parse_args()
    calib = [w for t in args.text for w in ("--calib", t)] + ["--calib-ctx", "512", "--calib-tokens", args.calib_tokens]
    print("| scheme, method | MiB | KL, mean | KL, p99 | perplexity | same best token | same experts |\n|---|---|---|---|---|---|---|")
    for row in args.rows:
        with_text = row.endswith("--calib")
        *scheme, method = row.removesuffix(" --calib").split()
        read = with_text or method == "gptq" or scheme[0] in ("FP8", "NVFP4")
        work = Path(tempfile.mkdtemp(prefix="quantize_table_"))
        try:
            made = said([args.tool, "quantize", args.model, work / "q", "-q", "--json", "--scheme", *scheme, "--method", method, *(calib if read else [])])
            lost = said([args.tool, "eval", work / "q", "--base", args.model, "--tokens-file", args.eval, "--windows", args.windows, "-q", "--json"])
        finally:
            shutil.rmtree(work)
        print(f"| {row} | {sum(f['bytes'] for f in made['files']) / 2**20:.2f} | {lost['kl']['mean']:.5f} | {lost['kl']['p99']:.4f} | {lost['perplexity']:.3f} | "
              f"{100 * lost['top1']:.1f} % | {100 * lost['routing']:.1f} % |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
