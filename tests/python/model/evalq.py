#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Perplexity over val.bin of Hugging Face folders, quantized (compressed-tensors) or not, on the CPU in fp32.

    evalq.py --data data [--windows N] [--weights-only] folder [folder ...]      (the first is the one the others are compared with)

The experts are loaded as one Linear per matrix (llm-compressor's load_context), because transformers alone dequantizes
experts into 3-D tensors and then quantizes no activations for them. Weights: as stored, dequantized. Activations:
compressed-tensors' own quantize-dequantize at every quantized Linear, unless --weights-only.
Windows: consecutive, --ctx inputs each, targets one token further, no overlap, no BOS; the tail that fills no window is left out.
"""
import argparse, contextlib, io, json, math, os, sys, time
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
from pathlib import Path
import torch
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import train as T


def load(folder, weights_only):
    from transformers import AutoModelForCausalLM
    from llmcompressor.utils import load_context
    quantized = "quantization_config" in json.load(open(Path(folder) / "config.json"))
    with load_context():
        m = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    n = 0
    if quantized:
        m.hf_quantizer.compressor.decompress_model(m)
        for mod in m.modules():
            if getattr(mod, "quantization_scheme", None) is not None:
                assert "weight" in mod._parameters and mod.weight.dim() == 2, type(mod)
                mod.weight.data = mod.weight.data.float()
                mod.quantization_enabled = not weights_only
                n += 1
    return m.eval(), n


@torch.no_grad()
def losses(m, ids, ctx, windows, per):
    x, y = T.windows(ids, ctx)
    if windows:
        x, y = x[:windows], y[:windows]
    out, probs = [], []
    for i in range(0, len(x), per):
        lg = m(input_ids=x[i: i + per]).logits.float().flatten(0, 1)
        out.append(torch.nn.functional.cross_entropy(lg, y[i: i + per].flatten(), reduction="none"))
        probs.append(lg.log_softmax(-1).half())
    return torch.cat(out), torch.cat(probs)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--data", default="data"); ap.add_argument("--ctx", type=int, default=512)
    ap.add_argument("--windows", type=int, default=0); ap.add_argument("--per", type=int, default=8)
    ap.add_argument("--weights-only", action="store_true"); ap.add_argument("folders", nargs="+")
    a = ap.parse_args()
    val = T.read(Path(a.data) / "val.bin")
    base = None
    print(f"{'folder':34} {'MiB':>7} {'layers':>6} {'loss':>8} {'ppl':>9} {'d loss':>9} {'+-':>7} {'KL':>9} {'top1':>6} {'s':>4}", flush=True)
    for f in a.folders:
        t = time.time()
        with contextlib.redirect_stderr(io.StringIO()):
            m, n = load(f, a.weights_only)
        l, p = losses(m, val, a.ctx, a.windows, a.per)
        size = sum(x.stat().st_size for x in Path(f).glob("*.safetensors")) / 2**20
        extra = ""
        if base is not None:                                     # paired with the first folder, token by token
            d = l - base[0]
            kl = sum((u.float().exp() * (u.float() - v.float())).sum().item() for u, v in zip(base[1].split(4096), p.split(4096))) / len(l)
            top = (base[1].argmax(-1) == p.argmax(-1)).float().mean().item()
            extra = f"{d.mean().item():9.5f} {d.std().item() / math.sqrt(len(d)):7.5f} {kl:9.6f} {top:6.4f}"
        else:
            base, extra = (l, p), f"{'-':>9} {'-':>7} {'-':>9} {'-':>6}"
        print(f"{Path(f).name:34} {size:7.2f} {n:6d} {l.mean().item():8.5f} {math.exp(l.mean().item()):9.4f} {extra} {time.time() - t:4.0f}", flush=True)


if __name__ == "__main__":
    main()
