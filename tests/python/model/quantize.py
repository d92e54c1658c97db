#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make quantized variants of the bf16 folder with llm-compressor.

    quantize.py --hf hf --out quant [--data data] [name ...]        (no name: all of them)

Every Linear is quantized except lm_head and the routers (mlp.gate). *-rtn: rounding to nearest. *-gptq: GPTQ with
windows of the training text. Writes one folder per name and prints one line for each.
Needs llmcompressor, which brings numpy, torch and transformers: pip install llmcompressor.
"""
import argparse, json, os, shutil, sys, time, traceback
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
from pathlib import Path
import numpy as np
import torch
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme, preset_name_to_scheme


def w(bits, group=None, sym=True, **k):
    how = {"strategy": "channel"} if group is None else {"strategy": "group", "group_size": group}
    return QuantizationArgs(num_bits=bits, type="int", symmetric=sym, dynamic=False, **how, **k)


def a8():
    return QuantizationArgs(num_bits=8, type="int", strategy="token", symmetric=True, dynamic=True)


def scheme(weights, acts=None, fmt=None):
    return QuantizationScheme(targets=["Linear"], weights=weights, input_activations=acts, **({"format": fmt} if fmt else {}))


def preset(n):
    return preset_name_to_scheme(n, ["Linear"])


# name: (scheme, method, needs calibration)
VARIANTS = {
    "w4a8-g128-rtn": (lambda: scheme(w(4, 128), a8(), "pack-quantized"), "rtn", False),
    "w4a8-ch-rtn": (lambda: scheme(w(4), a8(), "pack-quantized"), "rtn", False),
    "w4a8-g128-mse": (lambda: scheme(w(4, 128, observer="memoryless_mse"), a8(), "pack-quantized"), "rtn", False),
    "w4a8-ch-mse": (lambda: scheme(w(4, observer="memoryless_mse"), a8(), "pack-quantized"), "rtn", False),
    "w4a8-g128-gptq": (lambda: scheme(w(4, 128), a8(), "pack-quantized"), "gptq", True),
    "w4a8-ch-gptq": (lambda: scheme(w(4), a8(), "pack-quantized"), "gptq", True),
    "w4a8-g32-rtn": (lambda: scheme(w(4, 32), a8(), "pack-quantized"), "rtn", False),
    "w4a16-g128-rtn": (lambda: scheme(w(4, 128)), "rtn", False),
    "w4a16-g128-gptq": (lambda: scheme(w(4, 128)), "gptq", True),
    "w8a8-rtn": (lambda: preset("W8A8"), "rtn", False),
    "fp8-dynamic": (lambda: preset("FP8_DYNAMIC"), "rtn", False),
    "fp8-block": (lambda: preset("FP8_BLOCK"), "rtn", False),
    "nvfp4": (lambda: preset("NVFP4"), "rtn", True),
    "nvfp4a16": (lambda: preset("NVFP4A16"), "rtn", False),
    "mxfp4": (lambda: preset("MXFP4"), "rtn", False),
    "mxfp4a16": (lambda: preset("MXFP4A16"), "rtn", False),
    "w4afp8-g128-rtn": (lambda: preset("W4AFP8"), "rtn", False),
}
IGNORE = ["lm_head", r"re:.*mlp\.gate$"]


def build(name, a):
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from llmcompressor import oneshot
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.utils import load_context
    make, method, calibrate = VARIANTS[name]
    out = Path(a.out) / name
    shutil.rmtree(out, ignore_errors=True)
    with load_context():                                   # one Linear per expert matrix, so that they can be quantized
        model = AutoModelForCausalLM.from_pretrained(a.hf, dtype=torch.bfloat16)
    tok = AutoTokenizer.from_pretrained(a.hf)
    cls, extra = (GPTQModifier, {"dampening_frac": a.damp}) if method == "gptq" else (QuantizationModifier, {})
    recipe = cls(config_groups={"group_0": make()}, ignore=IGNORE, **extra)
    if calibrate:
        ids = np.fromfile(Path(a.data) / "train.bin", dtype="<u2").astype(np.int64)
        rng = np.random.default_rng(5)
        n, ln = a.calibration, a.length
        ds = Dataset.from_list([{"input_ids": ids[i: i + ln].tolist(), "attention_mask": [1] * ln} for i in rng.integers(0, len(ids) - ln, n)])
        oneshot(model=model, tokenizer=tok, dataset=ds, recipe=recipe, num_calibration_samples=n, max_seq_length=ln)
    else:
        oneshot(model=model, tokenizer=tok, recipe=recipe)
    model.save_pretrained(out, save_compressed=True)
    for f in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"):
        if (Path(a.hf) / f).exists():
            shutil.copy(Path(a.hf) / f, out / f)
    q = json.load(open(out / "config.json"))["quantization_config"]
    c = json.load(open(Path(a.hf) / "config.json"))        # the bf16 folder's own words (rope_theta, ...), which older readers need
    c["quantization_config"] = q
    json.dump(c, open(out / "config.json", "w"), indent=1)
    return out, q["format"]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--hf", default="hf"); ap.add_argument("--out", default="quant"); ap.add_argument("--data", default="data")
    ap.add_argument("--calibration", type=int, default=128); ap.add_argument("--length", type=int, default=512)
    ap.add_argument("--damp", type=float, default=0.01)
    ap.add_argument("names", nargs="*")
    a = ap.parse_args()
    for name in a.names or VARIANTS:
        t = time.time()
        try:
            out, fmt = build(name, a)
            size = (out / "model.safetensors").stat().st_size
            print(f"OK   {name:18} {fmt:18} model.safetensors {size / 2**20:6.2f} MiB  {time.time() - t:.0f} s", flush=True)
        except Exception as e:
            print(f"FAIL {name:18} {type(e).__name__}: {str(e)[:300]}", flush=True)
            traceback.print_exc()


if __name__ == "__main__":
    main()
