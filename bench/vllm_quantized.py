#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Folders of `moebius quantize` in vLLM's CPU build: it loads them, and generates what we would.

    bench/peer_env.sh PEER
    PEER/run bench/vllm_quantized.py --tool build/release/moebius --model BF16 --tokens val.bin [--count 16] [--loader PYTHON] ["scheme options" ...]

Each scheme is made from the source, opened by vLLM in a process of its own, and continues 32 tokens of the text greedily. `moebius logits` then
reads the whole sequence: a token agrees where it is our best one too, or its logit is within 0.1 of the best (both compute in bf16, and
near ties fall either way). Prints one line per scheme; exit status 1 where a folder does not load, or a token does not agree.
A scheme that `quantize --for vllm` refuses is said and left out. One that vLLM has no kernel for on a CPU (its exception, one of NO_KERNEL,
is printed) counts as left out only where the folder is shown to load: by bench/load_quantized.py in the Python of --loader
(tests/python/make_checkpoints_requirements.txt). Every other failure counts.
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SCHEMES = ["W4A16", "W4A16 --group 32", "W4A16_ASYM", "W8A8", "W4A8", "W4A8 --format int-quantized", "W8A16", "FP8_DYNAMIC", "FP8_BLOCK", "NVFP4A16",
           "MXFP4A16", "W4A16 --method search"]
# Whole sentences of vLLM for a scheme that no kernel of this machine takes.
NO_KERNEL = ("Failed to find a kernel that can implement", "No compressed-tensors compatible scheme was found", "Unsupported FusedMoe scheme",
             "MoE backend supports the deployment configuration", "Unsupported FP8 MoE backend: NONE",
             "Forced NVFP4 kernel")


def generate(folder, ids, count):
    """In a process of its own: the tokens behind `ids`, as a line of JSON."""
    os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", VLLM_LOGGING_LEVEL="ERROR", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
    from vllm import LLM, SamplingParams
    llm = LLM(model=folder, dtype="bfloat16", enforce_eager=True, max_model_len=128, max_num_seqs=1, max_num_batched_tokens=128, seed=0)
    made = llm.generate([{"prompt_token_ids": ids}], SamplingParams(max_tokens=count, min_tokens=count, temperature=0, ignore_eos=True), use_tqdm=False)
    print("\nTOKENS " + json.dumps(list(made[0].outputs[0].token_ids)), flush=True)


def asked(folder, ids, count):
    """Tokens, or the exceptions that say why there are none, the first one first."""
    run = subprocess.run([sys.executable, __file__, "--generate", str(folder), "--ids", json.dumps(ids), "--count", str(count)],
                         capture_output=True, text=True)
    for line in run.stdout.splitlines():
        if line.startswith("TOKENS "):
            return json.loads(line[7:]), []
    said = re.findall(r"(?:^|\s)((?:[\w.]+\.)?\w*(?:Error|Exception): .*)$", run.stdout + "\n" + run.stderr, re.MULTILINE)
    return None, list(dict.fromkeys(said)) or [(run.stderr or run.stdout)[-400:]]


def loads(args, scheme):
    """Whether the folder of a scheme loads in compressed-tensors and transformers, and what was said."""
    if not args.loader:
        return False, "not shown to load: no --loader"
    run = subprocess.run([args.loader, Path(__file__).parent / "load_quantized.py", "--tool", args.tool, "--model", args.model, "--tokens", args.tokens, scheme],
                         capture_output=True, text=True)
    said = [line for line in run.stdout.splitlines() if line.startswith(("OK", "FAIL"))]
    return run.returncode == 0 and len(said) == 1, said[-1] if said else run.stderr[-200:]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--tool")
    ap.add_argument("--model")
    ap.add_argument("--tokens", help="16-bit tokens")
    ap.add_argument("--count", type=int, default=16)
    ap.add_argument("--loader", help="Python with llmcompressor, for schemes that vLLM has no kernel for")
    ap.add_argument("--generate", help=argparse.SUPPRESS)
    ap.add_argument("--ids", help=argparse.SUPPRESS)
    ap.add_argument("schemes", nargs="*", default=SCHEMES)
    args = ap.parse_args()
    if args.generate:
        generate(args.generate, json.loads(args.ids), args.count)
        return 0
    if not (args.tool and args.model and args.tokens):
        ap.error("--tool, --model and --tokens are needed")
    import numpy
    from safetensors.numpy import load_file
    ids = numpy.fromfile(args.tokens, dtype="<u2", count=32).tolist()
    failed = 0
    for scheme in args.schemes:
        work = Path(tempfile.mkdtemp(prefix="vllm_quantized_"))
        made = subprocess.run([args.tool, "quantize", args.model, work / "q", "-q", "--for", "vllm", "--scheme", *scheme.split()],
                              capture_output=True, text=True)
        if made.returncode:
            print(f"--   {scheme}: refused: {made.stderr.strip()[-200:]}", flush=True)
            shutil.rmtree(work)
            continue
        tokens, why = asked(work / "q", ids, args.count)
        if tokens is None:
            known = any(w in why[0] for w in NO_KERNEL)
            loaded, proof = loads(args, scheme) if known else (False, "no word of a missing kernel")
            failed += not loaded
            print(f"{'--  ' if loaded else 'FAIL'} {scheme}: vLLM does not run it: {why[0][:300]} ({proof})", flush=True)
        else:
            every = ids + tokens
            subprocess.run([args.tool, "logits", work / "q", "-q", "--tokens", ",".join(map(str, every[:-1])), "--out", work / "l"], check=True)
            logits = load_file(work / "l")["logits"][len(ids) - 1:]
            near = [float(row.max() - row[t]) for row, t in zip(logits, tokens)]
            same = sum(d == 0 for d in near)
            failed += any(d > 0.1 for d in near)
            print(f"{'FAIL' if any(d > 0.1 for d in near) else 'OK  '} {scheme}: {same} of {len(tokens)} tokens are our best, "
                  f"the others within {max(near):.3f} of its logit", flush=True)
        shutil.rmtree(work)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
