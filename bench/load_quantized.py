#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Folders of `moebius quantize` in compressed-tensors and transformers: they load, and their logits are ours.

    load_quantized.py --tool build/release/moebius --model BF16 --tokens val.bin [scheme ...]

Each scheme is made from the source, opened by transformers (one Linear per expert, weights decoded by compressed-tensors) and by
`moebius logits --dtype f32`, on the same 64 tokens. Prints one line per scheme; exit status 1 where one does not load, or the largest
difference is above its bound. Integers without quantized rows: 2e-5 of the largest logit. Others: 0.1, which only says that the same
weights were loaded: rows have other scales in compressed-tensors (one for all rows of an expert), and NVFP4 and MX weights it decodes to
bf16, so these run there in bf16.
Needs tests/python/make_checkpoints_requirements.txt.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", CUDA_VISIBLE_DEVICES="", TQDM_DISABLE="1")
INTEGERS = ["W4A16", "W4A16_ASYM", "W8A16", "W3A16", "W4A16 --method search", "W4A16 --group 32"]
OTHERS = ["W8A8", "W4A8", "W4A8 --format int-quantized", "W4AFP8", "FP8_DYNAMIC", "FP8_BLOCK", "NVFP4A16", "MXFP4A16", "MXFP8A16", "MXFP4", "MXFP8"]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--tool", required=True)
    ap.add_argument("--model", required=True)
    ap.add_argument("--tokens", required=True, help="16-bit tokens")
    ap.add_argument("schemes", nargs="*", default=INTEGERS + OTHERS)
    args = ap.parse_args()
    import torch
    from llmcompressor.utils import load_context
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM
    data = Path(args.tokens).read_bytes()[:128]
    ids = [int.from_bytes(data[i:i + 2], "little") for i in range(0, len(data), 2)]
    failed = 0
    for scheme in args.schemes:
        work = Path(tempfile.mkdtemp(prefix="load_quantized_"))
        subprocess.run([args.tool, "quantize", args.model, work / "q", "-q", "--scheme", *scheme.split()], check=True)
        subprocess.run([args.tool, "logits", work / "q", "-q", "--dtype", "f32", "--tokens", ",".join(map(str, ids)), "--out", work / "l"], check=True)
        ours = load_file(work / "l")["logits"]
        bound = 2e-5 if re.match(r"W\dA16", scheme) else 0.1
        dtype = torch.bfloat16 if re.match("NVFP4|MXFP", scheme) else torch.float32
        try:
            with load_context(), torch.no_grad():
                model = AutoModelForCausalLM.from_pretrained(work / "q", dtype=dtype)
                theirs = model(torch.tensor([ids])).logits[0].float()
            worst = ((ours - theirs).abs().max() / theirs.abs().max()).item()
            same = (ours.argmax(-1) == theirs.argmax(-1)).sum().item()
            said = f"largest difference {worst:.1e} of the largest logit (at most {bound:g}), {same} of {len(ids)} best tokens the same"
        except Exception as e:  # whatever the libraries throw is their answer
            worst, said = float("nan"), f"does not load: {type(e).__name__}: {str(e)[:300]}"
        failed += not worst <= bound
        print(f"{'OK  ' if worst <= bound else 'FAIL'} {scheme}: {said}", flush=True)
        shutil.rmtree(work)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
