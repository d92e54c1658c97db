#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GPTQ of `moebius quantize` against llmcompressor's: KL to the source, both from the same calibration windows.

    compare_gptq.py --tool build/release/moebius --model BF16 --text BOOK.txt ... --eval val.bin [--seeds 0,1,2] [case ...]

Every case (W4A16 g128 and g32, W4A8, W3A16) and seed: the same 128 windows of 512 tokens, chosen by the seed, go to both; the KL
of both folders is measured by `moebius eval` on the first windows of the held-out tokens. llmcompressor calibrates without a causal
mask (tests/python/causal_llmcompressor.py); it gets its mask back, unless --as-shipped. Prints one JSON object per line, and a table.
Needs tests/python/make_checkpoints_requirements.txt.
"""
import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "python"))
import causal_llmcompressor  # noqa: E402

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", CUDA_VISIBLE_DEVICES="")
CONTEXT = 512
# name, the tool's options, llmcompressor's weights (bits, group), int8 rows
CASES = [("W4A16-g128", ["--scheme", "W4A16"], (4, 128), False), ("W4A16-g32", ["--scheme", "W4A16", "--group", "32"], (4, 32), False),
         ("W4A8-g128", ["--scheme", "W4A8"], (4, 128), True), ("W3A16-g128", ["--scheme", "W3A16"], (3, 128), False)]


def windows_of(model, texts, count, seed):
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(Path(model) / "tokenizer.json"))
    ids = [i for t in texts for i in tokenizer.encode(Path(t).read_text(encoding="utf-8", errors="replace"), add_special_tokens=False).ids]
    starts = random.Random(seed).sample(range(len(ids) // CONTEXT), count)
    return [ids[s * CONTEXT:(s + 1) * CONTEXT] for s in sorted(starts)]


def theirs(model, target, windows, weights, int8_rows):
    import torch
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.utils import load_context
    from transformers import AutoModelForCausalLM, AutoTokenizer
    bits, group = weights
    rows = QuantizationArgs(num_bits=8, type="int", symmetric=True, strategy="token", dynamic=True) if int8_rows else None
    scheme = QuantizationScheme(targets=["Linear"], input_activations=rows, weights=QuantizationArgs(
        num_bits=bits, type="int", symmetric=True, strategy="group", group_size=group))
    with load_context():
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    data = Dataset.from_list([{"input_ids": w, "attention_mask": [1] * len(w)} for w in windows])
    start = time.process_time(), time.time()
    oneshot(model=loaded, tokenizer=AutoTokenizer.from_pretrained(model), dataset=data, num_calibration_samples=len(windows),
            max_seq_length=CONTEXT, recipe=GPTQModifier(config_groups={"group_0": scheme}, ignore=["lm_head", "re:.*mlp.gate$"]))
    loaded.save_pretrained(target, save_compressed=True)
    shutil.copy(Path(model) / "tokenizer.json", target)
    return time.process_time() - start[0], time.time() - start[1]


def ours(tool, model, target, windows, words, work):
    calib = work / "windows.jsonl"
    calib.write_text("".join(json.dumps({"input_ids": w}) + "\n" for w in windows))
    run = subprocess.run([tool, "quantize", model, target, *words, "--method", "gptq", "--calib", calib, "--calib-ctx", str(CONTEXT),
                          "--calib-tokens", str(len(windows) * CONTEXT), "-q", "--json"], capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(run.stderr)
    return json.loads(run.stdout)["seconds"]


def kl(tool, folder, model, tokens, windows):
    run = subprocess.run([tool, "eval", folder, "--base", model, "--tokens-file", tokens, "--windows", str(windows), "-q", "--json"],
                         capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(run.stderr)
    said = json.loads(run.stdout)
    return said["kl"]["mean"], said["perplexity"]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--tool", required=True)
    ap.add_argument("--model", required=True)
    ap.add_argument("--text", nargs="+", required=True)
    ap.add_argument("--eval", required=True)
    ap.add_argument("--eval-windows", type=int, default=32)
    ap.add_argument("--windows", type=int, default=128)
    ap.add_argument("--seeds", default="0,1,2")
    ap.add_argument("--keep", default="", help="a folder for llmcompressor's folders, which are read again where they are there")
    ap.add_argument("--case", action="append", default=[])
    ap.add_argument("--as-shipped", action="store_true")
    args = ap.parse_args()
    if not args.as_shipped:
        causal_llmcompressor.keep()
    found = {}
    work = Path(tempfile.mkdtemp(prefix="compare_gptq_"))
    for seed in (int(s) for s in args.seeds.split(",")):
        windows = windows_of(args.model, args.text, args.windows, seed)
        for name, words, weights, rows in CASES:
            if args.case and name not in args.case:
                continue
            a, b = work / "ours", Path(args.keep or work) / f"theirs-{name}-{seed}"
            shutil.rmtree(a, ignore_errors=True)
            cpu, wall = theirs(args.model, b, windows, weights, rows) if not b.exists() else (None, None)
            seconds = ours(args.tool, args.model, a, windows, words, work)
            mine, other = kl(args.tool, a, args.model, args.eval, args.eval_windows), kl(args.tool, b, args.model, args.eval, args.eval_windows)
            found.setdefault(name, []).append((mine[0], other[0]))
            print(json.dumps({"case": name, "seed": seed, "kl": mine[0], "kl_llmcompressor": other[0], "perplexity": mine[1],
                              "perplexity_llmcompressor": other[1], "seconds": seconds, "seconds_llmcompressor": wall,
                              "cpu_seconds_llmcompressor": cpu}), flush=True)
    print("| case | KL | llmcompressor's | ratio |\n|---|---|---|---|")
    for name, pairs in found.items():
        mine, other = (statistics.mean(p[i] for p in pairs) for i in (0, 1))
        print(f"| {name} | {mine:.5f} | {other:.5f} | {mine / other:.2f} |")
    shutil.rmtree(work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
