#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Perplexity of the bundled model in several schemes, as a Markdown table.

    perplexity_table.py FOLDER [FOLDER ...]      folders made by tests/python/model/quantize.py; the bundled W4A8 model comes first

Each folder is run twice on models/eval/val.bin (its 130 whole windows of 512 tokens): with the kernels the oracle chooses and, for the
first --windows windows (0: all), with the kernel --reference, whose loss over the same windows stands beside that of the fast
kernels. Few windows show wrong arithmetic; where activations are rounded to FP8 another order of summation moves single codes,
and only all windows average that out. `reference` needs 4 s per window; a kernel that `moebius explain` calls exact gives
its bytes faster. Folders of integer weights alone are run once more with --activations int8.
"""
import argparse
import json
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Loss of transformers 5.17 + compressed-tensors 0.19 in f32 on the same tokens (models/moebius-tiny-w4a8/README.md).
OTHERS = {"bf16": 3.72627, "fp8-dynamic": 3.72619, "fp8-block": 3.72645, "w8a8-rtn": 3.72728, "nvfp4a16": 3.72750, "mxfp4a16": 3.72832,
          "w4a16-g128-rtn": 3.72894, "moebius-tiny-w4a8": 3.72903, "w4afp8-g128-rtn": 3.72944, "w4a8-g128-rtn": 3.73025, "nvfp4": 3.73073, "mxfp4": 3.73584}


WHOLE_WINDOWS = "130"  # what the losses above are of; the command alone would count the rest of the text too


def loss(folder, *extra):
    command = [str(ROOT / "build/release/moebius"), "perplexity", str(folder), "--tokens-file", str(ROOT / "models/eval/val.bin"), "--json", *extra]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["loss"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--windows", default="4")
    parser.add_argument("--reference", default="reference")
    a = parser.parse_args()
    print("| folder | loss | perplexity | loss by transformers + compressed-tensors | fast kernels against our reference |")
    print("|---|---|---|---|---|")
    rows = [(ROOT / "models/moebius-tiny-w4a8", [])]
    for folder in a.folders:
        rows.append((folder, []))
        if re.match(r"w\da16", folder.name):
            rows.append((folder, ["--activations", "int8"]))
    for folder, more in rows:
        whole = loss(folder, "--dtype", a.dtype, "--windows", WHOLE_WINDOWS, *more)
        some = ["--dtype", a.dtype, "--windows", a.windows if a.windows != "0" else WHOLE_WINDOWS, *more]
        fast, reference = loss(folder, *some), loss(folder, *some, "--kernel", a.reference)
        other = None if more else OTHERS.get(folder.name)
        print(f"| {' '.join([folder.name, *more])} | {whole:.5f} | {2.718281828459045 ** whole:.3f} | {other if other else ''} | {100 * (2.718281828459045 ** (fast - reference) - 1):+.4f} % of perplexity, {a.windows if a.windows != '0' else 'all'} windows |", flush=True)


if __name__ == "__main__":
    main()
