#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare `moebius quantize` with llmcompressor, tensor by tensor and byte by byte.

    compare_quantize.py --tool build/release/moebius [--model BF16_FOLDER] [--write] [case ...]
    compare_quantize.py --tool build/release/moebius --calibrated [--as-shipped] [--model BF16_FOLDER]

Without --model: the tiny sources of build/data/golden (and, from them, a folder in f16, one in f32, and one with groups of
zeros and with -0); --write also writes build/data/golden/quantize.json, a hash per case, for unit/quantize/quantize_golden_test.cpp.
--calibrated: FP8 and NVFP4, whose input scales come from a calibration: weights equal, scales within 1 % (or by how much they are
not), both from 24 windows of 64 random tokens; with --write these become build/data/golden/calibration.jsonl, and llmcompressor's scales
of the tiny sources build/data/golden/input_scales.json. llmcompressor loses its causal mask in calibration (causal_llmcompressor.py); it is
kept here, unless --as-shipped.
With --model: every scheme on that folder. Needs make_checkpoints_requirements.txt; prints one line per case.
"""
import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import causal_llmcompressor

os.environ.update(LLM_COMPRESSOR_LOG_DISABLED="true", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", CUDA_VISIBLE_DEVICES="")
HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parent / "golden"
NAMES = {"torch.int32": "I32", "torch.int64": "I64", "torch.bfloat16": "BF16", "torch.float16": "F16", "torch.float32": "F32",
         "torch.int8": "I8", "torch.uint8": "U8", "torch.float8_e4m3fn": "F8_E4M3"}

# scheme, options of the tool, llmcompressor's weights (bits, group, symmetric) or None for the preset, its format
SCHEMES = [
    ("W4A16", {}, None), ("W4A16_ASYM", {}, None), ("W8A16", {}, None), ("W2A16", {}, None), ("W3A16", {}, None),
    ("W5A16", {}, None), ("W6A16", {}, None), ("W7A16", {}, None), ("W4A16", {"group": 32}, (4, 32, True)),
    ("W4A16", {"group": 64}, (4, 64, True)), ("W4A16", {"group": 32, "symmetric": False}, (4, 32, False)),
    ("W4A16", {"group": -1}, (4, None, True)), ("W8A16", {"group": -1, "symmetric": False}, (8, None, False)),
    ("W3A16", {"group": 32, "symmetric": False}, (3, 32, False)), ("W4A8", {}, (4, 128, True, "pack-quantized")),
    ("W4A8", {"format": "int-quantized"}, None), ("W4A8", {"group": 32}, (4, 32, True, "pack-quantized")),
    ("W4A8", {"group": 32, "symmetric": False, "format": "int-quantized"}, (4, 32, False, "int-quantized")),
    ("W8A8", {}, None), ("W4AFP8", {}, None), ("FP8_DYNAMIC", {}, None), ("FP8_BLOCK", {}, None), ("NVFP4A16", {}, None),
    ("MXFP4A16", {}, None), ("MXFP8A16", {}, None), ("MXFP4", {}, None), ("MXFP8", {}, None),
]
# Tiny sources have 64 to 200 inputs: only these schemes fit all of them.
TINY = [s for s in SCHEMES if s[1].get("group", 128 if s[0][0] == "W" and s[0] not in ("W8A8",) else 0) in (0, -1, 32)]
FEW = [s for s in TINY if (s[0], s[1].get("group", 0)) in
       {("W4A16", 32), ("W8A8", 0), ("FP8_BLOCK", 0), ("NVFP4A16", 0), ("MXFP4", 0), ("MXFP8A16", 0)}]
SOURCES = {"qwen3moe-dense": TINY, "deepseekv3-dense": FEW, "qwen2moe-dense": FEW, "gptoss-dense": FEW,
           "granitemoe-dense": [s for s in FEW if s[0] in ("FP8_BLOCK", "MXFP4", "W8A8")]}
VARIANTS = ["f16", "f32", "zeros"]


def scheme_of(name, weights):
    from compressed_tensors.quantization import preset_name_to_scheme
    from make_checkpoints_table import a8, scheme, w
    if weights is None:
        return preset_name_to_scheme(name, ["Linear"])
    bits, group, symmetric, *fmt = weights
    return scheme(w(bits, group, symmetric), a8() if fmt else None, fmt[0] if fmt else None)


def llmcompressor(source, target, scheme, dtype):
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.utils import load_context
    from make_checkpoints import dummy_tokenizer
    from make_checkpoints_table import IGNORE
    from transformers import AutoModelForCausalLM
    with load_context():
        model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
    start = time.process_time()
    oneshot(model=model, tokenizer=dummy_tokenizer(), recipe=QuantizationModifier(config_groups={"group_0": scheme}, ignore=IGNORE))
    model.save_pretrained(target, save_compressed=True)
    return time.process_time() - start


def calibration_rows(vocab):
    """The rows of make_checkpoints.make_oneshot."""
    import torch
    from make_checkpoints import LENGTH, SAMPLES
    return torch.randint(3, vocab, (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(11)).tolist()


def compare_calibrated(args, source, scheme, work):
    """A line on stdout: names, weights, and the largest difference of an input scale. llmcompressor's scales, or None where weights differ."""
    import torch
    from compressed_tensors.quantization import preset_name_to_scheme
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.utils import load_context
    from make_checkpoints import LENGTH, SAMPLES, dummy_tokenizer
    from make_checkpoints_table import IGNORE
    from transformers import AutoModelForCausalLM
    for folder in (work / "ours", work / "theirs"):
        shutil.rmtree(folder, ignore_errors=True)
    rows = calibration_rows(json.loads((Path(source) / "config.json").read_text())["vocab_size"])
    (work / "rows.jsonl").write_text("".join(json.dumps({"input_ids": r}) + "\n" for r in rows))
    with load_context():
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    data = Dataset.from_list([{"input_ids": r, "attention_mask": [1] * LENGTH} for r in rows])
    oneshot(model=model, tokenizer=dummy_tokenizer(), dataset=data, num_calibration_samples=SAMPLES, max_seq_length=LENGTH,
            recipe=QuantizationModifier(config_groups={"group_0": preset_name_to_scheme(scheme, ["Linear"])}, ignore=IGNORE))
    model.save_pretrained(work / "theirs", save_compressed=True)
    moebius(args.tool, source, work / "ours", scheme, {"method": "rtn", "calib": work / "rows.jsonl", "calib-ctx": LENGTH, "calib-experts": "all"})
    a, b = tensors(work / "ours"), tensors(work / "theirs")
    names = sorted(set(a) & set(b))
    scales = [n for n in names if n.endswith((".input_scale", ".input_global_scale"))]
    bad = sorted(set(a) ^ set(b)) + [n for n in names if n not in scales and digest(a[n]) != digest(b[n])]
    off = sorted(((a[n].float() / b[n].float() - 1).abs().max().item(), n) for n in scales)
    beyond = [n for d, n in off if d > 0.01]
    print(f"{'FAIL' if bad else 'OK  '} {Path(source).name} {scheme}: {len(b)} tensors, {len(bad)} differ; {len(scales)} input scales, "
          f"{len(beyond)} off by more than 1 %, the worst by {100 * off[-1][0]:.2f} %", *bad[:3], flush=True)
    return None if bad else {n: b[n].float().item() for n in scales}


def moebius(tool, source, target, scheme, options):
    words = [tool, "quantize", source, target, "--scheme", scheme, "-q", "--json"]
    for key, value in options.items():
        words += ["--sym" if value else "--asym"] if key == "symmetric" else [f"--{key}", str(value)]
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())


def tensors(folder):
    from safetensors import safe_open
    found = {}
    for f in sorted(Path(folder).glob("model*.safetensors")):
        with safe_open(f, "pt") as s:
            found.update({k: s.get_tensor(k) for k in s.keys()})
    return found


def digest(tensor):
    import torch
    shape = ",".join(str(d) for d in tensor.shape)
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(f"{NAMES[str(tensor.dtype)]}[{shape}]".encode() + data).hexdigest()[:16]


def make_variant(source, kind, target):
    """A copy of a folder in another type, or with zeros: a whole row, a whole matrix, and -0."""
    import torch
    from safetensors.torch import save_file
    shutil.copytree(source, target)
    weights = tensors(source)
    dtype = {"f16": torch.float16, "f32": torch.float32}.get(kind, torch.bfloat16)
    weights = {k: v.to(dtype) for k, v in weights.items()}
    if kind == "zeros":
        for k, v in weights.items():
            if v.ndim == 2 and "proj" in k:
                v[1] = 0
                v[2, :32] = 0
                v[3, ::3] = -0.0
        weights[next(k for k in sorted(weights) if "k_proj.weight" in k)].zero_()
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((target / "config.json").read_text())
    config["dtype"] = {"f16": "float16", "f32": "float32"}.get(kind, "bfloat16")
    (target / "config.json").write_text(json.dumps(config, indent=2))


def compare(args, source, scheme, options, weights, dtype, work):
    """One case: a line on stdout; the hashes of llmcompressor's tensors, or None where they differ."""
    label = " ".join([Path(source).name, scheme] + [f"{k}={v}" for k, v in options.items()])
    ours, theirs = work / "ours", work / "theirs"
    for folder in (ours, theirs):
        shutil.rmtree(folder, ignore_errors=True)
    try:
        seconds = llmcompressor(source, theirs, scheme_of(scheme, weights), dtype)
        moebius(args.tool, source, ours, scheme, options)
    except Exception as e:
        print(f"FAIL {label}: {type(e).__name__}: {str(e)[:200]}", flush=True)
        return None
    a, b = tensors(ours), tensors(theirs)
    bad = sorted(set(a) ^ set(b)) + [k for k in sorted(set(a) & set(b)) if digest(a[k]) != digest(b[k])]
    print(f"{'FAIL' if bad else 'OK  '} {label}: {len(b)} tensors, {len(bad)} differ ({seconds:.1f} cpu-s there)", *bad[:3], flush=True)
    return None if bad else {k: digest(v) for k, v in sorted(b.items())}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--tool", required=True)
    ap.add_argument("--model", default="")
    ap.add_argument("--write", action="store_true")
    ap.add_argument("--calibrated", action="store_true")
    ap.add_argument("--as-shipped", action="store_true")
    ap.add_argument("names", nargs="*", help="only cases whose line holds one of these words")
    args = ap.parse_args()
    import torch
    work = Path(tempfile.mkdtemp(prefix="compare_quantize_"))
    if args.calibrated:
        if not args.as_shipped:
            causal_llmcompressor.keep()
        if args.write:
            (GOLDEN / "calibration.jsonl").write_text("".join(json.dumps({"input_ids": r}) + "\n" for r in calibration_rows(32)))
        sources = [args.model] if args.model else [str(GOLDEN / n) for n in ("olmoe-dense", "glm4moe-dense", "qwen3moe-dense")]
        cases = [{"source": Path(source).name, "scheme": scheme, "scales": compare_calibrated(args, source, scheme, work)}
                 for source in sources for scheme in ("FP8", "NVFP4")]
        shutil.rmtree(work)
        if args.write and not args.model and not args.as_shipped:
            lines = ",\n".join(json.dumps(c) for c in cases)
            (GOLDEN / "input_scales.json").write_text(f'{{"llmcompressor": "0.14.0.1, with its causal mask", "cases": [\n{lines}\n]}}\n')
        return 0 if all(c["scales"] for c in cases) else 1
    cases, failed = [], 0
    chosen = [(args.model, s, torch.bfloat16) for s in SCHEMES] if args.model else \
        [(str(GOLDEN / name), s, torch.bfloat16) for name, schemes in SOURCES.items() for s in schemes]
    if not args.model:
        for kind in VARIANTS:
            make_variant(GOLDEN / "qwen3moe-dense", kind, work / kind)
            dtype = {"f16": torch.float16, "f32": torch.float32}.get(kind, torch.bfloat16)
            chosen += [(str(work / kind), s, dtype) for s in FEW]
    for source, (scheme, options, weights), dtype in chosen:
        label = " ".join([Path(source).name, scheme, *map(str, options.values())])
        if args.names and not any(n in label for n in args.names):
            continue
        hashes = compare(args, source, scheme, options, weights, dtype, work)
        failed += hashes is None
        if hashes is not None and Path(source).parent == GOLDEN:
            lines = "".join(f"{name} {digest}\n" for name, digest in sorted(hashes.items()))
            cases.append({"source": Path(source).name, "scheme": scheme, **options, "tensors": len(hashes),
                          "sha256": hashlib.sha256(lines.encode()).hexdigest()})
    if args.write and not failed:
        lines = ",\n".join(json.dumps(c) for c in cases)
        (GOLDEN / "quantize.json").write_text(f'{{"llmcompressor": "0.14.0.1", "cases": [\n{lines}\n]}}\n')
    shutil.rmtree(work)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    sys.exit(main())
