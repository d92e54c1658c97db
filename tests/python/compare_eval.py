#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`moebius eval` against the same figures from transformers: loss, KL divergence with its tail, best tokens.

    compare_eval.py --tool build/release/moebius --model BF16 --tokens val.bin [--windows 2] [--scheme W4A16]

Makes a folder of the scheme (integers without quantized rows), runs it and its base in f32 in transformers, and asks the tool for the
same windows. Prints one JSON object; exit status 1 where a loss or the mean KL differs by more than 1e-4 of itself, or a best token does.
Needs make_checkpoints_requirements.txt.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", CUDA_VISIBLE_DEVICES="", TQDM_DISABLE="1")
CONTEXT = 512


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--tool", required=True)
    ap.add_argument("--model", required=True)
    ap.add_argument("--tokens", required=True, help="16-bit tokens")
    ap.add_argument("--windows", type=int, default=2)
    ap.add_argument("--scheme", default="W4A16")
    args = ap.parse_args()
    import torch
    from llmcompressor.utils import load_context
    from transformers import AutoModelForCausalLM
    data = Path(args.tokens).read_bytes()[:2 * (args.windows * CONTEXT + 1)]
    ids = torch.tensor([int.from_bytes(data[i:i + 2], "little") for i in range(0, len(data), 2)])
    work = Path(tempfile.mkdtemp(prefix="compare_eval_"))
    subprocess.run([args.tool, "quantize", args.model, work / "q", "-q", "--scheme", args.scheme], check=True)
    said = json.loads(subprocess.run([args.tool, "eval", work / "q", "--base", args.model, "--tokens-file", args.tokens, "--windows", str(args.windows),
                                      "--dtype", "f32", "-q", "--json"], check=True, capture_output=True, text=True).stdout)

    def log_probabilities(folder):
        with load_context(), torch.no_grad():
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
            return torch.cat([model(w[None]).logits[0].double().log_softmax(-1) for w in ids[:-1].split(CONTEXT)])

    p, q = log_probabilities(args.model), log_probabilities(work / "q")
    shutil.rmtree(work)
    kl = (p.exp() * (p - q)).sum(-1)
    pairs = {"base_loss": (said["base_loss"], -p.gather(1, ids[1:, None]).mean().item()),
             "loss": (said["loss"], -q.gather(1, ids[1:, None]).mean().item()),
             "kl": (said["kl"]["mean"], kl.mean().item())}
    tail = {"kl_max": (said["kl"]["max"], kl.max().item())}
    same = (round(said["top1"] * said["tokens"]), (p.argmax(-1) == q.argmax(-1)).sum().item())
    ok = said["tokens"] == len(kl) and same[0] == same[1] and all(abs(a - b) <= 1e-4 * abs(b) for a, b in pairs.values())
    print(json.dumps({"scheme": args.scheme, "tokens": len(kl), **pairs, **tail, "top1": same, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
