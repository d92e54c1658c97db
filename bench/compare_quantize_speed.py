#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Speed of `moebius quantize` against llmcompressor's `oneshot` on the same folder: CPU seconds and wall time of both.

    bench/make_synthetic_moe.py FOLDER --bf16 --layers 2
    compare_quantize_speed.py --tool build/release/moebius FOLDER [--method rtn|gptq] [--scheme W4A16] [--tokens 4096] [--threads 2]

CPU seconds are what a shared machine can compare: of ours those of the whole process, start and end with it; of llmcompressor's
`oneshot` and the saving, without Python's start and without loading the model. GPTQ: random tokens in windows of 512, the same for
both. Prints one JSON object. Needs tests/python/make_checkpoints_requirements.txt.
"""
import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", CUDA_VISIBLE_DEVICES="", TQDM_DISABLE="1")
CONTEXT = 512


def ours(args, windows, work):
    words = [args.tool, "quantize", args.folder, work / "ours", "--scheme", args.scheme, "--method", args.method, "--threads",
             str(args.threads), "-q", "--json"]
    if windows:
        (work / "windows.jsonl").write_text("".join(json.dumps({"input_ids": w}) + "\n" for w in windows))
        words += ["--calib", work / "windows.jsonl", "--calib-ctx", str(CONTEXT)]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    run = subprocess.run([str(w) for w in words], capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(run.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = json.loads(run.stdout)
    return {"cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, "wall": time.time() - start,
            "bytes": said["bytes_in"], "memory": said["memory"], "memory_peak": said["memory_peak"]}


def theirs(args, windows, work):
    import torch
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.utils import load_context
    from tokenizers import Tokenizer, models
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
    torch.set_num_threads(args.threads)
    with load_context():
        model = AutoModelForCausalLM.from_pretrained(args.folder, dtype=torch.bfloat16)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")), unk_token="a", pad_token="a")
    kind = GPTQModifier if windows else QuantizationModifier
    more = {}
    if windows:
        data = Dataset.from_list([{"input_ids": w, "attention_mask": [1] * len(w)} for w in windows])
        more = dict(dataset=data, num_calibration_samples=len(windows), max_seq_length=CONTEXT)
    start = time.process_time(), time.time()
    oneshot(model=model, tokenizer=tokenizer, recipe=kind(targets="Linear", scheme=args.scheme, ignore=["lm_head", "re:.*mlp.gate$"]), **more)
    model.save_pretrained(work / "theirs", save_compressed=True)
    return {"cpu": time.process_time() - start[0], "wall": time.time() - start[1],
            "memory_peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--tool", required=True)
    ap.add_argument("--method", default="rtn", choices=["rtn", "gptq"])
    ap.add_argument("--scheme", default="W4A16")
    ap.add_argument("--tokens", type=int, default=4096)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("folder")
    args = ap.parse_args()
    vocab = json.loads((Path(args.folder) / "config.json").read_text())["vocab_size"]
    draw = random.Random(1)
    windows = [[draw.randrange(vocab) for _ in range(CONTEXT)] for _ in range(args.tokens // CONTEXT)] if args.method == "gptq" else []
    work = Path(tempfile.mkdtemp(prefix="compare_quantize_speed_"))
    try:
        mine, other = ours(args, windows, work), theirs(args, windows, work)
    finally:
        shutil.rmtree(work)
    print(json.dumps({"method": args.method, "scheme": args.scheme, "tokens": len(windows) * CONTEXT, "threads": args.threads, "moebius": mine,
                      "llmcompressor": other, "times_cpu": other["cpu"] / mine["cpu"], "times_wall": other["wall"] / mine["wall"]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
